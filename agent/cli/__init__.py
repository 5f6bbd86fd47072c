"""The command `faultline`: one module for each subcommand, imported only when it is called, so that it starts fast."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any, NoReturn

import click

from agent import __version__

COMMANDS = {
    "run": "Run the agent on this node.",
    "explain": "Explain logs that you hand in.",
    "doctor": "Can this node's sources be read, and what is missing?",
    "gpus": "This node's GPUs: what the driver and NVML say of each.",
    "release": "Say that a fault is over, so that its mark falls.",
    "rules": "List, show and check the rules.",
    "xid": "What an Xid code means and what it leads to.",
    "config": "The settings in force, each explained.",
    "demo": "The whole agent on a made-up node, in seconds.",
    "completion": "Print the shell completion script.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"agent.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if near:
                raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None
            raise


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  faultline explain pod.log                     one container's log
  dmesg | faultline explain - pod.log           the same, held against the node's kernel log
  kubectl logs POD --previous | faultline explain
  faultline xid 79
  faultline run --mode observe
""",
)
@click.version_option(__version__, prog_name="faultline")
def group() -> None:
    """Why did this SGLang backend fail, and is a GPU of this node to blame?"""


def main(argv: list[str] | None = None) -> Any:
    """The console entry. Exit status: 0 nothing wrong found, 1 something found, 2 unusable input or call."""
    wanted = os.environ.get("NO_COLOR", "") == "" and os.environ.get("TERM") != "dumb"
    plain: dict[str, Any] = {} if wanted else {"color": False}
    try:
        return group.main(args=argv, prog_name="faultline", **plain)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            _reader_gone()
        _unwritable(error)
    except BaseExceptionGroup as errors:
        if errors.subgroup(BrokenPipeError) is not None:
            _reader_gone()
        raise


def _reader_gone() -> NoReturn:
    """The reader (head, a closed pager) went away: not our failure."""
    # What is still buffered cannot be written; the interpreter would complain of that at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


def _unwritable(error: OSError) -> NoReturn:
    if error.errno != errno.ENOSPC:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    click.echo(f"faultline: the answer cannot be written: {error.strerror}", err=True)
    sys.exit(2)


def colour_wanted() -> bool:
    """True on a terminal whose owner did not ask for plain text (https://no-color.org)."""
    return sys.stdout.isatty() and os.environ.get("NO_COLOR", "") == "" and os.environ.get("TERM") != "dumb"


class Unusable(click.ClickException):
    """The call or its input cannot be used: one line with the cure, exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"faultline: {self.format_message()}", err=True)

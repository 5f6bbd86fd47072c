"""The command `faultline`: one module for each subcommand, imported only when it is called, so that it starts fast."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from agent import __version__

COMMANDS = {
    "run": "Run the agent on this node.",
    "explain": "Explain logs that you hand in.",
    "doctor": "Can this node's sources be read, and what is missing?",
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
    try:
        return group.main(args=argv, prog_name="faultline")
    except BrokenPipeError:
        # The reader (head, a closed pager) went away: not our failure.
        sys.stderr.close()
        sys.exit(141)


class Unusable(click.ClickException):
    """The call or its input cannot be used: one line with the cure, exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"faultline: {self.format_message()}", err=True)

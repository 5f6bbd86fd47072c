"""`faultline completion SHELL`: prints the script that the shell reads."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from agent.cli import group


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    Examples:
      source <(faultline completion bash)
      faultline completion fish > ~/.config/fish/completions/faultline.fish
    """
    made = get_completion_class(shell)
    if made is not None:
        click.echo(made(group, {}, "faultline", "_FAULTLINE_COMPLETE").source())

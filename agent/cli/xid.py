"""`faultline xid CODE`: what a code means, what it leads to, and why."""

from __future__ import annotations

import click
import msgspec

from agent.cli import Unusable
from agent.rulebook import load_rulebook


@click.command("xid")
@click.argument("code", type=click.IntRange(0, 100000))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(code: int, form: str) -> None:
    """What an NVIDIA Xid CODE means, what Faultline does about it, and why.

    \b
    Examples:
      faultline xid 79
      faultline xid 154 --format json
    """
    catalogue = load_rulebook().catalogue
    entry = catalogue.entry(code)
    if entry is None:
        raise Unusable(
            f"Xid {code} is not in the catalogue. Faultline reports such a code and marks nothing for it, unless the "
            "driver itself asks for a reset or reboot (Xid 154)."
        )
    about = catalogue.describe(code)
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(about), indent=2))
        return
    click.echo(click.style(f"Xid {code}: {about.title}", bold=True))
    for name, value in about.rows:
        click.echo(f"  {name:<18}{value}")
    if about.fix:
        click.echo("\nWhat to do")
        for i, step in enumerate(about.fix, 1):
            click.echo(f"  {i}. {step}")

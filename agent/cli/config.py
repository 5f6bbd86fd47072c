"""`faultline config`: the settings in force, each explained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from agent.cli import Unusable
from agent.cli.settings import settings_options


@click.command("config")
@click.option("--format", "form", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@settings_options
def command(file: Path | None, overrides: dict[str, Any], form: str) -> None:
    """Show the settings in force: value, where it comes from, what it means.

    \b
    Examples:
      faultline config
      faultline config --format yaml > faultline.yaml
      FAULTLINE_MODE=taint faultline config --format json
    """
    from agent.config import ConfigError, describe, load_settings

    try:
        loaded = load_settings(file, environ=os.environ, overrides=overrides)
    except ConfigError as error:
        raise Unusable(str(error)) from None
    rows = describe(loaded)
    if form == "json":
        click.echo(msgspec.json.encode([row._asdict() for row in rows]))
    elif form == "yaml":
        import yaml

        click.echo(yaml.safe_dump(msgspec.to_builtins(loaded.settings), sort_keys=False), nl=False)
    else:
        for row in rows:
            told = click.style(row.key, bold=True) + f" = {row.value}"
            click.echo(told + click.style(f"   ({row.origin}; {row.variable}, {row.flag})", fg="cyan"))
            click.echo(f"    {row.description}" + ("" if row.live else " Needs a restart."))

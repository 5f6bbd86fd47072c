"""`faultline doctor`: can this node's sources be read, what is missing, and how to grant it?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from agent.cli import Unusable
from agent.cli.settings import settings_options


@click.command("doctor")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@settings_options
def command(file: Path | None, overrides: dict[str, Any], form: str) -> None:
    """Check what the agent needs: kernel log, logs, state, port, driver, kubelet, and its rights in the cluster.

    \b
    Examples:
      faultline doctor
      kubectl exec -n faultline ds/faultline -- faultline doctor

    Exit status: 0 all there (or with less), 1 something that it cannot do without is missing, 2 unusable settings.
    """
    import asyncio

    from agent.config import ConfigError, load_settings
    from agent.doctor import Check, Probes, as_json, as_text, run_checks, worst
    from agent.doctor_cluster import cluster_checks
    from agent.doctor_gpus import gpu_checks
    from agent.rulebook import load_rulebook

    try:
        settings = load_settings(file, environ=os.environ, overrides=overrides).settings
    except ConfigError as error:
        raise Unusable(str(error)) from None
    folders = [Path(p) for p in settings.rules_dirs]
    checks = run_checks(settings, probes=Probes(load_rules=lambda: len(load_rulebook(folders, thorough=True).rules)))

    async def asked() -> list[Check]:
        return [*await gpu_checks(settings), *await cluster_checks(settings)]

    checks += asyncio.run(asked())
    if form == "json":
        click.echo(as_json(checks))
    else:
        click.echo(as_text(checks, colour=True), nl=False)
    raise SystemExit(1 if worst(checks) == "fail" else 0)

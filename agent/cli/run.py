"""`faultline run`: the agent."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import click

from agent.cli import Unusable
from agent.cli.settings import settings_options


@click.command("run")
@settings_options
def command(file: Path | None, overrides: dict[str, Any]) -> None:
    """Run the agent on this node: follow the kernel log and the containers' logs, explain, report.

    Settings come from the file (--config, or /etc/faultline/config.yaml), then FAULTLINE_* variables, then flags.
    `faultline config` shows them all. SIGHUP, or a change of a rule or settings file, reloads; SIGTERM stops.

    \b
    Examples:
      faultline run
      faultline run --mode observe --kernel-path /dev/kmsg --logs-root /var/log/pods
      faultline run --config faultline.yaml --log-format json
    """
    from agent.app import App
    from agent.config import ConfigError, Settings, load_settings
    from agent.detect.rules import RuleError
    from agent.kube import Login, LoginError, in_cluster, login
    from agent.log import setup_logging
    from agent.report.http import ListenError
    from agent.report.store import StoreInUseError

    def read() -> Settings:
        return load_settings(file, environ=os.environ, overrides=overrides).settings

    def applied(settings: Settings) -> None:
        setup_logging(format=settings.log.format, level=settings.log.level)

    async def way(settings: Settings) -> Login | None:
        """The login to the API server. The user's own kubeconfig is never taken unasked."""
        if not settings.cluster.kubeconfig and not in_cluster():
            return None
        return await login(kubeconfig=settings.cluster.kubeconfig, context=settings.cluster.context)

    async def serve() -> None:
        settings = read()
        applied(settings)
        app = App(settings, reload=read, watch=[file] if file else [], applied=applied, login=await way(settings))
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, app.ask_reload)
        await app.run(stop)

    try:
        asyncio.run(serve())
    except (ConfigError, RuleError, ListenError, LoginError, StoreInUseError) as error:
        raise Unusable(str(error)) from None

"""`faultline demo`: the real agent on a made-up node, in seconds."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from agent.cli import Unusable, colour_wanted


@click.command("demo")
@click.option("--keep", is_flag=True, help="Go on serving the pages until interrupted.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the pages [default: any free one].")
def command(keep: bool, port: int) -> None:
    """Live through a true story on an 8-GPU node: the real agent, real files, no cluster, no GPU.

    One GPU falls off the bus and is still offered to new pods; two pods crash on it; one pod is refused by SGLang for
    its flags; one runs a slow default. It takes some 15 seconds and ends by itself.

    \b
    Examples:
      faultline demo
      faultline demo --keep --port 9753
    """
    with tempfile.TemporaryDirectory(prefix="faultline-demo-") as folder:
        sys.exit(asyncio.run(_demo(Path(folder), keep=keep, port=port)))


async def _demo(root: Path, *, keep: bool, port: int) -> int:
    from agent.app import App
    from agent.demo.story import Story
    from agent.demo.told import settings_for, shortcomings
    from agent.report.events import Report, latest
    from agent.report.http import ListenError
    from agent.report.terminal import changes_table, events_table, table

    colour = colour_wanted()

    def say(text: str) -> None:
        try:
            click.echo(click.style(f"[{time.monotonic() - began:5.1f} s] ", fg="cyan") + text)
        except BrokenPipeError:
            stop.set()  # nobody listens any more

    def tell(report: Report) -> None:
        say(click.style(f"  -> {report.reason.value}", bold=True) + f" {report.regarding}: {report.note}")

    story = Story(root, pause=asyncio.sleep)
    began = time.monotonic()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    interrupted = asyncio.create_task(stop.wait())
    app = App(settings_for(story, root, port=port), sink=tell)
    running = asyncio.create_task(app.run(stop))
    await asyncio.wait([asyncio.create_task(app.started.wait()), running], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        try:
            running.result()
        except ListenError as error:
            raise Unusable(str(error)) from None
    click.echo(
        f"Faultline runs on a made-up node with 8 GPUs. Pages: http://127.0.0.1:{app.port}/ (/metrics, /api/v1)\n"
    )
    before = app.samples()
    telling = asyncio.create_task(story.tell(say))
    await asyncio.wait([telling, interrupted, running], return_when=asyncio.FIRST_COMPLETED)
    if not telling.done() or telling.exception() is not None:
        telling.cancel()
        stop.set()
        await running
        if telling.done():
            telling.result()
        click.echo("interrupted", err=True)
        return 130
    after = app.samples()
    click.echo("\n" + click.style("kubectl get events -A", bold=True) + " would say:\n")
    click.echo(events_table(latest(app.events()), now=time.time(), colour=colour, namespace=True), color=colour)
    click.echo(click.style("The plan", bold=True) + f" (mode {app.mode}, no cluster: shown, not carried out):\n")
    rows = [(p.action.value, p.target, p.value, p.withheld or "-", p.why) for p in app.plans() if p.action != "none"]
    click.echo(table(("ACTION", "TARGET", "VALUE", "WITHHELD", "WHY"), rows))
    click.echo(click.style("Metrics that changed:", bold=True) + "\n")
    counted = {k: v for k, v in after.items() if "_bucket" not in k and "timestamp" not in k}
    click.echo(changes_table({k: v for k, v in before.items() if k in counted}, counted))
    missing = shortcomings(app, story)
    if keep and not missing:
        click.echo(f"Serving http://127.0.0.1:{app.port}/ until interrupted (Ctrl-C).")
        await stop.wait()
    stop.set()
    await running
    for text in missing:
        click.echo(f"faultline demo: the story was not told as it should be: {text}", err=True)
    return 2 if missing else 0

"""`faultline gpus`: the GPUs of this node, by the driver's own files and by NVML, and what speaks against each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import msgspec

from agent.cli import Unusable
from agent.gpus import NodeGpus
from agent.report.gpus import GpuStatus, gpu_statuses, use_of

PROC = "/proc/driver/nvidia"


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    apiVersion: str = "faultline.dev/v1"  # noqa: N815
    kind: str = "Gpus"
    driver: str = ""
    cuda: str = ""
    nvml: str = ""
    """Why NVML tells nothing; empty where it does."""
    unnamed: tuple[str, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()


@click.command("gpus")
@click.option("--proc", default=PROC, show_default=True, help="Directory of the driver's own files.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(proc: str, form: str) -> None:
    """This node's GPUs: address, UUID, model, who uses them, and what speaks against each.

    NVML is asked in a process of its own, for at most 5 seconds: a driver that hangs does not hang this command.
    Exit status: 0 nothing speaks against any, 1 something does, 2 there is no GPU to be seen.

    \b
    Examples:
      faultline gpus
      faultline gpus --format json
    """
    shown = asyncio.run(_look(Path(proc)))
    if not shown.gpus and not shown.unnamed:
        raise Unusable(f"no GPU: {proc} lists none; {shown.nvml or 'NVML tells of none'}")
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2))
    else:
        _print(shown)
    if shown.unnamed or any(gpu.wrong for gpu in shown.gpus):
        raise SystemExit(1)


async def _look(proc: Path) -> Gpus:
    from agent.sources.gpus.driver import DriverSource
    from agent.sources.gpus.inventory import read_gpus
    from agent.sources.gpus.nvml import NvmlSource

    source = NvmlSource()
    try:
        found = await source.read()
    finally:
        await source.close()
    driver = DriverSource(proc).read()
    told = found or NodeGpus(at=0.0)
    return Gpus(
        driver=told.driver or (driver.version if driver is not None else ""),
        cuda=told.cuda,
        nvml=source.error,
        unnamed=told.unnamed,
        gpus=gpu_statuses(read_gpus(proc), told),
    )


def _print(shown: Gpus) -> None:
    about = [f"driver {shown.driver}"] if shown.driver else []
    about += [f"CUDA {shown.cuda}"] if shown.cuda else []
    click.echo(", ".join(about))
    if shown.nvml:
        click.echo(click.style(f"NVML: {shown.nvml}", fg="yellow"))
    for gpu in shown.gpus:
        state = gpu.state
        mark = click.style("wrong", fg="red") if gpu.wrong else click.style("ok   ", fg="green") if state else "?    "
        model = state.model if state is not None else ""
        click.echo(f"{mark}  {gpu.pci}  {gpu.uuid or '-':<40}  {model:<22}  {use_of(state)}".rstrip())
        for line in (*gpu.wrong, *gpu.notes):
            click.echo(f"       {line}")
    for line in shown.unnamed:
        click.echo(click.style("wrong", fg="red") + f"  a GPU whose address is not told: {line}")

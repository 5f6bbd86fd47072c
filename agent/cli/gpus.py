"""`faultline gpus`: the GPUs of this node, by the driver's own files and by NVML, and what speaks against each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import msgspec

from agent.cli import Unusable
from agent.diagnose.gpu_health import findings
from agent.gpus import GpuState, NodeGpus
from agent.model import PciAddress

PROC = "/proc/driver/nvidia"


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One GPU as the JSON shows it. `listed` is the driver's own list, which answers when NVML does not."""

    pci: str
    uuid: str
    listed: bool
    wrong: tuple[str, ...]
    """What speaks against the hardware or its driver."""
    notes: tuple[str, ...]
    """How it is set up, where a program may stumble over that."""
    state: GpuState | None = None
    """None: NVML says nothing of it."""


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    apiVersion: str = "faultline.dev/v1"  # noqa: N815
    kind: str = "Gpus"
    driver: str = ""
    cuda: str = ""
    nvml: str = ""
    """Why NVML tells nothing; empty where it does."""
    unnamed: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()


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
        gpus=merged(read_gpus(proc), told),
    )


def merged(listed: dict[PciAddress, str] | None, told: NodeGpus) -> tuple[Gpu, ...]:
    """Every GPU that the driver lists or NVML tells of, by address. One that only one of them knows is a finding."""
    states = {state.pci: state for state in told.gpus}
    gpus = []
    for pci in sorted((listed or {}).keys() | states.keys()):
        state = states.get(pci)
        found = findings(state) if state is not None else ()
        wrong = [f.says for f in found if f.wrong]
        if state is None and states:
            wrong.append("NVML does not know it")
        if listed is not None and pci not in listed:
            wrong.append("the driver does not list it")
        gpus.append(
            Gpu(
                pci=pci,
                uuid=(state.uuid if state is not None else "") or (listed or {}).get(pci, ""),
                listed=pci in (listed or {}),
                wrong=tuple(wrong),
                notes=tuple(f.says for f in found if not f.wrong),
                state=state,
            )
        )
    return tuple(gpus)


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
        click.echo(f"{mark}  {gpu.pci}  {gpu.uuid or '-':<40}  {model:<22}  {_use(state)}".rstrip())
        for line in (*gpu.wrong, *gpu.notes):
            click.echo(f"       {line}")
    for line in shown.unnamed:
        click.echo(click.style("wrong", fg="red") + f"  a GPU whose address is not told: {line}")


def _use(state: GpuState | None) -> str:
    if state is None:
        return ""
    words = []
    if state.memory_used is not None and state.memory_total:
        words.append(f"{state.memory_used >> 20} of {state.memory_total >> 20} MiB")
    if state.mig:
        words.append(f"MIG, {len(state.mig_instances or ())} instances")
    if state.processes:
        words.append(", ".join(f"{p.name or 'pid'} {p.pid}" for p in state.processes[:8]))
    return "; ".join(words)

"""The node's GPUs as the page, the API and `faultline gpus` show them: NVML's answers beside the driver's own list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.diagnose.gpu_health import findings
from agent.gpus import GpuState, NodeGpus
from agent.model import PciAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """One GPU. `listed`: by the driver's own files, which answer when NVML does not."""

    pci: PciAddress
    uuid: str
    listed: bool
    wrong: tuple[str, ...] = ()
    """What speaks against the hardware or its driver."""
    notes: tuple[str, ...] = ()
    """How it is set up, where a program may stumble over that."""
    state: GpuState | None = None
    """None: NVML says nothing of it."""


def gpu_statuses(listed: Mapping[PciAddress, str] | None, told: NodeGpus) -> tuple[GpuStatus, ...]:
    """Every GPU that the driver lists or NVML tells of, by address. One that only one of them knows is a finding.

    `listed` is UUID by address, None where the driver's list cannot be read.
    """
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
            GpuStatus(
                pci=pci,
                uuid=(state.uuid if state is not None else "") or (listed or {}).get(pci, ""),
                listed=pci in (listed or {}),
                wrong=tuple(wrong),
                notes=tuple(f.says for f in found if not f.wrong),
                state=state,
            )
        )
    return tuple(gpus)


def use_of(state: GpuState | None) -> str:
    """Who uses it, for a person."""
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

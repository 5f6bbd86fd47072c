"""What a GPU's state, as the driver shows it, says against the GPU. Pure; unknown is neither good nor bad.

The meanings are NVML's own; which of them a recovery must wait for is in docs/recovery.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent.gpus import GpuState

RECOVERY_ACTIONS = {
    1: "the driver asks for a GPU reset",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to drain peer-to-peer work",
    4: "the driver asks to drain the GPU and reset it",
    5: "the driver asks to recover the IMEX domain",
}
"""By the value, never by the label: labels were renamed from branch 610 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`wrong`: the hardware or its driver; otherwise how the GPU is set up, which a program may stumble over."""

    says: str
    wrong: bool = True


_ROWS: tuple[tuple[Callable[[GpuState], object], str, bool], ...] = (
    (lambda g: g.reset_required and g.recovery_action is None, "the driver asks for a GPU reset", True),
    (lambda g: g.drain_and_reset and g.recovery_action is None, "the driver asks to drain the GPU and reset it", True),
    (lambda g: g.remap_failed, "a memory row could not be remapped: the card is to be replaced", True),
    (lambda g: g.remap_pending, "a memory row waits to be remapped by a reset", True),
    (lambda g: g.retired_pending, "a memory page waits to be retired by a reboot", True),
    (lambda g: g.channel_repair_pending, "a memory channel waits to be repaired by a reset", True),
    (lambda g: g.tpc_repair_pending, "a TPC waits to be repaired by a reset", True),
    (lambda g: g.unrepairable_memory, "memory that cannot be repaired: the card is to be replaced", True),
    (lambda g: g.sram_threshold_exceeded, "too many SRAM errors: the card is to be replaced", True),
    (lambda g: g.fabric in ("not_started", "in_progress"), "the NVLink fabric is not set up", True),
    (lambda g: g.fabric_status, "the NVLink fabric's set-up failed", True),
    (lambda g: g.compute_mode == "prohibited", "compute mode Prohibited: no program may use it", False),
    (
        lambda g: g.compute_mode in ("exclusive_process", "exclusive_thread"),
        "compute mode Exclusive: one process at a time",
        False,
    ),
    (lambda g: g.mig and g.mig_instances == (), "MIG is on, and there is no instance", False),
    (lambda g: g.vgpu_licensed is False, "a virtual GPU without a licence", False),
)


def findings(gpu: GpuState) -> tuple[Finding, ...]:
    """All that speaks against it, gravest first."""
    return tuple(_findings(gpu))


def _findings(gpu: GpuState) -> Iterator[Finding]:
    if gpu.lost:
        yield Finding(says=f"it does not answer: {gpu.lost}")
    if gpu.recovery_action:
        action = gpu.recovery_action
        yield Finding(says=RECOVERY_ACTIONS.get(action, f"the driver asks for recovery action {action}"))
    for holds, says, wrong in _ROWS:
        if holds(gpu):
            yield Finding(says=says, wrong=wrong)
    slowed = [r for r in gpu.clocks_event_reasons or () if r in SLOWED]
    if slowed:
        yield Finding(says=f"slowed down: {', '.join(slowed)}", wrong=False)


SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def against(gpu: GpuState) -> str:
    """Why it cannot be said to be well; empty where nothing speaks against the hardware."""
    return "; ".join(f.says for f in findings(gpu) if f.wrong)

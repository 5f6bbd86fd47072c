"""Is a fault over? What was seen of the node since it in, an answer with its reason out. Pure; guesses nothing.

Silence proves nothing by itself: what the fault needed (a reset, a reboot, other hardware) must have happened, the
GPU must be there again, and then it must stay quiet for the hold time. What cannot be read is missing, never healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent.detect.catalogue import Proof
from agent.diagnose.gpu_health import against
from agent.gpus import GpuState
from agent.model import Fault, PciAddress, Scope, Severity

FLAPPING_SECONDS = 86400.0
"""A fault of the same GPU that ended within this long before the next one makes the next hold longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """What is known of the node now. Times are epoch seconds."""

    now: float
    boot: str
    """Boot id of the node."""
    booted: float | None = None
    """When the node was booted; None where that is not known."""
    driver_loaded: float | None = None
    """When the driver was last seen to be loaded, by the kernel log."""
    gpus: Mapping[PciAddress, str] | None = None
    """The driver's own list: UUID by address, empty where it does not tell it. None: the list cannot be read."""
    states: tuple[GpuState, ...] = ()
    """What NVML says of each GPU now; empty where it cannot be asked."""
    calm: Mapping[str, float] = field(default_factory=dict)
    """By UUID, since when the driver asks for no recovery action any more, of GPUs for which it had asked (NVML)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """`open`: not over. `waiting`: looks over, held until `until`. `proved`: over. `why` says how, or what lacks."""

    state: Literal["open", "waiting", "proved"]
    why: str
    until: float | None = None


def hold_for(fault: Fault, earlier: Iterable[Fault], *, hold: float, limit: float) -> float:
    """Seconds of quiet asked of this fault's GPU: doubled for each fault of it that ended within a day before."""
    began = fault.first_seen
    again = sum(
        1
        for f in earlier
        if f.cleared is not None
        and f.id != fault.id
        and _same(f, fault)
        and (began is None or 0 <= began - f.cleared <= FLAPPING_SECONDS)
        and f.severity is Severity.FATAL
    )
    return min(hold * 2.0 ** min(again, 20), max(limit, hold))


def recovered(fault: Fault, proofs: Proofs, *, proof: Proof, hold: float) -> Recovery:
    """Whether an open fault is over. `proof` is what its recovery asks for, `hold` the seconds of quiet."""
    pci, uuid = fault.gpu.pci, fault.gpu.uuid
    listed = proofs.gpus.get(pci) if proofs.gpus is not None and pci is not None else None
    moved = bool(uuid) and proofs.gpus is not None and listed != uuid and uuid in proofs.gpus.values()
    if listed and uuid and listed != uuid and not moved:  # the same card in another slot is still the faulted one
        return Recovery(state="proved", why=f"another GPU ({listed}) is at {pci} now: the faulted one was replaced")
    if proof == "service":
        return Recovery(state="open", why="only other hardware, or a person's release, ends this fault")

    state = _state_of(fault, proofs)
    done, since = _happened(fault, proofs, proof, state)
    if since is None:
        return Recovery(state="open", why=done)
    if state is not None and (why := against(state)):
        return Recovery(state="open", why=f"{done}, but by NVML: {why}")
    if fault.scope is Scope.GPU:
        if proofs.gpus is None:
            return Recovery(state="open", why=f"{done}, but the driver's list of GPUs cannot be read")
        if not moved and pci is not None and pci not in proofs.gpus:
            return Recovery(state="open", why=f"{done}, but GPU {pci} has not come back")
        if not moved and uuid and listed != uuid:
            what = f"does not tell the UUID of GPU {pci}" if pci is not None else f"does not list GPU {uuid}"
            return Recovery(state="open", why=f"{done}, but the driver {what}")
    last = fault.last_seen if fault.last_seen is not None else since
    until = max(since, last) + hold
    if proofs.now < until or proofs.now < last:  # a clock that was set back proves nothing
        return Recovery(state="waiting", why=f"{done}; quiet until the hold time has passed", until=until)
    return Recovery(state="proved", why=f"{done}, and nothing was seen of it for {hold:g} s")


def without_probe(end: Recovery, state: GpuState | None, *, holders: Sequence[str]) -> Recovery | None:
    """What holds where a CUDA context is asked for as the last proof and none need or may be tried; None: try one.

    A GPU that a program computes on has a context. One that a container holds without that is not touched.
    """
    if state is None or state.processes is None:
        return Recovery(state="open", why=f"{end.why}, but no CUDA context was tried: NVML does not tell who uses it")
    if state.processes:
        return end
    if holders:
        return Recovery(state="open", why=f"{end.why}, but no CUDA context was tried: {', '.join(holders)} holds it")
    return None


def with_context(end: Recovery, *, works: bool, says: str) -> Recovery:
    """The recovery after a CUDA context was tried; `says` is how that went."""
    return Recovery(state="proved" if works else "open", why=f"{end.why}, {'and' if works else 'but'} {says}")


def _state_of(fault: Fault, proofs: Proofs) -> GpuState | None:
    """The faulted GPU itself: by its UUID wherever it is now, else by its address."""
    pci, uuid = fault.gpu.pci, fault.gpu.uuid
    found = [s for s in proofs.states if s.uuid == uuid] if uuid else [s for s in proofs.states if s.pci == pci]
    return found[0] if fault.scope is Scope.GPU and found else None


def _happened(fault: Fault, proofs: Proofs, proof: Proof, state: GpuState | None) -> tuple[str, float | None]:
    """What was needed and happened, and when; or what is still waited for, and None."""
    rebooted = bool(fault.boot) and bool(proofs.boot) and fault.boot != proofs.boot
    if rebooted:
        return "the node was rebooted", proofs.booted if proofs.booted is not None else proofs.now
    if proof == "reboot":
        return "the node was not rebooted since", None
    loaded, last = proofs.driver_loaded, fault.last_seen
    if proof == "reset" and loaded is not None and last is not None and loaded > last:
        return "the driver was loaded anew", loaded
    # That it asks for nothing is a proof only where it asked before: not every fault makes it ask.
    calm = proofs.calm.get(state.uuid) if state is not None and state.recovery_action == 0 else None
    if proof == "reset" and calm is not None and last is not None and calm > last:
        return "the driver had asked for a recovery action and asks for none now (NVML)", calm
    return "the GPU was not reset since, as far as the driver and the kernel log tell", None


def _same(a: Fault, b: Fault) -> bool:
    if a.scope is not b.scope:
        return False
    if a.scope is not Scope.GPU:
        return True
    return (a.gpu.uuid is not None and a.gpu.uuid == b.gpu.uuid) or (a.gpu.pci is not None and a.gpu.pci == b.gpu.pci)

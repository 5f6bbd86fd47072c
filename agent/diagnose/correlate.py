"""Holds a failure against the ledger of faults: is a GPU of this node to blame, and which? Pure; never guesses.

Only facts may narrow it down: what the container held, an address or UUID in its text, the time. Where more than one
GPU remains, none is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agent.detect.rules import Rule
from agent.model import NO_GPU, Allocation, Confidence, Failure, Fault, GpuRef, Scope, Severity, parse_pci

APPLICATION_SECONDS = 60.0
"""A program's own Xid and its CUDA error are this near to each other at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What the ledger says to one failure. `faults` are those blamed (several: one of them); empty: none fits.

    `sound` is true when the GPUs of the container are known and none of them is faulted. `by` says what tied the
    container to the fault: it `held` the GPU, its text `named` it, or nothing did.
    """

    faults: tuple[Fault, ...] = ()
    gpu: GpuRef = NO_GPU
    confidence: Confidence = Confidence.UNDECIDED
    checked: tuple[str, ...] = ()
    sound: bool = False
    by: Literal["held", "named", ""] = ""

    @property
    def application(self) -> bool:
        """True when the driver's record shows the program's own error."""
        return bool(self.faults) and all(f.severity is Severity.APP for f in self.faults)


def blame(
    failure: Failure,
    rule: Rule,
    *,
    faults: Sequence[Fault],
    held: Allocation | None,
    window: float,
    kernel_read: bool,
) -> Blame:
    """Which faults explain this failure.

    `held` is what the container held when it failed, None where unknown; `window` is how many seconds a kernel record
    may come after the program's error; `kernel_read` says whether this node's kernel log was there to be read.
    """
    checked: list[str] = []
    if not rule.suspects and not rule.xids:
        return Blame()
    if not kernel_read:
        checked.append("kernel log: not given, so no GPU can be named or cleared")
    in_time = [f for f in faults if _in_time(f, failure, window)]
    accusing = [f for f in in_time if f.severity is Severity.FATAL and f.scope in rule.suspects]
    program = [
        f
        for f in in_time
        if f.severity is Severity.APP and set(f.xids) & set(rule.xids) and _near(f, failure, APPLICATION_SECONDS)
    ]
    named = _named_in_text(failure)
    devices = {parent_of(d) for d in held.devices} if held is not None else None
    if kernel_read:
        checked.append(f"kernel log: {_count(accusing)} that would explain this")
    seen = _seen(failure, accusing) if devices is None else None
    listed = seen is not None
    if seen is not None:
        devices = seen
        checked.append("GPUs that its own log lists: " + ", ".join(sorted(seen)))
    elif devices is not None:
        checked.append("GPUs held by the container: " + ", ".join(sorted(devices)))
    else:
        checked.append("GPUs held by the container: not known")

    if accusing:
        found = _of_accusing(accusing, named=named, devices=devices, checked=checked, kernel_read=kernel_read)
        # A list in the container's own log is a tenant's word: it can point, it cannot prove.
        if listed and found.by == "held":
            return replace(found, confidence=Confidence.LIKELY, by="named")
        return found
    if program:
        return _of_program(program, named=named, devices=devices, checked=checked)
    known = devices is not None and all(_comparable(d) for d in devices)
    return Blame(checked=tuple(checked), sound=known and kernel_read)


def _of_accusing(
    accusing: list[Fault], *, named: GpuRef, devices: set[str] | None, checked: list[str], kernel_read: bool
) -> Blame:
    wide = [f for f in accusing if f.scope is not Scope.GPU]
    gpus = [f for f in accusing if f.scope is Scope.GPU]
    comparable = devices is not None and all(_comparable(d) for d in devices)
    if devices is not None:
        hit = [f for f in gpus if f.gpu.uuid in devices or f.gpu.pci in devices]
        if hit:
            sure = Confidence.CERTAIN if len(hit) == 1 else Confidence.LIKELY
            only = hit[0].gpu if len(hit) == 1 else NO_GPU
            return Blame(faults=tuple(hit), gpu=only, confidence=sure, checked=tuple(checked), by="held")
        if comparable:
            # What the kubelet gave out outranks what a tenant's text says.
            gpus = [f for f in gpus if f.gpu.uuid is None]
            if not gpus and not wide:
                checked.append("none of the GPUs that it held has a fault on record")
                return Blame(checked=tuple(checked), sound=kernel_read)
            if gpus:
                checked.append("the UUID of the faulted GPU is not known, so that it cannot be compared with them")
    if named.known:
        hit = [f for f in gpus if _is(f.gpu, named)]
        if hit:
            sure = Confidence.LIKELY if comparable else Confidence.CERTAIN
            return Blame(faults=tuple(hit[:1]), gpu=hit[0].gpu, confidence=sure, checked=tuple(checked), by="named")
        # The text names its GPU, and these are others.
        gpus = [f for f in gpus if not _differ(f.gpu, named)]
        if not gpus and not wide:
            checked.append("the GPU that its text names has no fault on record")
            return Blame(checked=tuple(checked), sound=kernel_read)
    if gpus:
        only = gpus[0].gpu if len(gpus) == 1 else NO_GPU
        if len(gpus) > 1:
            checked.append("several GPUs are faulted; which of them this container held is not known")
        return Blame(faults=tuple(gpus), gpu=only, confidence=Confidence.LIKELY, checked=tuple(checked))
    return Blame(faults=tuple(wide), confidence=Confidence.LIKELY, checked=tuple(checked))


def _of_program(program: list[Fault], *, named: GpuRef, devices: set[str] | None, checked: list[str]) -> Blame:
    if devices is not None:
        program = [f for f in program if f.gpu.uuid is None or f.gpu.uuid in devices] or program
    if named.known:
        program = [f for f in program if _is(f.gpu, named)] or program
    only = program[0].gpu if len(program) == 1 else NO_GPU
    return Blame(faults=tuple(program), gpu=only, confidence=Confidence.LIKELY, checked=tuple(checked))


def _named_in_text(failure: Failure) -> GpuRef:
    for signal in (failure.primary, *failure.others):
        if signal.gpu.known:
            return signal.gpu
    return NO_GPU


def _seen(failure: Failure, accusing: Sequence[Fault]) -> set[str] | None:
    """The GPUs that the container's own log lists, where the list can be taken for all that it had.

    A GPU that is lost is missing in such a list: it clears the others only when it holds as many as the server uses.
    """
    listed = set(failure.facts.get("visible_gpus", "").split())
    if not listed:
        return None
    if any(f.gpu.uuid in listed for f in accusing):
        return listed
    used = failure.facts.get("tp_size", "1")
    return listed if used.isascii() and used.isdigit() and len(listed) >= int(used[:6]) else None


def _comparable(device: str) -> bool:
    """True for an id that says which GPU it is; an index or a MIG id of newer drivers does not."""
    return device.startswith("GPU-") or parse_pci(device) is not None


def parent_of(device: str) -> str:
    """The GPU of an old MIG id, `MIG-GPU-<uuid>/<gi>/<ci>`; any other id as it is."""
    return device.removeprefix("MIG-").partition("/")[0] if device.startswith("MIG-GPU-") else device


def _differ(a: GpuRef, b: GpuRef) -> bool:
    """True when both are known to be two GPUs; what cannot be compared does not differ."""
    return (None not in (a.pci, b.pci) and a.pci != b.pci) or (None not in (a.uuid, b.uuid) and a.uuid != b.uuid)


def _is(a: GpuRef, b: GpuRef) -> bool:
    return (a.pci is not None and a.pci == b.pci) or (a.uuid is not None and a.uuid == b.uuid)


def _in_time(fault: Fault, failure: Failure, window: float) -> bool:
    """True unless the times exclude it: the fault began well after the failure, or was over before it."""
    if failure.last_seen is not None and fault.first_seen is not None:
        if fault.first_seen > failure.last_seen + window:
            return False
    if fault.cleared is not None:
        # `last_seen` is when the latest instance failed: an earlier one may have met the fault, this one did not.
        return bool(fault.cleared) and failure.last_seen is not None and fault.cleared >= failure.last_seen
    return True


def _near(fault: Fault, failure: Failure, seconds: float) -> bool:
    if fault.last_seen is None or fault.first_seen is None or failure.first_seen is None or failure.last_seen is None:
        return True
    return fault.first_seen - seconds <= failure.last_seen and failure.first_seen <= fault.last_seen + seconds


def _count(faults: Sequence[Fault]) -> str:
    return "no fault" if not faults else "1 fault" if len(faults) == 1 else f"{len(faults)} faults"

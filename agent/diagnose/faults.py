"""The ledger of faults: which GPU, fabric or node is known to be faulted, since when, and on what evidence.

One fault for each thing that is broken, however many records it makes: follow-ups go under their cause, and a milder
record never replaces or hides a graver one. Containers' text never enters here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from agent.diagnose.knowledge import About
from agent.model import Component, Evidence, Fault, FaultHint, GpuRef, Scope, Severity, Signal, graver, strongest

T = TypeVar("T")

EVIDENCE_FIRST, EVIDENCE_LAST = 6, 4
FAULT_LIMIT = 4096
"""Faults kept; the oldest that does not accuse goes first. No node has that many GPUs: a broken log might."""

FOLLOW_UP_SECONDS = 300.0
"""An application's Xid this long after a fatal one on the same GPU is its consequence, not a fault of its own."""

_MILD = (Severity.INFO, Severity.CONTEXT, Severity.APP)


class FaultLedger:
    """Folds kernel signals into faults. Pure state: give it signals in the order in which they were read."""

    def __init__(self, about: Callable[[Signal], About], *, boot: str = "") -> None:
        self._about = about
        self._boot = boot
        self._faults: dict[str, Fault] = {}
        self._evicted: list[str] = []

    def restore(self, faults: Iterable[Fault]) -> None:
        self._faults = {f.id: f for f in faults}

    def adopt(self, fault: Fault) -> bool:
        """Takes up a fault found earlier; False when it, or another open fault of the same GPU, is on record."""
        if fault.id in self._faults:
            return False
        if any(f.accuses and f.scope is fault.scope and _same_gpu(f.gpu, fault.gpu) for f in self._faults.values()):
            return False
        self._faults[fault.id] = fault
        return True

    def close(self, fault_id: str, *, at: float, why: str) -> Fault | None:
        """Ends an open fault by other proof than the driver's word; None where there is no such open fault."""
        fault = self._faults.get(fault_id)
        if fault is None or not fault.open:
            return None
        done = replace(fault, cleared=at, over=why)
        self._faults[fault_id] = done
        return done

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(self._faults.values())

    def some(self, ids: Iterable[str | None]) -> list[Fault]:
        """The faults of these ids that are still on record."""
        return [self._faults[i] for i in ids if i is not None and i in self._faults]

    def apply(self, signal: Signal) -> list[Fault]:
        """The faults that this signal opened, changed or cleared; none for a signal that says nothing of the kind."""
        hint = signal.fault
        if hint is None:
            return []
        if hint.clears:
            return self._clear(signal) or [self._already_clear(signal, hint)]
        host = self._host_of(signal, hint)
        fault = self._opened(signal, hint) if host is None else self._joined(host, signal, hint)
        self._faults[fault.id] = fault
        self._bound()
        return [fault]

    def _host_of(self, signal: Signal, hint: FaultHint) -> Fault | None:
        """The open fault that this signal belongs to, or None when it opens one."""
        same = [f for f in self._faults.values() if f.open and f.scope is hint.scope and _same_gpu(f.gpu, signal.gpu)]
        mild = hint.severity in _MILD and not hint.verdict
        grave = [f for f in same if f.severity not in _MILD]
        if not mild:
            if grave:
                return grave[0]
            if not signal.gpu.known and hint.scope is Scope.GPU:
                # A line without an address beside exactly one accused GPU is about that GPU.
                accused = [f for f in self._faults.values() if f.accuses and f.scope is Scope.GPU]
                return accused[0] if len(accused) == 1 else None
            return None
        if grave and (hint.severity is Severity.CONTEXT or _soon_after(grave[0], signal)):
            return grave[0]
        return next((f for f in same if f.severity in _MILD), None)

    def _opened(self, signal: Signal, hint: FaultHint) -> Fault:
        about = self._about(signal)
        where = signal.gpu.pci or signal.gpu.uuid or "unnamed"
        seed = (
            f"{self._boot}|{hint.scope}|{where}|{signal.rule}|{signal.time}|{signal.evidence.line}|{len(self._faults)}"
        )
        return Fault(
            id="fault-" + hashlib.blake2b(seed.encode(), digest_size=6).hexdigest(),
            scope=hint.scope,
            gpu=signal.gpu,
            cause=signal.rule,
            title=about.title,
            severity=hint.severity,
            recovery=hint.recovery,
            component=hint.component if hint.component is not Component.UNDECIDED else about.component,
            action=about.action,
            xids=_codes(signal, hint),
            rules=(signal.rule,),
            signals=signal.count,
            first_seen=signal.time,
            last_seen=signal.time,
            driver_verdict=hint.verdict,
            boot=self._boot,
            pids=() if signal.pid is None else (signal.pid,),
            value=about.value,
            why=about.cause,
            fix=about.fix,
            evidence=(signal.evidence,),
        )

    def _joined(self, fault: Fault, signal: Signal, hint: FaultHint) -> Fault:
        fault = replace(
            fault,
            gpu=_merged(fault.gpu, signal.gpu),
            xids=_union(fault.xids, _codes(signal, hint)),
            rules=_union(fault.rules, (signal.rule,)),
            signals=fault.signals + signal.count,
            first_seen=fault.first_seen if fault.first_seen is not None else signal.time,
            last_seen=signal.time if signal.time is not None else fault.last_seen,
            boot=self._boot or fault.boot,
            pids=_union(fault.pids, () if signal.pid is None else (signal.pid,))[:16],
            evidence=_quoted(fault.evidence, signal.evidence),
        )
        about = self._about(signal)
        if hint.verdict:
            # The driver's own word on what is needed outranks the catalogue; the cause keeps its name.
            return replace(
                fault,
                severity=graver(fault.severity, hint.severity) if fault.driver_verdict else hint.severity,
                recovery=hint.recovery,
                action=about.action,
                driver_verdict=True,
                why=f"{fault.why}; {about.cause}" if about.cause not in fault.why else fault.why,
                fix=_union(about.fix, fault.fix),
            )
        # What only accompanies something tells less than any word about it, information included.
        says_more = hint.severity is not Severity.CONTEXT and (
            fault.severity is Severity.CONTEXT or graver(fault.severity, hint.severity) is not fault.severity
        )
        if says_more or (hint.severity is fault.severity and strongest(fault.action, about.action) is not fault.action):
            return replace(
                fault,
                cause=signal.rule,
                title=about.title,
                severity=hint.severity,
                recovery=hint.recovery,
                component=hint.component,
                action=strongest(fault.action, about.action),
                value=about.value,
                why=about.cause,
                fix=about.fix,
            )
        return fault

    def _clear(self, signal: Signal) -> list[Fault]:
        cleared = []
        for fault in list(self._faults.values()):
            if fault.open and fault.scope is Scope.GPU and fault.severity not in _MILD and fault.gpu.known:
                if _same_gpu(fault.gpu, signal.gpu):
                    done = replace(
                        fault,
                        cleared=signal.time if signal.time is not None else 0.0,
                        evidence=_quoted(fault.evidence, signal.evidence),
                        xids=_union(fault.xids, _codes(signal, signal.fault)),
                    )
                    self._faults[fault.id] = done
                    cleared.append(done)
        return cleared

    def _already_clear(self, signal: Signal, hint: FaultHint) -> Fault:
        """The driver's word that nothing is needed, where nothing was on record: noted, as something that is over."""
        host = next(
            (
                f
                for f in self._faults.values()
                if not f.open
                and f.severity is Severity.INFO
                and f.cause == signal.rule
                and _same_gpu(f.gpu, signal.gpu)
            ),
            None,
        )
        fault = self._opened(signal, hint) if host is None else self._joined(host, signal, hint)
        done = replace(fault, cleared=signal.time if signal.time is not None else 0.0)
        self._faults[done.id] = done
        self._bound()
        return done

    def evicted(self) -> list[str]:
        """Ids of faults that were given up for room since this was last asked."""
        gone, self._evicted = self._evicted, []
        return gone

    def _bound(self) -> None:
        if len(self._faults) <= FAULT_LIMIT:
            return
        expendable = next((f.id for f in self._faults.values() if not f.accuses), next(iter(self._faults)))
        del self._faults[expendable]
        self._evicted.append(expendable)


def _soon_after(fault: Fault, signal: Signal) -> bool:
    if fault.last_seen is None or signal.time is None:
        return True
    return 0 <= signal.time - fault.last_seen <= FOLLOW_UP_SECONDS


def _codes(signal: Signal, hint: FaultHint | None) -> tuple[int, ...]:
    codes = () if signal.xid is None else (signal.xid,)
    return codes if hint is None or hint.caused_by is None else _union((hint.caused_by,), codes)


def _same_gpu(a: GpuRef, b: GpuRef) -> bool:
    if a.pci is not None or b.pci is not None:
        return a.pci == b.pci
    return a.uuid == b.uuid


def _merged(a: GpuRef, b: GpuRef) -> GpuRef:
    return replace(a, pci=a.pci or b.pci, uuid=a.uuid or b.uuid)


def _union(a: tuple[T, ...], b: tuple[T, ...]) -> tuple[T, ...]:
    return a + tuple(x for x in b if x not in a)


def _quoted(evidence: tuple[Evidence, ...], new: Evidence) -> tuple[Evidence, ...]:
    """The first and the last lines: what began it, and what it does now."""
    if len(evidence) < EVIDENCE_FIRST + EVIDENCE_LAST:
        return (*evidence, new)
    return (*evidence[:EVIDENCE_FIRST], *evidence[EVIDENCE_FIRST + 1 :], new)

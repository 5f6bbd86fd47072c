"""What to tell the cluster: changes of faults, verdicts and plans in, event reports out. Pure; sends nothing.

One series for each fault and verdict: a report with the same key is the same event seen again, with a higher count.
An event's text cannot be changed once it was created, so what changes the text (a graver severity, another reason)
changes the key as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from agent.model import (
    Component,
    Confidence,
    ContainerRef,
    Evidence,
    Fault,
    GpuRef,
    Plan,
    Role,
    Scope,
    Severity,
    Verdict,
)
from agent.text import cut, printable

NOTE_BYTES = 1024
"""What the API server takes of a note; it counts bytes although its message says characters."""

_EVIDENCE_BYTES = 240
"""How much of a quoted line goes into a note, so that the cure before it always has room."""


class Reason(StrEnum):
    """Every reason that this agent gives; an API that alerts and runbooks rely on."""

    GPU_FAULT = "GpuFault"
    GPU_FAULT_CLEARED = "GpuFaultCleared"
    GPU_FAULT_STILL_ADVERTISED = "GpuFaultStillAdvertised"
    BACKEND_FAILED_ON_FAULTED_GPU = "BackendFailedOnFaultedGpu"
    BACKEND_VALIDATION_FAILED = "BackendValidationFailed"
    BACKEND_FAILED = "BackendFailed"
    BACKEND_FAILURE_UNDECIDED = "BackendFailureUndecided"
    SLOW_BACKEND_CONFIGURATION = "SlowBackendConfiguration"
    DRIVER_TOO_OLD_FOR_IMAGE = "DriverTooOldForImage"
    NODE_TAINTED = "NodeTainted"
    NODE_CORDONED = "NodeCordoned"
    DEVICE_TAINTED = "DeviceTainted"
    MARK_REMOVED = "MarkRemoved"
    ACTION_WITHHELD = "ActionWithheld"
    SOURCE_BLIND = "SourceBlind"


DEEDS: dict[Reason, str] = {
    Reason.GPU_FAULT: "Detect",
    Reason.GPU_FAULT_CLEARED: "Clear",
    Reason.GPU_FAULT_STILL_ADVERTISED: "Detect",
    Reason.BACKEND_FAILED_ON_FAULTED_GPU: "Explain",
    Reason.BACKEND_VALIDATION_FAILED: "Explain",
    Reason.BACKEND_FAILED: "Explain",
    Reason.BACKEND_FAILURE_UNDECIDED: "Explain",
    Reason.SLOW_BACKEND_CONFIGURATION: "Advise",
    Reason.DRIVER_TOO_OLD_FOR_IMAGE: "Advise",
    Reason.NODE_TAINTED: "Taint",
    Reason.NODE_CORDONED: "Cordon",
    Reason.DEVICE_TAINTED: "Taint",
    Reason.MARK_REMOVED: "Release",
    Reason.ACTION_WITHHELD: "Withhold",
    Reason.SOURCE_BLIND: "Observe",
}
"""What the agent did, for the event's required `action`."""

_NORMAL = frozenset({Reason.GPU_FAULT_CLEARED, Reason.SLOW_BACKEND_CONFIGURATION, Reason.MARK_REMOVED})

_OWNERS = frozenset({Component.CONFIG, Component.MODEL, Component.IMAGE})
"""Whose failures are the service's own: it was refused for what it was given."""

_TOLD = frozenset({Severity.UNKNOWN, Severity.PENDING, Severity.DEGRADED, Severity.FATAL})
"""Severities worth an event. What an application did to itself is told with its verdict, not as a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """The object an event is about. A Node has no namespace here: with one, `kubectl describe node` hides the event."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    field_path: str = ""
    api_version: str = ""
    """Empty: that of the kind (`agent.report.event_body`)."""

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One event to be shown. `key` names its series; times are epoch seconds, None where the input had none."""

    reason: Reason
    type: Literal["Normal", "Warning"]
    regarding: ObjectRef
    note: str
    key: str
    action: str
    related: ObjectRef | None = None
    first_seen: float | None = None
    last_seen: float | None = None
    count: int = 1


def node_ref(node: str, *, uid: str = "") -> ObjectRef:
    return ObjectRef(kind="Node", name=node, uid=uid)


def pod_ref(container: ContainerRef) -> ObjectRef:
    """The pod of a container, with the container's field path as kubelet writes it."""
    return ObjectRef(
        kind="Pod",
        name=container.pod,
        namespace=container.namespace,
        uid=container.uid,
        field_path=f"spec.containers{{{container.container}}}" if container.container else "",
    )


def fault_reports(before: Fault | None, now: Fault, *, node: str) -> list[Report]:
    """What a change of one fault gives to tell: nothing, a new or repeated `GpuFault`, or `GpuFaultCleared`."""
    told = now.severity in _TOLD
    if now.open:
        if not told or (before is not None and before.open and _same_fault(before, now)):
            return []
        return [
            _report(
                Reason.GPU_FAULT,
                node_ref(node),
                _note(
                    f"{_gpu_words(now.gpu, scope=now.scope)}: {now.title}{_xid_words(now.xids)}",
                    now.why,
                    _first_fix(now.fix),
                    _quote(now.evidence),
                ),
                key=f"fault/{now.id}/{now.severity}",
                first_seen=now.first_seen,
                last_seen=now.last_seen,
                count=now.signals,
            )
        ]
    if told and before is not None and before.open:
        return [
            _report(
                Reason.GPU_FAULT_CLEARED,
                node_ref(node),
                _note(
                    f"{_gpu_words(now.gpu, scope=now.scope)}: cleared: {now.title}{_xid_words(now.xids)}",
                    now.over,
                    now.why,
                ),
                key=f"fault/{now.id}/cleared/{now.cleared}",
                first_seen=now.cleared,
                last_seen=now.cleared,
            )
        ]
    return []


def _same_fault(before: Fault, now: Fault) -> bool:
    return (before.signals, before.severity, before.last_seen) == (now.signals, now.severity, now.last_seen)


def still_advertised_report(fault: Fault, *, node: str, why: str, now: float) -> Report:
    """A faulted GPU that is still offered to new pods; `why` says by whom."""
    return _report(
        Reason.GPU_FAULT_STILL_ADVERTISED,
        node_ref(node),
        _note(
            f"{_gpu_words(fault.gpu, scope=fault.scope)} is faulted ({fault.title}{_xid_words(fault.xids)}) "
            f"and is still offered to new pods: {why}",
            "New pods on it will fail",
            _first_fix(fault.fix),
        ),
        key=f"fault/{fault.id}/advertised",
        first_seen=now,
        last_seen=now,
    )


def verdict_reason(verdict: Verdict, *, role: Role = Role.CAUSE) -> Reason:
    """The reason under which a verdict is told; `role` is that of the rule that recognised the failure."""
    if role is Role.ADVICE:
        if verdict.component is Component.DRIVER:
            return Reason.DRIVER_TOO_OLD_FOR_IMAGE
        return Reason.SLOW_BACKEND_CONFIGURATION
    if verdict.confidence is Confidence.UNDECIDED or verdict.component is Component.UNDECIDED:
        return Reason.BACKEND_FAILURE_UNDECIDED
    if verdict.fault is not None:
        return Reason.BACKEND_FAILED_ON_FAULTED_GPU
    if verdict.component in _OWNERS:
        return Reason.BACKEND_VALIDATION_FAILED
    return Reason.BACKEND_FAILED


def verdict_reports(before: Verdict | None, now: Verdict, *, node: str, role: Role = Role.CAUSE) -> list[Report]:
    """What a change of one verdict gives to tell: nothing, or one report on its pod (on the node where it has none)."""
    reason = verdict_reason(now, role=role)
    if before is not None and before.count == now.count and verdict_reason(before, role=role) is reason:
        return []
    on_pod = now.container is not None and now.container.pod != ""
    confidence = "" if now.confidence in (Confidence.CERTAIN, Confidence.UNDECIDED) else f" ({now.confidence.value})"
    return [
        _report(
            reason,
            pod_ref(now.container) if on_pod and now.container is not None else node_ref(node),
            _note(
                now.title,
                now.cause + confidence if now.cause else "",
                now.why if now.why != now.cause else "",
                f"On {_gpu_words(now.gpu)}{_xid_words(now.xids)}" if now.gpu.known else "",
                _first_fix(now.fix),
                _quote(now.evidence),
            ),
            key=f"verdict/{now.id}/{reason}",
            related=node_ref(node) if on_pod else None,
            first_seen=now.first_seen,
            last_seen=now.last_seen,
            count=now.count,
        )
    ]


_DONE: dict[str, tuple[Reason, str]] = {
    "device": (Reason.DEVICE_TAINTED, "New pods are kept off this device"),
    "node": (Reason.NODE_TAINTED, "New pods are kept off this node"),
    "cordon": (Reason.NODE_CORDONED, "This node is tainted and cordoned"),
}


def mark_reports(
    means: str, value: str, *, since: float | None, why: str, told: Collection[str], node: str, at: float
) -> list[Report]:
    """What the mark that stands now (`means` empty: none) gives to tell, beside the keys that were `told`.

    `since` names the mark, so that one that was told before a restart is known again, and one that fell while nobody
    looked is told as removed, once.
    """
    reports = []
    current = f"mark/{since or 0:.0f}/"
    if means in _DONE and not any(k == f"{current}{means}/{value}" for k in told):
        reason, words = _DONE[means]
        reports.append(
            _report(
                reason,
                node_ref(node),
                _note(f"{words} ({value})" if value else words, why),
                key=f"{current}{means}/{value}",
                first_seen=since or at,
                last_seen=since or at,
            )
        )
    over = {k.split("/")[1] for k in told if k.startswith("mark/")}
    over -= {k.split("/")[1] for k in told if k.startswith("mark/") and k.endswith("/removed")}
    for mark in sorted(over):
        if means and f"mark/{mark}/" == current:
            continue
        names = sorted({k.split("/")[3] for k in told if k.startswith(f"mark/{mark}/") and k.count("/") == 3})
        note = _note("Mark removed" + (f" ({', '.join(names)})" if any(names) else ""), why if not means else "")
        reports.append(
            _report(Reason.MARK_REMOVED, node_ref(node), note, key=f"mark/{mark}/removed", first_seen=at, last_seen=at)
        )
    return reports


def withheld_report(plan: Plan, *, node: str, at: float) -> Report:
    """A plan that is not carried out, and why."""
    value = f" ({plan.value})" if plan.value else ""
    return _report(
        Reason.ACTION_WITHHELD,
        node_ref(node),
        _note(f"Not done: {plan.action.value}{value}: {plan.withheld}", plan.why),
        key=f"withheld/{plan.fault}/{plan.action}/{plan.withheld.partition(':')[0]}",
        first_seen=at,
        last_seen=at,
    )


def blind_report(source: str, *, why: str, cure: str, agent: ObjectRef, at: float, count: int = 1) -> Report:
    """A source that cannot be read, told on the agent's own pod (its node where the pod is not known)."""
    return _report(
        Reason.SOURCE_BLIND,
        agent,
        _note(f"Cannot read {source}: {why}", "Faults that only it shows are not seen", cure),
        key=f"source/{source}",
        first_seen=at,
        last_seen=at,
        count=count,
    )


def latest(reports: Iterable[Report]) -> list[Report]:
    """One report a series, in the order in which the series were last told."""
    by_key: dict[str, Report] = {}
    for report in reports:
        by_key.pop(report.key, None)
        by_key[report.key] = report
    return list(by_key.values())


def _report(
    reason: Reason,
    regarding: ObjectRef,
    note: str,
    *,
    key: str,
    related: ObjectRef | None = None,
    first_seen: float | None = None,
    last_seen: float | None = None,
    count: int = 1,
) -> Report:
    return Report(
        reason=reason,
        type="Normal" if reason in _NORMAL else "Warning",
        regarding=regarding,
        related=related,
        note=note,
        key=key,
        action=DEEDS[reason],
        first_seen=first_seen,
        last_seen=last_seen if last_seen is not None else first_seen,
        count=max(count, 1),
    )


def _note(*parts: str) -> str:
    """Sentences in the order of their worth, so that what is cut at the end is worth least."""
    texts = [printable(part).strip() for part in parts]
    sentences = (text if text.endswith((".", "!", "?", '"')) else f"{text}." for text in texts if text)
    return cut(" ".join(sentences), NOTE_BYTES)


def _first_fix(fix: tuple[str, ...]) -> str:
    return fix[0] if fix else ""


def _quote(evidence: tuple[Evidence, ...]) -> str:
    if not evidence:
        return ""
    first = evidence[0]
    at = f"{first.source}:{first.line}" if first.line is not None else first.source
    return f'{at}: "{cut(printable(first.text).strip(), _EVIDENCE_BYTES)}"'


def _gpu_words(gpu: GpuRef, *, scope: Scope = Scope.GPU) -> str:
    if gpu.pci is not None:
        return f"GPU {gpu.pci}" + (f" ({gpu.uuid})" if gpu.uuid else "")
    if gpu.uuid is not None:
        return f"GPU {gpu.uuid}"
    return {Scope.GPU: "A GPU of this node", Scope.FABRIC: "The GPU fabric", Scope.NODE: "This node"}[scope]


def _xid_words(xids: tuple[int, ...]) -> str:
    return f" (Xid {', '.join(map(str, xids))})" if xids else ""

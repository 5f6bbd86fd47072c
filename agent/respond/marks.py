"""The marks on the Node object: what is there, what should be, and the one PATCH between the two. Pure; sends nothing.

Taint, label, annotation and cordon change in one PATCH that carries the resourceVersion it was made from, so that no
kill leaves half a mark and no other writer's change is lost. `spec.taints` has no owner per entry: the whole list is
sent, with every foreign entry as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agent.model import (
    Action,
    Component,
    Evidence,
    Fault,
    GpuRef,
    Plan,
    Scope,
    Severity,
    parse_pci,
)
from agent.pods import moment
from agent.text import cut, printable

Json = dict[str, Any]

KEY = "faultline.dev/gpu-fault"
"""The taint's key, the label's and the annotation's."""

EFFECT = "NoSchedule"
RELEASE = "faultline.dev/release"
"""The annotation by which a person says that a fault is over."""

MANAGER = "faultline"
"""The field manager of every mark; the API server keeps by field who set it last."""

CONDITION = "GpuFault"
ANNOTATION_BYTES = 8 * 1024
LISTED = 16
"""Faults that the annotation describes; further ones are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What of a Node object matters here, as last read."""

    name: str
    uid: str = ""
    version: str = ""
    taints: tuple[Json, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    cordoners: frozenset[str] = frozenset()
    """The field managers that own ``spec.unschedulable``; none where nobody does, or the node does not tell."""
    conditions: tuple[Json, ...] = ()
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, obj: Json) -> NodeView:
        """The view of a core/v1 Node as JSON; a field of another type counts as absent."""
        meta, spec, status = (_map(obj.get(k)) for k in ("metadata", "spec", "status"))
        return cls(
            name=str(meta.get("name") or ""),
            uid=str(meta.get("uid") or ""),
            version=str(meta.get("resourceVersion") or ""),
            taints=_maps(spec.get("taints")),
            labels=_map(meta.get("labels")),
            annotations=_map(meta.get("annotations")),
            unschedulable=spec.get("unschedulable") is True,
            cordoners=frozenset(
                str(entry.get("manager"))
                for entry in _maps(meta.get("managedFields"))
                if "f:unschedulable" in _map(_map(entry.get("fieldsV1")).get("f:spec"))
            ),
            conditions=_maps(status.get("conditions")),
            capacity=_map(status.get("capacity")),
            allocatable=_map(status.get("allocatable")),
        )

    @property
    def taint(self) -> str | None:
        """The value of our taint; None without one."""
        return next((str(t.get("value") or "") for t in self.taints if _ours(t)), None)

    def cordoned_by_us(self, record: Record | None) -> bool:
        """Whether the cordon that stands is ours. The owner of the field knows better than our note: a person may have
        lifted our cordon and set another in between, and somebody may have deleted the note."""
        if not self.unschedulable:
            return False
        return self.cordoners == {MANAGER} if self.cordoners else record is not None and record.cordoned

    @property
    def marked(self) -> bool:
        return self.taint is not None or KEY in self.labels or KEY in self.annotations


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One fault as the annotation tells it: enough to take it up again when the agent's own state is lost."""

    fault: str
    pci: str = ""
    uuid: str = ""
    scope: str = Scope.GPU.value
    xids: tuple[int, ...] = ()
    value: str = ""
    recovery: str = ""
    action: str = Action.TAINT.value
    since: float | None = None
    last: float | None = None
    boot: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The annotation: what was marked, since when, and whether the cordon is ours."""

    since: float | None = None
    means: str = ""
    value: str = ""
    cordoned: bool = False
    respected: tuple[str, ...] = ()
    """Faults for which a person took our cordon back: it is not set again for them."""
    entries: tuple[Entry, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What should stand on the node. `means` is the strongest of its plans': device, node, cordon; empty: no mark."""

    means: str = ""
    value: str = ""
    faults: tuple[Fault, ...] = ()

    @property
    def tainted(self) -> bool:
        return self.means in ("node", "cordon")


_STRENGTH = ("", "device", "node", "cordon")


def mark_for(plans: Iterable[Plan], faults: Mapping[str, Fault]) -> Mark:
    """The one mark that all plans together ask for."""
    wanted = [p for p in plans if p.means and p.fault in faults]
    if not wanted:
        return Mark()
    means = max((p.means for p in wanted), key=_STRENGTH.index)
    # The oldest of the strongest names the taint, so that a second fault does not rename it.
    strongest = [faults[str(p.fault)] for p in wanted if p.means == means]
    first = min(strongest, key=lambda f: (f.first_seen or 0.0, f.id))
    listed = sorted((faults[str(p.fault)] for p in wanted), key=lambda f: (f.first_seen or 0.0, f.id))
    return Mark(means=means, value=_label_value(first.value), faults=tuple(listed))


def record_of(annotations: Mapping[str, str]) -> Record | None:
    """What our annotation says; None without one. One that cannot be read is an empty record: ours, but mute."""
    text = annotations.get(KEY)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    told = _map(found)
    return Record(
        since=moment(told.get("since")),
        means=_str(told.get("means")),
        value=_str(told.get("value")),
        cordoned=told.get("cordoned") is True,
        respected=tuple(str(i) for i in _list(told.get("uncordoned"))),
        entries=tuple(e for item in _maps(told.get("faults")) if (e := _entry(item)) is not None),
        more=told["more"] if isinstance(told.get("more"), int) else 0,
    )


def adopted(record: Record, *, now: float) -> list[Fault]:
    """The faults that a mark on the node tells of, for an agent that does not know them (its state was lost)."""
    return [
        Fault(
            id=e.fault,
            scope=Scope(e.scope) if e.scope in set(Scope) else Scope.GPU,
            gpu=GpuRef(pci=parse_pci(e.pci) if e.pci else None, uuid=e.uuid or None),
            cause=f"xid/{e.xids[0]}" if e.xids else "kernel/earlier",
            title=f"Marked earlier: {e.value}",
            severity=Severity.FATAL,
            recovery=e.recovery,
            component=Component.GPU,
            action=Action.CORDON if e.action == Action.CORDON else Action.TAINT,
            xids=e.xids,
            signals=1,
            boot=e.boot,
            first_seen=e.since if e.since is not None else now,
            last_seen=e.last if e.last is not None else e.since if e.since is not None else now,
            value=e.value,
            why=e.why or f"This node was marked with {e.value}",
            evidence=(Evidence(source=f"annotation {KEY}", text=cut(e.why or e.value, 240)),),
        )
        for e in record.entries
    ]


def node_patch(node: NodeView, mark: Mark, *, now: float, boot: str, released: bool = False) -> Json | None:
    """The strategic-merge PATCH that makes the node carry `mark`; None when it does already.

    `released`: the release annotation was obeyed and goes with the same PATCH.
    """
    before = record_of(node.annotations)
    record, cordon = _record(node, before, mark, now=now, boot=boot)
    meta: Json = {}
    spec: Json = {}
    taints = _taints(node, mark)
    if list(node.taints) != taints:
        spec["taints"] = taints or None
    if cordon is not None:
        spec["unschedulable"] = True if cordon else None
    label = mark.means or None
    if node.labels.get(KEY) != label:
        meta["labels"] = {KEY: label}
    notes: Json = {}
    text = _annotation(record) if record is not None else None
    if node.annotations.get(KEY) != text:
        notes[KEY] = text
    if released and RELEASE in node.annotations:
        notes[RELEASE] = None
    if notes:
        meta["annotations"] = notes
    if not meta and not spec:
        return None
    # The condition is what makes a stale list fail with 409 instead of undoing another writer's change.
    meta["resourceVersion"] = node.version
    return {"metadata": meta} | ({"spec": spec} if spec else {})


def condition_patch(
    node: NodeView, faults: Iterable[Fault], *, now: float, heartbeat: float, blind: str = ""
) -> Json | None:
    """The PATCH of `nodes/status` that makes our condition tell the truth; None when it does and is fresh.

    `blind` says why nothing can be seen: without an accused GPU the condition is then Unknown, never False.
    """
    accusing = sorted((f for f in faults if f.accuses), key=lambda f: (f.first_seen or 0.0, f.id))
    if accusing:
        status, reason = "True", _camel(accusing[0].value or "gpu-fault")
        message = "; ".join(f"{_where(f)}: {f.title}" for f in accusing)
    elif blind:
        status, reason, message = "Unknown", "KernelLogUnreadable", f"Cannot read the kernel log: {blind}"
    else:
        status, reason, message = "False", "NoGpuFault", "No GPU of this node is known to be faulted"
    message = cut(printable(message), 1024)
    found = next((c for c in node.conditions if c.get("type") == CONDITION), {})
    same = (found.get("status"), found.get("reason"), found.get("message")) == (status, reason, message)
    beat = moment(found.get("lastHeartbeatTime"))
    if same and beat is not None and 0 <= now - beat < heartbeat:
        return None
    changed = found.get("lastTransitionTime") if found.get("status") == status else None
    return {
        "status": {
            "conditions": [
                {
                    "type": CONDITION,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": stamp(now),
                    "lastTransitionTime": changed or stamp(now),
                }
            ]
        }
    }


def stamp(time: float) -> str:
    """A Kubernetes Time: whole seconds, UTC."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _taints(node: NodeView, mark: Mark) -> list[Json]:
    """The whole list as it should be: foreign entries untouched and in their order, ours last or where it was."""
    if not mark.tainted:
        return [t for t in node.taints if not _ours(t)]
    ours: Json = {"key": KEY, "value": mark.value, "effect": EFFECT}
    if any(_ours(t) for t in node.taints):
        return [(t if t.get("value") == mark.value else ours) if _ours(t) else t for t in node.taints]
    return [*node.taints, ours]


def _record(
    node: NodeView, before: Record | None, mark: Mark, *, now: float, boot: str
) -> tuple[Record | None, bool | None]:
    """The annotation as it should be, and the cordon to set (True), to lift (False) or to leave (None)."""
    ours = node.cordoned_by_us(before)
    if not mark.means:
        return None, False if ours else None
    ids = tuple(f.id for f in mark.faults if f.action is Action.CORDON)
    respected = tuple(i for i in before.respected if i in ids) if before is not None else ()
    if before is not None and before.cordoned and not ours:
        respected = ids  # a person took it back, or set one of his own since: ours stays away for these faults
    cordon: bool | None = None
    if mark.means == "cordon" and not node.unschedulable and set(ids) - set(respected):
        ours, cordon = True, True
    elif mark.means != "cordon" and ours:
        ours, cordon = False, False
    since = before.since if before is not None and before.since is not None else float(int(now))
    return (
        Record(
            since=since,
            means=mark.means,
            value=mark.value,
            cordoned=ours,
            respected=respected,
            entries=tuple(_told(f, boot) for f in mark.faults[:LISTED]),
            more=max(len(mark.faults) - LISTED, 0),
        ),
        cordon,
    )


def _told(fault: Fault, boot: str) -> Entry:
    return Entry(
        fault=fault.id,
        pci=fault.gpu.pci or "",
        uuid=fault.gpu.uuid or "",
        scope=fault.scope.value,
        xids=fault.xids[:8],
        value=fault.value,
        recovery=fault.recovery,
        action=fault.action.value,
        since=fault.first_seen,
        boot=fault.boot or boot,
        why=cut(printable(fault.why), 200),
    )


def _annotation(record: Record) -> str:
    entries = list(record.entries)
    while True:
        body: Json = {
            "v": 1,
            "since": None if record.since is None else stamp(record.since),
            "means": record.means,
            "value": record.value,
            "cordoned": record.cordoned,
            "faults": [_entry_json(e) for e in entries],
        }
        if record.respected:
            body["uncordoned"] = list(record.respected[:LISTED])
        if more := record.more + len(record.entries) - len(entries):
            body["more"] = more
        text = json.dumps(body, separators=(",", ":"))
        if len(text) <= ANNOTATION_BYTES or not entries:
            return text
        entries.pop()


def _entry_json(entry: Entry) -> Json:
    told: Json = {
        "fault": entry.fault,
        "gpu": {"pci": entry.pci or None, "uuid": entry.uuid or None},
        "scope": entry.scope,
        "xids": list(entry.xids),
        "value": entry.value,
        "recovery": entry.recovery,
        "action": entry.action,
        "since": None if entry.since is None else stamp(entry.since),
        "boot": entry.boot,
        "why": entry.why,
    }
    return told


def _entry(item: Mapping[str, Any]) -> Entry | None:
    gpu = _map(item.get("gpu"))
    name = _str(item.get("fault"))
    if not name:
        return None
    return Entry(
        fault=name,
        pci=_str(gpu.get("pci")),
        uuid=_str(gpu.get("uuid")),
        scope=_str(item.get("scope")) or Scope.GPU.value,
        xids=tuple(x for x in _list(item.get("xids")) if isinstance(x, int) and not isinstance(x, bool)),
        value=_str(item.get("value")),
        recovery=_str(item.get("recovery")),
        action=_str(item.get("action")),
        since=moment(item.get("since")),
        last=moment(item.get("last")),
        boot=_str(item.get("boot")),
        why=_str(item.get("why")),
    )


def _where(fault: Fault) -> str:
    return str(
        fault.gpu.pci or fault.gpu.uuid or {Scope.FABRIC: "fabric", Scope.NODE: "node"}.get(fault.scope, "a GPU")
    )


def _camel(value: str) -> str:
    words = "".join(part[:1].upper() + part[1:] for part in value.replace("_", "-").split("-"))
    return words if words[:1].isalpha() else f"Fault{words}"


def _label_value(value: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in value)[:63]
    return kept.strip("-_.") or "gpu-fault"


def _ours(taint: Mapping[str, Any]) -> bool:
    return taint.get("key") == KEY and taint.get("effect") == EFFECT


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _maps(value: object) -> tuple[Json, ...]:
    return tuple(v for v in _list(value) if isinstance(v, dict))


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""

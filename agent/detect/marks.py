"""Reads the mark that a node carries for a faulted GPU off the node object. Pure and total; it marks nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.detect.objects import CONDITION, FAULT_KEY, ReportedFault, faults_on_node
from agent.pods import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What one node says of its GPUs' faults. `mark` is the label's value, `value` and `effect` are the taint's."""

    node: str
    mark: str = ""
    value: str = ""
    effect: str = ""
    cordoned: bool = False
    since: float | None = None
    why: str = ""
    faults: tuple[ReportedFault, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(f.pci or f.uuid) for f in self.faults if f.pci or f.uuid))


def mark_of(node: Mapping[str, Any]) -> Mark | None:
    """The mark of a node, however little of it there is; None for a node that carries none."""
    meta, spec, status = _map(node.get("metadata")), _map(node.get("spec")), _map(node.get("status"))
    label = _text(_map(meta.get("labels")).get(FAULT_KEY))
    taint = next((t for t in _list(spec.get("taints")) if _map(t).get("key") == FAULT_KEY), {})
    condition = next((c for c in _list(status.get("conditions")) if _map(c).get("type") == CONDITION), {})
    faults = faults_on_node(node)
    true = condition.get("status") == "True"
    if not (label or taint or faults or true):
        return None
    since = min((f.since for f in faults if f.since is not None), default=None)
    if since is None and true:
        since = moment(condition.get("lastTransitionTime"))
    why = "; ".join(dict.fromkeys(f.why for f in faults if f.why))
    return Mark(
        node=_text(meta.get("name")),
        mark=label,
        value=_text(taint.get("value")) or next((f.value for f in faults if f.value), ""),
        effect=_text(taint.get("effect")),
        cordoned=spec.get("unschedulable") is True,
        since=since if since is not None else moment(taint.get("timeAdded")),
        why=why or (_text(condition.get("message")) if true else ""),
        faults=faults,
    )


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

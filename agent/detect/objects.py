"""Reads Kubernetes objects that people hand in beside logs (pod, node, events; YAML or JSON) as texts for the rules.

Pure and total: what is no object is None, a field of another type counts as absent, and nothing is guessed. Each text
is given with whose it is: what a container wrote as its last word is that container's, the rest is the cluster's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.model import Allocation, ContainerRef, PciAddress, parse_pci
from agent.pods import moment

YAML_LIMIT = 4 << 20
JSON_LIMIT = 32 << 20
"""Bytes up to which a text is read as objects; a longer one is read line by line."""

DEPTH_LIMIT = 64
OBJECT_LIMIT = 20_000
FAULT_LIMIT = 32

FAULT_KEY = "faultline.dev/gpu-fault"
"""The annotation, label and taint by which the agent of a node tells that a GPU of it is faulted."""

CONDITION = "GpuFault"

_YAML_HEAD = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\n|---[^\n]*\n)*(?:apiVersion|kind|items|metadata):[ \t\r\n]")
_JSON_HEAD = re.compile(rb"\s*\{\s*\"(?:apiVersion|kind|items|metadata)\"\s*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One text out of an object. `container` is None where the text is about the pod, the node or the cluster."""

    text: str
    container: ContainerRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFault:
    """One fault that a node's agent wrote on its node."""

    node: str
    value: str
    pci: PciAddress | None = None
    uuid: str = ""
    xids: tuple[int, ...] = ()
    since: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What a text of objects says."""

    parts: tuple[Part, ...]
    faults: tuple[ReportedFault, ...] = ()
    held: tuple[Allocation, ...] = ()
    bytes: int = 0
    """How long the text was."""


def may_be_objects(sample: bytes) -> bool:
    """True where a text begins as `kubectl get -o yaml|json` writes it; it may be something else all the same."""
    sample = sample[:4096]
    return _JSON_HEAD.match(sample) is not None or _YAML_HEAD.match(sample) is not None


def read_objects(text: bytes) -> Objects | None:
    """The pods, nodes and events of a text; None where it is not wholly objects or holds none of these."""
    found = _parsed(text)
    if found is None:
        return None
    parts: list[Part] = []
    faults: list[ReportedFault] = []
    held: list[Allocation] = []
    known = False
    for obj in _flat(found):
        kind = _text(obj.get("kind"))
        if kind == "Pod":
            parts += parts_of_pod(obj)
            held += held_by_pod(obj)
        elif kind == "Node":
            parts += parts_of_node(obj)
            faults += faults_on_node(obj)
        elif kind == "Event":
            parts += _parts_of_event(obj)
        else:
            continue
        known = True
    return Objects(parts=tuple(parts), faults=tuple(faults), held=tuple(held), bytes=len(text)) if known else None


def parts_of_pod(pod: Mapping[str, Any]) -> Iterator[Part]:
    """What the pod's status says, and each container's last words, the earlier instance first."""
    meta, status = _map(pod.get("metadata")), _map(pod.get("status"))
    lines = _said("Status", status)
    for condition in _maps(status.get("conditions")):
        lines += _said(_text(condition.get("type")) or "Condition", condition)
    if lines:
        yield Part(text="\n".join(lines))
    for (name, previous), words in last_words(pod).items():
        restart = max(restarts_of(pod, name) - previous, 0)
        yield Part(text=words, container=ref_of(meta, name, restart))


def ref_of(meta: Mapping[str, Any], container: str, restart: int) -> ContainerRef:
    return ContainerRef(
        namespace=_text(meta.get("namespace")),
        pod=_text(meta.get("name")),
        uid=_text(meta.get("uid")),
        container=container,
        restart=restart,
    )


def last_words(pod: Mapping[str, Any]) -> dict[tuple[str, bool], str]:
    """What a pod's status says of how each instance ended, by container and whether it is the one before."""
    found: dict[tuple[str, bool], str] = {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for said in _maps(_map(pod.get("status")).get(kind)):
            for previous, key in ((True, "lastState"), (False, "state")):
                state = _map(said.get(key))
                lines = [line for how in ("terminated", "waiting") for line in _ended(_map(state.get(how)))]
                if lines:
                    found[_text(said.get("name")), previous] = "\n".join(lines)
    return found


def restarts_of(pod: Mapping[str, Any], container: str) -> int:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for said in _maps(_map(pod.get("status")).get(kind)):
            if said.get("name") == container:
                return _number(said.get("restartCount"))
    return 0


def held_by_pod(pod: Mapping[str, Any]) -> Iterator[Allocation]:
    """The GPUs that the pod's status says its containers hold, by the device plugin's ids."""
    meta, status = _map(pod.get("metadata")), _map(pod.get("status"))
    for said in _maps(status.get("containerStatuses")):
        devices = tuple(
            device_id.partition("::")[0]
            for entry in _maps(said.get("allocatedResourcesStatus"))
            if _text(entry.get("name")).startswith("nvidia.com/")
            for device in _maps(entry.get("resources"))
            if (device_id := _text(device.get("resourceID")))
        )
        if devices:
            ref = ref_of(meta, _text(said.get("name")), _number(said.get("restartCount")))
            yield Allocation(container=ref, devices=devices, since=moment(status.get("startTime")) or 0.0)


def parts_of_node(node: Mapping[str, Any]) -> Iterator[Part]:
    """A node as `kubectl describe` words it, so that the same rules read both."""
    status = _map(node.get("status"))
    lines: list[str] = []
    for condition in _maps(status.get("conditions")):
        if condition.get("type") != CONDITION:  # our own word: what it says is read from the annotation
            lines += _said(_text(condition.get("type")) or "Condition", condition)
    for section in ("capacity", "allocatable"):
        counts = _map(status.get(section))
        if counts:
            lines.append(f"{section.capitalize()}:")
            lines += [f"  {_one_line(str(k))}: {_one_line(str(v))}" for k, v in counts.items() if _scalar(v)]
    if lines:
        yield Part(text="\n".join(lines))


def faults_on_node(node: Mapping[str, Any]) -> tuple[ReportedFault, ...]:
    """The faults that the node's agent tells in its annotation; none where it is absent or not of its form."""
    meta = _map(node.get("metadata"))
    try:
        body = json.loads(_text(_map(meta.get("annotations")).get(FAULT_KEY)))
    except (ValueError, RecursionError):
        return ()
    found = []
    for fault in _maps(_map(body).get("faults")):
        gpu = _map(fault.get("gpu"))
        xids = fault.get("xids")
        found.append(
            ReportedFault(
                node=_text(meta.get("name")),
                value=_text(fault.get("value")),
                pci=parse_pci(_text(gpu.get("pci"))),
                uuid=_text(gpu.get("uuid")),
                xids=tuple(
                    x
                    for x in (xids if isinstance(xids, list) else ())
                    if isinstance(x, int) and not isinstance(x, bool) and 0 < x < 10_000
                )[:FAULT_LIMIT],
                since=_time(fault.get("since")),
                why=_text(fault.get("why")),
            )
        )
        if len(found) == FAULT_LIMIT:
            break
    return tuple(found)


def _parts_of_event(event: Mapping[str, Any]) -> Iterator[Part]:
    message = _text(event.get("message")) or _text(event.get("note"))
    if message:
        head = f"{_one_line(_text(event.get('type')))}  {_one_line(_text(event.get('reason')))}  "
        yield Part(text=head + message)


def _said(what: str, status: Mapping[str, Any]) -> list[str]:
    reason, message = _text(status.get("reason")), _text(status.get("message"))
    lines = [f"{_one_line(what)} Reason: {_one_line(reason)}"] if reason else []
    return [*lines, *([f"Message: {message}"] if message else [])]


def _ended(state: Mapping[str, Any]) -> list[str]:
    reason, message = _text(state.get("reason")), _text(state.get("message"))
    # The reason is the kubelet's word and stands as in `kubectl describe`; the message is the program's own, bare.
    lines = [f"      Reason:       {_one_line(reason)}"] if reason else []
    return [*([message] if message else []), *lines]


def _parsed(text: bytes) -> list[Any] | None:
    if _JSON_HEAD.match(text[:4096]):
        if len(text) > JSON_LIMIT:
            return None
        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass  # YAML may begin with a brace too
    return _yaml(text) if len(text) <= YAML_LIMIT else None


def _yaml(text: bytes) -> list[Any] | None:
    """Every document of a YAML text, scalars as strings. Built from events: neither depth nor aliases can hurt."""
    import yaml

    documents: list[Any] = []
    # A frame is a container being filled, and for a mapping the key that waits for its value.
    stack: list[tuple[list[Any] | dict[str, Any], list[str]]] = []

    def put(value: Any) -> None:
        if not stack:
            documents.append(value)
            return
        into, key = stack[-1]
        if isinstance(into, list):
            into.append(value)
        elif key:
            into[key.pop()] = value
        else:
            key.append(value if isinstance(value, str) else "")

    try:
        for event in yaml.parse(text, Loader=yaml.CBaseLoader):
            if isinstance(event, yaml.ScalarEvent):
                put(event.value)
            elif isinstance(event, yaml.AliasEvent):
                put(None)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                if len(stack) >= DEPTH_LIMIT:
                    return None
                made: list[Any] | dict[str, Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
                put(made)
                stack.append((made, []))
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                stack.pop()
    except (yaml.YAMLError, ValueError, IndexError, RecursionError):
        return None
    return documents


def _flat(documents: list[Any]) -> Iterator[Mapping[str, Any]]:
    """The objects themselves; a list's items take its place."""
    count = 0
    for document in documents:
        top = _map(document)
        items = top.get("items")
        of_list = _text(top.get("kind")).removesuffix("List") if isinstance(items, list) else ""
        for obj in _maps(items) if isinstance(items, list) else iter((top,)):
            count += 1
            if count > OBJECT_LIMIT:
                return
            # A typed list (PodList) does not repeat the kind in its items.
            yield obj if obj.get("kind") or not of_list else {**obj, "kind": of_list}


def _time(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 < value < 1e11 else None
    return moment(value)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in (value if isinstance(value, list) else ()) if isinstance(item, Mapping))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _number(value: object) -> int:
    """A whole number; YAML gives its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(min(value, 1 << 31), 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return 0

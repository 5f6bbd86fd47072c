"""A report as the JSON of an `events.k8s.io/v1` Event that a real API server takes, whatever the report holds. Pure.

The server is strict: six decimals in a time, bytes in a note, a namespace that fits the object. What does not fit is
cut or replaced here, because an event that is refused is an event that nobody reads.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from agent.report.events import DEEDS, NOTE_BYTES, ObjectRef, Report
from agent.text import cut, printable

CONTROLLER = "faultline.dev/agent"
"""`reportingController`; what `kubectl describe` shows in the column From."""

SERVICE_API = "inference.llmkube.dev/v1alpha1"

_API_VERSIONS = {"Node": "v1", "Pod": "v1", "InferenceService": SERVICE_API}

_SHORT_BYTES = 128
"""The limit of action, reason and reportingInstance."""

_NAME_BYTES = 253
_COUNT_MAX = 2**31 - 1
_LAST_SECOND = 253_402_300_799.0
"""The end of the year 9999, the last that RFC 3339 can write."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NOT_IN_NAME = re.compile(r"[^a-z0-9.-]+")
_DOTS = re.compile(r"[-.]*\.[-.]*")


def event_time(at: float) -> str:
    """A MicroTime: the server refuses any number of decimals but six."""
    seconds = min(max(at, 0.0), _LAST_SECOND) if math.isfinite(at) else 0.0
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def event_namespace(regarding: ObjectRef) -> str:
    """Where the event lives: beside its object, or in `default` for one without a namespace, as kubelet's do."""
    if regarding.kind == "Node" or not _LABEL.fullmatch(regarding.namespace):
        return "default"
    return regarding.namespace


def event_name(report: Report, *, node: str, generation: int = 0) -> str:
    """The name of a series' event: the same after any restart, so that to post it twice is refused as a double.

    `generation` counts how often it had to be made anew because the server's copy had expired.
    """
    about = report.regarding
    parts = (node, about.kind, about.namespace, about.name, about.uid, report.key, report.first_seen, generation)
    digest = hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:16]
    head = _DOTS.sub(".", _NOT_IN_NAME.sub("-", about.name.lower()))[: _NAME_BYTES - len(digest) - 1].strip("-.")
    return f"{head or 'faultline'}.{digest}"


def event_path(namespace: str, name: str = "") -> str:
    path = f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
    return f"{path}/{quote(name, safe='')}" if name else path


def event_body(report: Report, *, name: str, instance: str, at: float, count: int | None = None) -> dict[str, Any]:
    """What to POST. `instance` is the agent's pod (or node), `at` the time of an event whose report has none.

    `count` is how often it happened, where that is not what the report says.
    """
    about = report.regarding
    first = _time(report.first_seen, report.last_seen, at)
    body: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": event_namespace(about)},
        "eventTime": event_time(first),
        "reportingController": CONTROLLER,
        "reportingInstance": _short(instance) or "faultline",
        "action": _short(report.action) or DEEDS[report.reason],
        "reason": _short(report.reason.value),
        "type": "Normal" if report.type == "Normal" else "Warning",
        "note": cut(printable(report.note), NOTE_BYTES),
        "regarding": _reference(about),
    }
    if report.related is not None:
        body["related"] = _reference(report.related)
    body |= series_body(report.count if count is None else count, at=_time(report.last_seen, first))
    return body


def series_body(count: int, *, at: float) -> dict[str, Any]:
    """What to PATCH (merge) when it happened again; empty for a count that is no series."""
    if count < 2:
        return {}
    return {"series": {"count": min(count, _COUNT_MAX), "lastObservedTime": event_time(at)}}


def service_report(report: Report, service: ObjectRef) -> Report:
    """The same told on the service that the pod belongs to; its text says which pod that is."""
    pod = report.regarding
    where = f"Pod {pod.name}" + (f" on node {report.related.name}" if report.related is not None else "")
    note = cut(printable(f"{where}: {report.note}"), NOTE_BYTES)
    return replace(report, regarding=service, related=pod, note=note)


def _reference(ref: ObjectRef) -> dict[str, str]:
    fields = {
        "apiVersion": ref.api_version or _API_VERSIONS.get(ref.kind, "v1"),
        "kind": ref.kind,
        "name": ref.name,
        "namespace": "" if ref.kind == "Node" else ref.namespace,
        "uid": ref.uid,
        "fieldPath": ref.field_path,
    }
    # Unpaired surrogates are no JSON text that the server would give back unchanged.
    return {key: value.encode("utf-8", "replace").decode() for key, value in fields.items() if value}


def _short(text: str) -> str:
    return cut(printable(text).strip(), _SHORT_BYTES)


def _time(*of: float | None) -> float:
    return next((at for at in of if at is not None and math.isfinite(at)), 0.0)

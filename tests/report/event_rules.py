"""What a kube-apiserver 1.37 refuses in an `events.k8s.io/v1` Event, written down from its own code and answers."""

from __future__ import annotations

import re
from typing import Any

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
MICRO_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}(Z|[+-][0-9]{2}:[0-9]{2})")


def undecodable(body: dict[str, Any]) -> list[str]:
    """What gives 400: no value of the field's type."""
    times = [body.get("eventTime"), (body.get("series") or {}).get("lastObservedTime")]
    return [f'parsing time "{t}" as "2006-01-02T15:04:05.000000Z07:00"' for t in times if t and not _is_time(t)]


def problems(body: dict[str, Any]) -> list[str]:
    """What gives 400 or 422; empty for what is taken."""
    found = undecodable(body)
    meta, about = body.get("metadata") or {}, body.get("regarding") or {}
    name, namespace = meta.get("name", ""), meta.get("namespace", "")
    if len(name) > 253 or not re.fullmatch(rf"{LABEL}(\.{LABEL})*", name):
        found.append(f"metadata.name: Invalid value: {name!r}: a lowercase RFC 1123 subdomain")
    if len(namespace) > 63 or not re.fullmatch(LABEL, namespace):
        found.append(f"namespace: Invalid value: {namespace!r}")
    if not about.get("namespace") and namespace not in ("default", "kube-system"):
        found.append('involvedObject.namespace: Invalid value: "": does not match event.namespace')
    if not body.get("eventTime"):
        found.append("eventTime: Required value")
    for field, limit in (("action", 128), ("reason", 128), ("reportingInstance", 128), ("reportingController", 317)):
        size = len(body.get(field, "").encode())
        if size == 0:
            found.append(f"{field}: Required value")
        elif size > limit:
            found.append(f"{field}: can have at most {limit} characters")
    if not re.fullmatch(
        rf"({LABEL}(\.{LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", body["reportingController"]
    ):
        found.append("reportingController: name part must consist of alphanumeric characters")
    if body.get("type") not in ("Normal", "Warning"):
        found.append(f"type: has invalid value: {body.get('type')}")
    if len(body.get("note", "").encode()) > 1024:
        found.append('message: Invalid value: "": can have at most 1024 characters')
    found += [f"{field}: needs to be unset" for field in body if field.startswith("deprecated")]
    return found + series_problems(body)


def series_problems(body: dict[str, Any]) -> list[str]:
    series = body.get("series")
    if series is None:
        return []
    found = []
    if not 2 <= series.get("count", 0) < 2**31:
        found.append("series.count: Invalid value: should be at least 2")
    if not series.get("lastObservedTime"):
        found.append("series.lastObservedTime: Required value")
    return found


def _is_time(text: str) -> bool:
    return MICRO_TIME.fullmatch(text) is not None

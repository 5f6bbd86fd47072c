"""What is known of a pod and its containers: frozen values, from the API's JSON or from the kubelet. Pure.

Read loosely: a field of another type than the API's counts as absent, so that no object can stop the agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    kind: str
    name: str
    api_version: str = ""
    uid: str = ""
    controller: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one instance of a container ended. ``time`` is in epoch seconds."""

    code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    time: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """One entry of ``allocatedResourcesStatus``: ``resource`` is ``nvidia.com/gpu`` or ``claim:<name>``.

    ``id`` is the device plugin's id, or ``<driver>/<pool>/<device>``; ``health`` is Healthy, Unhealthy or Unknown.
    """

    resource: str
    id: str
    health: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainer:
    """One container of a pod: what its spec asks for and what its status says."""

    name: str
    image: str = ""
    resolved_image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    init: bool = False
    id: str = ""
    """The runtime's id of the running or latest instance, without its ``containerd://``."""
    restarts: int = 0
    ready: bool = False
    running_since: float | None = None
    ended: Exit | None = None
    """How the present instance ended, while it has not been started again."""
    ended_before: Exit | None = None
    """How the instance before it ended."""
    devices: tuple[DeviceHealth, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod. ``reason`` and ``message`` are the status's own (``UnexpectedAdmissionError``)."""

    namespace: str
    name: str
    uid: str
    node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()
    phase: str = ""
    reason: str = ""
    message: str = ""
    created: float | None = None
    deleting: bool = False
    containers: tuple[PodContainer, ...] = ()
    claims: Mapping[str, str] = field(default_factory=dict)
    """The names of the ResourceClaims made for it, by the name in its spec (extended resources: ``""``)."""

    def container(self, name: str) -> PodContainer | None:
        return next((c for c in self.containers if c.name == name), None)


def pod_of(obj: object) -> Pod | None:
    """The pod of a core/v1 Pod as JSON; None for anything that names no pod."""
    top = _map(obj)
    meta, spec, status = _map(top.get("metadata")), _map(top.get("spec")), _map(top.get("status"))
    name, uid = _text(meta.get("name")), _text(meta.get("uid"))
    if not name or not uid:
        return None
    said = {
        _text(s.get("name")): s for kind in ("containerStatuses", "initContainerStatuses") for s in _maps(status, kind)
    }
    claims = {_text(c.get("name")): _text(c.get("resourceClaimName")) for c in _maps(status, "resourceClaimStatuses")}
    for asked in _maps(spec, "resourceClaims"):
        if direct := _text(asked.get("resourceClaimName")):
            claims.setdefault(_text(asked.get("name")), direct)
    if extended := _text(_map(status.get("extendedResourceClaimStatus")).get("resourceClaimName")):
        claims[""] = extended
    return Pod(
        namespace=_text(meta.get("namespace")),
        name=name,
        uid=uid,
        node=_text(spec.get("nodeName")),
        labels=_texts(meta.get("labels")),
        annotations=_texts(meta.get("annotations")),
        owners=tuple(
            Owner(
                kind=_text(o.get("kind")),
                name=_text(o.get("name")),
                api_version=_text(o.get("apiVersion")),
                uid=_text(o.get("uid")),
                controller=o.get("controller") is True,
            )
            for o in _maps(meta, "ownerReferences")
        ),
        phase=_text(status.get("phase")),
        reason=_text(status.get("reason")),
        message=_text(status.get("message")),
        created=moment(meta.get("creationTimestamp")),
        deleting=bool(meta.get("deletionTimestamp")),
        containers=tuple(
            _container(c, said.get(_text(c.get("name")), {}), init=kind == "initContainers")
            for kind in ("initContainers", "containers")
            for c in _maps(spec, kind)
        ),
        claims={k: v for k, v in claims.items() if v},
    )


def _container(spec: Mapping[str, Any], status: Mapping[str, Any], *, init: bool) -> PodContainer:
    resources = _map(spec.get("resources"))
    state, last = _map(status.get("state")), _map(status.get("lastState"))
    return PodContainer(
        name=_text(spec.get("name")),
        image=_text(spec.get("image")),
        resolved_image=_text(status.get("image")),
        command=_words(spec.get("command")),
        args=_words(spec.get("args")),
        limits=_texts(resources.get("limits")),
        claims=tuple(_text(c.get("name")) for c in _maps(resources, "claims")),
        init=init,
        id=_text(status.get("containerID")).partition("://")[2],
        restarts=_number(status.get("restartCount")),
        ready=status.get("ready") is True,
        running_since=moment(_map(state.get("running")).get("startedAt")),
        ended=_exit(state.get("terminated")),
        ended_before=_exit(last.get("terminated")),
        devices=tuple(
            DeviceHealth(
                resource=_text(entry.get("name")),
                id=_text(device.get("resourceID")),
                health=_text(device.get("health")) or "Unknown",
                message=_text(device.get("message")),
            )
            for entry in _maps(status, "allocatedResourcesStatus")
            for device in _maps(entry, "resources")
        ),
    )


def _exit(value: object) -> Exit | None:
    if not isinstance(value, Mapping) or not value:
        return None
    return Exit(
        code=_number(value.get("exitCode")),
        signal=_number(value.get("signal")),
        reason=_text(value.get("reason")),
        message=_text(value.get("message")),
        time=moment(value.get("finishedAt")),
    )


def moment(value: object) -> float | None:
    """Epoch seconds of a Kubernetes Time or MicroTime; None for anything else."""
    if not isinstance(value, str) or not value:
        return None
    try:
        found = datetime.fromisoformat(value)
        return found.timestamp() if found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(parent: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = parent.get(key)
    return (item for item in (found if isinstance(found, list) else ()) if isinstance(item, Mapping))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> Mapping[str, str]:
    return {str(k): str(v) for k, v in _map(value).items() if isinstance(v, str | int | float)}


def _words(value: object) -> tuple[str, ...]:
    return tuple(_text(w) for w in value) if isinstance(value, list) else ()


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

"""Who holds which GPU, from the kubelet's PodResources API (v1). Asks one local socket; changes nothing.

Devices come from a device plugin (`nvidia.com/gpu`, `nvidia.com/mig-*`) or from DRA claims. A kubelet that has just
started answers with an empty list, and a pod's devices matter after its container crashed: what is not listed any more
counts as given back only after the kubelet said so again, and stays in the history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.model import Allocation, ContainerRef
from agent.sources.kubelet.grpc import Call, CallError, unary
from agent.sources.kubelet.wire import Field, Table, WireError, read

LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"

GPU_DRIVER = "gpu.nvidia.com"

CONFIRM_SECONDS = 10.0
"""How long a device must be missing from the answers before it counts as given back: a kubelet's start takes 1 s."""

EMPTY_SECONDS = 60.0
"""The same for an answer without a single pod, which on a node that runs this agent as a pod can not be true."""

HISTORY_LIMIT = 1024
"""Containers that gave their devices back and are still known."""

HOLDER_LIMIT = 4096
"""Containers with devices that are known at once."""

UidOf = Callable[[str, str], str | None]
"""The uid of the pod of a namespace and name; PodResources itself knows none."""

Name = tuple[str, str, str]
"""Namespace, pod and container."""

_DEVICES = Field("devices", {1: Field("resource"), 2: Field("ids", many=True)}, many=True)
_CLAIMED: Table = {
    1: Field("cdi", {1: Field("name")}, many=True),
    2: Field("driver"),
    3: Field("pool"),
    4: Field("device"),
}
_CONTAINER: Table = {
    1: Field("name"),
    2: _DEVICES,
    5: Field("claims", {2: Field("claim"), 4: Field("resources", _CLAIMED, many=True)}, many=True),
}
_POD: Table = {1: Field("name"), 2: Field("namespace"), 3: Field("containers", _CONTAINER, many=True)}
_LISTED: Table = {1: Field("pods", _POD, many=True)}
_ALLOCATABLE: Table = {1: _DEVICES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One answer: the GPUs of each container that has some, and how many pods it names at all."""

    devices: Mapping[Name, tuple[str, ...]]
    pods: int


def listed(answer: bytes, *, driver: str = GPU_DRIVER) -> Listed:
    """The GPUs in a ListPodResourcesResponse. Raises WireError for what is none, and nothing else."""
    found: dict[Name, dict[str, None]] = {}
    pods = read(answer, _LISTED)["pods"]
    for pod in pods:
        for container in pod["containers"]:
            ids = _plugin_ids(container) + _claimed_ids(container, driver)
            if ids:
                name = (pod.get("namespace", ""), pod.get("name", ""), container.get("name", ""))
                # A container has one entry per NUMA node and per resource.
                found.setdefault(name, {}).update(dict.fromkeys(ids))
    return Listed(devices={name: tuple(ids) for name, ids in found.items()}, pods=len(pods))


def allocatable(answer: bytes) -> frozenset[str]:
    """The device plugin's healthy GPUs in an AllocatableResourcesResponse. Raises WireError, and nothing else."""
    return frozenset(_plugin_ids(read(answer, _ALLOCATABLE)))


def _plugin_ids(parent: Mapping[str, Any]) -> list[str]:
    """Device ids without time-slicing's and MPS's `::<replica>`."""
    return [
        bare
        for entry in parent["devices"]
        if "nvidia.com/" in entry.get("resource", "")
        for device in entry["ids"]
        if (bare := device.split("::", 1)[0])
    ]


def _claimed_ids(container: Mapping[str, Any], driver: str) -> list[str]:
    """`<driver>/<pool>/<device>` of each claimed GPU; its CDI name where the kubelet is too old to tell."""
    ids = []
    for claim in container["claims"]:
        for resource in claim["resources"]:
            if said := resource.get("driver"):
                if said == driver and (device := resource.get("device")):
                    ids.append(f"{said}/{resource.get('pool', '')}/{device}")
            else:
                names = (cdi.get("name", "") for cdi in resource["cdi"])
                ids += [name for name in names if name.startswith(f"k8s.{driver}/")]
    return ids


class Holders:
    """What containers hold and held, from one answer after the other. Pure: the time is given."""

    def __init__(self, *, confirm_seconds: float = CONFIRM_SECONDS, empty_seconds: float = EMPTY_SECONDS) -> None:
        self.unlisted = 0
        """Answers that left out a holder which the next ones named again, or might."""
        self._confirm, self._empty = confirm_seconds, empty_seconds
        self._now: dict[Name, Allocation] = {}
        self._missing: dict[Name, float] = {}
        self._past: OrderedDict[tuple[Name, str], Allocation] = OrderedDict()

    @property
    def doubtful(self) -> bool:
        """True while an answer contradicts what is known: ask again soon."""
        return bool(self._missing)

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """All that is known, ended ones first."""
        return (*self._past.values(), *self._now.values())

    def take(self, answer: Listed, *, uid_of: UidOf, now: float) -> bool:
        """Takes one answer up; True when that changed what is known."""
        before = dict(self._now)
        grace = self._confirm if answer.pods else self._empty
        for name, held in before.items():
            said = answer.devices.get(name)
            uid = uid_of(name[0], name[1]) or held.container.uid
            if said is not None and held.container.uid and uid != held.container.uid:
                self._end(name, now)  # a new pod of the same name: what is listed is the new one's
            elif said is not None and set(said) == set(held.devices):
                self._missing.pop(name, None)
                if uid != held.container.uid:
                    self._now[name] = replace(held, container=replace(held.container, uid=uid))
            else:
                # Not listed, or with devices that a living pod cannot change to: perhaps a successor whose uid is
                # not known yet, perhaps a kubelet that has just started.
                since = self._missing.get(name)
                if since is None or now < since:
                    self._missing[name] = now
                    self.unlisted += since is None
                elif now - since >= grace:
                    self._end(name, since)
        for name, devices in answer.devices.items():
            if name not in self._now and len(self._now) < HOLDER_LIMIT:
                container = ContainerRef(
                    namespace=name[0], pod=name[1], container=name[2], uid=uid_of(name[0], name[1]) or ""
                )
                self._now[name] = Allocation(container=container, devices=devices, since=now)
        return self._now != before

    def _end(self, name: Name, until: float) -> None:
        self._missing.pop(name, None)
        held = self._now.pop(name)
        key = (name, held.container.uid)
        self._past.pop(key, None)
        self._past[key] = replace(held, until=until)
        while len(self._past) > HISTORY_LIMIT:
            self._past.popitem(last=False)


@dataclass(slots=True)
class PodResourcesSource:
    """The kubelet's PodResources socket. ``error`` and ``cure`` say why it is blind now, empty while it answers."""

    path: str
    uid_of: UidOf = lambda namespace, name: None
    driver: str = GPU_DRIVER
    call: Call = unary
    holders: Holders = field(default_factory=Holders)
    error: str = ""
    cure: str = ""
    errors: int = 0
    reads: int = 0
    last_read: float | None = None
    _allocatable: frozenset[str] | None = None
    _given: bool = False

    @property
    def ask_again(self) -> bool:
        """True while the last answer is not believed yet, or there was none: ask again in a second or two."""
        return self.holders.doubtful or bool(self.error)

    def allocatable(self) -> frozenset[str] | None:
        """The device plugin's healthy devices as of the last :meth:`read`; None where the kubelet did not tell."""
        return self._allocatable

    async def read(self, now: float) -> tuple[Allocation, ...] | None:
        """What containers hold and held; None when nothing changed since the last call, or nothing can be learnt."""
        self._allocatable = None
        try:
            answer = listed(await self.call(self.path, LIST, b""), driver=self.driver)
        except (CallError, WireError) as error:
            self._failed(error)
            return None
        changed = self.holders.take(answer, uid_of=self.uid_of, now=now)
        self.reads += 1
        self.last_read = now
        self.error = self.cure = ""
        try:
            self._allocatable = allocatable(await self.call(self.path, ALLOCATABLE, b""))
        except (CallError, WireError) as error:
            self._failed(error)
        if self._given and not changed:
            return None
        self._given = True
        return self.holders.allocations

    def _failed(self, error: CallError | WireError) -> None:
        self.errors += 1
        if isinstance(error, CallError):
            self.error, self.cure = str(error), error.cure
        else:
            self.error = f"{self.path}: an answer that is not understood: {error}"
            self.cure = "see that this is the kubelet's own socket"

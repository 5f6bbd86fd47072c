"""Which DRA device is which GPU: read from the ResourceSlices of this node. Pure; sends nothing, decides nothing.

Read loosely: a field of another type than the API's counts as absent, and a slice that names no device gives none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.model import GpuRef, PciAddress, parse_pci

MAX_DEVICES = 4096
"""Devices of one node that are kept: 16 GPUs in MIG slices are some hundred."""

WITHHOLDING = frozenset({"NoSchedule", "NoExecute"})
"""Effects with which the scheduler leaves a device out; any other is information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTaint:
    key: str
    value: str = ""
    effect: str = ""

    @property
    def withholds(self) -> bool:
        return self.effect in WITHHOLDING


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDevice:
    """One device as its driver offers it. ``taints`` are the driver's own: rules do not show in a slice."""

    driver: str
    pool: str
    device: str
    pci: PciAddress | None = None
    uuid: str | None = None
    parent: str | None = None
    """UUID of the GPU that a MIG device is a part of."""
    taints: tuple[SliceTaint, ...] = ()

    @property
    def withheld(self) -> tuple[SliceTaint, ...]:
        return tuple(t for t in self.taints if t.withholds)


def devices_of(slices: Iterable[object], *, node: str = "") -> tuple[SliceDevice, ...]:
    """The devices of these ResourceSlices, of each pool's newest generation only; of one node where it is given."""
    newest: dict[tuple[str, str], tuple[int, list[Mapping[str, Any]]]] = {}
    for found in slices:
        spec = _map(_map(found).get("spec"))
        pool = _map(spec.get("pool"))
        driver, name, generation = _text(spec.get("driver")), _text(pool.get("name")), pool.get("generation")
        if not driver or not name or (node and spec.get("nodeName") != node):
            continue
        number = generation if isinstance(generation, int) else 0
        known = newest.get((driver, name))
        if known is None or number > known[0]:
            newest[driver, name] = (number, [spec])
        elif number == known[0]:
            known[1].append(spec)
    devices: dict[tuple[str, str, str], SliceDevice] = {}
    for (driver, name), (_, specs) in newest.items():
        for spec in specs:
            for item in _maps(spec.get("devices")):
                if (device := _text(item.get("name"))) and len(devices) < MAX_DEVICES:
                    devices[driver, name, device] = _device(item, driver=driver, pool=name, device=device)
    return tuple(devices.values())


def _device(item: Mapping[str, Any], *, driver: str, pool: str, device: str) -> SliceDevice:
    basic = _map(item.get("basic"))  # v1beta1 holds all but the name one level deeper
    said: dict[str, str] = {}
    for key, box in _map(item.get("attributes") or basic.get("attributes")).items():
        if isinstance(key, str) and (value := _text(_map(box).get("string"))):
            # "uuid" and "gpu.nvidia.com/uuid" are the same attribute: without a domain it is the driver's.
            domain, _, name = key.rpartition("/")
            if domain in ("", driver, "resource.kubernetes.io"):
                said.setdefault(name, value)
    return SliceDevice(
        driver=driver,
        pool=pool,
        device=device,
        pci=parse_pci(said.get("pciBusID", "")),
        uuid=said.get("uuid"),
        parent=said.get("parentUUID"),
        taints=tuple(
            SliceTaint(key=_text(t.get("key")), value=_text(t.get("value")), effect=_text(t.get("effect")))
            for t in _maps(item.get("taints") or basic.get("taints"))
        ),
    )


def of_gpu(devices: Iterable[SliceDevice], gpu: GpuRef) -> tuple[SliceDevice, ...]:
    """The devices that are this GPU or a part of it; none where its UUID and its address contradict each other.

    A contradiction is a card that was swapped, or a slice from before: to withhold by it could hit a healthy GPU.
    """
    found: list[SliceDevice] = []
    for device in devices:
        whole = device.parent or device.uuid
        same_uuid = gpu.uuid is not None and gpu.uuid in (device.uuid, device.parent)
        same_pci = gpu.pci is not None and gpu.pci == device.pci
        if same_uuid and gpu.pci is not None and device.pci is not None and not same_pci:
            return ()
        if same_pci and gpu.uuid is not None and whole is not None and not same_uuid:
            if not whole.startswith("MIG-"):  # a part that does not name its GPU: the address is enough
                return ()
        if same_uuid or same_pci:
            found.append(device)
    return tuple(found)


class KnownDevices:
    """The devices that were last seen, kept while their slices are gone: the kubelet deletes all at its start."""

    def __init__(self, *, driver: str = "") -> None:
        """``driver``: only this driver's devices; empty: every driver's."""
        self.offered: tuple[SliceDevice, ...] | None = None
        """What the slices hold now; None before they were read, empty while there are none."""
        self._driver = driver
        self._last: dict[tuple[str, str], tuple[SliceDevice, ...]] = {}

    @property
    def devices(self) -> tuple[SliceDevice, ...]:
        """What is offered, and for pools without a slice now what they offered last."""
        return tuple(d for pool in self._last.values() for d in pool)

    def update(self, slices: Iterable[object], *, node: str = "") -> None:
        found = tuple(d for d in devices_of(slices, node=node) if not self._driver or d.driver == self._driver)
        pools: dict[tuple[str, str], list[SliceDevice]] = {}
        for device in found:
            pools.setdefault((device.driver, device.pool), []).append(device)
        self.offered = found
        for pool, devices in pools.items():
            if pool in self._last or len(self._last) < 64:
                self._last[pool] = tuple(devices)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in (value if isinstance(value, list) else ()) if isinstance(item, Mapping))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

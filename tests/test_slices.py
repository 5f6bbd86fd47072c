"""Devices of ResourceSlices as real drivers write them: attributes, pools, generations, and whose they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import slices as slices_module
from agent.model import GpuRef, PciAddress
from agent.slices import KnownDevices, SliceDevice, SliceTaint, devices_of, of_gpu

PCI, OTHER_PCI = PciAddress("0000:5d:00"), PciAddress("0000:5e:00")
DRIVER = "gpu.nvidia.com"


def a_slice(
    *devices: object, driver: object = DRIVER, pool: object = "node-a", node: object = "node-a", generation: object = 1
) -> dict[str, Any]:
    spec = {"driver": driver, "nodeName": node, "pool": {"name": pool, "generation": generation}, "devices": devices}
    return {"metadata": {"name": "s"}, "spec": {k: list(v) if k == "devices" else v for k, v in spec.items()}}  # type: ignore[call-overload]


def device(name: str = "gpu-0", **attributes: str) -> dict[str, Any]:
    """A device; `__` in an attribute's name stands for its domain's end."""
    return {"name": name, "attributes": {k.replace("__", "/"): {"string": v} for k, v in attributes.items()}}


def only(item: dict[str, Any]) -> SliceDevice:
    (found,) = devices_of([a_slice(item)])
    return found


PCI_KEY = "resource.kubernetes.io/pciBusID"


@pytest.mark.parametrize(
    ("attributes", "pci", "uuid", "parent"),
    [
        ({}, None, None, None),
        ({PCI_KEY: "0000:5d:00.0", "uuid": "GPU-1"}, PCI, "GPU-1", None),
        ({"pciBusID": "00000000:5D:00.0"}, PCI, None, None),
        ({f"{DRIVER}/pciBusID": "0000:5d:00.0", f"{DRIVER}/uuid": "GPU-1"}, PCI, "GPU-1", None),
        ({PCI_KEY: "5d:00.0"}, None, None, None),
        ({PCI_KEY: ""}, None, None, None),
        ({"uuid": "MIG-1", "parentUUID": "GPU-1"}, None, "MIG-1", "GPU-1"),
        # Another driver's attribute of the same name is another thing.
        ({"example.com/uuid": "GPU-9", "example.com/pciBusID": "0000:5d:00.0"}, None, None, None),
        ({"example.com/uuid": "GPU-9", "uuid": "GPU-1"}, None, "GPU-1", None),
    ],
)
def test_what_a_devices_attributes_tell(
    attributes: dict[str, str], pci: PciAddress | None, uuid: str | None, parent: str | None
) -> None:
    said = {k: {"string": v} for k, v in attributes.items()}
    for item in ({"name": "gpu-0", "attributes": said}, {"name": "gpu-0", "basic": {"attributes": said}}):
        found = only(item)
        assert (found.driver, found.pool, found.device) == (DRIVER, "node-a", "gpu-0")
        assert (found.pci, found.uuid, found.parent) == (pci, uuid, parent)


@pytest.mark.parametrize("box", [{"int": 5}, {"bool": True}, {"version": "1.0"}, {"string": 5}, "GPU-1", None])
def test_an_attribute_of_another_type_is_absent(box: object) -> None:
    assert only({"name": "gpu-0", "attributes": {"uuid": box}}).uuid is None


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([a_slice(device("a"), device("b"))], "a b"),
        ([a_slice(device("a")), a_slice(device("b"))], "a b"),  # a pool of two slices
        ([a_slice(device("a"), generation=2), a_slice(device("b"), generation=3)], "b"),
        ([a_slice(device("b"), generation=3), a_slice(device("a"), generation=2)], "b"),
        ([a_slice(device("a"), generation=2), a_slice(device("b"), pool="p2", generation=9)], "a b"),
        ([a_slice(device("a")), a_slice(device("a"))], "a"),
        ([a_slice(device("a"), generation="x"), a_slice(device("b"), generation=0)], "a b"),
        ([a_slice(device("a"), node="node-b")], ""),
        ([a_slice(device("a"), node=None)], ""),
        ([a_slice(device("a"), driver="")], ""),
        ([a_slice(device("a"), driver=5)], ""),
        ([a_slice(device("a"), pool="")], ""),
        ([a_slice(device("a"), pool=None)], ""),
        ([a_slice(device(""), {}, 5, None)], ""),
        ([None, 5, {}, {"spec": []}, {"spec": {"pool": 1}}], ""),
    ],
)
def test_which_devices_there_are(given: list[object], names: str) -> None:
    assert " ".join(d.device for d in devices_of(given, node="node-a")) == names


def test_devices_of_a_node_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "MAX_DEVICES", 3)
    assert len(devices_of([a_slice(*(device(f"gpu-{n}") for n in range(9)))])) == 3


@pytest.mark.parametrize(
    ("effect", "withholds"),
    [("NoSchedule", True), ("NoExecute", True), ("None", False), ("", False), ("PreferNoSchedule", False)],
)
def test_which_taints_withhold(effect: str, withholds: bool) -> None:
    found = only({"name": "a", "taints": [{"key": "k", "value": "v", "effect": effect}, 5]})
    assert found.taints == (SliceTaint(key="k", value="v", effect=effect),)
    assert bool(found.withheld) is withholds


def a(name: str, *, pci: PciAddress | None = PCI, uuid: str | None = "GPU-1", parent: str | None = None) -> SliceDevice:
    return SliceDevice(driver=DRIVER, pool="node-a", device=name, pci=pci, uuid=uuid, parent=parent)


BOTH, BY_PCI, BY_UUID = GpuRef(pci=PCI, uuid="GPU-1"), GpuRef(pci=PCI), GpuRef(uuid="GPU-1")
WHOLE, ELSEWHERE = a("gpu-0"), a("gpu-1", pci=OTHER_PCI, uuid="GPU-2")
NO_UUID, NO_PCI = a("gpu-0", uuid=None), a("gpu-0", pci=None)
PART, PART_ALONE = a("mig-0", uuid="MIG-1", parent="GPU-1"), a("mig-0", uuid="MIG-1")
SWAPPED, MOVED = a("gpu-0", uuid="GPU-9"), a("gpu-0", pci=OTHER_PCI)


@pytest.mark.parametrize(
    ("devices", "gpu", "found"),
    [
        ((WHOLE, ELSEWHERE), BOTH, (WHOLE,)),
        ((WHOLE, ELSEWHERE), BY_PCI, (WHOLE,)),
        ((WHOLE, ELSEWHERE), BY_UUID, (WHOLE,)),
        ((NO_UUID, ELSEWHERE), BOTH, (NO_UUID,)),
        ((NO_PCI, ELSEWHERE), BOTH, (NO_PCI,)),
        ((NO_PCI,), BY_PCI, ()),
        ((NO_UUID,), BY_UUID, ()),
        ((WHOLE, PART), BOTH, (WHOLE, PART)),
        ((PART,), BY_UUID, (PART,)),
        ((PART_ALONE,), BOTH, (PART_ALONE,)),
        ((PART_ALONE,), BY_UUID, ()),
        ((SWAPPED,), BOTH, ()),
        ((WHOLE, SWAPPED), BOTH, ()),  # one contradiction, and nothing is withheld
        ((MOVED,), BOTH, ()),
        ((MOVED,), BY_UUID, (MOVED,)),
        ((a("mig-0", uuid="MIG-1", parent="GPU-9"),), BOTH, ()),
        ((ELSEWHERE,), BOTH, ()),
        ((), BOTH, ()),
        ((WHOLE,), GpuRef(index=0, tp_rank=0), ()),
        ((a("x", pci=None, uuid=None),), BOTH, ()),
        ((a("x", pci=None, uuid=None),), GpuRef(), ()),
    ],
)
def test_which_devices_are_a_gpu(devices: tuple[SliceDevice, ...], gpu: GpuRef, found: tuple[SliceDevice, ...]) -> None:
    assert of_gpu(devices, gpu) == found


def known_after(*updates: list[object], driver: str = DRIVER) -> KnownDevices:
    known = KnownDevices(driver=driver)
    for update in updates:
        known.update(update, node="node-a")
    return known


NIC = a_slice(device("nic0"), driver="dra.net")


@pytest.mark.parametrize(
    ("updates", "offered", "last"),
    [
        ([[a_slice(device("a")), NIC]], "a", "a"),
        ([[a_slice(device("a"))], [NIC]], "", "a"),
        ([[a_slice(device("a"))], []], "", "a"),
        ([[a_slice(device("a"))], [], [a_slice(device("b"))]], "b", "b"),
        ([[a_slice(device("a"), node="node-b")]], "", ""),
        ([[a_slice(device("a"))], [a_slice(device("b"), node="node-b", pool="node-b")]], "", "a"),
        ([[a_slice(device("a")), a_slice(device("b"), pool="p2")], [a_slice(device("c"))]], "c", "c b"),
        ([[a_slice(device("a"))], [a_slice()]], "", "a"),
    ],
)
def test_what_is_offered_and_what_was(updates: list[list[object]], offered: str, last: str) -> None:
    known = known_after(*updates)
    assert known.offered is not None
    assert " ".join(d.device for d in known.offered) == offered
    assert " ".join(d.device for d in known.devices) == last


def test_every_drivers_devices_where_none_is_named() -> None:
    assert {d.device for d in known_after([a_slice(device("a")), NIC], driver="").devices} == {"a", "nic0"}


def test_pools_are_bounded() -> None:
    known = known_after([a_slice(device("a"), pool=f"p{n}") for n in range(100)])
    assert known.offered is not None and len(known.offered) == 100 and len(known.devices) == 64


def test_before_any_slice_was_read_nothing_is_known() -> None:
    assert KnownDevices().offered is None and KnownDevices().devices == ()


KEYS = ["spec", "pool", "name", "driver", "devices", "attributes", "taints", "generation", "basic", "nodeName"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
)


@given(st.lists(JSON, max_size=4))
def test_any_json_gives_devices_or_none(items: list[object]) -> None:
    devices_of(items)

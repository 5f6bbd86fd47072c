"""Whether one GPU is still offered: ids, counts, slices and the pods' word, alone and against each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnose.advertised import Offer, advertised
from agent.model import GpuRef, PciAddress
from agent.pods import DeviceHealth
from agent.slices import SliceDevice, SliceTaint

GPU = GpuRef(pci=PciAddress("0000:5d:00"), uuid="GPU-1")
BY_ADDRESS = GpuRef(pci=GPU.pci)
ON, OFF, OPEN = Offer.ADVERTISED, Offer.WITHDRAWN, Offer.UNKNOWN
N, MIG, SHARED = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
TAINT = SliceTaint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule")


def device(name: str = "gpu-0", *, uuid: str = "GPU-1", pci: str = "0000:5d:00", taints: tuple[SliceTaint, ...] = (),
           parent: str | None = None) -> SliceDevice:  # fmt: skip
    return SliceDevice(driver="gpu.nvidia.com", pool="n", device=name, pci=PciAddress(pci), uuid=uuid, parent=parent,
                       taints=taints)  # fmt: skip


OTHER = device("gpu-1", uuid="GPU-2", pci="0000:5e:00")
HERE, HELD = device(), device(taints=(TAINT,))


def health(of: str = "GPU-1", state: str = "Unhealthy", resource: str = N) -> DeviceHealth:
    return DeviceHealth(resource=resource, id=of, health=state)


@pytest.mark.parametrize(
    ("known", "offer", "why"),
    [
        ({}, OPEN, "neither the kubelet nor a slice"),
        # Counts name no GPU, but none at all and all of them do.
        ({"capacity": {N: "8"}, "allocatable": {N: "8"}}, ON, "all 8 GPUs"),
        ({"capacity": {N: "8"}, "allocatable": {N: "7"}}, OPEN, "7 of 8"),
        ({"capacity": {N: "8"}, "allocatable": {N: "0"}}, OFF, "0 of 8"),
        ({"capacity": {N: "8"}, "allocatable": {}}, OFF, "0 of 8"),
        ({"capacity": {N: "8"}}, OPEN, "0 of 8"),
        ({"allocatable": {N: "8"}}, OPEN, "neither"),
        ({"capacity": {N: "0"}, "allocatable": {N: "0"}}, OPEN, "neither"),
        ({"capacity": {N: "1", MIG: "7"}, "allocatable": {N: "1", MIG: "7"}}, ON, "all 8"),
        ({"capacity": {N: "1", MIG: "7"}, "allocatable": {N: "0", MIG: "7"}}, OPEN, "7 of 8"),
        ({"capacity": {SHARED: "4"}, "allocatable": {SHARED: "0"}}, OFF, "0 of 4"),
        ({"capacity": {N: "8", "cpu": "64"}, "allocatable": {N: "8", "cpu": "63"}}, ON, "all 8"),
        ({"capacity": {N: "8k"}, "allocatable": {N: "8k"}}, OPEN, "neither"),
        ({"capacity": {N: "-1"}, "allocatable": {N: "-1"}}, OPEN, "neither"),
        ({"capacity": {N: "9" * 5000}, "allocatable": {N: "1"}}, OPEN, ""),
        ({"capacity": {N: "٣"}, "allocatable": {N: "٣"}}, OPEN, "neither"),
        # The kubelet's ids tell of each GPU by itself.
        ({"allocatable_ids": {"GPU-1", "GPU-2"}}, ON, "can allocate GPU-1"),
        ({"allocatable_ids": {"GPU-2", "GPU-3"}}, OFF, "offers 2 GPUs, not this one"),
        ({"allocatable_ids": set()}, OPEN, "neither"),
        ({"allocatable_ids": set(), "capacity": {N: "4"}, "allocatable": {N: "0"}}, OFF, "plugin may be gone"),
        ({"allocatable_ids": {"MIG-1", "MIG-2"}}, OPEN, "not UUIDs of whole GPUs"),
        ({"allocatable_ids": {"GPU-2", "MIG-1"}}, OPEN, "not UUIDs of whole GPUs"),
        ({"allocatable_ids": {"0", "1"}, "capacity": {N: "2"}, "allocatable": {N: "2"}}, OPEN, "not UUIDs"),
        ({"allocatable_ids": {"GPU-2"}, "capacity": {N: "8"}, "allocatable": {N: "8"}}, OFF, "not this one"),
        ({"allocatable_ids": {"GPU-1"}, "capacity": {N: "8"}, "allocatable": {N: "0"}}, ON, "can allocate"),
        # Slices name each device; one that is not there proves nothing.
        ({"devices": (HERE, OTHER)}, ON, "offered by gpu.nvidia.com as gpu-0"),
        ({"devices": (HELD, OTHER)}, OFF, "withholds gpu-0: gpu.nvidia.com/xid=79:NoSchedule"),
        ({"devices": (device(taints=(SliceTaint(key="k", effect="None"),)),)}, ON, "gpu-0"),
        ({"devices": (device(taints=(SliceTaint(key="k", effect="NoExecute"),)),)}, OFF, "k=:NoExecute"),
        ({"devices": (OTHER,)}, OPEN, "neither"),
        ({"devices": ()}, OPEN, "neither"),
        ({"devices": (device(uuid="GPU-9"),)}, OPEN, "neither"),  # another card at its address
        ({"devices": (HELD, device("mig-0", uuid="MIG-1", parent="GPU-1"))}, ON, "as mig-0"),  # a part is free
        # Offered one way is offered.
        ({"devices": (HELD,), "allocatable_ids": {"GPU-1"}}, ON, "can allocate"),
        ({"devices": (HERE,), "allocatable_ids": {"GPU-2"}}, ON, "offered by"),
        ({"devices": (HELD,), "capacity": {N: "8"}, "allocatable": {N: "8"}}, OFF, "withholds"),
        ({"devices": (OTHER,), "allocatable_ids": {"GPU-2"}}, OFF, "not this one"),
        # The word of a pod that holds it, where counts and ids leave it open.
        ({"capacity": {N: "8"}, "allocatable": {N: "7"}, "health": (health(),)}, OFF, "calls GPU-1 Unhealthy"),
        ({"capacity": {N: "8"}, "allocatable": {N: "7"}, "health": (health("GPU-1::3"),)}, OFF, "GPU-1::3"),
        ({"capacity": {N: "8"}, "allocatable": {N: "7"}, "health": (health("GPU-2"),)}, OPEN, "7 of 8"),
        ({"capacity": {N: "8"}, "allocatable": {N: "7"}, "health": (health(state="Unknown"),)}, OPEN, "7 of 8"),
        ({"capacity": {N: "8"}, "allocatable": {N: "7"}, "health": (health(state="Healthy"),)}, OPEN, "7 of 8"),
        ({"capacity": {N: "8"}, "allocatable": {N: "7"}, "health": (health(resource="claim:g"),)}, OPEN, "7 of 8"),
        ({"capacity": {N: "8"}, "allocatable": {N: "8"}, "health": (health(),)}, ON, "all 8"),
        ({"health": (health(),)}, OPEN, "neither"),
    ],
)  # fmt: skip
def test_what_is_known_of_the_offer(known: dict[str, Any], offer: Offer, why: str) -> None:
    found = advertised(GPU, **known)
    assert (found.offer, why in found.why) == (offer, True), found


@pytest.mark.parametrize(
    ("known", "offer"),
    [
        ({"devices": (HERE,)}, ON),
        ({"devices": (HELD,)}, OFF),
        ({"allocatable_ids": {"GPU-1"}}, OPEN),  # ids are UUIDs, and its own is not known
        ({"allocatable_ids": {"GPU-2"}}, OPEN),
        ({"capacity": {N: "8"}, "allocatable": {N: "8"}}, ON),
        ({"capacity": {N: "8"}, "allocatable": {N: "7"}, "health": (health(),)}, OPEN),
    ],
)
def test_a_gpu_known_by_its_address_alone(known: dict[str, Any], offer: Offer) -> None:
    assert advertised(BY_ADDRESS, **known).offer is offer


@pytest.mark.parametrize("gpu", [GpuRef(), GpuRef(index=0, tp_rank=0)])
def test_a_gpu_that_is_not_known_is_never_said_to_be_offered_or_not(gpu: GpuRef) -> None:
    found = advertised(gpu, allocatable_ids={"GPU-1"}, capacity={N: "8"}, allocatable={N: "8"}, devices=(HERE,))
    assert found.offer is OPEN and "not known" in found.why


COUNTS = st.none() | st.dictionaries(
    st.sampled_from([N, MIG, SHARED, "cpu"]), st.sampled_from(["0", "1", "8", "", "x", "8" * 30])
)


@given(
    st.none() | st.sets(st.sampled_from(["GPU-1", "GPU-2", "MIG-1", "0", ""])),
    COUNTS,
    COUNTS,
    st.none() | st.lists(st.sampled_from([HERE, HELD, OTHER])),
    st.lists(st.sampled_from([health(), health("GPU-2"), health(state="Unknown")])),
)
def test_offered_one_way_is_offered(
    ids: set[str] | None,
    capacity: dict[str, str] | None,
    allocatable: dict[str, str] | None,
    devices: list[SliceDevice] | None,
    said: list[DeviceHealth],
) -> None:
    found = advertised(
        GPU, allocatable_ids=ids, capacity=capacity, allocatable=allocatable, devices=devices, health=said
    )
    assert found.why
    if "GPU-1" in (ids or ()) or HERE in (devices or ()):
        assert found.offer is ON

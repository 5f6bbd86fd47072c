"""Which DRA device is a GPU: attribute spellings, generations, contradictions, slices that vanish."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.model import GpuRef, PciAddress
from agent.slices import KnownDevices, devices_of, of_gpu

PCI = PciAddress("0000:65:00")


def a_slice(*names: str, generation: int = 1, uuid: str = "GPU-1", prefix: str = "") -> dict[str, Any]:
    attributes = {
        "resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"},
        f"{prefix}uuid": {"string": uuid},
    }
    taints = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
    devices = [{"name": n, "attributes": attributes, "taints": taints} for n in names]
    pool = {"name": "node-a", "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": pool, "devices": devices}}


def test_newest_generation_and_spellings() -> None:
    for prefix in ("", "gpu.nvidia.com/"):
        (found,) = devices_of([a_slice("gpu-0"), a_slice("gpu-3", generation=2, prefix=prefix)], node="node-a")
        assert (found.device, found.pci, found.uuid) == ("gpu-3", PCI, "GPU-1")
        assert found.withheld[0].value == "79"
    assert devices_of([a_slice("gpu-0")], node="node-b") == ()


def test_a_swapped_card_is_not_the_gpu() -> None:
    devices = devices_of([a_slice("gpu-3")])
    assert of_gpu(devices, GpuRef(pci=PCI))
    assert of_gpu(devices, GpuRef(pci=PCI, uuid="GPU-1"))
    assert not of_gpu(devices, GpuRef(pci=PCI, uuid="GPU-2"))
    assert not of_gpu(devices, GpuRef(index=0))


def test_slices_vanish_but_the_mapping_stays() -> None:
    known = KnownDevices(driver="gpu.nvidia.com")
    assert known.offered is None
    known.update([a_slice("gpu-3")])
    known.update([])
    assert known.offered == ()
    assert [d.device for d in known.devices] == ["gpu-3"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda c: (
        st.lists(c, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "pool", "name", "driver", "devices", "attributes", "taints", "generation"]), c
        )
    ),
)


@given(st.lists(JSON, max_size=4))
def test_any_json(items: list[object]) -> None:
    devices_of(items)

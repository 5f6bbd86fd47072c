import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.kubelet.checkpoint import CheckpointError, CheckpointSource, parse_checkpoint


def checkpoint(*entries: dict[str, object]) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {}}, "Checksum": 1}).encode()


def entry(devices: object, *, resource: str = "nvidia.com/gpu", uid: str = "u1") -> dict[str, object]:
    return {"PodUID": uid, "ContainerName": "sglang", "ResourceName": resource, "DeviceIDs": devices, "AllocResp": ""}


def test_devices_of_all_numa_nodes_belong_to_the_container() -> None:
    (held,) = parse_checkpoint(checkpoint(entry({"0": ["GPU-a"], "1": ["GPU-b"]})), now=5.0)
    assert (held.container.uid, held.container.container, held.devices, held.since) == (
        "u1",
        "sglang",
        ("GPU-a", "GPU-b"),
        5.0,
    )


def test_time_slicing_replicas_are_the_gpu_itself() -> None:
    (held,) = parse_checkpoint(checkpoint(entry({"-1": ["GPU-a::0", "GPU-a::7"]}), entry(["MIG-x::1"])), now=0.0)
    assert held.devices == ("GPU-a", "MIG-x")


def test_other_resources_are_left_out() -> None:
    assert parse_checkpoint(checkpoint(entry({"0": ["x"]}, resource="rdma/ib")), now=0.0) == ()


def test_no_entries_may_be_null() -> None:
    assert parse_checkpoint(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":0}', now=0.0) == ()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    try:
        parse_checkpoint(text, now=0.0)
    except CheckpointError:
        pass


def test_an_unchanged_file_is_not_read_again_and_a_bad_one_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    source = CheckpointSource(path)
    assert source.read(now=1.0) is None and "is not there" in source.error
    path.write_bytes(checkpoint(entry({"0": ["GPU-a"]})))
    assert len(source.read(now=1.0) or ()) == 1 and source.error == ""
    assert source.read(now=2.0) is None
    path.write_bytes(b"{")
    assert source.read(now=3.0) is None
    assert source.errors == 1 and "not a device-manager checkpoint" in source.error


def test_a_checkpoint_error_names_what_is_wrong() -> None:
    with pytest.raises(CheckpointError, match="not a device-manager checkpoint"):
        parse_checkpoint(b'{"Data": 3}', now=0.0)

"""Device taints against a real API server: made once, changed in place, and only ours taken away."""

import pytest

from agent.kube import KubeClient, Patch, RefusedError, login
from agent.model import GpuRef, PciAddress
from agent.respond.device_taint import GROUP, DeviceTaint
from agent.respond.means import WithholdError
from agent.slices import SliceDevice, SliceTaint
from tests.cluster.server import ApiServer

GPU = GpuRef(pci=PciAddress("0000:65:00"), uuid="GPU-1")
RULES = f"{GROUP}/v1/devicetaintrules"


@pytest.fixture
def api_server(newest_server: ApiServer) -> ApiServer:
    """Rules are served by default from 1.37 on; what an older server leads to is the last test's."""
    return newest_server


def means(client: KubeClient, node: str, *, device: str = "gpu-3") -> DeviceTaint:
    mine = SliceDevice(driver="gpu.nvidia.com", pool=node, device=device, pci=GPU.pci, uuid=GPU.uuid)
    return DeviceTaint(client, node=node, devices=lambda: (mine,), driver="gpu.nvidia.com")


async def test_withhold_change_release(client: KubeClient, node: str) -> None:
    taint = means(client, node)
    assert not taint.reach(GPU).can
    (first,) = await taint.withhold(GPU, value="xid-79", why="fell off the bus", fault="f1")
    assert taint.reach(GPU).can
    before = await client.get(f"{RULES}/{first.handle}")
    uid = (await client.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"]
    assert before["metadata"]["ownerReferences"][0]["uid"] == uid
    assert await taint.withhold(GPU, value="xid-79", why="fell off the bus", fault="f1") == (first,)
    again = await client.get(f"{RULES}/{first.handle}")
    assert again["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    (changed,) = await taint.withhold(GPU, value="xid 74/x", why="NVLink", fault="f2")
    assert (changed.handle, changed.value, changed.since) == (first.handle, "xid-74-x", first.since)
    assert await taint.held() == (changed,)
    assert await taint.release("f1") == ()
    assert await taint.release("f2") == (changed,)
    assert await taint.release("f2") == ()
    assert await taint.held() == ()


async def test_a_foreign_rule_of_our_name_stays(client: KubeClient, node: str) -> None:
    taint = means(client, node)
    (ours,) = await taint.withhold(GPU, value="xid-79", why="", fault="f1")
    await client.patch(
        f"{RULES}/{ours.handle}",
        {"metadata": {"labels": {"faultline.dev/gpu-fault": "mine"}}},
        kind=Patch.MERGE,
    )
    with pytest.raises(WithholdError, match="not ours"):
        await taint.withhold(GPU, value="xid-79", why="", fault="f1")
    assert await taint.release(ours.handle) == ()
    await client.delete(f"{RULES}/{ours.handle}")


async def test_nothing_is_sent_without_a_whole_selector(client: KubeClient, node: str) -> None:
    for device in ("", "GPU_0"):
        with pytest.raises(WithholdError):
            await means(client, node, device=device).withhold(GPU, value="x", why="", fault="f")
    assert await means(client, node).held() == ()


async def test_a_node_that_is_gone(client: KubeClient) -> None:
    with pytest.raises(RefusedError):
        await means(client, "no-such-node").withhold(GPU, value="x", why="", fault="f")


async def test_the_drivers_own_taint_is_not_doubled(client: KubeClient, node: str) -> None:
    said = SliceTaint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule")
    mine = SliceDevice(driver="gpu.nvidia.com", pool=node, device="gpu-3", pci=GPU.pci, taints=(said,))
    taint = DeviceTaint(client, node=node, devices=lambda: (mine,), driver="gpu.nvidia.com")
    assert await taint.withhold(GPU, value="xid-79", why="", fault="f") == ()
    assert taint.reach(GPU).already
    assert await taint.held() == ()


async def test_a_server_without_rules_is_no_way_to_withhold(oldest_server: ApiServer) -> None:
    async with KubeClient(await login(kubeconfig=str(oldest_server.kubeconfig()))) as client:
        taint = means(client, "n1")
        assert await taint.discover() == ""
        assert not taint.reach(GPU).can and "no DeviceTaintRules" in taint.reach(GPU).why
        assert await taint.held() == ()

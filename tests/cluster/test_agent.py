"""The whole agent on a real API server: what it finds is told, marked, shown by kubectl, and taken back."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agent.app import App
from agent.config import ClusterSettings, KubeletSettings, Settings
from agent.kube import KubeClient, Patch, login
from agent.respond.marks import KEY, RELEASE, NodeView
from tests.cluster.server import ApiServer
from tests.conftest import make_node
from tests.test_app import BUSY, record, settings

UID = "0c6f1a52-0000-0000-0000-000000000001"
GPU = "GPU-44444444-aaaa-bbbb-cccc-000000000005"
NAMED = f"NVRM: GPU at PCI:0000:5d:00: {GPU}"
FALLEN = "NVRM: Xid (PCI:0000:5d:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
RESET = "NVRM: Xid (PCI:0000:5d:00): 119, pid=1234, name=python3, Timeout after 6s of waiting for RPC response."


async def until(condition: Callable[[], Awaitable[object]], *, what: str) -> None:
    """Waits for the cluster to get there; the limit is for a broken agent only."""
    for _ in range(1500):
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(what)


def of(root: Path, node: str, **changes: object) -> Settings:
    (root / "proc" / "gpus").mkdir(parents=True, exist_ok=True)
    return settings(root, node_name=node, **({"kubelet": KubeletSettings(checkpoint="", pods="")} | changes))


@asynccontextmanager
async def agent(
    api_server: ApiServer,
    root: Path,
    node: str,
    *,
    mode: str,
    kubeconfig: Path | None = None,
    clock: Callable[[], float] = time.time,
    **changes: object,
) -> AsyncIterator[App]:
    way = await login(kubeconfig=str(kubeconfig or api_server.kubeconfig()))
    cluster = ClusterSettings(kubeconfig=str(api_server.kubeconfig()), pod_name="faultline-x", pod_namespace="default")
    app = App(of(root, node, mode=mode, cluster=cluster, **changes), sink=lambda _: None, login=way, clock=clock)
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    try:
        yield app
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)


async def view(client: KubeClient, node: str) -> NodeView:
    return NodeView.of(await client.get(f"/api/v1/nodes/{node}"))


async def events(client: KubeClient, name: str) -> list[dict]:
    found = await client.get("/apis/events.k8s.io/v1/events")
    return [e for e in found["items"] if e["regarding"]["name"] == name]


async def test_from_the_kernels_record_to_the_mark_and_back(
    api_server: ApiServer, client: KubeClient, node: str, tmp_path: Path
) -> None:
    async with agent(api_server, tmp_path, node, mode="taint") as app:
        record(tmp_path, 1, NAMED)
        record(tmp_path, 2, RESET)

        async def marked() -> bool:
            return (await view(client, node)).taint is not None

        await until(marked, what="tainted")
        there = await view(client, node)
        assert not there.unschedulable and there.labels[KEY] == "node"
        told = json.loads(there.annotations[KEY])
        assert told["faults"][0]["gpu"] == {"pci": "0000:5d:00", "uuid": GPU}

        async def both() -> bool:
            return {e["reason"] for e in await events(client, node)} >= {"GpuFault", "NodeTainted"}

        await until(both, what="told as events")
        figures = app.samples()
        assert figures['faultline_mark{means="node"}'] == 1 and figures['faultline_mark{means="cordon"}'] == 0
        assert figures['faultline_api_requests_total{method="PATCH",outcome="2xx"}'] >= 2
        assert (
            figures['faultline_source_blind{source="cluster"}'] == 0 and figures["faultline_events_dropped_total"] == 0
        )
        described = await asyncio.to_thread(api_server.kubectl, "describe", "node", node)
        assert KEY in described and "GpuFault" in described and "NodeTainted" in described and GPU in described

        await client.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {RELEASE: GPU}}}, kind=Patch.MERGE)

        async def free() -> bool:
            now = await view(client, node)
            return not now.marked and RELEASE not in now.annotations

        await until(free, what="released")

        async def removed() -> bool:
            return {e["reason"] for e in await events(client, node)} >= {"GpuFaultCleared", "MarkRemoved"}

        await until(removed, what="told as removed")
        assert app.cluster is not None and app.cluster.responder.error == ""


async def test_observe_changes_nothing_but_the_condition(
    api_server: ApiServer, client: KubeClient, node: str, tmp_path: Path
) -> None:
    async with agent(api_server, tmp_path, node, mode="observe") as app:
        record(tmp_path, 1, FALLEN)

        async def told() -> bool:
            conditions = (await view(client, node)).conditions
            return any(c["type"] == "GpuFault" and c["status"] == "True" for c in conditions)

        await until(told, what="the condition tells it")
        there = await view(client, node)
        assert not there.marked and not there.unschedulable
        assert app.plans()[0].withheld == "mode is observe; cordon needs mode cordon"


def slice_of(node: str, *, taints: list[dict] | None = None) -> dict:
    def device(minor: int, pci: str, uuid: str) -> dict:
        attributes = {"uuid": {"string": uuid}, "resource.kubernetes.io/pciBusID": {"string": pci}}
        return {"name": f"gpu-{minor}", "attributes": attributes} | ({"taints": taints} if taints else {})

    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpu"},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [device(3, "0000:5d:00.0", GPU), device(4, "0000:5e:00.0", GPU.replace("5", "6"))],
        },
    }  # fmt: skip


async def test_where_dra_serves_the_gpu_only_its_device_is_tainted(newest_server: ApiServer, tmp_path: Path) -> None:
    node = f"dra-{tmp_path.name[-6:].lower().replace('_', '-')}x"
    async with KubeClient(await login(kubeconfig=str(newest_server.kubeconfig()))) as client:
        await make_node(client, node)
        await client.create("/apis/resource.k8s.io/v1/resourceslices", slice_of(node))

        async def rules() -> list[dict]:
            found = await client.get("/apis/resource.k8s.io/v1/devicetaintrules")
            return [r for r in found["items"] or () if r["spec"]["deviceSelector"].get("pool") == node]

        async with agent(newest_server, tmp_path, node, mode="taint"):
            record(tmp_path, 1, NAMED)
            record(tmp_path, 2, RESET)
            await until(rules, what="the device is tainted")
            (rule,) = await rules()
            assert rule["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": node, "device": "gpu-3"}
            assert rule["spec"]["taint"]["effect"] == "NoSchedule"

            async def labelled() -> bool:
                return (await view(client, node)).labels.get(KEY) == "device"

            await until(labelled, what="counted as marked")
            assert (await view(client, node)).taint is None, "the seven others go on"

            async def told() -> bool:
                return "DeviceTainted" in {e["reason"] for e in await events(client, node)}

            await until(told, what="told")
            await client.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {RELEASE: GPU}}}, kind=Patch.MERGE)

            async def free() -> bool:
                return not await rules() and not (await view(client, node)).marked

            await until(free, what="released")
        await client.delete(f"/api/v1/nodes/{node}")
        await client.delete(f"/apis/resource.k8s.io/v1/resourceslices/{node}-gpu")


async def test_a_restart_without_its_state_keeps_the_mark_and_tells_nothing_twice(
    api_server: ApiServer, client: KubeClient, node: str, tmp_path: Path
) -> None:
    async def cordoned() -> bool:
        return (await view(client, node)).unschedulable

    async def told() -> bool:
        return {e["reason"] for e in await events(client, node)} >= {"GpuFault", "NodeCordoned"}

    async with agent(api_server, tmp_path, node, mode="cordon"):
        record(tmp_path, 1, FALLEN)
        await until(cordoned, what="cordoned")
        await until(told, what="told")
    before = await view(client, node)
    (tmp_path / "kmsg").write_text("")  # the ring went round
    async with agent(api_server, tmp_path / "lost", node, mode="cordon") as app:

        async def settled() -> bool:
            return app._caught_up and app.cluster is not None and app.cluster.responder.turned.is_set()

        await until(settled, what="read to the end")
        assert app.cluster is not None
        await app.cluster.responder.turn()
        after = await view(client, node)
        assert (after.taint, after.unschedulable, after.annotations) == (
            before.taint, before.unschedulable, before.annotations,
        )  # fmt: skip
        assert [f.gpu.pci for f in app.faults() if f.accuses] == ["0000:5d:00"]
    marks = [e for e in await events(client, node) if e["reason"] == "NodeCordoned"]
    assert len(marks) == 1


async def test_a_pods_failure_is_told_on_the_pod(
    api_server: ApiServer, client: KubeClient, node: str, tmp_path: Path
) -> None:
    async with agent(api_server, tmp_path, node, mode="observe"):
        record(tmp_path, 1, FALLEN)
        folder = tmp_path / "pods" / f"default_{node}-p_{UID}" / "sglang"
        folder.mkdir(parents=True)
        (folder / "0.log").write_text(f"2026-11-30T20:00:00.000000000Z stderr F {BUSY}\n")

        async def told() -> bool:
            return bool(await events(client, f"{node}-p"))

        await until(told, what="told on the pod")
        (event,) = await events(client, f"{node}-p")
        assert event["regarding"]["uid"] == UID and event["regarding"]["fieldPath"] == "spec.containers{sglang}"
        assert event["related"]["name"] == node and event["related"]["uid"]

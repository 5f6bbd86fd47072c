"""The agent's contract with the API server, by the server's own audit log: what it asks for is what its role allows,
all of it and nothing else; and where nothing happens it writes nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agent.app import App
from agent.config import CorrelationSettings, GpusSettings
from agent.kube import KubeClient, login
from agent.kube.rights import as_rules, rights_of
from agent.model import GpuRef, parse_pci
from agent.report.postman import Postman
from agent.report.services import SERVICE_LABEL
from agent.respond.marks import NodeView
from agent.respond.policy import MODES, Mode
from tests.cluster.server import ApiServer
from tests.cluster.test_agent import BUSY, FALLEN, NAMED, RESET, agent, events, slice_of, until, view
from tests.conftest import make_node
from tests.test_app import record

OTHER = FALLEN.replace("5d", "5f")
"""A GPU that DRA does not serve: only the node's own taint keeps work from it."""

SERVICES = "inferenceservices.inference.llmkube.dev"


class Turned:
    """A clock that is turned on by hand. It goes on by itself as well, since a real server is waited for."""

    def __init__(self) -> None:
        self.by = 0.0

    def wall(self) -> float:
        return time.time() + self.by

    def monotonic(self) -> float:
        return time.monotonic() + self.by


class TurnedLoop(asyncio.SelectorEventLoop):
    """Its timers follow a turned clock."""

    def __init__(self, clock: Turned) -> None:
        super().__init__()
        self._turned = clock

    def time(self) -> float:
        return self._turned.monotonic()


def rule_of(mode: str, *, name: str) -> list[dict[str, Any]]:
    """A role of the table that the doctor asks and the manifests are rendered from, and who has it."""
    api = "rbac.authorization.k8s.io"
    role = {"kind": "ClusterRole", "metadata": {"name": name}, "rules": as_rules(rights_of(mode))}
    binding = {
        "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": api, "kind": "User", "name": name}],
    }  # fmt: skip
    return [{"apiVersion": f"{api}/v1"} | item for item in (role, binding)]


async def grant(client: KubeClient, mode: str, *, name: str) -> None:
    for item in rule_of(mode, name=name):
        await client.create(f"/apis/rbac.authorization.k8s.io/v1/{item['kind'].lower()}s", item)


async def serve_llmkube(client: KubeClient) -> None:
    """LLMKube's kind, as far as a name and an uid need it."""
    there = await client.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    if any(item["metadata"]["name"] == SERVICES for item in there["items"]):
        return
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    group, names = SERVICES.partition(".")[2], {"plural": "inferenceservices", "kind": "InferenceService"}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    await client.create(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": SERVICES}, "spec": spec,
        },
    )  # fmt: skip

    async def established() -> bool:
        found = await client.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        (made,) = (item for item in found["items"] if item["metadata"]["name"] == SERVICES)
        return any(
            c["type"] == "Established" and c["status"] == "True"
            for c in (made.get("status") or {}).get("conditions") or ()
        )

    await until(established, what="LLMKube's kind is served")


async def serve_a_model(client: KubeClient, node: str) -> str:
    """An InferenceService and its pod on the node; the pod's uid."""
    await serve_llmkube(client)
    service = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": node}}
    await client.create("/apis/inference.llmkube.dev/v1alpha1/namespaces/serving/inferenceservices", service)
    spec = {"nodeName": node, "containers": [{"name": "sglang", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{node}-p", "labels": {SERVICE_LABEL: node}}}
    made = await client.create("/api/v1/namespaces/serving/pods", pod | {"spec": spec})
    return str(made["metadata"]["uid"])


def print_failure(root: Path, node: str, uid: str) -> None:
    folder = root / "pods" / f"serving_{node}-p_{uid}" / "sglang"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text(f"2026-11-30T20:00:00.000000000Z stderr F {BUSY}\n")


def used(server: ApiServer, user: str, *, since: int = 0) -> set[tuple[str, str, str]]:
    """Group, resource and verb of every request of this user; none may have been refused."""
    found = set()
    for event in server.audit(user=user, since=since):
        what = event.get("objectRef") or {}
        if "resource" not in what:
            continue  # discovery, which everyone who is logged in may read
        assert event["responseStatus"]["code"] not in (400, 401, 403, 405, 422), event
        resource = what["resource"] + (f"/{what['subresource']}" if what.get("subresource") else "")
        found.add((what.get("apiGroup", ""), resource, event["verb"]))
    return found


@pytest.mark.parametrize("mode", MODES)
async def test_it_asks_for_all_that_its_role_allows_and_for_nothing_else(
    newest_server: ApiServer, tmp_path: Path, mode: Mode
) -> None:
    """One run in which everything happens that the agent knows an answer to."""
    user, node, clock = f"contract-{mode}", f"contract-{mode}", Turned()
    async with KubeClient(await login(kubeconfig=str(newest_server.kubeconfig()))) as client:
        await make_node(client, node)
        await grant(client, mode, name=user)
        await client.create("/apis/resource.k8s.io/v1/resourceslices", slice_of(node))
        newest_server.namespace("serving")
        uid = await serve_a_model(client, node)
        way = newest_server.kubeconfig_for(user)
        quick = CorrelationSettings(settle_seconds=1.0)
        async with agent(
            newest_server, tmp_path, node, mode=mode, kubeconfig=way, clock=clock.wall, correlation=quick
        ) as app:

            async def told() -> bool:
                seen = {e["regarding"]["kind"] for name in (node, f"{node}-p") for e in await events(client, name)}
                return seen == {"Node", "Pod", "InferenceService"}

            async def rules() -> list[dict[str, Any]]:
                found = await client.get("/apis/resource.k8s.io/v1/devicetaintrules")
                return [r for r in found["items"] or () if r["spec"]["deviceSelector"].get("pool") == node]

            record(tmp_path, 1, NAMED)
            record(tmp_path, 2, RESET)
            print_failure(tmp_path, node, uid)
            await until(told, what="told on the node, the pod and its service")
            if mode != "observe":

                async def withheld() -> bool:
                    return [r["spec"]["taint"]["value"] for r in await rules()] == ["xid-119"]

                await until(withheld, what="the device is tainted")
            record(tmp_path, 3, FALLEN)  # graver, of the same GPU
            record(tmp_path, 4, OTHER)
            if mode != "observe":

                async def changed() -> bool:
                    return [r["spec"]["taint"]["value"] for r in await rules()] == (
                        ["xid-79"] if mode == "device" else []
                    )

                await until(
                    changed, what="the device's taint says the graver fault, or the node's taint took its place"
                )

            async def as_far_as_allowed() -> bool:
                there = await view(client, node)
                return (there.taint is not None, there.unschedulable) == (mode in ("taint", "cordon"), mode == "cordon")

            await until(as_far_as_allowed, what="the node is marked")

            async def both_told() -> bool:
                return [e["reason"] for e in await events(client, node)].count("GpuFault") == 2

            await until(both_told, what="both faults are told")
            clock.by += 61
            record(tmp_path, 5, OTHER)

            async def again() -> bool:
                return ("events.k8s.io", "events", "patch") in used(newest_server, user)

            await until(again, what="a series goes on")
            app.recoveries.release("all")

            async def clean() -> bool:
                return not (await view(client, node)).marked and not await rules()

            await until(clean, what="released")
            assert app.cluster is not None
            if mode != "observe":  # a rule that is there already, as after a kill between it and its answer
                gpu, taint = GpuRef(pci=parse_pci("0000:5d:00")), app.cluster.device_taint
                for value in ("xid-119", "xid-79"):
                    await taint.withhold(gpu, value=value, why="test", fault="fault-test")
                await taint.release("fault-test")
            assert app.cluster.responder.error == "" and app.cluster.postman.error == ""
            assert app.cluster.slices.error == "" and app.occupants.feed is not None and not app.occupants.feed.error
        await client.delete(f"/api/v1/nodes/{node}")
        await client.delete(f"/apis/resource.k8s.io/v1/resourceslices/{node}-gpu")
    allowed = {(*r.of, r.verb) for r in rights_of(mode)}
    asked = used(newest_server, user)
    assert sorted(asked - allowed) == [], "asked for, and not in the role"
    assert sorted(allowed - asked) == [], "in the role, and never asked for"


@pytest.mark.parametrize("marked", [False, True], ids=["healthy", "marked"])
def test_ten_idle_minutes_bring_no_write(
    newest_server: ApiServer, tmp_path: Path, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Turned()
    monkeypatch.setitem(Postman.__init__.__kwdefaults__, "monotonic", clock.monotonic)  # type: ignore[index]
    with asyncio.Runner(loop_factory=lambda: TurnedLoop(clock)) as runner:
        runner.run(idle(newest_server, tmp_path, clock, marked=marked))


async def idle(server: ApiServer, root: Path, clock: Turned, *, marked: bool) -> None:
    user = node = f"idle-{'marked' if marked else 'healthy'}"
    async with KubeClient(await login(kubeconfig=str(server.kubeconfig()))) as client:
        await make_node(client, node)
        await grant(client, "cordon", name=user)
        way = server.kubeconfig_for(user)
        blind = GpusSettings(nvml=False)  # its child answers in real time, and would seem to hang
        async with agent(server, root, node, mode="cordon", kubeconfig=way, clock=clock.wall, gpus=blind) as app:
            if marked:
                record(root, 1, FALLEN)
                record(root, 2, OTHER)

            async def settled() -> bool:
                there = await view(client, node)
                return _told(there, marked) and app.cluster is not None and app.cluster.postman.pending == 0

            await until(settled, what="settled")
            await _turn(clock, app, seconds=60)  # what follows an event within its minute has followed
            before, began, written = server.audited(), clock.wall(), _writes(app)
            await _turn(clock, app, seconds=600)
            assert clock.wall() - began >= 600
            assert _writes(app) == written
            assert [
                (e["verb"], e["requestURI"])
                for e in server.audit(user=user, since=before)
                if e["verb"] not in ("get", "list", "watch")
            ] == []
            assert app.cluster is not None and app.cluster.responder.error == ""
        await client.delete(f"/api/v1/nodes/{node}")


def _told(there: NodeView, marked: bool) -> bool:
    told = [c["status"] for c in there.conditions if c["type"] == "GpuFault"]
    return told == ["True" if marked else "False"] and there.unschedulable is marked


def _writes(app: App) -> int:
    assert app.cluster is not None
    return sum(count for (method, _), count in app.cluster.client.requests.items() if method != "GET")


async def _turn(clock: Turned, app: App, *, seconds: int) -> None:
    """In steps that are shorter than a request's deadline, with time for what a timer begins to be answered."""
    step = 2.0
    for _ in range(int(seconds / step)):
        clock.by += step
        await asyncio.sleep(0.01)

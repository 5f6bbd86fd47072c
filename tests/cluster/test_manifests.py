"""The manifests on a real API server: all are accepted, and the admission policy binds each agent to its own."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kube import KubeClient, RefusedError, login
from tests.cluster.server import ApiServer, ClusterError
from tests.manifests import render


def applied(server: ApiServer, objects: list[render.Json], *args: str) -> str:
    return server.kubectl(
        "apply", *args, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )


@pytest.mark.parametrize("overlay", render.OVERLAYS)
def test_accepted(newest_server: ApiServer, overlay: str) -> None:
    namespace = f"dry-{uuid.uuid4().hex[:8]}"
    newest_server.namespace(namespace)
    objects = render.render(render.OVERLAYS[overlay], namespace=namespace)
    out = applied(newest_server, objects, "--dry-run=server", "--validate=strict")
    assert len(out.splitlines()) == len(objects)


class Agents:
    """Two nodes with the agent's token of each, under the rights and policy of one mode."""

    def __init__(self, server: ApiServer, mode: str) -> None:
        self.server, self.mode, self.name = server, mode, f"own-{uuid.uuid4().hex[:8]}"
        self.nodes = [f"{self.name}-a", f"{self.name}-b"]
        server.namespace(self.name)
        values = {"mode": mode, "fullnameOverride": self.name}
        self.objects = [o for o in render.render(values, namespace=self.name) if o["kind"] != "DaemonSet"]
        applied(server, self.objects)
        foreign = {"key": "other/key", "effect": "NoSchedule"}
        for node in self.nodes:
            item = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"taints": [foreign]}}
            server.kubectl("create", "-f", "-", stdin=json.dumps(item))
        token = server.service_account_token(self.name, self.name, "agent", self.nodes[0])
        self.config = server.kubeconfig_with(token)
        unbound = server.kubectl("create", "token", self.name, "-n", self.name).strip()
        self.unbound = server.kubeconfig_with(unbound)
        # A policy is in force a moment after it was made.
        deadline = time.monotonic() + 30
        while "denied" not in self.said(self.nodes[1], {"metadata": {"annotations": {"faultline.dev/x": "1"}}}):
            assert time.monotonic() < deadline, "the policy is not in force"

    def said(self, node: str, patch: object, *args: str, config: Path | None = None) -> str:
        """Empty where the patch was taken; else why not."""
        try:
            self.server.kubectl(
                "patch", "node", node, "--type=merge", "-p", json.dumps(patch), *args, kubeconfig=config or self.config
            )
        except ClusterError as error:
            return str(error)
        return ""

    def close(self) -> None:
        for item in self.objects:
            if item["kind"].startswith(("ClusterRole", "Validating")):
                self.server.kubectl("delete", item["kind"], item["metadata"]["name"])
        self.server.kubectl("delete", "node", *self.nodes)


@pytest.fixture(scope="module", params=["taint", "cordon"])
def agents(newest_server: ApiServer, request: pytest.FixtureRequest) -> Iterator[Agents]:
    found = Agents(newest_server, request.param)
    yield found
    found.close()


OWN = {"key": "faultline.dev/gpu-fault", "value": "xid-79", "effect": "NoSchedule"}


def test_own_node(agents: Agents) -> None:
    node, other = agents.nodes
    # The API server itself adds not-ready to a new node.
    foreign = json.loads(agents.server.kubectl("get", "node", node, "-o", "json"))["spec"]["taints"]
    marks = {"labels": {"faultline.dev/gpu-fault": "node"}, "annotations": {"faultline.dev/gpu-fault": "{}"}}
    assert agents.said(node, {"metadata": marks, "spec": {"taints": [*foreign, OWN]}}) == ""
    assert "may not change node" in agents.said(other, {"spec": {"taints": [*foreign, OWN]}})
    assert "not bound to a node" in agents.said(node, {"spec": {"taints": foreign}}, config=agents.unbound)
    assert "only taints" in agents.said(node, {"spec": {"taints": [OWN]}})
    assert "only labels" in agents.said(node, {"metadata": {"labels": {"pool": "mine"}}})
    assert "only annotations" in agents.said(node, {"metadata": {"annotations": {"other/x": ""}}})
    assert "finalizers" in agents.said(node, {"metadata": {"finalizers": ["faultline.dev/x"]}})
    cordon = agents.said(node, {"spec": {"unschedulable": True}})
    assert ("cordon is not enabled" in cordon) if agents.mode == "taint" else cordon == ""
    gone = {"labels": {"faultline.dev/gpu-fault": None}, "annotations": {"faultline.dev/gpu-fault": None}}
    assert agents.said(node, {"metadata": gone, "spec": {"taints": foreign}}) == ""


async def test_status(agents: Agents) -> None:
    path = f"/api/v1/nodes/{agents.nodes[0]}/status"
    ours = {"type": "GpuFault", "status": "True", "reason": "Xid79", "message": "m"}
    ready = {"type": "Ready", "status": "True", "reason": "R", "message": "m"}
    # kubectl would read the status first, which the agent need not and may not.
    async with KubeClient(await login(kubeconfig=str(agents.config))) as client:
        await client.patch(path, {"status": {"conditions": [ours]}})
        for status in ({"conditions": [ready]}, {"capacity": {"nvidia.com/gpu": "9"}}):
            with pytest.raises(RefusedError, match="only the condition GpuFault"):
                await client.patch(path, {"status": status})


def rule(name: str, **selector: str) -> render.Json:
    taint = {"key": "faultline.dev/gpu-fault", "value": "xid-79", "effect": "NoSchedule"}
    spec = {"deviceSelector": selector, "taint": taint}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip


def test_own_devices(agents: Agents) -> None:
    node, other = agents.nodes

    def create(item: render.Json) -> str:
        try:
            agents.server.kubectl("create", "-f", "-", stdin=json.dumps(item), kubeconfig=agents.config)
        except ClusterError as error:
            return str(error)
        return ""

    driver = "gpu.nvidia.com"
    assert create(rule(f"{node}-0", driver=driver, pool=node, device="gpu-0")) == ""
    agents.server.kubectl("delete", "devicetaintrule", f"{node}-0", kubeconfig=agents.config)
    assert "must select driver" in create(rule(f"{node}-1", driver=driver, pool=other, device="gpu-0"))
    assert "must select driver" in create(rule(f"{node}-1", driver=driver, pool=node))
    assert "must select driver" in create(rule(f"{node}-1"))
    evicting = rule(f"{node}-1", driver=driver, pool=node, device="gpu-0")
    evicting["spec"]["taint"]["effect"] = "NoExecute"
    assert "NoExecute is not enabled" in create(evicting)

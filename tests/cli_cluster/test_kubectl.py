"""`kubectl faultline`: the nodes that carry a mark, from whatever part of the mark there is."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli.kubectl import age, group
from agent.detect.marks import mark_of
from tests.cli_cluster.server import ApiServer, kubeconfig, refusal, serving

KEY = "faultline.dev/gpu-fault"
FAULTS = [{"gpu": {"pci": "0000:5d:00", "uuid": None}, "xids": [79], "value": "xid-79", "since": 1000, "why": "lost"}]
WHOLE = {
    "metadata": {
        "name": "gpu-1",
        "labels": {KEY: "node"},
        "annotations": {KEY: json.dumps({"v": 1, "faults": FAULTS})},
    },
    "spec": {"taints": [{"key": "a"}, {"key": KEY, "value": "xid-79", "effect": "NoSchedule"}], "unschedulable": True},
    "status": {"conditions": [{"type": "GpuFault", "status": "True", "message": "m"}]},
}
BARE = {"metadata": {"name": "gpu-2"}, "status": {"conditions": [{"type": "GpuFault", "status": "False"}]}}
CONDITION = {
    "metadata": {"name": "gpu-0"},
    "status": {
        "conditions": [
            {"type": "GpuFault", "status": "True", "message": "Xid 48", "lastTransitionTime": "1970-01-01T00:01:00Z"}
        ]
    },
}


def page(*items: Any, following: str = "") -> dict[str, Any]:
    return {"kind": "NodeList", "apiVersion": "v1", "metadata": {"continue": following}, "items": list(items)}


def called(server: ApiServer, folder: Path, *args: str) -> Result:
    return CliRunner().invoke(group, ["--kubeconfig", kubeconfig(folder, server), *args])


def test_the_marked_nodes_are_listed_over_all_pages(tmp_path: Path) -> None:
    answers = {"/api/v1/nodes?continue=two": page(CONDITION), "/api/v1/nodes": page(WHOLE, BARE, following="two")}
    with serving(answers) as server:
        for args in ((), ("nodes",)):
            result = called(server, tmp_path, *args)
            assert result.exit_code == 0, result.stderr
            head, first, second = result.stdout.splitlines()
            assert head.split() == ["NODE", "MARK", "VALUE", "GPUS", "SINCE", "WHY"]
            assert first.split()[:4] == ["gpu-0", "-", "-", "-"]
            assert first.endswith("Xid 48")
            assert second.split()[:4] == ["gpu-1", "node,cordoned", "xid-79", "0000:5d:00"]
            assert second.endswith("lost")
    assert {method for method, *_ in server.asked} == {"GET"}


@pytest.mark.parametrize("args", [("-o", "json"), ("nodes", "-o", "json")])
def test_the_same_for_machines(args: tuple[str, ...], tmp_path: Path) -> None:
    with serving({"/api/v1/nodes": page(WHOLE)}) as server:
        told = json.loads(called(server, tmp_path, *args).stdout)
    assert (told["apiVersion"], told["kind"]) == ("faultline.dev/v1", "MarkedNodes")
    (item,) = told["items"]
    assert item["node"] == "gpu-1"
    assert item["since"] == 1000.0
    assert item["faults"][0]["xids"] == [79]


def test_no_mark_anywhere(tmp_path: Path) -> None:
    with serving({"/api/v1/nodes": page(BARE)}) as server:
        result = called(server, tmp_path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No node" in result.stderr


def test_without_the_right_it_says_which_one(tmp_path: Path) -> None:
    with serving({"/api/v1/nodes": refusal(403, "Forbidden", "nodes is forbidden")}) as server:
        result = called(server, tmp_path)
    assert result.exit_code == 2
    assert "you need `list` on nodes" in result.stderr


def test_without_a_cluster_it_says_so(tmp_path: Path) -> None:
    with serving({}) as server:
        path = kubeconfig(tmp_path, server)
    result = CliRunner().invoke(group, ["nodes", "--kubeconfig", path])
    assert result.exit_code == 2
    assert result.stderr.startswith("faultline: ")
    assert CliRunner().invoke(group, ["--kubeconfig", str(tmp_path / "none")]).exit_code == 2
    assert CliRunner().invoke(group, ["--kubeconfig", path, "--context", "other"]).exit_code == 2


def test_a_pod_is_explained_with_the_same_exit_status(tmp_path: Path) -> None:
    with serving({}) as server:
        result = called(server, tmp_path, "explain", "-n", "llm", "chat-0")
    assert result.exit_code == 2
    assert server.asked[0][1] == "/api/v1/namespaces/llm/pods/chat-0"


def test_the_plugin_is_installed_under_the_name_that_kubectl_looks_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["kubectl-faultline"] == "agent.cli.kubectl:main"


@pytest.mark.parametrize(
    ("seconds", "told"), [(5, "5s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d"), (-3, "0s")]
)
def test_ages(seconds: int, told: str) -> None:
    assert age(1000.0, now=1000.0 + seconds) == told


LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=9)
KEYS = st.sampled_from(["name", "labels", "annotations", KEY, "taints", "key", "value", "conditions", "type", "status"])
TREE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@settings(max_examples=200, deadline=None)
@given(TREE, TREE, TREE)
def test_a_node_of_any_shape_is_survived(meta: Any, spec: Any, status: Any) -> None:
    mark_of({"metadata": meta, "spec": spec, "status": status})

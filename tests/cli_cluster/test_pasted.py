"""What people paste beside logs, through the whole of `faultline explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from agent.cli import group
from tests.cli_cluster.test_explain_pod import CRASH, XID_79, node, pod

PASTED = Path(__file__).parent / "pasted"


def told(*files: str, stdin: bytes = b"") -> Any:
    result = CliRunner().invoke(group, ["explain", *files, "--format", "json"], input=stdin)
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def form(obj: Any, kind: str) -> bytes:
    return (json.dumps(obj, indent=2) if kind == "json" else yaml.safe_dump(obj, sort_keys=False)).encode()


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_pod_and_node_together_name_the_gpu(kind: str, tmp_path: Path) -> None:
    crashed = pod(lastState={"terminated": {"exitCode": 1, "reason": "Error", "message": CRASH.decode()}})
    (tmp_path / "pod.txt").write_bytes(form(crashed, kind))
    (tmp_path / "node.txt").write_bytes(form(node(XID_79), kind))
    answer = told(str(tmp_path / "pod.txt"), str(tmp_path / "node.txt"))
    assert [f["xids"] for f in answer["faults"]] == [[79]]
    assert answer["verdicts"][0]["container"] == "llm/chat-0/sglang"
    assert answer["verdicts"][0]["confidence"] == "certain"
    assert any("GPUs held by the container: GPU-1111" in note for note in answer["verdicts"][0]["checked"])
    both = told(stdin=form({"apiVersion": "v1", "kind": "List", "items": [crashed, node(XID_79)]}, kind))
    assert both["verdicts"][0]["confidence"] == "certain"


def test_describe_of_both() -> None:
    answer = told(str(PASTED / "describe-pod.txt"), str(PASTED / "describe-node.txt"))
    assert [f["xids"] for f in answer["faults"]] == [[79]]
    first = next(v for v in answer["verdicts"] if v["rule"] == "cuda/device-busy")
    assert first["component"] == "gpu"
    assert first["container"] == "llm/chat-0/sglang"


def test_the_kernels_words_in_a_last_word_accuse_nobody(tmp_path: Path) -> None:
    line = "[ 12.5] NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
    forged = pod(lastState={"terminated": {"message": line * 5}})
    for kind in ("yaml", "json"):
        assert told(stdin=form(forged, kind))["faults"] == []


def test_a_containers_log_is_no_object_whatever_it_prints(tmp_path: Path) -> None:
    (tmp_path / "pod.log").write_bytes(form(node(XID_79), "yaml"))
    assert told(str(tmp_path / "pod.log"))["faults"] == []


def test_an_object_that_is_cut_is_read_line_by_line() -> None:
    whole = form({**pod(), "status": {"message": "The node was low on resource: memory. Threshold"}}, "json")
    assert [v["rule"] for v in told(stdin=whole)["verdicts"]] == ["kubernetes/evicted"]
    assert [v["rule"] for v in told(stdin=whole[:-3])["verdicts"]] == ["kubernetes/evicted"]


def test_events_tell_that_marked_nodes_keep_a_pod_waiting() -> None:
    answer = told(str(PASTED / "events.txt"))
    assert [v["rule"] for v in answer["verdicts"]] == ["kubernetes/nodes-marked"]

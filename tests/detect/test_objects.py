"""Pods, nodes and events as people paste them: read as texts, without a guess, whatever the input is."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.detect.objects import JSON_LIMIT, YAML_LIMIT, Objects, may_be_objects, read_objects

MESSAGE = 'Traceback (most recent call last):\n  File "x.py", line 1\nRuntimeError: CUDA error: out of memory'
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "chat-0", "namespace": "llm", "uid": "u-1"},
    "status": {
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/5 nodes"}],
        "containerStatuses": [
            {
                "name": "sglang",
                "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "OOMKilled", "message": MESSAGE}},
                "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-a::1"}]}],
            }
        ],
    },
}
FAULTS = {
    "v": 1,
    "faults": [
        {"gpu": {"pci": "0000:5D:00.0", "uuid": "GPU-a"}, "xids": [79], "value": "xid-79", "since": 5.0, "why": "w"}
    ],
}
NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-1", "annotations": {"faultline.dev/gpu-fault": json.dumps(FAULTS)}},
    "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "7"}},
}


def written(obj: Any, form: str) -> bytes:
    if form == "yaml":
        return yaml.safe_dump(obj, sort_keys=False).encode()
    return json.dumps(obj, indent=4).encode()


def known(text: bytes) -> Objects:
    assert may_be_objects(text)
    found = read_objects(text)
    assert found is not None
    return found


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_containers_last_words_are_its_own(form: str) -> None:
    found = known(written(POD, form))
    own = {(p.container.container, p.container.restart): p.text for p in found.parts if p.container is not None}
    assert own["sglang", 2].startswith(MESSAGE)
    assert "Reason:       OOMKilled" in own["sglang", 2]
    assert "CrashLoopBackOff" in own["sglang", 3]
    cluster = next(p.text for p in found.parts if p.container is None)
    assert "The node was low on resource: memory." in cluster
    assert "Unschedulable" in cluster
    assert [h.devices for h in found.held] == [("GPU-a",)]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_node_tells_its_counts_and_its_faults(form: str) -> None:
    found = known(written(NODE, form))
    assert "Capacity:\n  nvidia.com/gpu: 8\nAllocatable:\n  nvidia.com/gpu: 7" in found.parts[0].text
    (fault,) = found.faults
    assert (fault.node, fault.pci, fault.xids, fault.since) == ("gpu-1", "0000:5d:00", (79,), 5.0)


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_lists_of_any_kind_are_opened(form: str) -> None:
    assert known(written({"apiVersion": "v1", "kind": "List", "items": [POD, NODE]}, form)).faults
    bare = {k: v for k, v in POD.items() if k != "kind"}
    assert known(written({"apiVersion": "v1", "kind": "PodList", "items": [bare]}, form)).held
    event = {"kind": "Event", "type": "Warning", "reason": "FailedScheduling", "message": "0/5 nodes are available"}
    events = known(written({"apiVersion": "v1", "items": [event], "kind": "List"}, form))
    assert [p.text for p in events.parts] == ["Warning  FailedScheduling  0/5 nodes are available"]


def test_several_documents() -> None:
    assert known(b"---\n# a comment\n" + written(POD, "yaml") + b"---\n" + written(NODE, "yaml")).faults


@pytest.mark.parametrize(
    "text",
    [
        b"kind: ",
        b"kind: Pod\n\tx",
        b"kind: [",
        b"kind: Service\n",
        b"{\"kind\": \"Pod\"",
        b"{\"kind\": " + b"[" * 100_000,
        b"kind: " + b"[" * 100_000,
        b"kind: Pod\na: &a [*a, *a]\n*a : *a\n? [x]\n: y\n? {a: b}\n: c\n",
        b"kind: " + b"x" * YAML_LIMIT,
        b"{\"kind\":\"" + b"x" * JSON_LIMIT + b"\"}",
        b"kind: \xff\xfe\n",
        b"{\"kind\": " + b"9" * 10_000 + b"}",
        b"",
        b"kind: Pod\nstatus: !!python/object/apply:os.system [x]\n",
    ],
)  # fmt: skip
def test_what_is_broken_hostile_or_none_of_these_is_survived(text: bytes) -> None:
    may_be_objects(text)
    found = read_objects(text)
    assert found is None or not found.faults


@pytest.mark.parametrize("text", [b'{"log":"x","stream":"stdout"}\n', b"INFO: kind: Pod\n", b"", b"kindly: x\n"])
def test_a_log_is_not_taken_for_objects(text: bytes) -> None:
    assert not may_be_objects(text)


LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
KEYS = st.sampled_from(
    ["kind", "items", "metadata", "status", "name", "uid", "containerStatuses", "state", "lastState", "terminated",
     "message", "reason", "restartCount", "conditions", "type", "capacity", "annotations", "faultline.dev/gpu-fault",
     "allocatedResourcesStatus", "resources", "resourceID", "startTime", "note", "waiting"]
) | st.text(max_size=4)  # fmt: skip
TREE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6))
KIND = st.sampled_from(["Pod", "Node", "Event", "List", "PodList"])


@settings(max_examples=300, deadline=None)
@given(KIND, TREE, TREE, TREE)
def test_objects_of_any_shape_are_survived(kind: str, meta: Any, status: Any, more: Any) -> None:
    obj = {"kind": kind, "metadata": meta, "status": status, "items": more, "message": more}
    read_objects(json.dumps(obj).encode())
    del obj["items"]
    read_objects(json.dumps(obj).encode())
    read_objects(b"kind: " + kind.encode() + b"\nstatus: " + json.dumps(status).encode())


@settings(max_examples=300, deadline=None)
@given(TREE, st.text(max_size=50))
def test_an_annotation_of_any_shape_is_survived(body: Any, raw: str) -> None:
    for text in (json.dumps(body), json.dumps({"v": 1, "faults": body}), raw):
        node = {"kind": "Node", "metadata": {"annotations": {"faultline.dev/gpu-fault": text}}}
        assert read_objects(json.dumps(node).encode()) is not None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_survived(text: bytes) -> None:
    for head in (b"", b"kind: Pod\n", b"kind: ", b'{"kind":'):
        may_be_objects(head + text)
        read_objects(head + text)

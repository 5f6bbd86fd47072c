"""Any report as an Event: held against the rules of the API server (1.37: pkg/apis/core/validation/events.go)."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.report.event_body import event_body, event_name, event_namespace, event_time, series_body, service_report
from agent.report.events import ObjectRef, Reason, Report, fault_reports, verdict_reports
from tests.report.event_rules import problems
from tests.report.report_examples import FAULT, VERDICT

TEXT = st.text(st.characters(codec=None), max_size=40) | st.text(max_size=400) | st.just("é" * 700)
TIMES = st.none() | st.floats() | st.floats(0, 4e9)
REFS = st.builds(
    ObjectRef, kind=st.sampled_from(["Node", "Pod", "InferenceService"]) | TEXT, name=TEXT,
    namespace=st.just("") | st.just("llm") | TEXT, uid=TEXT, field_path=TEXT, api_version=st.just("") | TEXT,
)  # fmt: skip
REPORTS = st.builds(
    Report, reason=st.sampled_from(Reason), type=st.sampled_from(["Normal", "Warning"]), regarding=REFS,
    related=st.none() | REFS, note=st.builds("".join, st.lists(TEXT, max_size=6)), key=TEXT, action=TEXT,
    first_seen=TIMES, last_seen=TIMES, count=st.integers(),
)  # fmt: skip


@given(REPORTS, TEXT, TEXT, st.integers(0, 5), st.floats())
def test_whatever_a_report_holds_the_server_takes_it(
    report: Report, node: str, instance: str, generation: int, at: float
) -> None:
    name = event_name(report, node=node, generation=generation)
    body = json.loads(json.dumps(event_body(report, name=name, instance=instance, at=at)))
    assert problems(body) == []


@given(REPORTS, REFS)
def test_what_is_told_on_a_service_is_taken_too(report: Report, service: ObjectRef) -> None:
    told = service_report(report, service)
    assert problems(event_body(told, name=event_name(told, node="n"), instance="i", at=1.0)) == []


@given(st.floats())
def test_any_time_has_six_decimals(at: float) -> None:
    assert len(event_time(at)) == len("2026-11-30T12:00:00.000000Z")


def test_an_event_on_a_node_stands_in_default_and_names_no_namespace() -> None:
    (report,) = fault_reports(None, FAULT, node="node-a")
    report = replace(report, regarding=replace(report.regarding, uid="uid-1"))
    name = event_name(report, node="node-a")
    assert event_body(report, name=name, instance="faultline-x", at=5.0) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": "1970-01-01T00:01:40.000000Z",
        "reportingController": "faultline.dev/agent",
        "reportingInstance": "faultline-x",
        "action": "Detect",
        "reason": "GpuFault",
        "type": "Warning",
        "note": report.note,
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1"},
    }
    assert name.startswith("node-a.")


def test_an_event_on_a_pod_stands_beside_it_and_names_the_container_and_the_node() -> None:
    (report,) = verdict_reports(None, VERDICT, node="node-a")
    body = event_body(replace(report, count=3), name="x", instance="i", at=5.0)
    assert body["metadata"]["namespace"] == "llm"
    assert body["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "qwen-0", "namespace": "llm", "uid": "u-1",
        "fieldPath": "spec.containers{sglang}",
    }  # fmt: skip
    assert body["related"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a"}
    assert body["series"] == {"count": 3, "lastObservedTime": "1970-01-01T00:01:42.000000Z"}


def test_an_event_on_a_service_says_which_pod_failed_where() -> None:
    (report,) = verdict_reports(None, VERDICT, node="node-a")
    service = ObjectRef(kind="InferenceService", name="qwen", namespace="llm", uid="s-1")
    body = event_body(service_report(report, service), name="x", instance="i", at=5.0)
    assert body["regarding"] == {
        "apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "name": "qwen",
        "namespace": "llm", "uid": "s-1",
    }  # fmt: skip
    assert body["related"]["kind"] == "Pod"
    assert body["note"].startswith("Pod qwen-0 on node node-a: CUDA device busy")


def test_a_name_is_that_of_its_series() -> None:
    (report,) = fault_reports(None, FAULT, node="node-a")
    name = event_name(report, node="node-a")
    assert event_name(replace(report, count=9, last_seen=900.0, note="other"), node="node-a") == name
    others = [
        event_name(replace(report, key="fault/f2/fatal"), node="node-a"),
        event_name(replace(report, first_seen=101.0), node="node-a"),
        event_name(report, node="node-b"),
        event_name(report, node="node-a", generation=1),
    ]
    assert len({name, *others}) == 5


def test_a_long_note_is_cut_between_characters() -> None:
    (report,) = fault_reports(None, FAULT, node="node-a")
    note = event_body(replace(report, note="é" * 600), name="x", instance="i", at=0.0)["note"]
    assert len(note.encode()) <= 1024
    assert set(note) == {"é", "…"}


def test_one_occurrence_is_no_series() -> None:
    assert series_body(1, at=5.0) == {}
    assert series_body(2, at=5.0) == {"series": {"count": 2, "lastObservedTime": "1970-01-01T00:00:05.000000Z"}}


def test_a_namespace_that_is_none_gives_default() -> None:
    assert event_namespace(ObjectRef(kind="Pod", name="p", namespace="../../x")) == "default"

"""Events: which change is told, about what, under which reason."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_examples import FAULT, VERDICT

from agent.model import (
    Action,
    Component,
    Confidence,
    ContainerRef,
    Evidence,
    GpuRef,
    Plan,
    Role,
    Scope,
    Severity,
)
from agent.report.events import (
    DEEDS,
    NOTE_BYTES,
    ObjectRef,
    Reason,
    blind_report,
    fault_reports,
    latest,
    mark_reports,
    node_ref,
    still_advertised_report,
    verdict_reason,
    verdict_reports,
    withheld_report,
)
from agent.report.terminal import changes_table, events_table, table
from agent.text import cut, duration, printable


def test_a_new_fault_is_told_on_the_node_with_what_to_do() -> None:
    (report,) = fault_reports(None, FAULT, node="gpu-1")
    assert (report.reason, report.type, report.action) == (Reason.GPU_FAULT, "Warning", "Detect")
    assert report.regarding == ObjectRef(kind="Node", name="gpu-1")
    assert report.note == (
        "GPU 0000:5d:00: fallen off the bus (Xid 79). The driver lost the GPU. Drain and reboot the node. "
        'kernel: "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."'
    )
    assert (report.first_seen, report.last_seen, report.count) == (100.0, 100.0, 1)


def test_more_signals_of_a_fault_are_one_series_with_a_higher_count() -> None:
    more = replace(FAULT, signals=9, last_seen=130.0)
    (first,), (again,) = fault_reports(None, FAULT, node="n"), fault_reports(FAULT, more, node="n")
    assert first.key == again.key
    assert (again.count, again.last_seen) == (9, 130.0)
    assert fault_reports(more, more, node="n") == []
    assert latest([first, again]) == [again]


def test_a_fault_that_becomes_graver_is_told_anew_because_an_events_text_is_immutable() -> None:
    mild = replace(FAULT, severity=Severity.PENDING)
    (first,), (graver,) = fault_reports(None, mild, node="n"), fault_reports(mild, FAULT, node="n")
    assert first.key != graver.key


@pytest.mark.parametrize("severity", [Severity.APP, Severity.INFO, Severity.CONTEXT])
def test_what_an_application_did_to_itself_is_no_gpu_fault(severity: Severity) -> None:
    assert fault_reports(None, replace(FAULT, severity=severity), node="n") == []


def test_a_cleared_fault_is_told_once_as_normal() -> None:
    cleared = replace(FAULT, cleared=200.0)
    (report,) = fault_reports(FAULT, cleared, node="n")
    assert (report.reason, report.type, report.last_seen) == (Reason.GPU_FAULT_CLEARED, "Normal", 200.0)
    assert fault_reports(cleared, cleared, node="n") == []
    assert fault_reports(None, cleared, node="n") == [], "read from the state: it was told before"
    (back,) = fault_reports(cleared, replace(FAULT, signals=2), node="n")
    assert back.reason is Reason.GPU_FAULT


def test_a_fault_without_an_address_blames_no_gpu() -> None:
    wanted = {Scope.NODE: "This node:", Scope.FABRIC: "The GPU fabric:", Scope.GPU: "A GPU of this node:"}
    for scope, words in wanted.items():
        (report,) = fault_reports(None, replace(FAULT, gpu=GpuRef(index=3), scope=scope), node="n")
        assert report.note.startswith(words)


def test_a_verdict_is_told_on_its_pod_and_names_the_node() -> None:
    (report,) = verdict_reports(None, VERDICT, node="gpu-1")
    assert report.reason is Reason.BACKEND_FAILED_ON_FAULTED_GPU
    assert report.regarding == ObjectRef(
        kind="Pod", name="qwen-0", namespace="llm", uid="u-1", field_path="spec.containers{sglang}"
    )
    assert report.related == node_ref("gpu-1")
    assert report.note == (
        "CUDA device busy or unavailable. The GPU fell off the bus (likely). Xid 79 came 2 s before. "
        'On GPU 0000:5d:00 (Xid 79). Move the pod. qwen-0:14: "torch.AcceleratorError: CUDA error"'
    )


@pytest.mark.parametrize(
    ("component", "confidence", "fault", "role", "reason"),
    [
        (Component.GPU, Confidence.CERTAIN, "f1", Role.SYMPTOM, Reason.BACKEND_FAILED_ON_FAULTED_GPU),
        (Component.FABRIC, Confidence.LIKELY, "f1", Role.SYMPTOM, Reason.BACKEND_FAILED_ON_FAULTED_GPU),
        (Component.GPU, Confidence.UNDECIDED, None, Role.SYMPTOM, Reason.BACKEND_FAILURE_UNDECIDED),
        (Component.UNDECIDED, Confidence.POSSIBLE, None, Role.CAUSE, Reason.BACKEND_FAILURE_UNDECIDED),
        (Component.CONFIG, Confidence.CERTAIN, None, Role.CAUSE, Reason.BACKEND_VALIDATION_FAILED),
        (Component.MODEL, Confidence.CERTAIN, None, Role.CAUSE, Reason.BACKEND_VALIDATION_FAILED),
        (Component.IMAGE, Confidence.CERTAIN, None, Role.CAUSE, Reason.BACKEND_VALIDATION_FAILED),
        (Component.SHARING, Confidence.CERTAIN, None, Role.CAUSE, Reason.BACKEND_FAILED),
        (Component.CONFIG, Confidence.CERTAIN, None, Role.ADVICE, Reason.SLOW_BACKEND_CONFIGURATION),
    ],
)
def test_the_reason_follows_from_whose_failure_it_is(
    component: Component, confidence: Confidence, fault: str | None, role: Role, reason: Reason
) -> None:
    verdict = replace(VERDICT, component=component, confidence=confidence, fault=fault)
    assert verdict_reason(verdict, role=role) is reason
    (report,) = verdict_reports(None, verdict, node="n", role=role)
    assert report.type == ("Normal" if role is Role.ADVICE else "Warning")


def test_a_verdict_that_is_decided_later_is_a_new_series_and_a_repeat_is_not() -> None:
    undecided = replace(VERDICT, confidence=Confidence.UNDECIDED, fault=None)
    (first,) = verdict_reports(None, undecided, node="n")
    (later,) = verdict_reports(undecided, VERDICT, node="n")
    (repeat,) = verdict_reports(VERDICT, replace(VERDICT, count=3), node="n")
    assert first.key != later.key == repeat.key
    assert repeat.count == 3
    assert verdict_reports(VERDICT, VERDICT, node="n") == []


def test_a_verdict_without_a_pod_is_told_on_the_node() -> None:
    (report,) = verdict_reports(None, replace(VERDICT, container=ContainerRef(file="a.log")), node="n")
    assert report.regarding == node_ref("n")
    assert report.related is None


def mark(
    means: str, value: str = "xid-79", *, since: float = 60.0, told: Collection[str] = (), at: float = 65.0
) -> Any:
    return mark_reports(means, value, since=since, why="GPU 0000:5d:00 fell off the bus", told=told, node="n", at=at)


def test_a_mark_is_told_once_however_often_it_is_seen() -> None:
    (done,) = mark("cordon")
    assert (done.reason, done.type, done.first_seen) == (Reason.NODE_CORDONED, "Warning", 60.0)
    assert done.note == "This node is tainted and cordoned (xid-79). GPU 0000:5d:00 fell off the bus."
    assert mark("cordon", told=[done.key]) == []
    (tainted,) = mark("node", told=[done.key])
    assert tainted.reason is Reason.NODE_TAINTED, "a mark that became milder is another one"
    assert mark("node", told=[done.key, tainted.key]) == []


def test_a_mark_that_fell_is_told_once_even_when_nobody_saw_it_fall() -> None:
    (done,) = mark("node")
    (removed,) = mark_reports("", "", since=None, why="", told=[done.key], node="n", at=99.0)
    assert (removed.reason, removed.type) == (Reason.MARK_REMOVED, "Normal")
    assert removed.note == "Mark removed (xid-79)."
    assert mark_reports("", "", since=None, why="", told=[done.key, removed.key], node="n", at=99.0) == []
    again = mark("node", since=120.0, told=[done.key])
    assert [r.reason for r in again] == [Reason.NODE_TAINTED, Reason.MARK_REMOVED]
    assert mark_reports("", "", since=None, why="", told=[], node="n", at=99.0) == [], (
        "what was never set is not removed"
    )


def test_a_withheld_plan_is_told_with_its_reason() -> None:
    plan = Plan(
        action=Action.CORDON, target="n", why="It fell off", value="xid-79", fault="f1", withheld="mode is taint"
    )
    report = withheld_report(plan, node="n", at=5.0)
    assert (report.reason, report.type) == (Reason.ACTION_WITHHELD, "Warning")
    assert report.note == "Not done: cordon (xid-79): mode is taint. It fell off."


def test_a_blind_source_is_told_on_the_agents_own_pod() -> None:
    pod = ObjectRef(kind="Pod", namespace="faultline", name="faultline-x")
    report = blind_report("the kernel log", why="permission denied", cure="Add CAP_SYSLOG.", agent=pod, at=3.0)
    assert (report.reason, report.type, report.regarding) == (Reason.SOURCE_BLIND, "Warning", pod)
    assert "Cannot read the kernel log: permission denied." in report.note
    assert report.note.endswith("Add CAP_SYSLOG.")


def test_a_faulted_gpu_still_on_offer_is_told() -> None:
    report = still_advertised_report(FAULT, node="n", why="the kubelet can allocate GPU-4", now=9.0)
    assert report.reason is Reason.GPU_FAULT_STILL_ADVERTISED
    assert "still offered to new pods: the kubelet can allocate GPU-4" in report.note


def test_every_reason_has_a_deed_and_the_list_is_closed() -> None:
    assert set(DEEDS) == set(Reason)
    assert len(Reason) == 15


@given(st.text(max_size=3000), st.text(max_size=2000), st.text(max_size=500))
def test_a_note_is_at_most_1024_bytes_of_valid_text_on_one_line(why: str, fix: str, line: str) -> None:
    fault = replace(FAULT, why=why, fix=(fix,), evidence=(Evidence(source="k", text=line),))
    (report,) = fault_reports(None, fault, node="n")
    assert len(report.note.encode()) <= NOTE_BYTES
    assert "\n" not in report.note and "\x1b" not in report.note


def test_a_note_of_two_byte_characters_is_cut_between_them() -> None:
    text = cut("é" * 600, 1024)
    assert len(text.encode()) <= 1024
    assert text.endswith("é…")
    assert cut("é" * 512, 1024) == "é" * 512
    assert cut("abc", 2) == "ab"
    assert cut("", 0) == ""


def test_a_long_note_of_a_real_fault_keeps_the_limit_in_bytes() -> None:
    (report,) = fault_reports(None, replace(FAULT, why="日本" * 400), node="n")
    assert NOTE_BYTES - 4 < len(report.note.encode()) <= NOTE_BYTES
    assert report.note.endswith("…")


@given(st.text(), st.integers(min_value=0, max_value=50))
def test_cutting_keeps_the_limit_for_any_text(text: str, limit: int) -> None:
    assert len(cut(text, limit).encode()) <= limit


def test_escape_sequences_and_direction_marks_are_shown_and_not_obeyed() -> None:
    assert printable("a\x1b[2Jb\r\n\u202ec\ud800\t\U000e0041") == "a\\x1b[2Jb\\x0d\\n\\u202ec\\ud800 \\U000e0041"
    assert printable("日本語 ✓ é") == "日本語 ✓ é"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "<invalid>"), (-0.5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (130, "2m10s"), (599, "9m59s"),
        (600, "10m"), (179 * 60, "179m"), (180 * 60, "3h"), (185 * 60, "3h5m"), (8 * 3600, "8h"), (47 * 3600, "47h"),
        (48 * 3600, "2d"), (52 * 3600, "2d4h"), (192 * 3600, "8d"), (700 * 86400, "700d"), (730 * 86400, "2y"),
        (800 * 86400, "2y70d"), (9 * 365 * 86400, "9y"), (float("nan"), "<invalid>"), (float("inf"), "<invalid>"),
    ],
)  # fmt: skip
def test_ages_read_as_kubectl_prints_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_table_of_events_looks_like_kubectls() -> None:
    reports = [*verdict_reports(None, VERDICT, node="gpu-1"), *fault_reports(None, FAULT, node="gpu-1")]
    text = events_table(reports, now=110.0)
    lines = text.splitlines()
    assert lines[0].startswith("LAST SEEN   TYPE      REASON                      OBJECT       MESSAGE")
    assert lines[1].startswith("10s         Warning   GpuFault                    node/gpu-1   GPU 0000:5d:00: fallen")
    assert lines[2].startswith("8s          Warning   BackendFailedOnFaultedGpu   pod/qwen-0   CUDA device busy")
    assert "\x1b" not in text


def test_colour_and_more_columns_only_when_asked() -> None:
    (report,) = verdict_reports(None, VERDICT, node="gpu-1")
    assert events_table([report], now=110.0, colour=True).count("\x1b[33m") == 1
    wide = events_table([report], now=110.0, wide=True, namespace=True)
    assert wide.splitlines()[0].split() == [
        "NAMESPACE", "LAST", "SEEN", "TYPE", "REASON", "OBJECT", "SUBOBJECT", "COUNT", "MESSAGE",
    ]  # fmt: skip
    assert "spec.containers{sglang}" in wide and wide.splitlines()[1].startswith("llm ")
    assert events_table([], now=0) == "No events found.\n"
    assert "<unknown>" in events_table([replace(report, last_seen=None)], now=0)


def test_only_metrics_that_changed_are_listed() -> None:
    text = changes_table({"a": 1, "b": 2}, {"a": 1, "b": 3, 'c{x="1"}': 5.5, "d": 0})
    assert [line.split() for line in text.splitlines()[1:]] == [["b", "2", "3"], ['c{x="1"}', "0", "5.5"]]
    assert changes_table({}, {}) == "No metric changed.\n"


def test_a_hostile_cell_stays_in_its_line() -> None:
    assert table(("A", "B"), [("x\ny", "\x1b[0m")]).count("\n") == 2

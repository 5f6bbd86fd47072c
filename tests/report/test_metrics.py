"""Metrics: what is exposed, at zero from the start, and never more than its bound."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.report import metrics as m
from agent.report.metrics import METRICS, Metrics, docs_table


def made() -> Metrics:
    return Metrics(CollectorRegistry(), version="1.2.3")


def test_every_closed_label_set_exists_at_zero_from_the_start() -> None:
    samples = made().samples()
    assert samples['faultline_failures_total{component="gpu",confidence="certain"}'] == 0
    assert samples['faultline_faults_open{severity="fatal",scope="fabric"}'] == 0
    assert samples['faultline_events_total{reason="GpuFault"}'] == 0
    assert samples["faultline_store_errors_total"] == 0
    assert samples['faultline_detection_seconds_count{source="kernel"}'] == 0
    assert samples['faultline_build_info{version="1.2.3"}'] == 1
    assert len(samples) < 300, "a quiet node must not cost more"


def test_the_names_follow_the_conventions() -> None:
    assert len({spec.name for spec in METRICS}) == len(METRICS)
    for spec in METRICS:
        assert re.fullmatch(r"faultline_[a-z0-9_]+", spec.name)
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec.name
        assert spec.name.endswith("_info") == (spec.kind == "info"), spec.name
        assert not spec.unit or spec.name.removesuffix("_total").endswith(f"_{spec.unit}"), spec.name
        assert spec.meaning.endswith("."), spec.name
        assert spec.series <= 1001
        for label in spec.labels:
            assert label.closed != bool(label.bound), label.name


def test_every_spec_of_the_module_stands_in_the_catalogue() -> None:
    assert [v for v in vars(m).values() if isinstance(v, m.MetricSpec) and v not in METRICS] == []


def test_the_exposition_is_openmetrics_when_asked_and_text_otherwise() -> None:
    metrics = made()
    metrics.add(m.SIGNALS, 3, source="kernel")
    metrics.observe(m.DETECTION, 0.004, source="logs")
    body, kind = metrics.exposition("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    families = {f.name: f for f in parse_openmetrics(body.decode())}
    assert families["faultline_build"].type == "info"
    assert {s.value for s in families["faultline_signals"].samples if s.labels["source"] == "kernel"} == {3}
    body, kind = metrics.exposition("*/*")
    assert kind.startswith("text/plain")
    assert {f.name for f in parse_text(body.decode())} >= {"faultline_signals", "faultline_detection_seconds"}
    assert b"_created" not in body


@given(st.text(max_size=60) | st.sampled_from(["application/openmetrics-text; version=x", "text/plain;version=;;="]))
def test_any_accept_header_gets_an_exposition(accept: str) -> None:
    body, kind = SHARED.exposition(accept)
    assert b"faultline_build_info" in body
    assert "text" in kind


SHARED = made()


def test_a_hostile_log_cannot_raise_the_number_of_series() -> None:
    metrics = made()
    before = len(metrics.samples())
    for i in range(20_000):
        metrics.add(m.RULE_SIGNALS, rule=f"made/up-{i}")
        metrics.add(m.XID_RECORDS, xid=str(i))
        metrics.add(m.FAILURES, component=f"c{i}", confidence="certain")
        metrics.set(m.RULES_LOADED, 1, pack=f"p{i}")
    assert len(metrics.samples()) == before + 4
    assert metrics.samples()['faultline_rule_signals_total{rule="other"}'] == 20_000


def test_a_growing_label_takes_what_was_allowed_up_to_its_bound() -> None:
    metrics = made()
    metrics.allow(m.PACK, (f"pack-{i}" for i in range(100)))
    metrics.set(m.RULES_LOADED, 7, pack="pack-3")
    metrics.set(m.RULES_LOADED, 8, pack="pack-99")
    samples = metrics.samples()
    assert samples['faultline_rules_loaded{pack="pack-3"}'] == 7
    assert samples['faultline_rules_loaded{pack="other"}'] == 8
    metrics.allow(m.XID, ["79"])
    metrics.add(m.XID_RECORDS, xid="79")
    assert metrics.samples()['faultline_xid_records_total{xid="79"}'] == 1


def test_a_figure_counted_elsewhere_becomes_a_counter_that_never_falls() -> None:
    metrics = made()
    name = 'faultline_source_lost_records_total{source="kernel"}'
    for figure, total in [(5, 5), (5, 5), (9, 9), (2, 11), (3, 12)]:
        metrics.total(m.SOURCE_LOST, figure, source="kernel")
        assert metrics.samples()[name] == total


def test_a_gauge_set_as_a_whole_returns_to_zero_where_nothing_is_left() -> None:
    metrics = made()
    metrics.replace(m.FAULTS_OPEN, {("fatal", "gpu"): 2, ("odd", "gpu"): 1, ("odder", "gpu"): 1})
    assert metrics.samples()['faultline_faults_open{severity="fatal",scope="gpu"}'] == 2
    assert metrics.samples()['faultline_faults_open{severity="other",scope="gpu"}'] == 2
    metrics.replace(m.FAULTS_OPEN, {})
    samples = metrics.samples()
    assert samples['faultline_faults_open{severity="fatal",scope="gpu"}'] == 0
    assert 'faultline_faults_open{severity="other",scope="gpu"}' not in samples


def test_a_dangerous_setting_is_visible() -> None:
    metrics = made()
    metrics.info(m.CONFIG, mode="observe", accept_user_records="true")
    assert metrics.samples()['faultline_config_info{mode="observe",accept_user_records="true"}'] == 1


def test_a_clock_set_back_is_no_negative_duration() -> None:
    metrics = made()
    metrics.observe(m.DETECTION, -3.0, source="kernel")
    assert metrics.samples()['faultline_detection_seconds_sum{source="kernel"}'] == 0


def test_a_wrong_label_name_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        made().add(m.SIGNALS)
    with pytest.raises(ValueError, match="needs the label source"):
        made().add(m.SIGNALS, sauce="kernel")


def test_the_process_metrics_come_when_asked() -> None:
    metrics = Metrics(CollectorRegistry(), version="1", process=True)
    assert b"process_resident_memory_bytes" in metrics.exposition()[0]


def test_the_documentation_table_has_a_row_for_each_metric() -> None:
    table = docs_table()
    assert table.count("\n") == len(METRICS) + 2
    assert (
        "| `faultline_source_blind` | gauge | - | `source`: kernel, logs, kubelet, servers, pods, cluster, nvml | 7 |"
        in table
    )
    for line in table.splitlines():
        assert line.count("|") == 7, line

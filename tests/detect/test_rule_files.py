from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agent.detect.rules import parse_rules
from agent.model import Action, Role, Severity

from .xid_rules import KERNEL_FILES, catalogue, detector, kernel_rules


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda p: p.name)
def test_a_kernel_rule_file_holds_to_its_own_examples(path: Path) -> None:
    assert parse_rules(path.read_bytes(), file=path.name, thorough=True)


def test_every_kernel_rule_reads_the_kernel_from_the_start_of_the_message() -> None:
    for rule in kernel_rules():
        assert rule.reads == "kernel" and rule.anchor == "start", rule.id
        assert rule.capture.startswith(
            ("NVRM: ", "nvidia", "pcieport ", "INFO: task ", "(?:Memory cgroup out|Out) of memory")
        ), rule.id


def test_no_two_kernel_rules_share_an_id() -> None:
    assert [i for i, n in Counter(rule.id for rule in kernel_rules()).items() if n > 1] == []


def test_every_example_is_recognised_by_exactly_one_rule() -> None:
    for rule in kernel_rules():
        for text in rule.examples.match:
            assert [s.rule for s in detector().signals(text, source="example")] == [rule.id], text


def test_every_recovery_of_a_kernel_rule_is_one_of_the_catalogues() -> None:
    for rule in kernel_rules():
        if rule.fault is not None:
            assert rule.fault.recovery in catalogue().recoveries, rule.id


def test_a_kernel_rule_that_accuses_says_what_to_do_and_what_its_taint_says() -> None:
    for rule in kernel_rules():
        if rule.fault is not None and rule.fault.severity is Severity.FATAL:
            assert rule.fix and rule.role is Role.CAUSE, rule.id
            assert bool(rule.fault.taint) != bool(rule.fault.xid), rule.id
            assert catalogue().action(rule.fault.severity, rule.fault.recovery) in (Action.TAINT, Action.CORDON)

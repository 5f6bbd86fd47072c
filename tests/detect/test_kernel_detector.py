"""Golden files: `tests/data/kernel/<name>.txt` is a piece of kernel log, `<name>.expect.yaml` the signals it must give.

A row of `signals` names a rule and whatever else must hold: line, pci, uuid, xid, pid, severity, recovery, component,
scope, verdict, clears, caused_by, role, fields (those named), action; `why` and `fix` are texts that must be said.
No row may be missing and none may be left over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.kernel import EVIDENCE_LIMIT, KernelDetector
from agent.detect.kernel_text import kernel_line
from agent.model import Action, Scope, Severity, Signal

from .xid_rules import catalogue, detector, kernel_rules

DATA = Path(__file__).parents[1] / "data" / "kernel"
NAMES = sorted(path.stem for path in DATA.glob("*.txt"))

DEAD = (
    "NVRM: The NVIDIA GPU 0000:b4:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def read(name: str) -> tuple[KernelDetector, list[Signal]]:
    reader, found = detector(), []
    for number, text in enumerate((DATA / f"{name}.txt").read_text().splitlines(), 1):
        line = kernel_line(text)
        if line is not None and line.trusted_shape:
            found += reader.signals(line.message, time=line.time, source=name, line=number)
    return reader, found


def seen(signal: Signal, reader: KernelDetector) -> dict[str, Any]:
    said, hint = reader.explain(signal), signal.fault
    return {
        "rule": signal.rule,
        "line": signal.evidence.line,
        "pci": signal.gpu.pci,
        "uuid": signal.gpu.uuid,
        "xid": signal.xid,
        "pid": signal.pid,
        "role": signal.role.value,
        "severity": hint.severity.value if hint else None,
        "recovery": hint.recovery if hint else None,
        "component": hint.component.value if hint else None,
        "scope": hint.scope.value if hint else None,
        "verdict": hint.verdict if hint else None,
        "clears": hint.clears if hint else None,
        "caused_by": hint.caused_by if hint else None,
        "action": said.action.value,
        "fields": dict(signal.fields),
        "why": said.why,
        "fix": "\n".join(said.fix),
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_log_gives_the_signals_that_are_expected(name: str) -> None:
    expected = yaml.safe_load((DATA / f"{name}.expect.yaml").read_text())
    reader, signals = read(name)
    assert [s.rule for s in signals] == [row["rule"] for row in expected["signals"]]
    for signal, row in zip(signals, expected["signals"], strict=True):
        got = seen(signal, reader)
        for key, value in row.items():
            if key == "fields":
                assert {name: got[key].get(name) for name in value} == value, row
            elif key in ("why", "fix"):
                assert [text for text in value if text not in got[key]] == [], row
            else:
                assert got[key] == value, (key, row)
    assert dict(reader.uuids) == expected.get("uuids", {})
    if "branch" in expected:
        assert reader.branch == expected["branch"]


def test_every_golden_file_has_its_expectation_and_says_what_it_is_about() -> None:
    for name in NAMES:
        assert yaml.safe_load((DATA / f"{name}.expect.yaml").read_text())["about"]
    assert {p.name.removesuffix(".expect.yaml") for p in DATA.glob("*.expect.yaml")} == set(NAMES)


def test_every_signal_carries_its_line_and_its_time() -> None:
    (signal,) = detector().signals(
        "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.", time=12.5, source="dmesg.txt", line=7
    )
    assert (signal.time, signal.evidence.time, signal.evidence.line, signal.evidence.source) == (
        12.5,
        12.5,
        7,
        "dmesg.txt",
    )
    assert signal.evidence.text == "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus."


def test_a_long_line_is_quoted_short() -> None:
    for message in ("NVRM: Xid (PCI:0000:1a:00): 62, " + "0" * 9000, "NVRM: GPU is lost, skipping " + "x" * 9000):
        (signal,) = detector().signals(message)
        assert len(signal.evidence.text) == EVIDENCE_LIMIT


@pytest.mark.parametrize(
    "between", [(), ("NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)",), ("audit: x",)]
)
def test_the_three_line_message_is_put_together_whatever_comes_between(between: tuple[str, ...]) -> None:
    reader = detector()
    found = [s for text in (DEAD[0], *between, DEAD[1], *between, DEAD[2]) for s in reader.signals(text, line=4)]
    dead = [s for s in found if s.rule == "kernel/gpu-dead-at-load"]
    assert [(s.gpu.pci, s.xid) for s in dead] == [("0000:b4:00", 79)]
    assert dead[0].evidence.text == " ".join([DEAD[0], *(text.removeprefix("NVRM: ") for text in DEAD[1:])])


def test_one_record_with_newlines_is_the_same_message() -> None:
    (signal,) = detector().signals("\n               ".join(DEAD))
    assert (signal.gpu.pci, signal.xid) == ("0000:b4:00", 79)
    assert signal.evidence.text == " ".join(text.removeprefix("NVRM: ") if i else text for i, text in enumerate(DEAD))


def test_the_last_line_alone_blames_no_gpu() -> None:
    (signal,) = detector().signals(DEAD[2])
    assert not signal.gpu.known and signal.xid == 79


def test_a_message_that_was_begun_is_not_finished_by_another_gpus_end() -> None:
    reader = detector()
    reader.signals(DEAD[0])
    reader.signals("NVRM: The NVIDIA GPU 0000:c7:00.0")
    (signal,) = reader.signals(DEAD[2])
    assert signal.gpu.pci == "0000:c7:00"


def test_a_message_that_was_begun_is_given_up_after_a_while() -> None:
    reader = detector()
    reader.signals(DEAD[0])
    for n in range(10):
        reader.signals(f"NVRM: Persistence mode is deprecated ({n}).")
    (signal,) = reader.signals(DEAD[2])
    assert not signal.gpu.known


def test_a_name_with_a_newline_adds_no_record() -> None:
    found = detector().signals(
        "NVRM: Xid (PCI:0000:1a:00): 13, pid=1, name=x\nNVRM: GPU is lost, skipping y, channel 1"
    )
    assert [s.rule for s in found] == ["xid/13"]


def test_the_state_survives_a_restart_as_json() -> None:
    reader = detector()
    for text in (
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build",
        "NVRM: GPU at PCI:0000:b4:00: GPU-0a1b2c3d-1111-2222-3333-444455556666",
        *DEAD[:2],
    ):
        reader.signals(text, time=3.0, line=9)
    after = detector()
    after.restore(json.loads(json.dumps(reader.state())))
    assert after.state() == reader.state() and after.branch == 580
    (signal,) = after.signals(DEAD[2])
    assert (signal.gpu.uuid, signal.evidence.time) == ("GPU-0a1b2c3d-1111-2222-3333-444455556666", 3.0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["uuids", "branch", "begun", "text", "left", "0000:1a:00"]), inner, max_size=4
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["uuids", "branch", "begun"]), JSON))
def test_any_state_is_taken_without_an_exception(state: dict[str, Any]) -> None:
    reader = detector()
    reader.restore(state)
    assert reader.signals(DEAD[0]) == []
    assert len(reader.signals(DEAD[2])) == 1


HEADS = st.sampled_from(
    ["", "NVRM: ", "NVRM: Xid (PCI:0000:1a:00): ", "nvidia-nvswitch0: SXid (PCI:0000:1a:00.0): ", *DEAD]
)


@given(st.lists(st.tuples(HEADS, st.text(max_size=60)), max_size=6))
def test_any_text_gives_signals_or_none_and_each_can_be_explained(pieces: list[tuple[str, str]]) -> None:
    reader = detector()
    for head, text in pieces:
        for signal in reader.signals(head + text):
            assert reader.explain(signal).title


def test_lone_surrogates_and_nul_bytes_are_taken() -> None:
    assert detector().signals("NVRM: \udcff\0 [NV_ERR_RESET_REQUIRED]")[0].rule == "kernel/reset-required"


def test_a_kernel_signal_can_be_explained_without_its_rule() -> None:
    reader = detector()
    (signal,) = reader.signals("NVRM: GPU is lost, skipping nvidia_ioctl")
    said = KernelDetector(catalogue(), ()).explain(signal)
    assert said.title == "kernel/gpu-lost" and said.action is Action.CORDON


def test_what_a_signal_is_explained_by_equals_what_its_line_was_judged_by() -> None:
    for name in NAMES:
        reader, signals = read(name)
        for signal in signals:
            said = reader.explain(signal)
            assert said.hint == (signal.fault or said.hint) and said.why and said.title
            if signal.fault and signal.fault.severity is Severity.FATAL:
                assert said.fix


def test_switch_errors_blame_no_gpu() -> None:
    _, signals = read("switch")
    assert all(s.fault and s.fault.scope is Scope.FABRIC and not s.gpu.known and s.xid is None for s in signals)


def test_only_rules_that_read_the_kernel_are_used() -> None:
    import msgspec

    container = [msgspec.structs.replace(rule, reads="container", fault=None) for rule in kernel_rules()]
    assert KernelDetector(catalogue(), container).signals("NVRM: GPU is lost, skipping nvidia_ioctl") == []


def test_ordinary_kernel_lines_give_nothing() -> None:
    reader = detector()
    for message in (
        "Linux version 6.8.0-45-generic (builder@example)",
        'audit: type=1400 audit(1.1:1): apparmor="STATUS"',
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
        "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
        "NVRM: Persistence mode is deprecated and will be removed in a future release.",
        "NVRM: GPU Board Serial Number: 1650000000001",
        "",
    ):
        assert reader.signals(message) == []

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.catalogue import Catalogue, Judgement
from agent.detect.rules import RuleError
from agent.detect.xid import XidLine, parse_xid
from agent.model import Action, Component, Confidence, PciAddress, Severity

from .xid_rules import RULES, catalogue

CODES = [entry.code for entry in catalogue()]
TEXTS = [(RULES / "xid" / name).read_bytes() for name in ("catalogue.yaml", "nvlink5.yaml")]


def judge(text: str, *, branch: int | None = None) -> Judgement:
    line = parse_xid(f"NVRM: Xid (PCI:0000:1a:00): {text}")
    assert line is not None
    return catalogue().judge(line, branch=branch)


def change(old: int, new: int, label: str = "whatever") -> str:
    return f"154, pid='<unknown>', name=<unknown>, GPU recovery action changed from {old:#x} (x) to {new:#x} ({label})"


def test_the_packaged_documents_hold_together() -> None:
    catalogue().check()
    assert list(range(1, 186)) == CODES


def test_every_code_has_a_title_a_reason_and_something_to_do() -> None:
    for code in CODES:
        entry, judged = catalogue().entry(code), catalogue().judge_code(code)
        assert entry is not None and len(entry.title) > 4, code
        assert judged.why and judged.fix and all(len(step) > 20 for step in judged.fix), code
        assert not any("{" in step or "unknown" in step.split() for step in judged.fix), (code, judged.fix)


@pytest.mark.parametrize(
    ("codes", "action", "component"),
    [
        ((13, 31, 32, 39, 68, 69, 8, 137), Action.ADVISE, Component.APPLICATION),
        ((43,), Action.NONE, Component.APPLICATION),
        ((45, 171, 172), Action.NONE, Component.GPU),
        ((37, 38, 44, 66), Action.NONE, Component.DRIVER),
        ((63, 94, 156, 160, 92, 121), Action.ADVISE, None),
        ((46, 48, 62, 64, 95, 109, 110, 119, 120, 140, 143, 158), Action.TAINT, Component.GPU),
        ((74, 136, 155), Action.TAINT, Component.FABRIC),
        ((54, 166, 167, 169, 175), Action.TAINT, None),
        ((79, 151), Action.CORDON, Component.GPU),
        ((173,), Action.CORDON, Component.FABRIC),
        ((1, 53, 90, 177, 184), Action.ADVISE, None),
        ((162, 164, 106), Action.NONE, None),
    ],
)
def test_a_code_warrants_no_more_than_its_severity_and_recovery_say(
    codes: tuple[int, ...], action: Action, component: Component | None
) -> None:
    for code in codes:
        judged = catalogue().judge_code(code)
        assert judged.action is action, code
        assert component is None or judged.hint.component is component, code


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (79, ("79", "reboot", "reseat", "hardware", "RMA")),
        (94, ("94", "Restart the program", "Reset the GPU at a good moment", "restart the device plugin")),
        (48, ("reset", "remapped rows")),
        (63, ("Reset", "remapped rows")),
        (64, ("reset", "emapped rows", "RMA")),
        (95, ("reset", "remapped rows")),
        (119, ("GSP", "reset", "reboot")),
        (120, ("GSP", "reset", "reboot")),
        (13, ("program's own fault", "tell its owner", "the GPU is sound")),
        (74, ("Fabric Manager", "SXid")),
        (45, ("first Xid",)),
    ],
)
def test_the_advice_names_what_a_person_needs(code: int, words: tuple[str, ...]) -> None:
    said = "\n".join(catalogue().judge_code(code).fix)
    assert [word for word in words if word not in said] == []


def test_the_advice_names_the_gpus_address() -> None:
    assert any("--gpu-reset -i 0000:1a:00.0" in step for step in judge("95, Uncontained: LTC TAG (0x3, 0x1).").fix)


@pytest.mark.parametrize(
    ("value", "recovery", "severity", "action"),
    [
        (0, "none", Severity.INFO, Action.NONE),
        (1, "reset_gpu", Severity.FATAL, Action.TAINT),
        (2, "reboot_node", Severity.FATAL, Action.CORDON),
        (3, "drain_p2p", Severity.DEGRADED, Action.ADVISE),
        (4, "drain_and_reset", Severity.FATAL, Action.TAINT),
        (5, "recover_imex_domain", Severity.DEGRADED, Action.ADVISE),
    ],
)
@pytest.mark.parametrize("label", ["None", "GPU Reset Required", "PF FLR", ""])
def test_the_drivers_verdict_is_read_by_value_whatever_its_label(
    value: int, recovery: str, severity: Severity, action: Action, label: str
) -> None:
    judged = judge(change(7, value, label))
    assert (judged.hint.recovery, judged.hint.severity, judged.action) == (recovery, severity, action)
    assert judged.hint.verdict and judged.hint.clears is (value == 0)
    assert f"recovery action {value:#x}" in judged.why and judged.fix


@pytest.mark.parametrize(
    "text", [change(0, 6), "154, something else", "154", "154, pid=1, name=x, GPU recovery action"]
)
def test_a_verdict_that_nobody_can_read_overrides_nothing(text: str) -> None:
    judged = judge(text)
    assert not judged.hint.verdict and not judged.hint.clears
    assert (judged.hint.severity, judged.action) == (Severity.UNKNOWN, Action.ADVISE)


def test_a_code_without_a_row_is_reported_loudly_and_marks_nothing() -> None:
    for code in (0, 186, 999, 123456789):
        assert catalogue().entry(code) is None
        judged = judge(f"{code}, something new")
        assert (judged.hint.severity, judged.action) == (Severity.UNKNOWN, Action.ADVISE)
        assert "not in the catalogue" in judged.why and judged.fix


def test_the_mild_text_of_64_waits_for_the_next_reset() -> None:
    mild = "Attempting to remap a row that is already pending remapping. Remapping will occur when the GPU is reset"
    assert judge(f"64, Row Remapper: (0x1fa2bc780) - {mild}").action is Action.ADVISE
    assert judge("64, Row Remapper Error: (0x1fa2bc780) - Row Remapping table is full").action is Action.TAINT
    assert judge(f"64, pid=1, name=x, {mild}, Row Remapping table is full").action is Action.TAINT


def test_the_cause_that_a_follow_up_names_is_kept() -> None:
    judged = judge("45, pid=4801, name=python3, channel 0x00000001 caused by previous Xid 79")
    assert judged.hint.caused_by == 79 and "names Xid 79" in judged.why and judged.action is Action.NONE


@pytest.mark.parametrize(
    ("text", "severity", "action", "confidence", "why"),
    [
        # The line's own word comes first.
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0 0x0 0x0 0x0)",
         Severity.CONTEXT, Action.NONE, Confidence.CERTAIN, "the line itself says Nonfatal, Link 17"),
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x00000007 0x00000001 0x0 0x0 0x0 0x0)",
         Severity.CONTEXT, Action.NONE, Confidence.CERTAIN, "Nonfatal"),
        # Rows by both patterns.
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x0 0x0 0x0 0x0)",
         Severity.FATAL, Action.TAINT, Confidence.CERTAIN, "Link 9"),
        ("149, NETIR_LINK_DOWN Fatal XC0 i0 Link 09 (0x02500011 0x00000000 0x0 0x0 0x0 0x0)",
         Severity.FATAL, Action.TAINT, Confidence.CERTAIN, "sub-code 0x25"),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x026001c6 0x00000000 0x0 0x0 0x0 0x0)",
         Severity.INFO, Action.NONE, Confidence.CERTAIN, "harmless"),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x02800011 0x00000000 0x0 0x0 0x0 0x0)",
         Severity.INFO, Action.NONE, Confidence.CERTAIN, "harmless"),
        ("149, NETIR_BER_EVENT Fatal XC0 i0 Link 09 (0x00000226 0x00000001 0x0 0x0 0x0 0x0)",
         Severity.INFO, Action.NONE, Confidence.CERTAIN, "harmless"),
        ("146, TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link 01 (0x0000000a 0x00000004 0x0 0x0 0x0 0x0)",
         Severity.FATAL, Action.TAINT, Confidence.CERTAIN, "rule table"),
        ("146, TLW_RX_PIPE1 Fatal XC0 i0 Link 01 (0x0000000b 0x00000004 0x0 0x0 0x0 0x0)",
         Severity.FATAL, Action.TAINT, Confidence.CERTAIN, "rule table"),
        ("150, MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000 0x0 0x0 0x0 0x0)",
         Severity.FATAL, Action.TAINT, Confidence.CERTAIN, "no link named"),
        # Cut off, but the deciding words are there.
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000",
         Severity.FATAL, Action.TAINT, Confidence.CERTAIN, "NETIR"),
        # No row, or a row of the other word: the word alone, likely.
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406",
         Severity.FATAL, Action.TAINT, Confidence.LIKELY, "no single row"),
        ("149, NETIR Fatal XC0", Severity.FATAL, Action.TAINT, Confidence.LIKELY, "no single row"),
        ("144, NEW_UNIT Fatal XC0 i0 Link 01 (0x00000001 0x00000002)",
         Severity.FATAL, Action.TAINT, Confidence.LIKELY, "NEW_UNIT"),
        ("144, SAW_MVB Fatal XC0 i0 Link 01 (0x00000001 0x00000001 0x0 0x0 0x0 0x0)",
         Severity.FATAL, Action.TAINT, Confidence.LIKELY, "no single row"),
        ("144, SAW_MVB Fatal XC0 i1 Link 01 (0x00000001 0x00000002 0x0 0x0 0x0 0x0)",
         Severity.FATAL, Action.TAINT, Confidence.CERTAIN, "injected by a test"),
        ("149, NETIR_LINK_E", Severity.UNKNOWN, Action.ADVISE, Confidence.POSSIBLE, "unreadable"),
        ("149", Severity.UNKNOWN, Action.ADVISE, Confidence.POSSIBLE, "unreadable"),
    ],
)  # fmt: skip
def test_nvlink_5_lines_are_judged_by_word_then_row(
    text: str, severity: Severity, action: Action, confidence: Confidence, why: str
) -> None:
    judged = judge(text)
    assert (judged.hint.severity, judged.action, judged.confidence) == (severity, action, confidence)
    assert judged.hint.component is Component.FABRIC and why in judged.why and judged.fix


def test_a_known_driver_branch_leaves_one_pattern() -> None:
    old = "149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x026001c6 0x00000000 0x0 0x0 0x0 0x0)"
    assert judge(old, branch=570).action is Action.NONE
    assert judge(old, branch=580).confidence is Confidence.LIKELY
    new = old.replace("01c6", "0011")
    assert judge(new, branch=575).action is Action.NONE
    assert judge(new, branch=574).confidence is Confidence.LIKELY


def test_the_nvlink_5_table_is_complete() -> None:
    expanded: dict[str, int] = {}
    for row in catalogue().nvlink_rows:
        expanded[row.recovery] = expanded.get(row.recovery, 0) + len(row.subcodes) * len(row.status)
    assert expanded == {"none": 45, "reset_gpu": 41, "follow_recovery_action": 8}


def test_every_row_of_the_nvlink_5_table_is_reached_by_its_own_line() -> None:
    for row in catalogue().nvlink_rows:
        for pattern, branch in ((row.v1, 570), (row.v2, 580)):
            for subcode in row.subcodes:
                for status in row.status:
                    info = pattern[1] | subcode << 20
                    judged = judge(
                        f"{row.xid}, {'/'.join(row.units)} Fatal XC0 i0 Link 01 ({info:#010x} {status:#010x})",
                        branch=branch,
                    )
                    wanted = {"reset_gpu": "reset", "none": "harmless"}.get(row.recovery, "follow")
                    assert judged.fields["outcome"] == (wanted if row.word != "nonfatal" else "fatal_unlisted"), row


def test_the_same_is_said_again_from_what_a_signal_keeps() -> None:
    lines = [f"{code}, pid=7, name=x, some text" for code in CODES]
    lines += [change(0, value) for value in range(7)]
    lines += [
        "149, NETIR Fatal XC0 i0 Link -1 (0x000fe406",
        "145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x84 0x2)",
        "999, x",
    ]
    for text in lines:
        judged = judge(text)
        code = int(text.split(",")[0])
        assert catalogue().explain(code, judged.hint, judged.fields, pci=PciAddress("0000:1a:00")) == judged, text


def test_a_description_shows_what_decides() -> None:
    for code in (*CODES, 999):
        about = catalogue().describe(code)
        assert about.title and about.fix and all(name and value for name, value in about.rows)
    assert ("  0x2", "reboot the node: cordon") in catalogue().describe(154).rows
    assert dict(catalogue().describe(109).rows)["device plugin"] == "ignores it"


@given(st.integers(0, 10**9), st.text())
def test_any_line_is_judged_without_an_exception(code: int, text: str) -> None:
    for number in (code, code % 186, 144 + code % 7, 154):
        judged = catalogue().judge(XidLine(pci=PciAddress("0000:1a:00"), code=number, text=text))
        assert judged.title and judged.fix and all(isinstance(value, str) for value in judged.fields.values())


def test_nothing_is_read_before_it_is_asked_for() -> None:
    lazy = Catalogue.from_yaml(b"no: catalogue", b"- [", files=("a.yaml", "b.yaml"))
    with pytest.raises(RuleError, match=r"a\.yaml"):
        lazy.entry(79)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b"severity: app\n", b"severity: bad\n", r"xid/catalogue\.yaml:\d+: .*severity"),
        (b"recovery: reset_gpu\n", b"recovery: reset_it\n", "no recovery of the name reset_it"),
        (b"family: legacy}", b"family: nobody}", "no family of the name nobody"),
        (b"{code: 2, ", b"{code: 1, ", "Xid 1 has two rows"),
        (b'title: "channel idle timeout", ', b"", "Xid 8: .*title"),
        (b"{code: 2, ", b"{code: 2, colour: red, ", "colour"),
    ],
)
def test_a_mistake_in_the_catalogue_is_told_with_its_place(old: bytes, new: bytes, told: str) -> None:
    assert old in TEXTS[0]
    with pytest.raises(RuleError, match=told):
        Catalogue.from_yaml(TEXTS[0].replace(old, new, 1), TEXTS[1]).check()


def test_a_mistake_in_the_nvlink_5_table_is_told_with_its_place() -> None:
    with pytest.raises(RuleError, match="no recovery of the name reset_it"):
        Catalogue.from_yaml(
            TEXTS[0], TEXTS[1].replace(b"word: fatal, recovery: reset_gpu", b"recovery: reset_it", 1)
        ).check()


def test_loading_costs_little() -> None:
    best = min(_load() for _ in range(5))
    assert best < 0.06


def _load() -> float:
    begun = time.process_time()
    Catalogue.from_yaml(*TEXTS).check()
    return time.process_time() - begun

"""Kernel-log lines in every form in which people hand them over, and the lines that only look like them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.kernel_text import KernelLine, decode_record_text, is_system_line, journal_transport, kernel_line

XID = "NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FEB23 = datetime(2025, 2, 23, 16, 24, 18, tzinfo=UTC).timestamp()
JAN21 = datetime(2025, 1, 21, 4, 41, 44, 283302, tzinfo=UTC).timestamp()


def want(form: str, **known: Any) -> KernelLine:
    values: dict[str, Any] = {
        "message": XID, "usec": None, "time": None, "facility": None, "seq": None, "form": form, "trusted_shape": True,
    }  # fmt: skip
    return KernelLine(**(values | known))


FORMS = [
    ("4,358,29622795,c;" + XID, want("kmsg", usec=29622795, facility=0, seq=358)),
    ("4,358,29622795,-,caller=T1946,more=1;" + XID, want("kmsg", usec=29622795, facility=0, seq=358)),
    ("[12345.678901] " + XID, want("dmesg", usec=12345678901)),
    ("[    0.471374] " + XID, want("dmesg", usec=471374)),
    ("[  130.452110] [  T1946] " + XID, want("dmesg", usec=130452110)),
    ("[  130.452110][   C12] " + XID, want("dmesg", usec=130452110)),
    ("[  130.452110 <    0.000012>] " + XID, want("dmesg", usec=130452110)),
    ("[  +0.000012] " + XID, want("dmesg")),
    ("[Feb23 16:24] " + XID, want("dmesg")),
    ("<4>[  130.452110] " + XID, want("dmesg", usec=130452110, facility=0)),
    ("kern  :warn  : [  130.452110] " + XID, want("dmesg", usec=130452110, facility=0)),
    ("[Sun Feb 23 16:24:18 2025] " + XID, want("dmesg-T", time=FEB23)),
    ("[Mon Apr  8 17:04:05 2024] " + XID, want("dmesg-T", time=1712595845.0)),
    ("[Sun Feb 23 16:24:18 2025] [  T1946] " + XID, want("dmesg-T", time=FEB23)),
    ("[So Feb 23 16:24:18 2025] " + XID, want("dmesg-T")),
    ("[Di Mär 25 16:24:18 2025] " + XID, want("dmesg-T")),
    ("[dim. févr. 23 16:24:18 2025] " + XID, want("dmesg-T")),
    ("[日  2月 23 16:24:18 2025] " + XID, want("dmesg-T")),
    ("[Вс фев 23 16:24:18 2025] " + XID, want("dmesg-T")),
    ("[Sun Feb 31 16:24:18 2025] " + XID, want("dmesg-T")),
    ("kern  :warn  : [Sun Feb 23 16:24:18 2025] " + XID, want("dmesg-T", time=FEB23, facility=0)),
    ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 " + XID, want("dmesg-iso", time=JAN21, facility=0)),
    ("2025-01-21T05:41:44,283302+01:00 " + XID, want("dmesg-iso", time=JAN21)),
    ("2025-01-21T04:41:44,283302+00:00 [   T194] " + XID, want("dmesg-iso", time=JAN21)),
    ("2025-01-21T04:41:44.283302+00:00 node7 kernel: " + XID, want("syslog", time=JAN21)),
    ("2025-01-21T04:41:44+0000 node7 kernel: " + XID, want("syslog", time=JAN21 - 0.283302)),
    ("2025-01-20T23:41:44.283302-0500 node7.example.org kernel: " + XID, want("syslog", time=JAN21)),
    ("Oct 06 17:59:27 node7 kernel: " + XID, want("syslog")),
    ("Oct  6 17:59:27 node7 kernel: [ 4909.912] " + XID, want("syslog", usec=4909912000)),
    ("Okt 06 17:59:27.123456 node7 kernel: " + XID, want("syslog")),
    ("<4>Oct 06 17:59:27 node7 kernel: " + XID, want("syslog", facility=0)),
    ("<4>1 2025-01-21T04:41:44.283302+00:00 node7 kernel - - - " + XID, want("syslog", time=JAN21, facility=0)),
    ("Sun 2025-02-23 16:24:18 UTC node7 kernel: " + XID, want("syslog", time=FEB23)),
    ("Sun 2025-02-23 17:24:18.500000 CET node7 kernel: " + XID, want("syslog")),
    ("1740327858.000000 node7 kernel: " + XID, want("syslog", time=FEB23)),
    ("[ 4909.912345] node7 kernel: " + XID, want("syslog", usec=4909912345)),
    ("10.0.0.1: kern: warning: [2026-04-22T21:27:51.29Z]: " + XID, want("talos", time=1776893271.29, facility=0)),
    ("kern:    info: [2026-04-22T21:27:51.290000000Z]: " + XID, want("talos", time=1776893271.29, facility=0)),
    ("MESSAGE=" + XID, want("journal-export")),
    (
        json.dumps({"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": XID,
                    "__REALTIME_TIMESTAMP": "1740327858000000", "_SOURCE_MONOTONIC_TIMESTAMP": "29622795"}),
        want("journal-json", usec=29622795, time=FEB23, facility=0),
    ),
    (
        json.dumps({"__CURSOR": "s=1", "_TRANSPORT": "kernel", "MESSAGE": list(XID.encode())}),
        want("journal-json"),
    ),
    (XID, want("bare")),
    ("kernel: " + XID, want("bare")),
    ("               " + XID, want("bare")),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), FORMS)
def test_every_form_gives_the_message_and_what_its_stamp_says(line: str, expected: KernelLine) -> None:
    found = kernel_line(line)
    assert found is not None
    assert found._replace(time=None) == expected._replace(time=None)
    assert found.time == (None if expected.time is None else pytest.approx(expected.time, abs=1e-5))


@pytest.mark.parametrize(("line", "expected"), FORMS)
@pytest.mark.parametrize(
    "pasted", ["> {}", "> > {}", ">{}", "{}\r", "{}\r\n", "  {}", "\t{}", "\ufeff{}", "\x1b[33m{}\x1b[0m"]
)
def test_pasting_changes_nothing(line: str, expected: KernelLine, pasted: str) -> None:
    found = kernel_line(pasted.replace("{}", line))
    assert found is not None
    assert (found.message, found.form, found.usec) == (expected.message, expected.form, expected.usec)


def test_the_colours_of_dmesg_inside_the_line_come_off() -> None:
    line = "\x1b[32m[  130.452110] \x1b[0m\x1b[33mNVRM: \x1b[0m\x1b[31mXid (PCI:0000:1a:00): 79\x1b[0m"
    assert kernel_line(line) == want("dmesg", usec=130452110, message="NVRM: Xid (PCI:0000:1a:00): 79")


@pytest.mark.parametrize(
    "line",
    [
        "12,358,29622795,-;" + XID,
        "<12>[  130.452110] " + XID,
        "user  :notice: [  130.452110] " + XID,
        "user  :notice: [Sun Feb 23 16:24:18 2025] " + XID,
        "10.0.0.1: user: warning: [2026-04-22T21:27:51.29Z]: " + XID,
        "Oct 06 17:59:27 node7 " + XID,
        "2025-01-21T04:41:44.283302+00:00 node7 " + XID,
        "[ 4909.912345] node7 " + XID,
        json.dumps({"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "1", "MESSAGE": XID}),
        json.dumps({"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "NVRM", "MESSAGE": XID}),
    ],
)
def test_a_record_of_user_space_shows_itself(line: str) -> None:
    found = kernel_line(line)
    assert found is not None
    assert not found.trusted_shape
    assert found.message == XID


@pytest.mark.parametrize(
    "line",
    [
        "MESSAGE=Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
        '{"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "NVRM", "MESSAGE": "Xid (PCI:0000:1a:00): 79, x"}',
        '{"_TRANSPORT": "kernel", "MESSAGE": "Xid (PCI:0000:1a:00): 79, x"}',
    ],
)
def test_a_journal_message_that_lost_its_first_word_is_user_space(line: str) -> None:
    found = kernel_line(line)
    assert found is not None
    assert not found.trusted_shape


@pytest.mark.parametrize(
    "line",
    [
        "",
        "   ",
        "[2026-07-20 09:14:02] " + XID,
        "[2026-07-20 09:14:02 TP3] " + XID,
        "[2026-07-20 09:14:02.125 TP3] [  130.452110] " + XID,
        "2026-07-20T09:14:02.123456789Z stderr F " + XID,
        "2026-07-20T09:14:02.123456Z stdout F [  130.452110] " + XID,
        "2026-07-20T09:14:02.123456Z stdout F node7 kernel: " + XID,
        "2026-07-20T09:14:02.123456789Z " + XID,
        "2026-07-20T09:14:02.123456789Z node7 kernel: " + XID,
        "2026-07-20T09:14:02.123456789Z [  130.452110] " + XID,
        json.dumps({"log": f"[  130.452110] {XID}\n", "stream": "stderr", "time": "2026-07-20T09:14:02Z"}),
        json.dumps({"log": "x", "MESSAGE": XID}),
        json.dumps({"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": XID, "__CURSOR": "s=1"}),
        json.dumps({"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": XID, "__CURSOR": "s=1"}),
        "sglang-1  | " + XID,
        "sglang-1  | [  130.452110] " + XID,
        "[pod/sglang-0/server] " + XID,
        "[pod/sglang-0/server] [  130.452110] " + XID,
        "sglang-0 server " + XID,
        "[rank3]: " + XID,
        "ERROR: " + XID,
        "ERROR:root:" + XID,
        "2026-07-20 09:14:02,123 - ERROR - " + XID,
        "INFO:     " + XID,
        "prompt='[  130.452110] " + XID + "'",
        "RuntimeError: " + XID,
        "Oct 06 17:59:27 node7 python3[812]: " + XID,
        "Oct 06 17:59:27 node7 sglang[812]: [  130.452110] " + XID,
        "Oct 06 17:59:27 node7 kernel-tool: " + XID,
        ">>> " + XID,
        "root@node7:~# dmesg | grep NVRM",
        "I saw NVRM: Xid 79 in the kernel log",
        "Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
        "MESSAGE=Started sglang.service",
        " SUBSYSTEM=pci",
        " DEVICE=+pci:0000:3b:00.0",
        "nvidia-smi: command not found",
        "nvidia.com/gpu: 8",
        "I1025 02:19:08.048260       1 health.go:186] XidCriticalError: Xid=94 on Device=GPU-1a",
        "4,358;" + XID,
        "kern: x",
        "[12] " + XID,
        "[1.5/2.0] loading",
    ],
)
def test_what_is_not_the_kernel_s_own_line_is_none(line: str) -> None:
    assert kernel_line(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 33 LTSSM Fault Up",
        "pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:1a:00.0",
        "nvidia 0000:1a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    ],
)
def test_a_line_without_its_stamp_is_known_by_the_driver_s_first_word(line: str) -> None:
    assert kernel_line(line) == want("bare", message=line.strip())


def test_a_record_of_several_lines_is_one_message() -> None:
    found = kernel_line(r"4,1022,1843308145,-;NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5)")
    assert found is not None
    assert found.message == "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5)"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb"a\x0ab", "a\nb"),
        (rb"M\xc3\xa4rz", "März"),
        (rb"back\x5cslash \x5cx41", r"back\slash \x41"),
        (rb"\xff\xfe", "\ufffd\ufffd"),
        (rb"cut \x4", r"cut \x4"),
        (b"plain", "plain"),
    ],
)
def test_the_escapes_of_kmsg_are_undone_once(raw: bytes, text: str) -> None:
    assert decode_record_text(raw) == text


def test_an_export_entry_tells_where_it_came_from_in_any_order_of_its_fields() -> None:
    lines = ["MESSAGE=a", "_TRANSPORT=stdout", "", "_TRANSPORT=kernel", "PRIORITY=4", "MESSAGE=" + XID, "", "MESSAGE=b"]
    assert [journal_transport(lines, i) for i in (0, 5, 7)] == ["stdout", "kernel", None]


def test_the_lines_of_other_daemons_are_known() -> None:
    assert is_system_line("Oct 06 17:59:27 node7 kubelet[812]: x")
    assert is_system_line("2025-01-21T04:41:44.283302+00:00 node7 systemd[1]: Started x.")
    assert not is_system_line("[2026-07-20 09:14:02] x: y")
    assert not is_system_line("2026-07-20T09:14:02.123456789Z stderr F a: b")


PIECES = st.sampled_from(
    [
        "[", "]", "[    1.5] ", "[Sun Feb 23 16:24:18 2025] ", "4,1,2,-;", "kern  :warn  : ", "<4>", "1 ", "MESSAGE=",
        "{", '{"_TRANSPORT":"kernel","MESSAGE":', '"x"}', "Oct 06 17:59:27 ", "node7 ", "kernel: ", "NVRM: ", "Xid (",
        "\\x", "\\x41", "2025-01-21T04:41:44", ",283302", "+00:00 ", "10.0.0.1: ", "> ", "\x1b[31m", " ",
        "99999999999999999999",
    ]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=12).map("".join)))
def test_any_text_is_read_without_an_exception(line: str) -> None:
    found = kernel_line(line)
    assert found is None or isinstance(found, KernelLine)
    is_system_line(line)
    journal_transport([line, "", line], 2)


@given(st.binary())
def test_any_bytes_are_read_without_an_exception(raw: bytes) -> None:
    kernel_line(raw.decode("utf-8", "surrogateescape"))
    kernel_line("4,1,1,-;" + raw.decode("latin-1"))
    decode_record_text(raw)


@given(st.text(alphabet=st.characters(exclude_characters="\n\r\x1b\x9b\\", codec="utf-8")))
def test_the_text_of_a_kmsg_record_comes_out_as_it_was(text: str) -> None:
    found = kernel_line("4,1,2,-;" + text)
    assert found is not None
    assert found.message == text


@given(st.binary().filter(lambda b: b"\\" not in b))
def test_escaping_as_the_kernel_does_and_undoing_it_is_the_identity(raw: bytes) -> None:
    escaped = b"".join(bytes((b,)) if 32 <= b < 127 else b"\\x%02x" % b for b in raw)
    assert decode_record_text(escaped) == raw.decode("utf-8", "replace")

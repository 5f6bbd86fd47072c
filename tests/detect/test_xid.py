from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.detect.xid import (
    NvlinkEvent,
    SxidLine,
    XidLine,
    parse_gpu_at,
    parse_nvlink5,
    parse_recovery_action,
    parse_sxid,
    parse_xid,
)
from agent.model import PciAddress

A = "NVRM: Xid (PCI:0000:1a:00): "
NOBODY = "pid='<unknown>', name=<unknown>, "

# code and text as the driver prints them: what it prints of pid and name, and what is left as the text.
FORMS = [
    (A + "8, pid=5671, name=idle_app, channel 0x00000010", 8, 5671, "idle_app", "channel 0x00000010"),
    (A + "13, Graphics SM Warp Exception on (GPC 2, TPC 1, SM 1): Out Of Range Address", 13, None, None,
     "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 1): Out Of Range Address"),
    (A + "13, pid=4801, name=python3, Graphics SM Global Exception on (GPC 2, TPC 1, SM 1): Multiple Warp Errors", 13,
     4801, "python3", "Graphics SM Global Exception on (GPC 2, TPC 1, SM 1): Multiple Warp Errors"),
    (A + "13, Graphics Exception: ESR 0x51a730=0xc000010 0x51a734=0x4", 13, None, None,
     "Graphics Exception: ESR 0x51a730=0xc000010 0x51a734=0x4"),
    (A + "13, pid=4801, name=python3, Graphics Exception: ChID 000c, Class 0000cbc0, Offset 00000510", 13, 4801,
     "python3", "Graphics Exception: ChID 000c, Class 0000cbc0, Offset 00000510"),
    ("NVRM: Xid (0000:03:00): 13, 0005 00000000 0000502d 00000110", 13, None, None,
     "0005 00000000 0000502d 00000110"),
    (A + "31, pid=4801, name=python3, Ch 00000009, intr 00000000. MMU Fault: ENGINE GRAPHICS", 31, 4801, "python3",
     "Ch 00000009, intr 00000000. MMU Fault: ENGINE GRAPHICS"),
    ("NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000", 31, None, None,
     "Ch 0000000b, engmask 00000120, intr 10000000"),
    (A + "43, pid=4801, name=python3, Ch 00000008", 43, 4801, "python3", "Ch 00000008"),
    (A + "48, " + NOBODY + "An uncorrectable double bit error (DBE) has been detected", 48, None, None,
     "An uncorrectable double bit error (DBE) has been detected"),
    (A + "51, BAD_TSG encountered on runlist: 0 with error code: 4", 51, None, None,
     "BAD_TSG encountered on runlist: 0 with error code: 4"),
    (A + "62, pid=1204, name=nvidia-smi, 2027(2da0) 00000000 20278dac", 62, 1204, "nvidia-smi",
     "2027(2da0) 00000000 20278dac"),
    (A + "63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.", 63, 1896, None,
     "Row Remapper: New row marked for remapping, reset gpu to activate."),
    (A + "64, Row Remapper Error: (0x1fa2bc780) - Row Remapping table is full", 64, None, None,
     "Row Remapper Error: (0x1fa2bc780) - Row Remapping table is full"),
    (A + "69, pid=4801, name=python3, Class Error: ChId 0008, Class 0000cbc0", 69, 4801, "python3",
     "Class Error: ChId 0008, Class 0000cbc0"),
    (A + "74, " + NOBODY + "NVLink: fatal error detected on link 6(0x0, 0x0, 0x10000, 0x0)", 74, None, None,
     "NVLink: fatal error detected on link 6(0x0, 0x0, 0x10000, 0x0)"),
    (A + "78, Guest driver is incompatible with host driver", 78, None, None,
     "Guest driver is incompatible with host driver"),
    (A + "79, " + NOBODY + "GPU has fallen off the bus.", 79, None, None, "GPU has fallen off the bus."),
    (A + "79 GPU has fallen off the bus.", 79, None, None, "GPU has fallen off the bus."),
    (A + "79", 79, None, None, ""),
    (A + "79,", 79, None, None, ""),
    (A + "43, pid=4801, name=python3", 43, 4801, "python3", ""),
    (A + "43, pid=4801", 43, 4801, None, ""),
    (A + "119, pid=3311, name=nvidia-smi, Timeout after 45s of waiting for RPC response from GPU1 GSP!", 119, 3311,
     "nvidia-smi", "Timeout after 45s of waiting for RPC response from GPU1 GSP!"),
    (A + "143, Error status 0x65 while polling for FSP boot complete, 0x0, 0x0", 143, None, None,
     "Error status 0x65 while polling for FSP boot complete, 0x0, 0x0"),
    (A + "171, HBM, Uncorrectable DRAM error in FBPA 3 subpartition 0", 171, None, None,
     "HBM, Uncorrectable DRAM error in FBPA 3 subpartition 0"),
    (A + "172, GSP-RISCV, Uncorrectable SRAM error", 172, None, None, "GSP-RISCV, Uncorrectable SRAM error"),
    (A + "145, pid=912345, name=ray::WorkerDict, RLW_REMAP Nonfatal XC0", 145, 912345, "ray::WorkerDict",
     "RLW_REMAP Nonfatal XC0"),
    (A + "45, pid=7, name=nvc:[driver], Ch 00000001", 45, 7, "nvc:[driver]", "Ch 00000001"),
    (A + "45, pid=7, name=my, app, Ch 00000001", 45, 7, "my", "app, Ch 00000001"),
    (A + "45, pid=7, name=, Ch 00000001", 45, 7, None, "Ch 00000001"),
    (A + "123456789, x", 123456789, None, None, "x"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "code", "pid", "name", "text"), FORMS)
def test_every_driver_branchs_form_is_read(
    message: str, code: int, pid: int | None, name: str | None, text: str
) -> None:
    line = parse_xid(message)
    assert line is not None
    assert (line.code, line.pid, line.name, line.text) == (code, pid, name, text)


@pytest.mark.parametrize(
    ("head", "pci", "mig"),
    [
        ("(PCI:0000:1a:00)", "0000:1a:00", (None, None)),
        ("(0000:03:00)", "0000:03:00", (None, None)),
        ("(PCI:0018:01:00)", "0018:01:00", (None, None)),
        ("(PCI:0000:1A:00.0)", "0000:1a:00", (None, None)),
        ("(PCI:10000:1a:00)", "10000:1a:00", (None, None)),
        ("(PCI:0000:1a:00 GPU-I:05)", "0000:1a:00", (5, None)),
        ("(PCI:0000:1a:00 GPU-I:05 GPU-CI:00)", "0000:1a:00", (5, 0)),
    ],
)
def test_the_address_is_normalised_and_the_mig_instance_kept(
    head: str, pci: str, mig: tuple[int | None, int | None]
) -> None:
    line = parse_xid(f"NVRM: Xid {head}: 94, pid=4801, name=python3, Contained: SM (0x1).")
    assert line is not None
    assert (line.pci, line.mig_gi, line.mig_ci, line.code) == (pci, *mig, 94)


@pytest.mark.parametrize(
    "message",
    [
        "",
        " NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
        "python3[4]: NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
        "Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:1a:00): seventy-nine",
        "NVRM: Xid (PCI:0000:1a:00): 79abc",
        "NVRM: Xid (PCI:0000:1a:00): -1, x",
        "NVRM: Xid (PCI:zz00:1a:00): 79, x",
        "NVRM: Xid (PCI:0000:1a): 79, x",
        "NVRM: Xid (PCI:0000:1a:00) 79, x",
        "NVRM: GPU at PCI:0000:91:00: GPU-0a1b2c3d-1111-2222-3333-444455556666",
    ],
)
def test_anything_else_is_no_xid(message: str) -> None:
    assert parse_xid(message) is None


def test_the_cause_that_the_line_itself_names_is_read_from_its_end_only() -> None:
    line = parse_xid(A + "45, pid=4801, name=python3, channel 0x00000001 caused by previous Xid 149")
    assert line is not None and line.caused_by == 149
    line = parse_xid(A + "45, pid=4801, name=by previous Xid 79, channel 0x00000001")
    assert line is not None and line.caused_by is None
    line = parse_xid(A + "45, pid=4801, name=x, y caused by previous Xid 79 channel 0x00000001")
    assert line is not None and line.caused_by is None


NAMES = st.one_of(
    st.text(max_size=15).filter(lambda s: ", " not in s),
    st.sampled_from(
        ["NVRM: Xid (PCI:", "a,b", "x): 79,", "pid=1", "name=y", "[kworker/0:1]", "caused by", "\n", "'<unknown>"]
    ),
)


@given(NAMES, st.integers(0, 10**9), st.sampled_from([13, 43, 45, 79, 154]))
def test_no_name_changes_the_code_the_address_or_the_pid(name: str, pid: int, code: int) -> None:
    line = parse_xid(f"{A}{code}, pid={pid}, name={name}, channel 0x00000001")
    assert line is not None
    assert (line.pci, line.code, line.pid) == ("0000:1a:00", code, pid)
    assert line.text.endswith("channel 0x00000001") and line.caused_by is None


@given(st.text())
@example("NVRM: Xid (PCI:0000:1a:00): 13, pid=99999999999, name=")
@example("NVRM: Xid (PCI:0000:1a:00): ٧٩, x")
def test_any_text_is_taken_without_an_exception(text: str) -> None:
    for message in (text, "NVRM: Xid (" + text, A + text, A + "154, " + text, "nvidia-nvswitch1: SXid (" + text):
        for parse in (parse_xid, parse_sxid, parse_gpu_at, parse_nvlink5, parse_recovery_action):
            parse(message)


@given(st.binary())
def test_any_bytes_are_taken_without_an_exception(data: bytes) -> None:
    for text in (data.decode("latin-1"), data.decode("utf-8", "surrogateescape")):
        for parse in (parse_xid, parse_sxid, parse_gpu_at, parse_nvlink5, parse_recovery_action):
            parse(text)
            parse(A + "149, " + text)


def test_a_long_hostile_line_is_read_in_time_linear_to_its_length() -> None:
    for text in ("A" * 200_000, "Fatal " * 40_000, "0x" * 100_000, ", " * 100_000, "A/" * 100_000 + " Fatal"):
        assert parse_xid(A + "149, pid=1, name=" + text) is not None
        parse_nvlink5(text)
        parse_recovery_action(text)


NVLINK = [
    ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
     NvlinkEvent(unit="NETIR_LINK_EVT", fatal=True, xc=0, link=9, words=(0x025525C6, 0, 0, 0, 0, 0))),
    ("RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000084 0x00000002 0x0 0x0 0x0 0x0)",
     NvlinkEvent(unit="RLW_REMAP", fatal=False, xc=0, link=2, words=(0x84, 2, 0, 0, 0, 0))),
    ("NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000",
     NvlinkEvent(unit="NETIR", fatal=True, xc=0, link=None, words=(0xFE406, 0))),
    ("NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x000", NvlinkEvent(unit="NETIR", fatal=True, xc=0, words=(0xFE406,))),
    ("TLW_RX/TLW_RX_PIPE0 Fatal XC1 i1 Link 17 (0x00000143 0x4 0x0 0x0 0x0 0x0)",
     NvlinkEvent(unit="TLW_RX/TLW_RX_PIPE0", fatal=True, xc=1, injected=True, link=17, words=(0x143, 4, 0, 0, 0, 0))),
    ("NETIR Fatal XC", NvlinkEvent(unit="NETIR", fatal=True)),
    ("NETIR Nonfatal", NvlinkEvent(unit="NETIR", fatal=False)),
    ("my app, RLW_CTRL Nonfatal XC0 i0 Link 03 (0x3 0x80000000)",
     NvlinkEvent(unit="RLW_CTRL", fatal=False, xc=0, link=3, words=(3, 0x80000000))),
    ("A Fatal , RLW_CTRL Nonfatal XC0 i0 Link 03 (0x3 0x1)",
     NvlinkEvent(unit="RLW_CTRL", fatal=False, xc=0, link=3, words=(3, 1))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "event"), NVLINK)
def test_nvlink_5_fields_are_read_even_from_a_line_that_is_cut_off(text: str, event: NvlinkEvent) -> None:
    assert parse_nvlink5(text) == event


@pytest.mark.parametrize("text", ["", "NETIR Fata", "Fatal", "NETIR  Warning XC0 i0", "NVLink: fatal error on link 3"])
def test_a_text_without_unit_and_severity_word_is_no_nvlink_5_event(text: str) -> None:
    assert parse_nvlink5(text) is None


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", (0, 1)),
        ("GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)", (1, 0)),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", (0, 2)),
        ("GPU recovery action changed from 0x0 (None) to 0x2", (0, 2)),
        ("GPU recovery action changed from 0x0 (None) to 0xff (Something (new))", (0, 255)),
        ("b, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", (0, 4)),
        ("GPU recovery action changed from 0x1, GPU recovery action changed from 0x0 (None) to 0x1 (x)", (0, 1)),
        ("GPU recovery action changed", None),
        ("GPU recovery action changed from None to GPU Reset Required", None),
        ("", None),
    ],
)
def test_the_recovery_action_is_read_by_value(text: str, change: tuple[int, int] | None) -> None:
    assert parse_recovery_action(text) == change


SWITCH = PciAddress("0000:c1:00")


@pytest.mark.parametrize(
    ("rest", "line"),
    [
        ("20034, Fatal, Link 33 LTSSM Fault Up",
         SxidLine(pci=SWITCH, instance=3, code=20034, severity="fatal", link=33, text="Fatal, Link 33 LTSSM Fault Up")),
        ("24007, Fatal, Link 30 sourcetrack timeout error (First)",
         SxidLine(pci=SWITCH, instance=3, code=24007, severity="fatal", link=30,
                  text="Fatal, Link 30 sourcetrack timeout error (First)")),
        ("24007, Severity 1 Engine instance 30 Sub-engine instance 00",
         SxidLine(pci=SWITCH, instance=3, code=24007, detail=True,
                  text="Severity 1 Engine instance 30 Sub-engine instance 00")),
        ("24007, Data {0x00140004, 0x00100000}",
         SxidLine(pci=SWITCH, instance=3, code=24007, detail=True, text="Data {0x00140004, 0x00100000}")),
        ("26006, SOE HALTED", SxidLine(pci=SWITCH, instance=3, code=26006, text="SOE HALTED")),
        ("12028, Non-fatal, Link 05 egress", SxidLine(pci=SWITCH, instance=3, code=12028, severity="non-fatal", link=5,
                                                      text="Non-fatal, Link 05 egress")),
        ("11001, Correctable, Link 05 x", SxidLine(pci=SWITCH, instance=3, code=11001, severity="correctable", link=5,
                                                   text="Correctable, Link 05 x")),
    ],
)  # fmt: skip
def test_switch_errors_and_their_continuations_are_read(rest: str, line: SxidLine) -> None:
    assert parse_sxid(f"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {rest}") == line


def test_a_switch_error_quoted_by_a_program_is_none() -> None:
    assert parse_sxid("app: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 33") is None
    assert parse_xid("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 33") is None


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("NVRM: GPU at PCI:0000:91:00: GPU-0a1b2c3d-1111-2222-3333-444455556666",
         ("0000:91:00", "GPU-0a1b2c3d-1111-2222-3333-444455556666")),
        ("NVRM: GPU at 0000:03:00: GPU-0a1b2c3d-1111-2222-3333-444455556666",
         ("0000:03:00", "GPU-0a1b2c3d-1111-2222-3333-444455556666")),
        ("NVRM: GPU Board Serial Number: 1650000000002", None),
        ("x NVRM: GPU at PCI:0000:91:00: GPU-0a1b2c3d-1111-2222-3333-444455556666", None),
        ("NVRM: GPU at PCI:0000:91:00: GPU-0a1b2c3d and more", None),
    ],
)  # fmt: skip
def test_the_line_before_the_first_xid_names_the_uuid(message: str, named: tuple[str, str] | None) -> None:
    assert parse_gpu_at(message) == named


def test_the_values_are_plain_and_complete() -> None:
    assert parse_xid(A + "79, " + NOBODY + "GPU has fallen off the bus.") == XidLine(
        pci=PciAddress("0000:1a:00"), code=79, text="GPU has fallen off the bus."
    )

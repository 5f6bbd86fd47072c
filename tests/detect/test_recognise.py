"""What a text is, by itself. Each file in `recognise/` is a story; its name begins with the kind it is."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.recognise import SAMPLE, Kind, recognise, stands_apart

FILES = sorted((Path(__file__).parent / "recognise").glob("*.txt"))
XID = "[  812.101133] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
HEAD = "[2026-07-20 09:14:02 TP3] "


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_each_text_is_taken_for_what_its_name_says(file: Path) -> None:
    assert recognise(file.read_bytes(), "input") == file.name.split(".")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
@pytest.mark.parametrize("name", ["dmesg.txt", "kern.log", "/var/log/messages", "input.log"])
def test_a_file_name_alone_changes_nothing(file: Path, name: str) -> None:
    assert recognise(file.read_bytes(), name) == file.name.split(".")[0]


@pytest.mark.parametrize(
    "name",
    ["container.log", "/tmp/pod.log", "my-container.txt", "0.log", "/var/log/pods/a_b_c/main/12.log", "x-json.log"],
)
def test_what_is_named_a_containers_log_is_never_the_kernels(name: str) -> None:
    for line in (
        "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
        "[12345.678901] NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
        "4,358,29622795,-;NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
        "$ dmesg\n[1.5] NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n",
    ):
        assert recognise(line.encode(), name) == "container", line
        assert recognise(line.encode(), "dmesg.txt") in ("kernel", "mixed"), line


def test_the_stories_cover_every_kind() -> None:
    assert {f.name.split(".")[0] for f in FILES} == set(get_args(Kind))


def test_the_name_breaks_a_tie() -> None:
    text = (XID + "\nwhat is\nthis\n").encode()
    assert recognise(text, "dmesg.txt") == "kernel"
    assert recognise(text, "notes.txt") != "kernel"
    daemons = b"Jul 20 09:14:00 node7 systemd[1]: Started x.\nJul 20 09:14:01 node7 cron[9]: x\n"
    assert recognise(daemons, "/var/log/messages") == "kernel"
    assert recognise(daemons, "notes.txt") == "other"


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_no_place_of_one_xid_looking_line_makes_a_container_s_log_anything_else(at: int) -> None:
    lines = [f"{HEAD}Decode batch, #running-req: {i}" if i % 9 else "" for i in range(60)]
    lines.insert(at, XID)
    assert recognise("\n".join(lines).encode(), "dmesg") == "container"
    assert not stands_apart(lines, at)


def test_in_a_report_each_kernel_line_is_judged_where_it_stands() -> None:
    lines = [HEAD + "a", XID, HEAD + "b", "", "dmesg of the node:", XID, XID, "", HEAD + "c"]
    assert recognise("\n".join(lines).encode(), "") == "mixed"
    assert [i for i in range(len(lines)) if stands_apart(lines, i)] == [5, 6]


def test_lines_in_a_row_at_the_end_of_a_programs_log_may_be_the_programs() -> None:
    lines = [HEAD + "a", "", XID, XID, XID, XID]
    assert [stands_apart(lines, i) for i in range(6)] == [False] * 6


def test_lines_in_a_row_at_the_end_of_prose_stand_apart_and_their_continuations_too() -> None:
    lines = ["It says:", XID, "               NVRM: (PCI ID: 10de:26b5) installed in this system has", XID, XID]
    assert [stands_apart(lines, i, among_program=False) for i in range(5)] == [False, True, True, True, True]


def test_an_index_outside_the_lines_stands_nowhere() -> None:
    assert not stands_apart([XID], 1)
    assert not stands_apart([], 0)


def test_a_sample_cut_inside_a_line_is_judged_by_its_whole_lines() -> None:
    text = (HEAD + "x" * 1000 + "\n").encode() * 300
    assert len(text) > SAMPLE
    assert recognise(text, "") == "container"
    assert recognise(text[:SAMPLE], "") == "container"


def test_one_line_longer_than_the_sample_is_judged_by_its_start() -> None:
    assert recognise((HEAD + "server_args=" + "x" * 2 * SAMPLE).encode(), "") == "container"


def test_zero_bytes_between_the_lines_do_not_hide_the_kind() -> None:
    assert recognise(b"\0" * 1000 + f"{XID}\n{XID}\n".encode(), "") == "kernel"


@given(st.binary(max_size=400), st.text(max_size=20))
def test_any_bytes_are_of_some_kind(sample: bytes, name: str) -> None:
    assert recognise(sample, name) in get_args(Kind)


@given(st.lists(st.sampled_from([XID, HEAD + "a", "", "x", "dmesg:", "sglang-1  | y", "NVRM: z"]), max_size=12))
def test_a_line_of_a_container_never_stands_apart(lines: list[str]) -> None:
    for i, line in enumerate(lines):
        if line not in (XID, "NVRM: z"):
            assert not stands_apart(lines, i)

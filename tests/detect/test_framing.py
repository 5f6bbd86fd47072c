"""Lines of containers in every wrapping: what the program printed comes out, and nothing of it is eaten."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.framing import Enveloped, Framed, PartialJoiner, frame, message_of, open_envelope, strip_ansi

HEAD = "[2026-07-20 09:14:02 TP3] "
TEXT = "Scheduler hit an exception: Traceback (most recent call last):"
AT = datetime(2026, 7, 20, 9, 14, 2, tzinfo=UTC).timestamp()
STAMP = "2026-07-20T09:14:05.250000000Z"
AT_STAMP = AT + 3.25


def docker(log: str, **more: str) -> str:
    return json.dumps({"log": log, "stream": "stderr", "time": STAMP} | more)


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (HEAD + TEXT, AT),
        (f"{STAMP} stderr F {HEAD}{TEXT}", AT_STAMP),
        (f"2026-07-20T11:14:05.25+02:00 stderr F {HEAD}{TEXT}", AT_STAMP),
        (f"{STAMP} stderr F:tag:more {HEAD}{TEXT}", AT_STAMP),
        (docker(f"{HEAD}{TEXT}\n"), AT_STAMP),
        (f"{STAMP} {HEAD}{TEXT}", AT_STAMP),
        (f"[pod/sglang-0/server] {HEAD}{TEXT}", AT),
        (f"[pod/sglang-0/server] {STAMP} {HEAD}{TEXT}", AT_STAMP),
        (f"{STAMP} sglang-1  | {HEAD}{TEXT}", AT_STAMP),
        (f"sglang-1  | {STAMP} {HEAD}{TEXT}", AT_STAMP),
        (f"sglang-1 | {HEAD}{TEXT}", AT),
        (f"sglang_1    | {HEAD}{TEXT}", AT),
        (f"sglang  | {HEAD}{TEXT}", AT),
        (f"llm_sglang.1.x7kq@node-a    | {HEAD}{TEXT}", AT),
        (f"sglang-7d9f8b6c5-x2w4q server {HEAD}{TEXT}", AT),
        (f"sglang-0 server {HEAD}{TEXT}", AT),
        (f"sglang-0 server {STAMP} {HEAD}{TEXT}", AT_STAMP),
        (f"sglang-0 server › {HEAD}{TEXT}", AT),
        (f"pod/sglang-0 › {HEAD}{TEXT}", AT),
        (f"> {HEAD}{TEXT}", AT),
        (f"> > sglang-1  | {HEAD}{TEXT}", AT),
        (f"\ufeff{HEAD}{TEXT}", AT),
        (f"\x1b[36msglang-1  | \x1b[0m{HEAD}\x1b[1;31m{TEXT}\x1b[0m", AT),
        (f"{HEAD}{TEXT}\r", AT),
        (f"Loading: 10%|#\rLoading: 100%|##########\r{HEAD}{TEXT}", AT),
        (f"{STAMP} stderr F Loading: 10%|#\r{HEAD}{TEXT}", AT_STAMP),
    ],
)
def test_every_wrapping_comes_off(line: str, time: float) -> None:
    framed = frame(line)
    assert (framed.message, framed.rank) == (TEXT, "TP3")
    assert framed.time == pytest.approx(time, abs=1e-4)
    assert message_of(line) == TEXT


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB.",
        "the tokenizer said: foo | bar",
        '  File "/a/b.py", line 3, in f',
        "+---------+ | GPU  Name | | ",
        "| NVIDIA-SMI 580.159.04 |",
        "model.layers.0.weight  | MISSING  |",
        "Key                | Status     |",
        "a.b.weight  | missing",
        "hello world this is text",
        "loss | 0.13 at step 4",
        "well-understood-thing text follows",
        "state-of-the-art well-understood-thing text follows",
        "I1025 02:19:08.048260       1 health.go:186] XidCriticalError: Xid=94 on Device=GPU-1a",
        "[rank3]:[E716 09:14:02.5 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout",
        "node-a:412:987 [0] NCCL WARN Cuda failure 'out of memory'",
        "[pair.cc:534] Connection closed by peer",
        "[setup] nvidia-smi -L:",
        "[2026-07-20] no head",
        "[2026-07-20 09:14:02 XX3] unknown prefix",
        '{"message": "my own JSON", "log": "x"}',
        '{"log": 3, "stream": "stderr"}',
        ">>> print(1)",
        "100%|##########| 3/3 [00:02<00:00,  1.2it/s]",
        "",
    ],
)
def test_text_of_the_program_stays_whole(text: str) -> None:
    assert frame(text) == Framed(text, None, "", "", False)
    assert frame(f"{STAMP} stdout F {text}").message == text
    assert frame(f"{HEAD}{text}").message == text
    assert message_of(text) == text


@pytest.mark.parametrize(
    ("head", "rank", "millis"),
    [
        ("[2026-07-20 09:14:02] ", "", 0.0),
        ("[2026-07-20 09:14:02.125] ", "", 0.125),
        ("[2026-07-20 09:14:02 DP0 TP3 EP3] ", "DP0 TP3 EP3", 0.0),
        ("[2026-07-20 09:14:02.125 DP1 PP0 ATTN_CP2 MOE_DP1 TP12] ", "DP1 PP0 ATTN_CP2 MOE_DP1 TP12", 0.125),
    ],
)
def test_the_head_gives_time_and_rank(head: str, rank: str, millis: float) -> None:
    found = frame(head + "x")
    assert found._replace(time=None) == Framed("x", None, rank, "", False)
    assert found.time == pytest.approx(AT + millis)


def test_a_head_with_nothing_behind_it_is_an_empty_message() -> None:
    assert frame(HEAD.rstrip()).message == ""


def test_torch_s_rank_comes_off_every_line_of_its_traceback() -> None:
    assert frame("[rank3]: Traceback (most recent call last):") == Framed(
        "Traceback (most recent call last):", None, "RANK3", "", False
    )
    assert frame('[rank12]:   File "a.py", line 1, in f').message == '  File "a.py", line 1, in f'
    assert frame(f"{HEAD}[rank5]: x").rank == "TP3", "SGLang's own word on the rank comes first"


def test_the_streams_of_a_runtime_are_told() -> None:
    assert frame(f"{STAMP} stdout F x").stream == "stdout"
    assert frame(docker("x\n", stream="stderr")).stream == "stderr"
    assert frame(docker("x\n", stream="\ud800")).stream == ""
    assert frame("x").stream == ""


def test_behind_a_runtime_s_envelope_everything_is_the_program_s() -> None:
    inner = "2020-01-01T00:00:00Z stderr F old | text"
    assert frame(f"{STAMP} stdout F {inner}").message == inner
    assert frame(f"{STAMP} stdout F sglang-1  | x").message == "sglang-1  | x"
    assert frame(docker(docker("x\n") + "\n")).message == docker("x\n")


def test_a_record_with_an_impossible_date_keeps_its_text() -> None:
    assert frame("2026-13-45T99:14:05Z stderr F x") == Framed("x", None, "", "stderr", False)


def test_half_a_surrogate_pair_in_docker_s_json_can_still_be_written() -> None:
    message = frame('{"log":"a \\ud83d b\\n","stream":"stderr","time":"x"}').message
    assert message.encode() == b"a ? b"


def test_the_last_fragment_of_a_progress_bar_counts() -> None:
    assert frame("10%\r20%\r30%").message == "30%"
    assert frame("10%\r20%\r   \r").message == "20%"
    assert frame("\r\r\r").message == ""


def test_strip_ansi_takes_colours_titles_and_cursor_moves() -> None:
    assert strip_ansi("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b[2K\x1b[?25hy\x1b(B\x9b1mz") == "red xyz"
    assert strip_ansi("plain [31m") == "plain [31m"


def cri_records(content: str, size: int = 16384) -> list[str]:
    parts = [content[i : i + size] for i in range(0, len(content), size)] or [""]
    return [f"{STAMP} stderr {'F' if i == len(parts) - 1 else 'P'} {part}" for i, part in enumerate(parts)]


def joined(records: list[str], joiner: PartialJoiner) -> list[str]:
    out = []
    for record in map(open_envelope, records):
        whole = joiner.feed(record.stream, record.content, partial=record.partial)
        if whole is not None:
            out.append(whole)
    return out


def test_server_args_of_twenty_kilobytes_come_through_whole() -> None:
    args = HEAD + "server_args={" + ", ".join(f"'key_{i}': 'value | {i}'" for i in range(800)) + "}"
    assert 20_000 < len(args) < 32_000
    records = cri_records(args)
    assert [open_envelope(r).partial for r in records] == [True, False]
    joiner = PartialJoiner()
    assert joined(records, joiner) == [args]
    assert (joiner.cut, joiner.cut_lines) == (0, 0)
    assert frame(args).message == args[len(HEAD) :]


def test_docker_s_split_lines_are_joined_too() -> None:
    records = [docker("first half, "), docker("second half\n")]
    assert open_envelope(records[0]).partial
    assert joined(records, PartialJoiner()) == ["first half, second half"]


def test_the_two_streams_are_joined_apart() -> None:
    joiner = PartialJoiner()
    assert joiner.feed("stdout", "a", partial=True) is None
    assert joiner.feed("stderr", "1", partial=True) is None
    assert joiner.feed("stdout", "b", partial=False) == "ab"
    assert joiner.feed("stderr", "2", partial=False) == "12"


def test_what_exceeds_the_cap_is_cut_and_counted() -> None:
    joiner = PartialJoiner(cap=10)
    for _ in range(1000):
        assert joiner.feed("stderr", "x" * 8, partial=True) is None
    assert joiner.feed("stderr", "y", partial=False) == "x" * 10
    assert (joiner.cut, joiner.cut_lines) == (7991, 1)
    assert joiner.feed("stderr", "z" * 12, partial=False) == "z" * 10
    assert (joiner.cut, joiner.cut_lines) == (7993, 2)


def test_many_streams_cannot_fill_the_memory() -> None:
    joiner = PartialJoiner(cap=10, streams=2)
    for i in range(100):
        joiner.feed(f"s{i}", "xx", partial=True)
    assert joiner.flush() == [("s98", "xx"), ("s99", "xx")]
    assert (joiner.cut, joiner.cut_lines) == (196, 98)


def test_a_log_that_ends_inside_a_line_gives_the_rest_at_the_end() -> None:
    joiner = PartialJoiner()
    joiner.feed("stderr", "abc", partial=True)
    assert joiner.flush() == [("stderr", "abc")]
    assert joiner.flush() == []


PIECES = st.sampled_from(
    [
        HEAD, STAMP + " ", "stderr F ", "stderr P ", "sglang-1  | ", "[pod/a/b] ", "sglang-0 server ", "[rank1]: ",
        "› ", "> ", "\x1b[31m", "\x1b]", "\r", "{", '{"log":"', '","stream":"stderr"}', "\\ud800", "|", " ",
        "Traceback (most",
    ]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=12).map("".join)))
def test_any_text_is_framed_without_an_exception(line: str) -> None:
    framed = frame(line)
    assert message_of(line) == framed.message
    assert isinstance(open_envelope(line), Enveloped)


@given(st.binary())
def test_any_bytes_are_framed_without_an_exception(raw: bytes) -> None:
    frame(raw.decode("utf-8", "surrogateescape"))
    frame(raw.decode("latin-1"))


@given(st.text(alphabet=st.characters(exclude_characters="\n\r\x1b\x9b", codec="utf-8"), max_size=200))
def test_what_stands_in_a_record_comes_out_as_it_was(content: str) -> None:
    assert open_envelope(f"{STAMP} stderr F {content}").content == content
    assert open_envelope(docker(content + "\n")).content == content


@given(st.text(alphabet="ab| \n"), st.integers(1, 7))
def test_joining_gives_back_what_was_split(content: str, size: int) -> None:
    lines = content.split("\n")
    joiner = PartialJoiner()
    records = [record for line in lines for record in cri_records(line, size)]
    assert joined(records, joiner) == lines


@pytest.mark.parametrize(
    "text", ["a-" * 200_000, "1%|" * 200_000, "\x1b[" * 200_000, "[2026-" * 100_000, "{" * 100_000]
)
def test_a_hostile_line_costs_no_more_than_its_length(text: str) -> None:
    # Anything worse than linear would not come back within the test run.
    frame(text)
    frame(f'{{"log":"{"[" * 100_000}')

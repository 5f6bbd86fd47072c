"""Blocks of container log in, signals out: envelopes, split records, ranks, repeats, hostile text."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.detect.container import LINE_CAP, ContainerDetector, StreamState
from agent.detect.rules import Examples, Rule
from agent.model import ContainerRef, Role, Signal

WHERE = ContainerRef(namespace="ns", pod="p", uid="u", container="c")
EX = Examples(match=("x",))
RULES = (
    Rule(id="t/busy", title="busy", literals=("busy or unavailable",), examples=EX, source="test",
         capture=r"CUDA error: .*busy or unavailable", role=Role.SYMPTOM),
    Rule(id="t/flag", title="flag", literals=("invalid choice: ",), examples=EX, source="test", anchor="anywhere",
         capture=r"invalid choice: '(?P<value>\w+)'"),
    Rule(id="t/head", title="head", literals=("Scheduler hit an exception",), examples=EX, source="test",
         role=Role.CONTEXT, anchor="start", facts={"traceback": "opens"}),
    Rule(id="t/args", title="args", literals=("server_args=",), examples=EX, source="test", role=Role.CONTEXT,
         anchor="start", capture=r"server_args=(?P<server_args>.*)"),
    Rule(id="t/gpu", title="gpu", literals=("gpu gone: ",), examples=EX, source="test", anchor="anywhere",
         capture=r"gpu gone: (?P<pci>\S+) (?P<uuid>GPU-\w+) (?P<gpu_index>\d+)"),
)  # fmt: skip
BUSY = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
STAMP = "2026-11-30T20:00:00.123456789Z"


def signals(text: str, *, state: StreamState | None = None, detector: ContainerDetector | None = None) -> list[Signal]:
    detector = detector or ContainerDetector(RULES)
    return detector.signals(text.encode(), state=state or StreamState(), container=WHERE, source="log")


def cri(line: str, *, tag: str = "F", stream: str = "stderr") -> str:
    return f"{STAMP} {stream} {tag} {line}\n"


@pytest.mark.parametrize(
    "line",
    [BUSY, cri(BUSY).rstrip(), f"sglang-1  | {BUSY}", f"\x1b[31m{BUSY}\x1b[0m", f"[rank3]: {BUSY}",
     json.dumps({"log": BUSY + "\n", "stream": "stderr", "time": STAMP})],
)  # fmt: skip
def test_the_same_failure_is_known_in_every_envelope(line: str) -> None:
    (signal,) = signals(line + "\n")
    assert signal.rule == "t/busy" and signal.evidence.text == BUSY


@pytest.mark.parametrize(
    "line",
    [
        f'[2026-11-30 20:00:00] Receive: obj=GenerateReqInput(text="why {BUSY}?")',
        f"user asked: {BUSY}",
        f'{{"prompt": "{BUSY}"}}',
    ],
)
def test_a_quoted_error_is_not_a_failure(line: str) -> None:
    assert signals(line + "\n") == []


def test_a_record_that_the_runtime_split_comes_through_whole() -> None:
    args = (
        "server_args=ServerArgs("
        + ", ".join(f"a{n}='{'x' * 40}'" for n in range(600))
        + ", attention_backend='triton', page_size=1)"
    )
    assert len(args) > 20_000
    parts = [args[i : i + 16384] for i in range(0, len(args), 16384)]
    text = "".join(cri(p, tag="P") for p in parts[:-1]) + cri("between", stream="stdout") + cri(parts[-1])
    (signal,) = signals(text)
    assert signal.fields["attention_backend"] == "triton" and signal.time is not None


def test_a_split_record_may_end_in_a_later_block() -> None:
    state, detector = StreamState(), ContainerDetector(RULES)
    assert signals(cri(BUSY[:30], tag="P"), state=state, detector=detector) == []
    (signal,) = signals(cri(BUSY[30:]) + cri("after"), state=state, detector=detector)
    assert signal.evidence.text == BUSY


def test_lines_between_the_parts_of_a_split_record_are_read_too() -> None:
    text = cri("begin", tag="P") + cri("error: invalid choice: 'flash'", stream="stdout") + cri("end")
    (signal,) = signals(text)
    assert signal.fields == {"value": "flash"}


def test_the_words_of_a_split_mark_inside_a_line_change_nothing() -> None:
    (signal,) = signals(cri("x stderr P invalid choice: 'a'") + cri("y"))
    assert signal.fields == {"value": "a"}


def test_an_endless_split_record_is_cut_and_counted() -> None:
    detector = ContainerDetector(RULES)
    text = "".join(cri("y" * 16384, tag="P") for _ in range(40)) + cri("z")
    signals(text, detector=detector)
    assert detector.figures.cut_lines == 1
    assert 40 * 16384 > LINE_CAP


def test_a_traceback_belongs_to_the_rank_of_its_head() -> None:
    text = f"[2026-11-30 20:00:00 TP3] Scheduler hit an exception: Traceback\n  File x\n{BUSY}\n"
    head, busy = signals(text)
    assert (head.rank, busy.rank, busy.gpu.tp_rank) == (3, 3, 3)


def test_two_ranks_that_write_at_once_leave_the_rank_open() -> None:
    text = (
        "[2026-11-30 20:00:00 TP3] Scheduler hit an exception: Traceback\n"
        "[2026-11-30 20:00:00 TP1] Scheduler hit an exception: Traceback\n"
        f"{BUSY}\n"
    )
    assert signals(text)[-1].rank is None


def test_a_far_away_head_says_nothing_of_a_later_line() -> None:
    noise = "[2026-11-30 20:00:00] noise\n" * 6000
    text = f"[2026-11-30 20:00:00 TP3] Scheduler hit an exception: Traceback\n{noise}{BUSY}\n"
    assert signals(text)[-1].rank is None


def test_the_same_words_come_once_with_their_count() -> None:
    (signal,) = signals(f"{BUSY}\n" * 30)
    assert signal.count == 30


def test_different_words_of_one_rule_come_each() -> None:
    found = signals("invalid choice: 'a'\ninvalid choice: 'b'\ninvalid choice: 'a'\n")
    assert [(s.fields["value"], s.count) for s in found] == [("a", 2), ("b", 1)]


def test_what_the_text_says_of_its_gpu_is_normalised() -> None:
    (signal,) = signals("gpu gone: 00000000:5D:00.0 GPU-abc 2\n")
    assert (signal.gpu.pci, signal.gpu.uuid, signal.gpu.index) == ("0000:5d:00", "GPU-abc", 2)


def test_secrets_do_not_get_past_it() -> None:
    found = signals(
        "server_args=ServerArgs(api_key='sk-verysecret123', attention_backend='triton')\n"
        "invalid choice: 'a' api_key='sk-other4567'\n"
    )
    assert "verysecret" not in repr(found) and "other4567" not in repr(found)


def test_a_hostile_block_costs_a_bounded_number_of_looks() -> None:
    detector = ContainerDetector(RULES)
    text = "".join(f"invalid choice: 'v{n}'\n" for n in range(40_000))
    found = signals(text, detector=detector)
    assert detector.figures.sampled_blocks == 1
    assert len(found) <= 16 and sum(s.count for s in found) >= 256


def test_a_literal_at_the_end_of_a_line_does_not_reach_into_the_next() -> None:
    assert signals("busy or\nunavailable\n") == []


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=80), st.sampled_from([BUSY.encode(), cri("x", tag="P").encode(), b"\n", b'{"log":"'])
        ),
        max_size=30,
    ),
    st.integers(1, 5),
)
def test_any_bytes_are_survived_and_any_cut_gives_the_same_lines(parts: list[bytes], cuts: int) -> None:
    text = b"".join(parts) + b"\n"
    whole = ContainerDetector(RULES).signals(text, state=StreamState(), container=WHERE, source="log")
    lines = [line + b"\n" for line in text.split(b"\n")[:-1]]
    detector, state, found = ContainerDetector(RULES), StreamState(), []
    step = max(len(lines) // cuts, 1)
    for i in range(0, len(lines), step):
        block = b"".join(lines[i : i + step])
        found += detector.signals(block, state=state, container=WHERE, source="log")
    assert sum(s.count for s in found) == sum(s.count for s in whole)
    assert state.offset == len(text)


ESCAPES = st.sampled_from(
    [r"\ud800", r"\udfff", r"\U00110000", r"\U0000d900", "'", '"', "\\", ", ", "(", "{", ")", "=", "model_path='/m"]
)


@pytest.mark.parametrize("head", ["server_args=ServerArgs(model_path='/m", "server_args={'model_path': '/m"])
def test_half_a_surrogate_pair_in_the_arguments_can_be_stored(head: str) -> None:
    (signal,) = signals(head + r"\ud800\udc00\ud800', page_size=1)" + "\n")
    assert signal.fields["model_path"].startswith("/m\ufffd")
    msgspec.json.encode(signal)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(ESCAPES, st.text(max_size=8)), max_size=12).map("".join),
    st.sampled_from(["F", "P", ""]),
    st.binary(max_size=40),
)
def test_what_a_tenant_prints_can_always_be_stored(text: str, tag: str, raw: bytes) -> None:
    line = "server_args=ServerArgs(model_path='/m" + text.replace("\n", " ")
    head = f"{STAMP} stderr {tag} ".encode() if tag else b""
    record = json.dumps({"log": line + "\ud800\n", "stream": "stderr", "time": STAMP}).encode()
    for block in (head + line.encode("utf-8", "surrogatepass") + raw + b"\n", record + b"\n"):
        found = ContainerDetector(RULES).signals(block, state=StreamState(), container=WHERE, source="log")
        msgspec.json.encode(found)

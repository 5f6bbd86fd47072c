"""`kubectl describe`, pasted: a container's last words are its own, all else keeps its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.detect.described import LIMIT, may_be_described, read_described

PASTED = Path(__file__).parents[1] / "cli_cluster" / "pasted"
POD = (PASTED / "describe-pod.txt").read_bytes()
NODE = (PASTED / "describe-node.txt").read_bytes()


def test_last_words_are_taken_out_and_every_line_keeps_its_place() -> None:
    read = read_described(POD)
    assert read is not None
    found, rest = read
    (part,) = found.parts
    assert part.container is not None
    assert (part.container.namespace, part.container.pod, part.container.container) == ("llm", "chat-0", "sglang")
    assert part.container.restart == 2
    assert part.text.startswith("Traceback (most recent call last):\n  File ")
    assert "busy or unavailable" in part.text
    assert "Exit Code" not in part.text
    assert len(rest) == len(POD)
    assert [len(line) for line in rest.splitlines()] == [len(line) for line in POD.splitlines()]
    assert b"Traceback" not in rest
    assert b"Back-off restarting" in rest


def test_the_faults_on_a_node_are_read_where_they_are_whole() -> None:
    read = read_described(NODE)
    assert read is not None
    (fault,) = read[0].faults
    assert (fault.node, fault.pci, fault.xids) == ("gpu-1", "0000:5d:00", (79,))
    assert read[1] == NODE
    short = read_described(NODE.replace(b'"since":1000,"why":"lost"}]}', b"..."))
    assert short is not None
    assert short[0].faults == ()


def test_several_descriptions_follow_each_other() -> None:
    read = read_described(POD + b"\n\n" + POD.replace(b"chat-0", b"chat-1") + b"\n" + NODE)
    assert read is not None
    assert [p.container.pod for p in read[0].parts if p.container] == ["chat-0", "chat-1"]
    assert len(read[0].faults) == 1


@pytest.mark.parametrize("text", [b"", b"INFO: Name:   x\n", b"Name: x\n", b"Name:   x\n" + b" " * LIMIT])
def test_what_is_no_description_is_left_alone(text: bytes) -> None:
    assert read_described(text) is None


LINES = st.sampled_from(
    [b"Containers:", b"Annotations:  faultline.dev/gpu-fault: {}", b"Namespace:   x", b"  sglang:", b"    State:  x",
     b"    Last State:  Terminated", b"      Message:      boom", b"      Exit Code:  1", b"    Restart Count:  4",
     b"    Restart Count:  99999999999", b"Events:", b"Name:   other", b"\xff\xfe", b"\r"]
) | st.binary(max_size=20)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(LINES, max_size=25), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_lines_are_survived_and_none_moves(lines: list[bytes], ending: bytes) -> None:
    text = b"Name:         chat-0" + ending + ending.join(lines)
    assert may_be_described(text)
    read = read_described(text)
    assert read is not None
    assert len(read[1]) == len(text)
    assert len(read[1].splitlines()) == len(text.splitlines())
    assert read[1].count(b"\n") == text.count(b"\n")

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.sources.logs.position import Found, Position, Resume, fingerprint, go_on, look_back, resume

AT_100 = Position(dev=1, ino=498, fingerprint="f", offset=100)


def test_the_same_file_goes_on_at_its_offset() -> None:
    assert resume(AT_100, Found(498, 100, "f")) is Resume.SAME


def test_a_file_with_less_in_it_than_was_read_was_truncated() -> None:
    assert resume(AT_100, Found(498, 99, "f")) is Resume.TRUNCATED


def test_a_reused_inode_with_another_first_line_is_another_file() -> None:
    assert resume(AT_100, Found(498, 5000, "g")) is Resume.OTHER


def test_the_same_first_line_under_another_inode_is_another_file() -> None:
    assert resume(AT_100, Found(499, 5000, "f")) is Resume.OTHER


def test_reading_goes_on_in_a_rotated_file_and_then_in_the_younger_ones() -> None:
    files = [Found(1, 9, "a"), Found(498, 200, "f"), Found(3, 9, "c")]
    start = go_on(AT_100, files)
    assert start.offsets == (None, 100, 0) and start.lost == 0


def test_a_position_whose_file_is_gone_is_one_loss_and_all_that_is_left_is_read() -> None:
    start = go_on(AT_100, [Found(2, 9, "b"), Found(3, 9, "c")])
    assert start.offsets == (0, 0) and start.lost == 1


def test_a_truncated_file_is_read_from_its_start_and_counts_as_a_loss() -> None:
    start = go_on(AT_100, [Found(498, 10, "f")])
    assert start.offsets == (0,) and start.lost == 1


def test_looking_back_takes_the_newest_bytes_first() -> None:
    assert look_back([500, 500, 100], limit=300).offsets == (None, 300, 0)
    assert look_back([500], limit=600).offsets == (0,)
    assert look_back([500], limit=0).offsets == (None,)


def test_the_fingerprint_depends_on_the_first_line_only() -> None:
    assert fingerprint(b"one\n") == fingerprint(b"one\ntwo\n")
    assert fingerprint(b"one\n") != fingerprint(b"two\n")
    assert fingerprint(b"x" * 256) == fingerprint(b"x" * 300)


@given(st.builds(Position, dev=st.integers(0, 2**64 - 1), ino=st.integers(0, 2**64 - 1), fingerprint=st.text(),
                 offset=st.integers(0, 2**64 - 1)))  # fmt: skip
def test_a_position_survives_json(position: Position) -> None:
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.floats(), lambda inner: st.lists(inner)
       | st.dictionaries(st.sampled_from(["dev", "ino", "offset", "fingerprint", "x"]), inner)))  # fmt: skip
def test_any_json_value_is_taken_without_an_exception(value: object) -> None:
    found = Position.from_json(value)
    assert found is None or found.to_json() == {key: value[key] for key in found.to_json()}  # type: ignore[index]

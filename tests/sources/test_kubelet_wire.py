"""The protobuf reader: the wire format's own examples, every kind of field, the limits, and any bytes at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.sources.kubelet import pod_resources, pods_api, wire
from agent.sources.kubelet.wire import Field, Kind, Table, WireError, fields, read
from tests.sources.fake_kubelet import ALLOCATABLE_ANSWER, EVENTS, LISTED, PODS, message, varint

TABLE: Table = {
    1: Field("text"),
    2: Field("raw", Kind.BYTES),
    3: Field("number", Kind.NUMBER),
    4: Field("flag", Kind.FLAG),
    5: Field("time", Kind.TIME),
    6: Field("labels", Kind.TEXT_MAP),
    7: Field("limits", Kind.QUANTITY_MAP),
    8: Field("inner", {1: Field("name"), 2: Field("ids", many=True)}),
    9: Field("items", {1: Field("name")}, many=True),
}
EMPTY = {"labels": {}, "limits": {}, "items": []}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", {}),
        (b"\x0a\x07testing", {"text": "testing"}),  # the encoding guide's own example, with another number
        (b"\x18\x96\x01", {"number": 150}),
        (message((1, "größe")), {"text": "größe"}),
        (message((1, "")), {"text": ""}),
        (message((1, b"\xff\xfe")), {"text": "��"}),
        (message((2, b"\xff\x00")), {"raw": b"\xff\x00"}),
        (message((3, 0)), {"number": 0}),
        (message((3, -1)), {"number": -1}),
        (message((3, (1 << 63) - 1)), {"number": (1 << 63) - 1}),
        (message((3, -(1 << 63))), {"number": -(1 << 63)}),
        (varint(3 << 3 | 5) + (137).to_bytes(4, "little"), {"number": 137}),
        (varint(3 << 3 | 1) + (1 << 40).to_bytes(8, "little"), {"number": 1 << 40}),
        (message((4, 1)), {"flag": True}),
        (message((4, 0)), {"flag": False}),
        (message((4, 7)), {"flag": True}),
        (message((5, message((1, 1764536709)))), {"time": "2025-11-30T21:05:09Z"}),
        (message((5, message((1, -1)))), {"time": "1969-12-31T23:59:59Z"}),
        (message((5, b"")), {"time": None}),
        (message((5, message((1, 1 << 62)))), {"time": None}),
        (message((6, message((1, "a"), (2, "b"))), (6, message((1, "c")))), {"labels": {"a": "b", "c": ""}}),
        (message((6, message((1, "a"), (2, "b"))), (6, message((1, "a"), (2, "d")))), {"labels": {"a": "d"}}),
        (message((7, message((1, "cpu"), (2, message((1, "1500m")))))), {"limits": {"cpu": "1500m"}}),
        (message((7, message((1, "cpu")))), {"limits": {"cpu": ""}}),
        (message((8, message((1, "n"), (2, "x"), (2, "y")))), {"inner": {"name": "n", "ids": ["x", "y"]}}),
        (message((8, b"")), {"inner": {"ids": []}}),
        (message((9, message((1, "n"))), (9, b"")), {"items": [{"name": "n"}, {}]}),
        (message((1, "first"), (1, "last")), {"text": "last"}),
        (message((99, "unknown"), (1, "known"), (1 << 28, 5)), {"text": "known"}),
        (varint(3 << 3) + b"\x80" * 9 + b"\x01", {"number": -(1 << 63)}),
    ],
)
def test_each_kind_is_read_as_json_would_have_it(data: bytes, found: dict[str, Any]) -> None:
    assert read(data, TABLE) == EMPTY | found


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a", "cut short"),
        (b"\x0a\x05abc", "cut short"),
        (b"\x0a\xff\xff\xff\xff\x0f", "cut short"),
        (b"\x80", "cut short"),
        (varint(3 << 3 | 5) + b"\x01\x02\x03", "cut short"),
        (varint(3 << 3 | 1) + b"\x01" * 7, "cut short"),
        (b"\x00\x01", "field number 0"),
        (varint(1 << 32) + b"\x01", "field number"),
        (b"\x0b", "wire type 3"),
        (b"\x0c", "wire type 4"),
        (b"\x0e", "wire type 6"),
        (b"\x0f", "wire type 7"),
        (varint(3 << 3) + b"\x80" * 10 + b"\x01", "more than 64 bits"),
        (message((1, 5)), "a number where bytes belong"),
        (message((3, "five")), "bytes where a number belongs"),
        (message((4, "yes")), "bytes where a number belongs"),
        (message((6, 5)), "a number where bytes belong"),
        (message((8, 5)), "a number where bytes belong"),
        (message((8, b"\x0a\x05abc")), "cut short"),
        (message((6, b"\x0a")), "cut short"),
        (message((5, b"\x08")), "cut short"),
        (b"GET / HTTP/1.1\r\n", "wire type 7"),
    ],
)
def test_what_is_no_message_of_this_form_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        read(data, TABLE)


def test_a_field_that_nobody_asked_for_may_hold_anything() -> None:
    assert read(message((99, b"\x0a\x05abc")), TABLE) == EMPTY
    assert list(fields(message((99, b"\x0a\x05abc"), (1, 7)))) == [(99, b"\x0a\x05abc"), (1, 7)]


def test_a_message_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SIZE_LIMIT", 100)
    assert read(message((2, bytes(98))), TABLE)["raw"] == bytes(98)
    with pytest.raises(WireError, match="a message of more than"):
        read(message((2, bytes(99))), TABLE)


def nested(levels: int) -> tuple[Table, bytes]:
    table: Table = {1: Field("name")}
    data = message((1, "bottom"))
    for _ in range(levels - 1):
        table, data = {1: Field("name", table)}, message((1, data))
    return table, data


def test_a_table_may_be_as_deep_as_the_limit_and_no_deeper() -> None:
    table, data = nested(wire.DEPTH_LIMIT)
    found: Any = read(data, table)
    for _ in range(wire.DEPTH_LIMIT):
        found = found["name"]
    assert found == "bottom"
    table, data = nested(wire.DEPTH_LIMIT + 1)
    with pytest.raises(WireError, match="nested too deep"):
        read(data, table)


DECODERS = {
    "wire": lambda data: read(data, TABLE),
    "holders": pod_resources.listed,
    "allocatable": pod_resources.allocatable,
    "event": lambda data: read(data, pods_api._EVENT),
}
REAL = [LISTED, ALLOCATABLE_ANSWER, *EVENTS, *(data for _, data in PODS)]


def totally(data: bytes) -> None:
    """No decoder raises anything but WireError."""
    for decode in DECODERS.values():
        try:
            decode(data)
        except WireError:
            pass
    pods_api.pod_of_wire(data)


@given(st.binary(max_size=300))
@example(b"\xff" * 20)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    totally(data)


@given(st.data())
def test_real_messages_with_any_change_are_read_or_refused(draw: st.DataObject) -> None:
    data = bytearray(draw.draw(st.sampled_from(REAL)))
    for _ in range(draw.draw(st.integers(0, 6))):
        at = draw.draw(st.integers(0, len(data)))
        data[at : at + draw.draw(st.integers(0, 9))] = draw.draw(st.binary(max_size=9))
    totally(bytes(data))


@pytest.mark.parametrize("data", REAL, ids=range(len(REAL)))
def test_a_real_message_that_is_cut_anywhere_is_read_or_refused(data: bytes) -> None:
    for end in range(len(data)):
        totally(data[:end])

"""Reads the protobuf wire format by a table of the fields wanted. Pure; knows no message, keeps nothing of the rest.

The kubelet's answers are few messages with a dozen fields of interest each: generated classes would cost more memory
than all of them. What is no protobuf is a WireError and nothing else, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

SIZE_LIMIT = 16 << 20
"""A message longer than this is refused."""

DEPTH_LIMIT = 16
"""A table deeper than this is a mistake in the table: messages nest only as deep as their table does."""


class WireError(Exception):
    """The bytes are no protobuf message, or not of the expected form."""


class Kind(Enum):
    TEXT = "text"
    BYTES = "bytes"
    NUMBER = "number"
    FLAG = "flag"
    TIME = "time"
    """metav1.Time, given as the API's JSON writes it; absent where it is zero."""
    TEXT_MAP = "text map"
    QUANTITY_MAP = "quantity map"
    """A map to resource.Quantity, given as texts."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field wanted: its name in the result, what it holds, and whether it is a list."""

    name: str
    kind: Kind | Mapping[int, Field] = Kind.TEXT
    many: bool = False


Table = Mapping[int, Field]
"""The fields wanted of one message by their numbers; all others are passed over."""

_PAIR: Table = {1: Field("key"), 2: Field("value")}
_QUANTITY_PAIR: Table = {1: Field("key"), 2: Field("value", {1: Field("string")})}
_TIME: Table = {1: Field("seconds", Kind.NUMBER)}


def read(data: bytes, table: Table) -> dict[str, Any]:
    """The wanted fields of one message by name, as JSON would have them. Raises WireError and nothing else.

    A field that is not there is not in the result, except that a list and a map always are.
    """
    if len(data) > SIZE_LIMIT:
        raise WireError(f"a message of more than {SIZE_LIMIT >> 20} MiB")
    return _read(data, table, DEPTH_LIMIT)


def _read(data: bytes, table: Table, depth: int) -> dict[str, Any]:
    if depth <= 0:
        raise WireError("messages nested too deep")
    found: dict[str, Any] = {f.name: [] for f in table.values() if f.many}
    found |= {f.name: {} for f in table.values() if f.kind in (Kind.TEXT_MAP, Kind.QUANTITY_MAP)}
    for number, value in fields(data):
        field = table.get(number)
        if field is None:
            continue
        if field.kind is Kind.TEXT_MAP or field.kind is Kind.QUANTITY_MAP:
            key, said = _pair(_bytes(value), field.kind, depth)
            found[field.name][key] = said
            continue
        item = _value(value, field.kind, depth)
        if field.many:
            found[field.name].append(item)
        else:
            found[field.name] = item
    return found


def _pair(data: bytes, kind: Kind, depth: int) -> tuple[str, str]:
    if kind is Kind.TEXT_MAP:
        pair = _read(data, _PAIR, depth - 1)
        return pair.get("key", ""), pair.get("value", "")
    pair = _read(data, _QUANTITY_PAIR, depth - 1)
    return pair.get("key", ""), pair.get("value", {}).get("string", "")


def _value(value: int | bytes, kind: Kind | Table, depth: int) -> Any:
    if kind is Kind.NUMBER or kind is Kind.FLAG:
        if not isinstance(value, int):
            raise WireError("bytes where a number belongs")
        if kind is Kind.FLAG:
            return value != 0
        return value - (1 << 64) if value >> 63 else value  # negative numbers of all widths are sent as 64 bits
    data = _bytes(value)
    if kind is Kind.BYTES:
        return data
    if kind is Kind.TIME:
        return _time(_read(data, _TIME, depth - 1).get("seconds", 0))
    if isinstance(kind, Mapping):
        return _read(data, kind, depth - 1)
    return data.decode(errors="replace")


def _time(seconds: int) -> str | None:
    if seconds == 0:
        return None
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise WireError("a number where bytes belong")
    return value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field's number and value in order: varints and fixed numbers as int, all else as bytes."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, form = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise WireError(f"field number {number}")
        if form == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if form == 2:
            size, at = _varint(data, at)
        elif form in (1, 5):
            size = 8 if form == 1 else 4
        else:
            raise WireError(f"wire type {form}")
        if size > end - at:
            raise WireError("cut short")
        raw = data[at : at + size]
        at += size
        yield number, raw if form == 2 else int.from_bytes(raw, "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise WireError("cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise WireError("a number of more than 64 bits")

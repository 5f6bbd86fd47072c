"""Tells text from other data by its first bytes, and brings text of any usual encoding to UTF-8 as it streams."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_UNPACK = "unpack it first: "
_FORMATS: tuple[tuple[bytes, int, str, str], ...] = (
    (b"\x28\xb5\x2f\xfd", 0, "zstd-compressed", _UNPACK + "zstd -d FILE"),
    (b"\x04\x22\x4d\x18", 0, "lz4-compressed", _UNPACK + "lz4 -d FILE"),
    (b"\x1f\x8b", 0, "gzip-compressed", _UNPACK + "gzip -d FILE"),
    (b"\x1f\x9d", 0, "compress(1) data", _UNPACK + "gzip -d FILE"),
    (b"\xfd7zXZ\0", 0, "xz-compressed", _UNPACK + "xz -d FILE"),
    (b"BZh91AY&SY", 0, "bzip2-compressed", _UNPACK + "bzip2 -d FILE"),
    (b"ustar", 257, "a tar archive", _UNPACK + "tar xf FILE, then hand in the logs that are in it"),
    (b"PK\x03\x04", 0, "a zip archive", _UNPACK + "unzip FILE, then hand in the logs that are in it"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7z archive", _UNPACK + "7z x FILE"),
    (b"\x7fELF", 0, "a program or core dump (ELF)", "hand in the log that the program wrote"),
    (b"LPKSHHRH", 0, "a binary journal file", "hand in its text: journalctl --file FILE -k -o short-iso"),
    (b"\x89PNG\r\n\x1a\n", 0, "a picture (PNG)", "hand in the text itself"),
    (b"\xff\xd8\xff", 0, "a picture (JPEG)", "hand in the text itself"),
    (b"%PDF-", 0, "a PDF document", "hand in the text itself"),
    (b"SQLite format 3\0", 0, "an SQLite database", "hand in a log"),
)


class Encoding(NamedTuple):
    """How a text is encoded, and how many bytes its byte order mark takes."""

    name: str
    mark: int


def encoding_of(head: bytes) -> Encoding:
    """By byte order mark, else by where the zero bytes of plain English stand; UTF-8 when nothing speaks against it."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return Encoding(name, len(mark))
    sample = head[:4096]
    sample = sample[: len(sample) & ~1]
    half = len(sample) // 2
    if half >= 2:
        even, odd = sample[::2].count(0), sample[1::2].count(0)
        if odd >= half * 0.7 and even <= half * 0.05:
            return Encoding("utf-16-le", 0)
        if even >= half * 0.7 and odd <= half * 0.05:
            return Encoding("utf-16-be", 0)
    return Encoding("utf-8", 0)


def foreign_format(head: bytes) -> tuple[str, str] | None:
    """What data that is no text is, and the cure; None for text, however much rubbish there is in it."""
    for magic, at, what, cure in _FORMATS:
        if head[at : at + len(magic)] == magic:
            return what, cure
    return None


_PLAIN = bytes(range(32, 256)) + b"\t\n\v\f\r\b\x1b"
_HOLE = re.compile(rb"\0{16,}")
"""Where a log was cut while its writer went on, zero bytes stand for what was cut: no sign of binary data."""


def is_binary(text: bytes) -> bool:
    """True when so much of a sample (in UTF-8) is control characters and broken bytes that it is no log.

    Some rubbish between lines of text is survived: a tenth of control characters, a fifth of broken bytes.
    """
    filled = _HOLE.sub(b"", text)
    control = len(filled.translate(None, _PLAIN))
    if control > 0.1 * len(filled):
        return True
    return control > 0.02 * len(filled) and filled.decode("utf-8", "replace").count("\ufffd") > 0.2 * len(filled)


def to_utf8(blocks: Iterable[bytes], encoding: Encoding) -> Iterator[bytes]:
    """The same text in UTF-8 without its mark. What cannot be decoded becomes U+FFFD."""
    skip = encoding.mark
    decode = None if encoding.name == "utf-8" else codecs.getincrementaldecoder(encoding.name)("replace")
    for block in blocks:
        if skip:
            block, skip = block[skip:], max(0, skip - len(block))
        if block:
            yield block if decode is None else decode.decode(block).encode("utf-8", "replace")
    if decode is not None and (rest := decode.decode(b"", final=True)):
        yield rest.encode("utf-8", "replace")

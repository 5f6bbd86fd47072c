"""Unpacks gzip, zlib, bzip2 and xz streams; never holds more than one piece, whatever a bomb promises."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

STEP = 1 << 17
"""The most bytes that one step unpacks; where the data is broken, up to so many before that place are lost."""

MEMORY = 256 << 20
"""The most memory that an xz stream may ask for."""


class _Decoder(Protocol):
    """The part that the standard library's decompressors have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...


class _Zlib:
    """zlib's decompressor with the interface of the other two."""

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._full and not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int = STEP) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self._full = len(out) >= max_length  # there may be more in the window than the input still shows
        return out


def _is_zlib(head: bytes) -> bool:
    """True for a zlib stream. Its magic is two weak bytes (`x^` is text as well), so the stream must also unpack."""
    if len(head) < 3 or head[0] != 0x78 or head[1] not in (0x01, 0x5E, 0x9C, 0xDA) or (head[0] << 8 | head[1]) % 31:
        return False
    try:
        return bool(zlib.decompressobj().decompress(head, 64))
    except zlib.error:
        return False


def packing_of(head: bytes) -> str:
    """``gzip``, ``zlib``, ``bzip2``, ``xz``, or empty for what this module does not unpack."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    return "zlib" if _is_zlib(head) else ""


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": lambda: _Zlib(31),
    "zlib": lambda: _Zlib(15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=MEMORY),
}


def unpack(packed: Iterable[bytes], packing: str, *, limit: int, damaged: Callable[[str], None]) -> Iterator[bytes]:
    """The unpacked bytes in pieces of at most STEP, at most `limit` in all; several members follow each other.

    A stream that ends early, is broken or exceeds the limit gives what could be read, and `damaged` is told why.
    """
    make = _DECODERS[packing]
    decoder: _Decoder | None = None
    done = 0
    source = iter(packed)
    pending = b""
    members, of_member = 0, 0
    while True:
        if not pending and (decoder is None or decoder.needs_input):
            pending = next(source, b"")
            if not pending:
                break
        if decoder is None:
            if members:
                pending = pending.lstrip(b"\0")  # padding between or behind the members (tapes, block devices)
                if not pending:
                    continue
            decoder, of_member = make(), 0
        try:
            out = decoder.decompress(pending, min(STEP, limit - done + 1))
        except (zlib.error, OSError, EOFError, lzma.LZMAError, ValueError) as error:
            if members and not of_member:
                damaged(f"the {packing} data is followed by something else, which was not read")
            else:
                damaged(f"the {packing} data is broken after {done} unpacked bytes ({error}): the rest was not read")
            return
        pending = b""
        if done + len(out) > limit:
            yield out[: limit - done]
            damaged(f"the {packing} data unpacks to more than {limit} bytes: the rest was not read")
            return
        if out:
            done, of_member = done + len(out), of_member + len(out)
            yield out
        if decoder.eof:
            pending, decoder, members = decoder.unused_data, None, members + 1
    if decoder is not None:
        damaged(f"the {packing} data ends early, after {done} unpacked bytes: the rest is missing")

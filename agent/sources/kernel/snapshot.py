"""Finds what is new in a snapshot of the kernel log that has no sequence numbers, and makes up stable ones. No I/O."""

from __future__ import annotations

from collections import OrderedDict

TAIL_LINES = 64
PER_MICROSECOND = 64
"""Lines of one microsecond that get numbers of their own; a number stays below 2**53 for four years of uptime."""


def whats_new(snapshot: bytes, tail: bytes) -> bytes | None:
    """The part of ``snapshot`` behind ``tail``, the last whole lines of the snapshot before.

    None when the two do not touch: lines between them are gone, or the snapshot was cut too short. Lines carry
    microsecond stamps, so a run of them is as good as a name.
    """
    if not tail:
        return snapshot
    at = snapshot.rfind(tail)
    while at > 0 and snapshot[at - 1] != 0x0A:
        at = snapshot.rfind(tail, 0, at + len(tail) - 1)
    if at >= 0:
        return snapshot[at + len(tail) :]
    # The front of the tail may have left the ring (or the cut).
    start = tail.find(b"\n") + 1
    while 0 < start < len(tail):
        rest = tail[start:]
        if snapshot.startswith(rest):
            return snapshot[len(rest) :]
        start = tail.find(b"\n", start) + 1
    return None


def tail_of(text: bytes) -> bytes:
    """The last :data:`TAIL_LINES` lines of ``text``, newlines included."""
    return b"".join(text.splitlines(keepends=True)[-TAIL_LINES:]) if text else b""


class Numbering:
    """Gives each line a number from its stamp and its place among the lines of that microsecond.

    The same line gets the same number after a restart, unless lines of its own microsecond have left the ring. Numbers
    follow the stamps, which on several processors are not always in the order of the log.
    """

    __slots__ = ("_seen",)

    _REMEMBERED = 1024

    def __init__(self) -> None:
        self._seen: OrderedDict[int, int] = OrderedDict()

    def number(self, usec: int) -> int:
        """The number of the next line stamped ``usec`` (microseconds since boot)."""
        place = self._seen.get(usec, 0)
        self._seen[usec] = place + 1
        if len(self._seen) > self._REMEMBERED:
            self._seen.popitem(last=False)
        return usec * PER_MICROSECOND + min(place, PER_MICROSECOND - 1)

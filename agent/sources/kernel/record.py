"""Turns the bytes of one kernel-log record into a :class:`KernelRecord`; never reads a log or judges a text.

Two spellings are known: the record of ``/dev/kmsg`` and the line of ``syslog(2)``. Both parsers are total: any bytes
give a value or None, never an exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_U64 = 1 << 64

# prio,seq,usec,flags[,key=value...];text - fields after the flags may be added by any kernel to come.
_KMSG = re.compile(rb"([0-9]{1,5}),([0-9]{1,20}),([0-9]{1,20}),[^,;\n]*(?:,[^;\n]*)?;([^\n]*)")
# <prio>[seconds.micros][caller] text - the caller tag is there with CONFIG_PRINTK_CALLER.
_SYSLOG = re.compile(rb"<([0-9]{1,5})>\[ *([0-9]{1,13})\.([0-9]{6})\](?:\[ *[TC][0-9]{1,10}\])? ?([^\n]*)")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One record of the kernel log. ``(boot_id, seq)`` names it for good.

    ``usec`` is microseconds since boot by the kernel's clock, ``time`` the same moment in wall seconds since the epoch
    (as good as the kernel's clock is: it stands still in suspend). ``text`` may hold newlines.
    """

    seq: int
    usec: int
    facility: int
    level: int
    text: str
    boot_id: str
    time: float


def parse_record(raw: bytes, *, boot_id: str, offset: float) -> KernelRecord | None:
    """Parse one record as a read of ``/dev/kmsg`` gives it; None when it is none.

    ``offset`` is wall seconds minus seconds since boot. The ``KEY=value`` lines behind the text are left out: nothing
    needs them.
    """
    found = _KMSG.match(raw)
    if found is None:
        return None
    prio, seq, usec = int(found[1]), int(found[2]), int(found[3])
    if seq >= _U64 or usec >= _U64:
        return None
    return KernelRecord(
        seq=seq,
        usec=usec,
        facility=prio >> 3,
        level=prio & 7,
        text=decode_text(found[4]),
        boot_id=boot_id,
        time=offset + usec / 1e6,
    )


def decode_text(raw: bytes) -> str:
    r"""Undo the ``\xNN`` of ``/dev/kmsg``; bytes that are no UTF-8 become U+FFFD.

    The kernel writes the backslash itself as ``\x5c``, so one pass is exact.
    """
    if b"\\" in raw:
        raw = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), raw)
    return raw.decode("utf-8", "replace")


class SyslogLine(NamedTuple):
    """One line of ``syslog(2)``: the kernel gives each line of a record the record's own prefix."""

    prio: int
    usec: int
    text: str


def parse_syslog_line(raw: bytes) -> SyslogLine | None:
    """Parse ``<4>[   12.345678] text``; None when it is no such line, or one without a time stamp."""
    found = _SYSLOG.match(raw)
    if found is None:
        return None
    usec = int(found[2]) * 1_000_000 + int(found[3])
    return SyslogLine(int(found[1]), usec, found[4].decode("utf-8", "replace"))

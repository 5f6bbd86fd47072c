"""Binds the three inotify calls of libc and takes apart what the kernel returns; it must never interpret an event."""

from __future__ import annotations

import ctypes
import os
from struct import Struct
from typing import NamedTuple

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
UNMOUNT = 0x2000
OVERFLOW = 0x4000
IGNORED = 0x8000
ONLYDIR = 0x1000000

_HEAD = Struct("iIII")
_READ_BYTES = 64 * 1024
_USUAL = _HEAD.size + 16
"""Size of a record whose name has up to 15 bytes, such as ``0.log``: the kernel pads names to 16."""


class RawEvent(NamedTuple):
    """``wd`` is -1 for an overflow of the queue. ``name`` is empty when the directory itself is meant."""

    wd: int
    mask: int
    name: str


def events(data: bytes) -> list[RawEvent]:
    """The distinct events of one read, each at its last place in the order. Total: stops at a cut record.

    Equal events say the same, and only the last counts (a write after a close means the file is open again). Under
    a flood nearly all are equal, and nearly all records have one size: then they are told apart as plain bytes, at a
    tenth of the cost of taking each apart.
    """
    last: dict[bytes, None] = {}
    size = _USUAL
    if len(data) % size == 0:
        records = [data[at : at + size] for at in range(len(data) - size, -1, -size)]
        last = dict.fromkeys(records)
        # Exact: the first record starts at 0, so when each one has the usual size, each next one starts where cut.
        if all(_HEAD.unpack_from(record)[3] == size - _HEAD.size for record in last):
            return [_event(record) for record in reversed(last)]
        last = {}
    at = 0
    while at + _HEAD.size <= len(data):
        end = at + _HEAD.size + _HEAD.unpack_from(data, at)[3]
        if end > len(data):
            break
        record = data[at:end]
        last.pop(record, None)
        last[record] = None
        at = end
    return [_event(record) for record in last]


def _event(record: bytes) -> RawEvent:
    wd, mask, _cookie, _length = _HEAD.unpack_from(record)
    return RawEvent(wd, mask, os.fsdecode(record[_HEAD.size :].split(b"\0", 1)[0]))


class Inotify:
    """One inotify instance, non-blocking. Raises OSError where the kernel refuses (EMFILE, ENOSPC, EACCES ...).

    Bound here in a few lines, since under a flood the cost of one event decides (1 us against 5 with a package that
    makes path and flag objects of each), and because libc is already in the process: nothing has to be searched.
    """

    __slots__ = ("_libc", "fd")

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: str, mask: int) -> int:
        """Watch a path; the watch descriptor. The same descriptor again for an inode that is watched already."""
        return self._checked(self._libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask)))

    def remove(self, wd: int) -> None:
        self._checked(self._libc.inotify_rm_watch(self.fd, wd))

    def read(self) -> bytes:
        """What is queued, up to 64 KiB; empty when nothing is."""
        try:
            return os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @staticmethod
    def _checked(answer: int) -> int:
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return answer

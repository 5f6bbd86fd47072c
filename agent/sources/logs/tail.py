"""Reads whole lines from one open log file; it must never look at another file or at names."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from agent.sources.logs.chunk import Chunk, LogStream
from agent.sources.logs.paths import Order
from agent.sources.logs.position import FINGERPRINT_BYTES, Found, Position, fingerprint

Opener = Callable[[str], int]
"""Opens a path for reading; a file descriptor, or OSError."""


def open_log(path: str) -> int:
    """Open a log for reading. Symbolic links are followed (docker's); a pipe in the place of a log does not block."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


class Tail:
    """One open log file and how far it was read. Holding it open keeps the text of a deleted file readable.

    Takes over the descriptor. Raises OSError where the file cannot be examined, ValueError where it is no regular
    file; the descriptor is closed then.
    """

    __slots__ = (
        "_fd",
        "_fingerprint",
        "dev",
        "expired",
        "ino",
        "listed",
        "mtime",
        "name",
        "offset",
        "order",
        "size",
        "stream",
        "superseded",
        "truncated",
        "unlinked",
    )

    def __init__(self, fd: int, *, stream: LogStream, name: str, order: Order) -> None:
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise ValueError(f"{stream.path} is no regular file")
        except (OSError, ValueError):
            os.close(fd)
            raise
        self._fd = fd
        self._fingerprint = ""
        self.stream = stream
        self.name = name
        self.order = order
        self.dev, self.ino = facts.st_dev, facts.st_ino
        self.size, self.mtime = facts.st_size, facts.st_mtime
        self.offset = 0
        self.truncated = 0
        self.unlinked = facts.st_nlink == 0
        self.listed = True
        """The directory held the file under ``name`` when it was last looked at."""
        self.superseded = False
        """A younger file of the container exists, or the name is gone: writing ends soon or has ended."""
        self.expired = False
        """The time in which late writes were waited for is over."""

    def refresh(self) -> None:
        """Look at size and links again. Raises OSError."""
        facts = os.fstat(self._fd)
        self.size, self.unlinked = facts.st_size, facts.st_nlink == 0

    @property
    def started(self) -> bool:
        return self.offset > 0

    def found(self) -> Found:
        """The file as it is now, to compare with a stored position. Raises OSError."""
        head = os.pread(self._fd, FINGERPRINT_BYTES, 0)
        return Found(self.ino, self.size, fingerprint(head))

    def align(self, offset: int, *, block: int) -> None:
        """Begin at the first line that starts at or after ``offset``. Raises OSError.

        Within a line longer than a block there is none to be found, and reading begins in its middle.
        """
        self.offset = offset
        if offset > 0:
            # From one byte before: when that is the newline, the line at the offset is whole.
            cut = os.pread(self._fd, block, offset - 1).find(b"\n")
            self.offset = offset + max(0, cut)

    def read(self, *, block: int, final: bool) -> Chunk | None:
        """The next whole lines, up to ``block`` bytes; None when there are none (yet). Raises OSError.

        An unfinished line stays in the file and is read again with its end, so that nothing is kept in memory. When
        nobody will write on (``final``) it is handed on torn, as is a line longer than a block.
        """
        self.refresh()
        if self.size < self.offset:
            self.offset, self._fingerprint = 0, ""
            self.truncated += 1
        data = os.pread(self._fd, min(block, self.size - self.offset), self.offset)
        if not data:
            return None
        cut = data.rfind(b"\n") + 1
        torn = not cut
        if torn and len(data) < block and not final:
            return None
        if 0 < cut < len(data):
            data = data[:cut]
        if not self._fingerprint:
            head = data if self.offset == 0 else os.pread(self._fd, FINGERPRINT_BYTES, 0)
            self._fingerprint = fingerprint(head[:FINGERPRINT_BYTES])
        at, self.offset = self.offset, self.offset + len(data)
        position = Position(dev=self.dev, ino=self.ino, fingerprint=self._fingerprint, offset=self.offset)
        return Chunk(stream=self.stream, data=data, offset=at, position=position, torn=torn)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

"""Says where reading of a container's log goes on after a pause; it must never read a file itself.

A position names its file by inode number and by a fingerprint of the first line. The inode alone will not do: the
kubelet deletes a whole instance's files at once and the file system hands their numbers out again within seconds.
The first line carries the runtime's nanosecond stamp, so its hash tells two files with one number apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple

FINGERPRINT_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where to go on in one file: the byte ``offset`` of the first byte not yet handed on.

    ``dev`` is kept for people who look into a problem; it decides nothing, because device numbers may change over a
    reboot while file and text stay.
    """

    dev: int
    ino: int
    fingerprint: str
    offset: int

    def to_json(self) -> dict[str, int | str]:
        return {"dev": self.dev, "ino": self.ino, "fingerprint": self.fingerprint, "offset": self.offset}

    @classmethod
    def from_json(cls, value: object) -> Position | None:
        """The position of a decoded JSON value; None when the value is no position (a damaged state file)."""
        if not isinstance(value, Mapping):
            return None
        read: Mapping[Any, Any] = value
        numbers = [read.get(key) for key in ("dev", "ino", "offset")]
        fingerprint = read.get("fingerprint")
        if not isinstance(fingerprint, str) or not all(type(n) is int and 0 <= n < 2**64 for n in numbers):
            return None
        return cls(dev=read["dev"], ino=read["ino"], fingerprint=fingerprint, offset=read["offset"])


def fingerprint(head: bytes) -> str:
    """A short hash of the first line, given the file's first bytes (:data:`FINGERPRINT_BYTES` suffice).

    Stable once the first line is complete or the head is full; a caller takes it no earlier.
    """
    line = head[: head.find(b"\n") + 1] or head
    return blake2b(line[:FINGERPRINT_BYTES], digest_size=8).hexdigest()


class Found(NamedTuple):
    """A file as it is now. ``size`` in bytes."""

    ino: int
    size: int
    fingerprint: str


class Resume(StrEnum):
    SAME = "same"
    """The position's file: go on at its offset."""
    TRUNCATED = "truncated"
    """The position's inode with less in it than was read: start at 0."""
    OTHER = "other"
    """Another file, perhaps with a reused inode number: start at 0."""


def resume(position: Position, found: Found) -> Resume:
    """How a file that is there now relates to a stored position."""
    if position.ino != found.ino:
        return Resume.OTHER
    if found.size < position.offset:
        return Resume.TRUNCATED
    return Resume.SAME if position.fingerprint == found.fingerprint else Resume.OTHER


class Start(NamedTuple):
    """``offsets``: where to begin in each file given, None for a file that is not read. ``lost`` counts gaps of
    unknown size."""

    offsets: tuple[int | None, ...]
    lost: int


def go_on(position: Position, files: Sequence[Found]) -> Start:
    """Where to begin in a container's files, oldest first, after a pause that began at ``position``.

    When the position's file is gone (compressed or deleted, both happen oldest first) all that is left is younger
    and unread, and something in between may be missing: one loss of unknown size.
    """
    for index, found in enumerate(files):
        verdict = resume(position, found)
        if verdict is not Resume.OTHER:
            same = verdict is Resume.SAME
            here = position.offset if same else 0
            return Start((None,) * index + (here,) + (0,) * (len(files) - index - 1), 0 if same else 1)
    return Start((0,) * len(files), 1)


def look_back(sizes: Sequence[int], *, limit: int) -> Start:
    """Where to begin in the files of one instance, oldest first, when nothing is known: the last ``limit`` bytes.

    The budget runs from the newest file backwards, because a crash may have been written just before a rotation.
    """
    offsets: list[int | None] = []
    left = limit
    for size in reversed(sizes):
        offsets.append(max(0, size - left) if left > 0 else None)
        left -= size
    offsets.reverse()
    return Start(tuple(offsets), 0)

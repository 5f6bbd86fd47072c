"""The values that reading container logs yields; no I/O, no decision."""

from __future__ import annotations

from dataclasses import dataclass

from agent.model import ContainerRef
from agent.sources.logs.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStream:
    """One log file of one container instance. ``path`` is the name it was opened under; a rotation may change it."""

    container: ContainerRef
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive bytes of one file.

    ``data`` holds whole lines and ends with a newline, unless ``torn``: then its end is the middle of a line longer
    than a block, or the unfinished last line of a file that nobody writes any more. ``offset`` is where ``data[0]``
    stands in the file; ``position`` is where to go on after this chunk, and reading on from there repeats and misses
    nothing. Store it under ``stream.container.key``: a container's files are handed on strictly one after the other.
    """

    stream: LogStream
    data: bytes
    offset: int
    position: Position
    torn: bool

    @property
    def started(self) -> bool:
        """True for the first bytes of a file (also after it was truncated)."""
        return self.offset == 0

"""Finds which of many fixed texts occur in a block of bytes, in one pass whose cost does not grow with their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hyperscan

BLOCK = 1 << 20
"""The most bytes one scan takes."""

HIT_LIMIT = 256
"""Hits of one block beyond which it is sampled: a hostile log must not buy itself the agent's time."""


class LiteralIndex:
    """All literals as one automaton. Not safe to use from two threads at once."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = tuple(literals)
        self._all = self._compile(0) if literals else None
        self._first: Any = None

    def _compile(self, flags: int) -> Any:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        n = len(self._literals)
        database.compile(expressions=self._literals, ids=list(range(n)), elements=n, flags=flags, literal=True)
        return database

    @property
    def longest(self) -> int:
        """Bytes of the longest literal."""
        return max(map(len, self._literals), default=0)

    def __len__(self) -> int:
        return len(self._literals)

    def scan(self, block: bytes | memoryview, *, limit: int = HIT_LIMIT) -> tuple[list[tuple[int, int]], bool]:
        """The hits as ``(literal index, end offset)`` in order of their ends, and whether they are only a sample.

        Beyond `limit` hits the rest of the block gives each literal's first hit only.
        """
        hits: list[tuple[int, int]] = []
        if self._all is None:
            return hits, False

        def found(index: int, _start: int, end: int, _flags: int, _context: object) -> bool | None:
            hits.append((index, end))
            return True if len(hits) >= limit else None

        try:
            self._all.scan(block, match_event_handler=found)
        except hyperscan.ScanTerminated:
            pass
        if len(hits) < limit:
            return hits, False
        if self._first is None:
            self._first = self._compile(hyperscan.HS_FLAG_SINGLEMATCH)
        done = hits[-1][1]

        def first(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            hits.append((index, done + end))

        self._first.scan(memoryview(block)[done:], match_event_handler=first)
        return hits, True

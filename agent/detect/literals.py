"""Finds which of many fixed texts occur in a block of bytes, in one pass whose cost hardly grows with their number.

An automaton of a thousand texts runs at a third of the speed of one of two hundred. So the block is searched for few
short `anchors`, fragments that the texts share and that ordinary logs do not have; only around those is it searched for
the texts themselves.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import hyperscan

BLOCK = 1 << 20
"""The most bytes one scan takes."""

HIT_LIMIT = 256
"""Hits of one block beyond which it is sampled: a hostile log must not buy itself the agent's time."""

ANCHOR = 4
"""Bytes of an anchor. Eight are as fast to search for, but make three times as many, ten times as slow to compile."""

ANCHOR_LIMIT = 512
"""Anchors in one block beyond which it is searched for the texts at once: a log of another kind, full of fragments."""

FEW = 128
"""Texts up to this number are searched for directly."""


def choose_anchors(literals: Iterable[bytes], *, ordinary: bytes) -> tuple[bytes, ...]:
    """A small set of fragments such that every literal contains one, none of which occurs in `ordinary` text.

    A literal all of whose fragments are ordinary, or that is shorter than a fragment, stands in the set itself. Greedy
    cover: not the smallest set, but a few per cent above it, in a tenth of a second for a thousand literals.
    """
    common = {ordinary[i : i + ANCHOR] for i in range(len(ordinary) - ANCHOR + 1)}
    owners: dict[bytes, set[int]] = defaultdict(set)
    distinct = sorted(set(literals))
    for n, literal in enumerate(distinct):
        for i in range(len(literal) - ANCHOR + 1):
            if (fragment := literal[i : i + ANCHOR]) not in common:
                owners[fragment].add(n)
    left = set(range(len(distinct)))
    queue = [(-len(who), fragment) for fragment, who in owners.items()]
    heapq.heapify(queue)
    anchors: list[bytes] = []
    while left and queue:
        promised, fragment = heapq.heappop(queue)
        gain = len(owners[fragment] & left)
        if gain and gain < -promised:
            heapq.heappush(queue, (-gain, fragment))
        elif gain:
            anchors.append(fragment)
            left -= owners[fragment]
    return (*anchors, *(distinct[n] for n in sorted(left)))


class LiteralIndex:
    """All literals as one automaton, with another of anchors before it. Not safe to use from two threads at once.

    `anchors` are `choose_anchors` of these literals, or of more: every literal must contain one.
    """

    def __init__(self, literals: Sequence[bytes], *, anchors: Sequence[bytes] = ()) -> None:
        self._literals = tuple(literals)
        self._first: Any = None
        self.longest = max(map(len, self._literals), default=0)
        """Bytes of the longest literal."""
        self._anchors: Any = None
        if anchors and len(self._literals) > FEW:
            self._anchors = _compile(anchors)

    @cached_property
    def _exact(self) -> Any:
        # Most logs have no anchor at all: then this is never made.
        return _compile(self._literals)

    def prepare(self) -> None:
        """Makes now what the first hit would need: a running agent does not want to wait for it then."""
        _ = self._exact

    def __len__(self) -> int:
        return len(self._literals)

    def scan(self, block: bytes | memoryview, *, limit: int = HIT_LIMIT) -> tuple[list[tuple[int, int]], bool]:
        """The hits as ``(literal index, end offset)`` in order of their ends, and whether they are only a sample.

        Beyond `limit` hits the rest of the block gives each literal's first hit only.
        """
        hits: list[tuple[int, int]] = []
        if not self._literals:
            return hits, False
        if self._anchors is None:
            full = _search(self._exact, block, 0, hits, limit)
        else:
            full = self._around_anchors(block, hits, limit)
        if not full:
            return hits, False
        if self._first is None:
            self._first = _compile(self._literals, hyperscan.HS_FLAG_SINGLEMATCH)
        done = hits[-1][1] if hits else 0
        _search(self._first, memoryview(block)[done:], done, hits, 0)
        return hits, True

    def _around_anchors(self, block: bytes | memoryview, hits: list[tuple[int, int]], limit: int) -> bool:
        """Searches the surroundings of each anchor; True when there is too much to look at all of it."""
        found: list[tuple[int, int]] = []
        if _search(self._anchors, block, 0, found, ANCHOR_LIMIT):
            return _search(self._exact, block, 0, hits, limit)
        view = memoryview(block)
        low = high = 0
        for _, end in [*found, (0, len(block) + 2 * self.longest)]:
            if end - self.longest > high:
                if high and _search(self._exact, view[low:high], low, hits, limit):
                    return True
                low = max(end - self.longest, 0)
            high = min(end + self.longest, len(block))
        return False


def _compile(literals: Sequence[bytes], flags: int = 0) -> Any:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    n = len(literals)
    database.compile(expressions=literals, ids=list(range(n)), elements=n, flags=flags, literal=True)
    return database


def _search(database: Any, block: bytes | memoryview, base: int, hits: list[tuple[int, int]], limit: int) -> bool:
    """Adds what is found, with `base` added to the ends; True when it stopped at `limit` hits (0: none)."""

    def found(index: int, _start: int, end: int, _flags: int, _context: object) -> bool | None:
        hits.append((index, base + end))
        return True if limit and len(hits) >= limit else None

    try:
        database.scan(block, match_event_handler=found)
    except hyperscan.ScanTerminated:
        return True
    return bool(limit) and len(hits) >= limit

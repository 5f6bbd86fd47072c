"""Searches a large plain file with all processors at once; what a find means is not known here.

The file is read, not mapped: a mapped log that is truncated meanwhile would kill the process.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 1 << 20
MOST_WORKERS = 4

Scan = Callable[[memoryview], tuple[list[tuple[int, int]], bool]]
"""A block to its finds (what, end offset in the block), in the order of their ends, and whether they are a sample."""


class Swept(NamedTuple):
    """All finds in a file, in the order of their ends; how many blocks gave only a sample."""

    hits: list[tuple[int, int]]
    sampled: int


class View:
    """A file as a sequence of bytes that is read only where it is looked at. Give it slices."""

    def __init__(self, path: str, *, start: int = 0) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._start = start
        self._size = max(os.fstat(self._file).st_size - start, 0)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        return os.pread(self._file, max(stop - start, 0), self._start + start)

    def close(self) -> None:
        os.close(self._file)


def sweep(
    path: str,
    *,
    scan: Scan,
    longest: int,
    start: int = 0,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Swept:
    """Every find in the file from `start` on. `longest` is the length of the longest text that `scan` can find.

    A worker that fails is done over in this process. Raises OSError where the file cannot be read here either.
    """
    size = max(os.stat(path).st_size - start, 0)
    count = workers or min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    blocks = max((size + BLOCK - 1) // BLOCK, 1)
    share = (blocks + count - 1) // count
    ranges = [(n * share * BLOCK, min((n + 1) * share * BLOCK, size)) for n in range(count) if n * share < blocks]

    def search(part: tuple[int, int], told: Callable[[int], None] = lambda _: None) -> Iterator[tuple[int, int]]:
        return _search(path, part, scan=scan, overlap=max(longest - 1, 0), start=start, told=told)

    helpers = [(_fork(search, part), part) for part in ranges[1:]]
    first = ranges[0] if ranges else (0, 0)
    report = on_progress or (lambda _done, _size: None)
    found = list(search(first, lambda done: report(min(done * len(ranges), size), size)))
    for (pid, pipe), part in helpers:
        results = _collect(pid, pipe)
        found += list(search(part)) if results is None else results
    sampled = sum(1 for what, _ in found if what < 0)
    return Swept([hit for hit in found if hit[0] >= 0], sampled)


def _search(
    path: str, part: tuple[int, int], *, scan: Scan, overlap: int, start: int, told: Callable[[int], None]
) -> Iterator[tuple[int, int]]:
    """The finds that end in this part of the file; a find of number -1 marks a block that was only sampled."""
    begin, end = part
    buffer = bytearray(BLOCK + overlap)
    view = memoryview(buffer)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for at in range(begin, end, BLOCK):
            # Each block is read with the end of the one before it, so that a text across the border is found once.
            low = max(at - overlap, 0)
            got = os.preadv(file, [view[: min(at + BLOCK, end) - low]], start + low)
            hits, sampled = scan(view[:got])
            if sampled:
                yield -1, at
            for what, stop in hits:
                if low + stop > at:
                    yield what, low + stop
            told(at + BLOCK - begin)
    finally:
        os.close(file)


def _fork(search: Callable[[tuple[int, int]], Iterator[tuple[int, int]]], part: tuple[int, int]) -> tuple[int, int]:
    """A child that searches and writes what it finds to a pipe; (pid, pipe)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    status = 1
    try:
        os.close(read)
        flat = array("q", (number for hit in search(part) for number in hit))
        with os.fdopen(write, "wb") as pipe:
            pipe.write(flat.tobytes())
        status = 0
    finally:
        os._exit(status)


def _collect(pid: int, pipe: int) -> list[tuple[int, int]] | None:
    """What the child found; None when it did not get to its end."""
    with os.fdopen(pipe, "rb") as read:
        data = read.read()
    _, status = os.waitpid(pid, 0)
    if status:
        return None
    flat = array("q")
    flat.frombytes(data)
    return list(zip(flat[::2], flat[1::2], strict=True))

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.logs.inotify import CLOSE_WRITE, MODIFY, Inotify, RawEvent, events
from agent.sources.logs.watch import FILES, TREE, Change, Watcher
from tests.sources.timers import Timers


def record(wd: int, mask: int, name: bytes) -> bytes:
    padded = name + b"\0" * (-len(name) % 16 or 16) if name else b""
    return struct.pack("iIII", wd, mask, 0, len(padded)) + padded


def test_equal_events_are_told_once_at_their_last_place() -> None:
    data = record(1, MODIFY, b"0.log") + record(1, CLOSE_WRITE, b"0.log") + record(1, MODIFY, b"0.log")
    assert events(data) == [RawEvent(1, CLOSE_WRITE, "0.log"), RawEvent(1, MODIFY, "0.log")]


def test_records_of_different_sizes_are_told_in_order() -> None:
    write = record(1, MODIFY, b"0.log")
    data = write + record(2, 0x8000, b"") + record(1, MODIFY, b"0.log.20260720-091402")
    assert [event.name for event in events(data)] == ["0.log", "", "0.log.20260720-091402"]
    assert [event.name for event in events(data + write)] == ["", "0.log.20260720-091402", "0.log"]


def test_a_buffer_that_only_looks_evenly_cut_is_taken_apart_by_its_lengths() -> None:
    data = record(1, 0x8000, b"") + record(2, 0x8000, b"") + record(3, MODIFY, b"0.log")
    assert len(data) % 32 == 0
    assert [event.wd for event in events(data)] == [1, 2, 3]


@given(st.binary(max_size=400))
def test_any_bytes_are_taken_without_an_exception(data: bytes) -> None:
    events(data)


class Heard:
    """Collects changes; a test waits for one that fits."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._more = asyncio.Event()

    def __call__(self, changes: list[Change]) -> None:
        self.changes += changes
        self._more.set()

    async def until(self, fits: Callable[[Change], bool]) -> Change:
        async with asyncio.timeout(5):
            while True:
                for change in self.changes:
                    if fits(change):
                        return change
                self._more.clear()
                await self._more.wait()


async def test_a_write_a_rename_and_a_removed_directory_are_told(tmp_path: Path) -> None:
    logs = tmp_path / "main"
    logs.mkdir()
    heard = Heard()
    watcher = Watcher(heard)
    watcher.watch(str(logs), mask=FILES)
    (logs / "0.log").write_bytes(b"x\n")
    await heard.until(lambda change: change.written and change.name == "0.log")
    await heard.until(lambda change: change.closed)
    (logs / "0.log").rename(logs / "0.log.20260720-091402")
    await heard.until(lambda change: change.renamed and change.name.endswith("091402"))
    (logs / "0.log.20260720-091402").unlink()
    logs.rmdir()
    await heard.until(lambda change: change.gone)
    assert watcher.watched == 0
    watcher.close()


async def test_a_directory_removed_and_made_anew_can_be_watched_again(tmp_path: Path) -> None:
    logs = tmp_path / "main"
    logs.mkdir()
    heard = Heard()
    watcher = Watcher(heard)
    watcher.watch(str(logs), mask=FILES)
    logs.rmdir()
    logs.mkdir()
    watcher.watch(str(logs), mask=FILES)
    await asyncio.sleep(0)
    (logs / "0.log").write_bytes(b"x\n")
    await heard.until(lambda change: change.closed)
    assert watcher.watched == 1
    watcher.close()


async def test_a_queue_that_really_runs_over_is_told(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    heard = Heard()
    watcher = Watcher(heard)
    watcher.watch(str(tmp_path), mask=FILES)
    one = os.open(tmp_path / "0.log", os.O_CREAT | os.O_WRONLY)
    two = os.open(tmp_path / "1.log", os.O_CREAT | os.O_WRONLY)
    for _ in range(limit // 2 + 10):  # Alternating, or the kernel would merge them.
        os.write(one, b"x")
        os.write(two, b"y")
    await heard.until(lambda change: change.overflow)
    assert watcher.overflows == 1
    os.close(one)
    os.close(two)
    watcher.close()


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EMFILE, errno.EACCES])
async def test_a_directory_that_cannot_be_watched_is_announced_at_the_interval(tmp_path: Path, refusal: int) -> None:
    def refuse() -> Inotify:
        raise OSError(refusal, os.strerror(refusal))

    heard, timers = Heard(), Timers()
    watcher = Watcher(heard, interval=7.0, call_later=timers, make=refuse)
    watcher.watch(str(tmp_path), mask=TREE)
    assert watcher.why is not None and watcher.why.errno == refusal
    assert [delay for delay, _ in timers.pending] == [7.0]
    timers.fire()
    assert heard.changes == [Change(str(tmp_path), "", 0)] and heard.changes[0].polled
    assert len(timers.pending) == 1
    watcher.close()
    assert not timers.pending


async def test_a_limit_that_is_lifted_ends_the_polling_but_a_denial_is_not_asked_again(tmp_path: Path) -> None:
    asked = []

    class Limited(Inotify):
        refusal = errno.ENOSPC

        def add(self, path: str, mask: int) -> int:
            asked.append(path)
            if self.refusal:
                raise OSError(self.refusal, os.strerror(self.refusal))
            return super().add(path, mask)

    made = Limited()
    heard, timers = Heard(), Timers()
    watcher = Watcher(heard, call_later=timers, make=lambda: made)
    watcher.watch(str(tmp_path), mask=TREE)
    made.refusal = 0
    timers.fire()
    assert watcher.watched == 1 and watcher.why is None and not timers.pending
    made.refusal = errno.EACCES
    (tmp_path / "a").mkdir()
    watcher.watch(str(tmp_path / "a"), mask=TREE)
    before = len(asked)
    timers.fire()
    assert len(asked) == before and len(timers.pending) == 1
    watcher.close()


async def test_at_rest_no_timer_is_set(tmp_path: Path) -> None:
    timers = Timers()
    watcher = Watcher(Heard(), call_later=timers)
    watcher.watch(str(tmp_path), mask=FILES)
    assert not timers.pending
    watcher.close()

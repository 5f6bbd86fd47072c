"""The reader of /dev/kmsg against a device that a test plays."""

import asyncio
import errno
import os
import socket
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.sources.kernel import Cursor, KernelLogUnavailable, KmsgSource
from agent.sources.kernel.intake import Intake

PATIENCE = 10.0


class Ring:
    """A kernel ring: numbered records, the oldest of which can be overwritten; a socket makes it ready."""

    def __init__(self, *records: bytes) -> None:
        self.held = dict(enumerate(records))
        self.next = len(records)
        self.at = 0
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.reads = 0
        self.failure: OSError | None = None

    def open(self, _path: str) -> int:
        return os.dup(self.theirs.fileno())

    def write(self, *records: bytes) -> None:
        for record in records:
            self.held[self.next] = record
            self.next += 1
        self.ours.send(b"!")

    def overwrite(self, below: int) -> None:
        self.held = {seq: record for seq, record in self.held.items() if seq >= below}

    def read(self, fd: int, size: int) -> bytes:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        oldest = min(self.held, default=self.next)
        if self.at < oldest:
            self.at = oldest
            raise BrokenPipeError(errno.EPIPE, "overwritten")
        if self.at >= self.next:
            try:
                os.read(fd, 100)
            except BlockingIOError:
                pass
            raise BlockingIOError(errno.EAGAIN, "nothing")
        record = self.held[self.at]
        self.at += 1
        if len(record) > size:
            raise OSError(errno.EINVAL, "too small")
        return record

    def rewind(self, _fd: int) -> None:
        self.at = min(self.held, default=self.next)

    def source(self, **options) -> KmsgSource:
        options.setdefault("boot_id", "b")
        return KmsgSource(
            "ring",
            clock=lambda: 5000.0,
            monotonic=lambda: 1000.0,
            open_fd=self.open,
            read=self.read,
            rewind=self.rewind,
            **options,
        )


def line(seq: int, text: str = "text", *, prio: int = 4) -> bytes:
    return b"%d,%d,%d,-;%s\n" % (prio, seq, seq * 10, text.encode())


def lines(first: int, last: int) -> list[bytes]:
    return [line(seq) for seq in range(first, last)]


async def take(source, count: int) -> list[int]:
    """The numbers of the next ``count`` records."""
    seqs: list[int] = []

    async def read() -> None:
        async with aclosing(source.records()) as batches:
            async for batch in batches:
                seqs.extend(record.seq for record in batch)
                if len(seqs) >= count:
                    return

    await asyncio.wait_for(read(), PATIENCE)
    return seqs


async def test_reading_starts_with_the_oldest_record_and_goes_on_with_new_ones():
    ring = Ring(*lines(0, 3))
    source = ring.source()
    batches = source.records()
    assert [record.seq for record in await anext(batches)] == [0, 1, 2]
    coming = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    ring.write(line(3))
    (record,) = await asyncio.wait_for(coming, PATIENCE)
    assert (record.seq, record.time, record.boot_id) == (3, 4000.00003, "b")
    assert source.cursor == Cursor(kind="kmsg", boot_id="b", seq=3)
    assert source.last_read == 5000.0
    await batches.aclose()
    source.close()


async def test_waiting_for_news_reads_nothing():
    ring = Ring(line(0))
    source = ring.source()
    batches = source.records()
    await anext(batches)
    coming = asyncio.ensure_future(anext(batches))
    for _ in range(100):
        await asyncio.sleep(0)
    assert ring.reads == 2
    ring.write(line(1))
    await asyncio.wait_for(coming, PATIENCE)
    assert ring.reads <= 5
    source.close()


async def test_records_that_were_overwritten_are_counted():
    ring = Ring(*lines(0, 2))
    source = ring.source()
    assert await take(source, 2) == [0, 1]
    ring.write(*lines(2, 50))
    ring.overwrite(40)
    assert await take(source, 10) == list(range(40, 50))
    assert source.lost == 38
    source.close()


async def test_an_overrun_before_the_first_record_is_counted_though_nobody_knows_how_many():
    ring = Ring(*lines(0, 9))
    ring.overwrite(5)
    source = ring.source()
    assert await take(source, 4) == [5, 6, 7, 8]
    assert source.lost == 1
    source.close()


async def test_a_gap_in_the_numbers_is_counted_without_the_device_saying_so():
    ring = Ring(line(7), line(8), line(12))
    source = ring.source()
    assert await take(source, 3) == [7, 8, 12]
    assert source.lost == 3
    source.close()


async def test_a_malformed_record_is_counted_once_and_survived():
    ring = Ring(line(0), b"\xff\x00 rubbish", line(2))
    source = ring.source()
    assert await take(source, 2) == [0, 2]
    assert (source.malformed, source.lost) == (1, 0)
    source.close()


async def test_records_of_programs_are_counted_and_never_handed_on():
    forged = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    ring = Ring(line(0), line(1, forged, prio=12), line(2, forged, prio=8), line(3, forged, prio=31), line(4))
    source = ring.source()
    assert await take(source, 2) == [0, 4]
    assert (source.foreign, source.lost) == (3, 0)
    source.close()


async def test_the_position_moves_over_foreign_records_too():
    ring = Ring(line(0), line(1, prio=12))
    source = ring.source()
    assert await take(source, 1) == [0]
    assert source.position == 1
    source.close()


async def test_a_switch_for_tests_lets_records_of_programs_through():
    ring = Ring(line(0, prio=12))
    source = ring.source(accept_user_records=True)
    assert source.accepts_user_records
    assert await take(source, 1) == [0]
    assert source.foreign == 1
    source.close()


async def test_after_a_restart_only_what_came_meanwhile_is_handed_on():
    ring = Ring(*lines(0, 10))
    source = ring.source(after=6)
    assert await take(source, 3) == [7, 8, 9]
    assert (source.lost, source.skipped) == (0, 7)
    source.close()


async def test_after_a_restart_what_was_overwritten_meanwhile_is_counted_as_lost():
    ring = Ring(*lines(0, 10))
    ring.overwrite(8)
    source = ring.source(after=3)
    assert await take(source, 2) == [8, 9]
    assert source.lost == 4
    source.close()


async def test_a_cursor_beyond_the_end_of_the_log_does_not_blind_the_reader():
    ring = Ring(*lines(0, 3))
    source = ring.source(after=1000)
    assert await take(source, 3) == [0, 1, 2]
    assert source.errors == 1
    source.close()


async def test_a_record_longer_than_the_buffer_is_read_again_in_a_larger_one():
    ring = Ring(line(0), line(1), line(2, "x" * 500), line(3))
    source = ring.source(buffer=64)
    assert await take(source, 4) == [0, 1, 2, 3]
    assert (source.lost, source.errors) == (0, 3)
    source.close()


async def test_a_record_longer_than_any_buffer_is_lost_and_the_next_is_read():
    ring = Ring(line(0), line(1, "x" * 100_000), line(2))
    source = ring.source()
    assert await take(source, 2) == [0, 2]
    assert source.lost == 1
    source.close()


async def test_a_batch_is_bounded_and_other_work_gets_its_turn():
    ring = Ring(*lines(0, 100))
    source = ring.source(batch=16)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    neighbour = asyncio.ensure_future(other())
    sizes = []
    async with aclosing(source.records()) as batches:
        async for batch in batches:
            sizes.append(len(batch))
            if batch[-1].seq == 99:
                break
    neighbour.cancel()
    assert sizes == [16] * 6 + [4]
    assert turns >= 6
    source.close()


async def test_a_failing_read_ends_in_one_clear_error():
    ring = Ring()
    ring.failure = OSError(errno.EIO, "Input/output error")
    source = ring.source()
    with pytest.raises(KernelLogUnavailable, match="Input/output error") as caught:
        await take(source, 1)
    assert caught.value.cure
    assert source.errors == 1
    source.close()


async def test_closing_ends_a_reader_that_waits_and_may_be_done_twice():
    ring = Ring()
    source = ring.source()
    reader = asyncio.ensure_future(take(source, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    source.close()
    source.close()
    assert await asyncio.wait_for(reader, PATIENCE) == []
    assert await take(source, 1) == []


async def test_a_cancelled_reader_leaves_nothing_behind_on_the_loop():
    ring = Ring()
    source = ring.source()
    reader = asyncio.ensure_future(take(source, 1))
    for _ in range(3):
        await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert asyncio.get_running_loop().remove_reader(source._fd) is False
    ring.write(line(0))
    assert await take(source, 1) == [0]
    source.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(line, st.integers(0, 40), st.text(max_size=5), prio=st.integers(0, 20)),
        ),
        max_size=40,
    ),
    st.none() | st.integers(0, 50),
)
def test_whatever_a_device_gives_each_number_comes_once_and_only_the_kernels_own(raws, after):
    intake = Intake(boot_id="b", after=after, accept_user_records=False)
    taken = [record for raw in raws if (record := intake.take(raw, offset=0.0)) is not None]
    seqs = [record.seq for record in taken]
    assert seqs == sorted(set(seqs))
    assert all(record.facility == 0 for record in taken)
    assert after is None or all(seq > after for seq in seqs)
    assert len(taken) + intake.malformed + intake.foreign + intake.skipped == len(raws)


@settings(max_examples=60)
@given(st.sets(st.integers(0, 200), min_size=1), st.none() | st.integers(0, 200))
def test_lost_and_handed_on_add_up_to_the_whole_span(seqs, after):
    intake = Intake(boot_id="b", after=after, accept_user_records=False)
    taken = [record for seq in sorted(seqs) if (record := intake.take(line(seq), offset=0.0)) is not None]
    first = min(seqs) if after is None else after + 1
    if taken:
        assert intake.lost + len(taken) == max(seqs) - first + 1

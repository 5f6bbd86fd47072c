"""The polling reader of syslog(2) against a ring that a test plays."""

import asyncio
import errno
from contextlib import aclosing

import pytest

from agent.sources.kernel import KernelLogUnavailable, SyslogSource

PATIENCE = 10.0


def line(usec: int, text: str = "text", *, prio: int = 4) -> bytes:
    return b"<%d>[%5d.%06d] %s\n" % (prio, usec // 1_000_000, usec % 1_000_000, text.encode())


def lines(first: int, last: int) -> list[bytes]:
    return [line(usec) for usec in range(first, last)]


class Log:
    """What syslog(2) shows: the newest whole lines that fit. ``turn`` lets the reader poll once more."""

    def __init__(self, *lines: bytes) -> None:
        self.lines = list(lines)
        self.reads: list[int] = []
        self.go = asyncio.Semaphore(0)
        self.asleep = asyncio.Event()
        self.failure: OSError | None = None

    def read(self, size: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        self.reads.append(size)
        shown = b""
        for one in reversed(self.lines):
            if len(one) + len(shown) > size:
                break
            shown = one + shown
        return shown

    async def sleep(self, seconds: float) -> None:
        assert seconds == 2.5
        self.asleep.set()
        await self.go.acquire()

    async def turn(self) -> None:
        """Let one more poll happen and wait until it has."""
        await asyncio.wait_for(self.asleep.wait(), PATIENCE)
        self.asleep.clear()
        self.go.release()
        await asyncio.wait_for(self.asleep.wait(), PATIENCE)

    def source(self, **options) -> SyslogSource:
        return SyslogSource(
            boot_id="b",
            interval=2.5,
            clock=lambda: 5000.0,
            monotonic=lambda: 1000.0,
            size=lambda: 1 << 17,
            read=self.read,
            sleep=self.sleep,
            **options,
        )


class Reader:
    """Collects in the background what a source hands on."""

    def __init__(self, source: SyslogSource) -> None:
        self.records = []
        self.sizes = []
        self.source = source
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with aclosing(self.source.records()) as batches:
            async for batch in batches:
                self.records += batch
                self.sizes.append(len(batch))

    @property
    def usecs(self) -> list[int]:
        return [record.usec for record in self.records]

    async def stop(self) -> None:
        self.source.close()
        await asyncio.wait_for(self.task, PATIENCE)


async def test_each_poll_hands_on_only_what_is_new():
    log = Log(*lines(0, 5))
    reader = Reader(log.source())
    await log.turn()
    assert reader.usecs == [0, 1, 2, 3, 4]
    log.lines += lines(5, 7)
    await log.turn()
    await log.turn()
    assert reader.usecs == [0, 1, 2, 3, 4, 5, 6]
    assert reader.source.lost == 0
    assert reader.records[6].time == 4000.000006
    await reader.stop()


async def test_a_poll_without_news_reads_only_a_glance():
    log = Log(*lines(0, 2000))
    reader = Reader(log.source())
    await log.turn()
    log.reads.clear()
    await log.turn()
    log.lines += lines(2000, 2010)
    await log.turn()
    assert max(log.reads) == 8192
    assert reader.usecs == list(range(2010))
    await reader.stop()


async def test_many_new_lines_are_read_from_the_whole_ring():
    log = Log(*lines(0, 100))
    reader = Reader(log.source())
    await log.turn()
    log.lines = log.lines[80:] + lines(100, 2000)
    await log.turn()
    assert reader.usecs == list(range(2000))
    assert reader.source.lost == 0
    assert max(reader.sizes) <= 256
    await reader.stop()


async def test_a_ring_that_turned_over_between_two_polls_is_counted_as_a_loss():
    log = Log(*lines(0, 100))
    reader = Reader(log.source())
    await log.turn()
    log.lines = lines(500, 520)
    await log.turn()
    assert reader.usecs == [*range(100), *range(500, 520)]
    assert reader.source.lost == 1
    await reader.stop()


async def test_the_same_line_twice_in_one_microsecond_is_two_records():
    log = Log(line(7, "again"), line(7, "again"))
    reader = Reader(log.source())
    await log.turn()
    log.lines.append(line(7, "again"))
    await log.turn()
    assert len({record.seq for record in reader.records}) == len(reader.records) >= 2
    await reader.stop()


async def test_each_line_of_a_record_of_several_lines_is_a_record_of_that_stamp():
    log = Log(line(7, "first"), line(7, "  second"), line(7, ""))
    reader = Reader(log.source())
    await log.turn()
    assert [record.text for record in reader.records] == ["first", "  second", ""]
    await reader.stop()


async def test_after_a_restart_the_made_up_numbers_still_hold():
    log = Log(*lines(0, 3), line(9), line(8), line(9), *lines(10, 12))
    reader = Reader(log.source())
    await log.turn()
    stood = reader.records[4].seq
    await reader.stop()
    again = Reader(log.source(after=stood))
    await log.turn()
    assert again.usecs == [9, 10, 11]
    assert [record.seq for record in again.records] == [record.seq for record in reader.records[5:]]
    assert (again.source.lost, again.source.skipped) == (0, 5)
    await again.stop()


async def test_after_a_restart_a_ring_that_moved_on_is_a_loss_and_nothing_comes_twice():
    log = Log(*lines(0, 100))
    reader = Reader(log.source())
    await log.turn()
    stood = reader.records[50].seq
    await reader.stop()
    log.lines = lines(70, 110)
    again = Reader(log.source(after=stood))
    await log.turn()
    assert again.usecs == list(range(70, 110))
    assert again.source.lost == 1
    await again.stop()


async def test_a_cursor_beyond_the_end_of_the_log_does_not_blind_the_reader():
    log = Log(*lines(0, 3))
    reader = Reader(log.source(after=10**12))
    await log.turn()
    assert reader.usecs == [0, 1, 2]
    assert reader.source.errors == 1
    await reader.stop()


async def test_lines_of_programs_and_malformed_ones_are_counted_once_and_not_handed_on():
    log = Log(line(0), line(1, "NVRM: Xid (PCI:0000:3b:00): 79, x", prio=12), b"\xff\x00\n", line(3))
    reader = Reader(log.source())
    await log.turn()
    await log.turn()
    assert reader.usecs == [0, 3]
    assert (reader.source.foreign, reader.source.malformed) == (1, 1)
    await reader.stop()


async def test_a_log_without_stamps_is_refused_with_the_cure():
    with pytest.raises(KernelLogUnavailable, match=r"printk\.time"):
        Log(b"<4>NVRM: x\n", b"<6>y\n").source()


async def test_a_kernel_without_a_log_is_refused():
    with pytest.raises(KernelLogUnavailable, match="keeps no log"):
        SyslogSource(boot_id="b", size=lambda: 0, read=lambda _: b"")


async def test_a_failing_poll_ends_in_one_clear_error():
    log = Log(*lines(0, 3))
    source = log.source()
    log.failure = OSError(errno.EPERM, "Operation not permitted")
    with pytest.raises(KernelLogUnavailable, match="Operation not permitted"):
        await anext(source.records())
    assert source.errors == 1


async def test_closing_ends_a_reader_that_sleeps():
    log = Log(*lines(0, 1))
    reader = Reader(log.source())
    await asyncio.wait_for(log.asleep.wait(), PATIENCE)
    await reader.stop()
    reader.source.close()


async def test_a_cancelled_reader_ends_while_it_sleeps():
    log = Log(*lines(0, 1))
    reader = Reader(log.source())
    await asyncio.wait_for(log.asleep.wait(), PATIENCE)
    reader.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader.task
    assert asyncio.all_tasks() == {asyncio.current_task()}

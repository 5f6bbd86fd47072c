"""The kernel log of the machine that runs the tests: real records, and forged ones that must change nothing.

Needs root and a kernel log that may be read and written; a machine without that fails these tests.
"""

import asyncio
import os
import uuid
from contextlib import aclosing

import pytest

from agent.sources.kernel import KernelRecord, KmsgSource, SyslogSource, open_kernel_source, read_boot_id

PATIENCE = 10.0
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name={}, GPU has fallen off the bus."


@pytest.fixture
def writer():
    """A descriptor of its own for each test: the kernel limits how much one descriptor may write at once."""
    try:
        fd = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
    except OSError as problem:
        pytest.fail(f"these tests need root and a writable /dev/kmsg: {problem}")
    yield fd
    os.close(fd)


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex[:12]


def forge(fd: int, mark: str) -> int:
    """Write an Xid in every way that might pass for the kernel's; the number of records written."""
    text = XID.format(mark)
    forged = [text, f"<0>{text}", f"<4>{text}", f"<7>{text}", f"x {mark}\n<4>[    1.000000] {text}\n{text}"]
    for one in forged:
        os.write(fd, one.encode() + b"\n")
    return len(forged)


async def all_there_is(**options) -> tuple[KmsgSource, list[KernelRecord]]:
    """What the log holds now: the source is closed when its device has no more."""

    def read(fd: int, size: int) -> bytes:
        try:
            return os.read(fd, size)
        except BlockingIOError:
            source.close()
            raise

    source = KmsgSource(boot_id=read_boot_id(), read=read, **options)
    records = []
    async with asyncio.timeout(PATIENCE), aclosing(source.records()) as batches:
        async for batch in batches:
            records += batch
    return source, records


async def test_the_whole_log_is_read_and_all_of_it_is_the_kernels_own():
    source, records = await all_there_is()
    assert records
    assert all(record.facility == 0 and record.boot_id == source.boot_id for record in records)
    assert (source.malformed, source.errors, source.lost) == (0, 0, 0)
    seqs = [record.seq for record in records]
    assert seqs == sorted(set(seqs))
    assert len(seqs) + source.foreign == source.position - seqs[0] + 1


async def test_a_forged_xid_in_the_kernel_log_is_not_handed_on(writer, mark):
    seen = 0
    count = 5
    passed = asyncio.Event()

    def read(fd: int, size: int) -> bytes:
        nonlocal seen
        raw = os.read(fd, size)
        seen += mark.encode() in raw
        if seen == count:
            passed.set()
        return raw

    source = KmsgSource(boot_id=read_boot_id(), read=read)
    handed = []

    async def follow() -> None:
        async with aclosing(source.records()) as batches:
            async for batch in batches:
                handed.extend(batch)

    task = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    before = source.foreign
    assert forge(writer, mark) == count
    await asyncio.wait_for(passed.wait(), PATIENCE)
    await asyncio.sleep(0)
    source.close()
    await asyncio.wait_for(task, PATIENCE)
    assert handed
    assert not any(mark in record.text or record.facility for record in handed)
    assert source.foreign >= before + count


async def test_a_record_wakes_the_reader_and_a_forged_level_0_is_facility_1(writer, mark):
    source = KmsgSource(boot_id=read_boot_id(), accept_user_records=True)
    async with aclosing(source.records()) as batches:

        async def find() -> list:
            async for batch in batches:
                if found := [record for record in batch if mark in record.text]:
                    return found
            return []

        task = asyncio.ensure_future(find())
        for _ in range(5):
            await asyncio.sleep(0)
        os.write(writer, f"<0>{XID.format(mark)}\n".encode())
        (record,) = await asyncio.wait_for(task, PATIENCE)
    assert (record.facility, record.level, record.text) == (1, 0, XID.format(mark))
    source.close()


async def test_a_restart_goes_on_behind_the_cursor_on_the_real_device(writer, mark):
    boot_id = read_boot_id()
    first = KmsgSource(boot_id=boot_id, accept_user_records=True)
    os.write(writer, f"first {mark}\n".encode())
    async with asyncio.timeout(PATIENCE), aclosing(first.records()) as batches:
        async for batch in batches:
            if any(mark in record.text for record in batch):
                break
    stood = first.cursor
    first.close()
    os.write(writer, f"second {mark}\n".encode())
    second = open_kernel_source(boot_id=boot_id, after=stood, accept_user_records=True)
    async with aclosing(second.records()) as batches:
        batch = await asyncio.wait_for(anext(batches), PATIENCE)
    assert batch[0].seq > stood.seq
    assert [record.text for record in batch if mark in record.text] == [f"second {mark}"]
    assert (second.lost, second.errors) == (0, 0)
    second.close()


async def test_a_real_record_that_does_not_fit_the_buffer_is_not_lost():
    _, expected = await all_there_is()
    source, records = await all_there_is(buffer=16)
    assert [record.seq for record in records][: len(expected)] == [record.seq for record in expected]
    assert source.lost == 0
    assert source.errors > 0


async def test_syslog_tells_the_same_records_and_no_forged_one(writer, mark):
    go, asleep = asyncio.Event(), asyncio.Event()

    async def sleep(_seconds: float) -> None:
        asleep.set()
        await go.wait()
        go.clear()

    source = SyslogSource(boot_id=read_boot_id(), sleep=sleep)
    handed = []

    async def follow() -> None:
        async with aclosing(source.records()) as batches:
            async for batch in batches:
                handed.extend(batch)

    task = asyncio.ensure_future(follow())
    await asyncio.wait_for(asleep.wait(), PATIENCE)
    first, before = len(handed), source.foreign
    assert first
    forge(writer, mark)
    asleep.clear()
    go.set()
    await asyncio.wait_for(asleep.wait(), PATIENCE)
    source.close()
    await asyncio.wait_for(task, PATIENCE)
    # Seven lines: the record of several lines shows as three, each with the facility of its record.
    assert source.foreign >= before + 7
    assert not any(mark in record.text or record.facility for record in handed)
    assert (source.malformed, source.lost, source.errors) == (0, 0, 0)

    _, records = await all_there_is()
    told = {(record.usec, record.level, record.text) for record in handed}
    assert {(r.usec, r.level, r.text) for r in records if "\n" not in r.text} <= told

"""Kernel records from a file, a FIFO and a socket."""

import asyncio
import os
import socket
from contextlib import aclosing
from pathlib import Path

import pytest

from agent.sources.kernel import FileFeed, KernelLogUnavailable, KernelSource, StreamFeed

PATIENCE = 10.0
REAL = Path(__file__).parent.parent / "data" / "h200-xid.kmsg"


def line(seq: int, text: str = "text", *, prio: int = 4) -> bytes:
    return b"%d,%d,%d,-;%s\n" % (prio, seq, seq * 10, text.encode())


def lines(first: int, last: int) -> bytes:
    return b"".join(line(seq) for seq in range(first, last))


async def take(source: KernelSource, count: int) -> list[int]:
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


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def feed(tmp_path):
    path = tmp_path / "kmsg"
    path.write_bytes(b"")
    return path


async def test_a_file_of_real_records_is_read_with_the_numbers_written_in_it():
    source = FileFeed(str(REAL), boot_id="b")
    assert await take(source, 11) == list(range(358, 369))
    assert (source.lost, source.malformed, source.foreign) == (0, 0, 0)
    source.close()


async def test_a_file_is_followed_as_it_grows_and_a_line_counts_when_it_is_whole(feed):
    feed.write_bytes(lines(0, 2))
    source = FileFeed(str(feed), boot_id="b")
    batches = source.records()
    assert [record.seq for record in await anext(batches)] == [0, 1]
    coming = asyncio.ensure_future(anext(batches))
    await settle()
    append(feed, line(2)[:7])
    await settle()
    assert not coming.done()
    append(feed, line(2)[7:] + line(3))
    assert [record.seq for record in await asyncio.wait_for(coming, PATIENCE)] == [2, 3]
    await batches.aclose()
    source.close()


async def test_a_file_goes_on_behind_the_cursor_after_a_restart(feed):
    feed.write_bytes(lines(0, 10))
    source = FileFeed(str(feed), boot_id="b", after=6)
    assert await take(source, 3) == [7, 8, 9]
    assert (source.lost, source.skipped) == (0, 7)
    source.close()


async def test_a_cursor_of_another_file_does_not_blind_the_reader(feed):
    feed.write_bytes(lines(0, 3))
    source = FileFeed(str(feed), boot_id="b", after=1000)
    assert await take(source, 3) == [0, 1, 2]
    assert source.errors == 1
    source.close()


async def test_a_truncated_file_is_another_log(feed):
    feed.write_bytes(lines(0, 5) + b"4,5,50,-;half a l")
    source = FileFeed(str(feed), boot_id="b")
    batches = source.records()
    await anext(batches)
    coming = asyncio.ensure_future(anext(batches))
    await settle()
    feed.write_bytes(line(1))
    assert [record.seq for record in await asyncio.wait_for(coming, PATIENCE)] == [1]
    await batches.aclose()
    source.close()


async def test_a_replaced_file_is_another_log_and_is_followed(feed):
    feed.write_bytes(lines(0, 5))
    source = FileFeed(str(feed), boot_id="b")
    batches = source.records()
    await anext(batches)
    fresh = feed.with_name("fresh")
    fresh.write_bytes(line(2))
    fresh.replace(feed)
    assert [record.seq for record in await asyncio.wait_for(anext(batches), PATIENCE)] == [2]
    coming = asyncio.ensure_future(anext(batches))
    await settle()
    append(feed, line(3))
    assert [record.seq for record in await asyncio.wait_for(coming, PATIENCE)] == [3]
    await batches.aclose()
    source.close()


async def test_a_file_that_is_removed_and_made_again_is_found_again(feed):
    feed.write_bytes(lines(0, 2))
    source = FileFeed(str(feed), boot_id="b")
    batches = source.records()
    await anext(batches)
    coming = asyncio.ensure_future(anext(batches))
    await settle()
    feed.unlink()
    await settle()
    feed.write_bytes(lines(0, 1))
    assert [record.seq for record in await asyncio.wait_for(coming, PATIENCE)] == [0]
    await batches.aclose()
    source.close()


async def test_the_rule_of_facility_0_holds_for_a_file_too(feed):
    feed.write_bytes(line(0) + line(1, "NVRM: Xid (PCI:0000:3b:00): 79, x", prio=12) + b"rubbish\n \n" + line(3))
    source = FileFeed(str(feed), boot_id="b")
    assert await take(source, 2) == [0, 3]
    assert (source.foreign, source.malformed, source.lost) == (1, 1, 0)
    source.close()


async def test_a_big_file_comes_in_bounded_batches(feed):
    feed.write_bytes(lines(0, 10_000))
    source = FileFeed(str(feed), boot_id="b", batch=100)
    sizes = []
    async with aclosing(source.records()) as batches:
        async for batch in batches:
            sizes.append(len(batch))
            assert source.position == batch[-1].seq
            if batch[-1].seq == 9999:
                break
    assert sum(sizes) == 10_000
    assert max(sizes) <= 100
    source.close()


async def test_closing_ends_a_feed_that_waits_and_may_be_done_twice(feed):
    fifo = feed.with_name("fifo")
    os.mkfifo(fifo)
    for source in (FileFeed(str(feed), boot_id="b"), StreamFeed(str(fifo), boot_id="b")):
        reader = asyncio.ensure_future(take(source, 1))
        await settle()
        source.close()
        source.close()
        assert await asyncio.wait_for(reader, PATIENCE) == []


async def test_a_fifo_outlives_its_writers_and_costs_nothing_between_them(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reads = 0

    def read(fd: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return os.read(fd, size)

    source = StreamFeed(str(fifo), boot_id="b", read=read)
    batches = source.records()
    for seq in range(3):
        coming = asyncio.ensure_future(anext(batches))
        await settle()
        append(fifo, line(seq))
        assert [record.seq for record in await asyncio.wait_for(coming, PATIENCE)] == [seq]
    waiting = asyncio.ensure_future(anext(batches))
    await settle()
    before = reads
    for _ in range(100):
        await asyncio.sleep(0)
    assert reads == before
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    source.close()


async def test_what_a_writer_of_a_fifo_repeats_is_left_out(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    source = StreamFeed(str(fifo), boot_id="b", after=4)
    reader = asyncio.ensure_future(take(source, 2))
    await settle()
    append(fifo, lines(0, 7))
    assert await reader == [5, 6]
    assert source.skipped == 5
    source.close()


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
async def test_records_come_through_a_socket_until_its_peer_goes(tmp_path, kind):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(path)
        server.listen()
        source = StreamFeed(path, boot_id="b")
        peer, _ = server.accept()
    with peer:
        peer.send(b"4,0,1,-;no newline" if kind is socket.SOCK_SEQPACKET else line(0))
        peer.send(line(1))
        assert await take(source, 2) == [0, 1]
    with pytest.raises(KernelLogUnavailable, match="peer closed"):
        await take(source, 1)
    source.close()

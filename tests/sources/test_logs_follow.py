from __future__ import annotations

import asyncio
import errno
import gzip
import os
import random
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.model import ContainerRef
from agent.sources.logs.follow import Chunk, LogSource, Position
from agent.sources.logs.inotify import OVERFLOW, Inotify
from agent.sources.logs.tail import open_log
from tests.sources.timers import Timers

STAMPS = ("20260720-091402", "20260720-091412", "20260720-091422", "20260720-091432")
MAIN = "llm/sglang-0/u1/main"


class Writer:
    """Writes one container's logs in the way the runtime and the kubelet do."""

    def __init__(self, root: Path, *, pod: str = "sglang-0", container: str = "main", uid: str = "u1") -> None:
        self.dir = root / f"llm_{pod}_{uid}" / container
        self.dir.mkdir(parents=True, exist_ok=True)
        self.restart = 0
        self.file = self.open()

    def open(self) -> int:
        return os.open(self.dir / f"{self.restart}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, text: str | bytes) -> None:
        os.write(self.file, text.encode() if isinstance(text, str) else text)

    def rename(self, stamp: str) -> int:
        """The first half of a rotation; the old descriptor, which the runtime still writes to."""
        (self.dir / f"{self.restart}.log").rename(self.dir / f"{self.restart}.log.{stamp}")
        old, self.file = self.file, self.open()
        return old

    def rotate(self, stamp: str) -> None:
        os.close(self.rename(stamp))

    def compress(self, stamp: str, *, restart: int = 0) -> None:
        rotated = self.dir / f"{restart}.log.{stamp}"
        copy = self.dir / f"{restart}.log.{stamp}.tmp"
        copy.write_bytes(gzip.compress(rotated.read_bytes()))
        copy.rename(self.dir / f"{restart}.log.{stamp}.gz")
        rotated.unlink()

    def begin_restart(self) -> None:
        os.close(self.file)
        self.restart += 1
        self.file = self.open()


class Reader:
    """Takes chunks as the agent does: handles one, stores its position, then takes the next."""

    def __init__(self, source: LogSource, positions: dict[str, Position]) -> None:
        self.source = source
        self.positions = positions
        self.taken: list[Chunk] = []
        self._chunks = source.chunks()

    async def next(self) -> Chunk:
        chunk = await asyncio.wait_for(anext(self._chunks), 10)
        self.taken.append(chunk)
        self.positions[chunk.stream.container.key] = chunk.position
        return chunk

    def text(self, key: str = MAIN) -> str:
        return b"".join(chunk.data for chunk in self.taken if chunk.stream.container.key == key).decode()

    async def until(self, text: str, key: str = MAIN) -> None:
        """Take chunks until this is all that came of the container."""
        while self.text(key) != text:
            assert text.startswith(self.text(key)), (text[-200:], self.text(key)[-200:])
            await self.next()

    async def close(self) -> None:
        await self._chunks.aclose()


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.positions: dict[str, Position] = {}
        self.timers = Timers()
        self.now = time.time()

    @asynccontextmanager
    async def follow(self, **options: Any) -> AsyncGenerator[Reader, None]:
        defaults: dict[str, Any] = {
            "select": lambda _: True,
            "call_later": self.timers,
            "clock": lambda: self.now,
        }
        options = defaults | options
        reader = Reader(LogSource(self.root, positions=self.positions, **options), self.positions)
        try:
            yield reader
        finally:
            await reader.close()

    async def settle(self, reader: Reader) -> None:
        """Wait until all changes made so far were looked at: a line of another container comes after them."""
        marker = Writer(self.root, pod="marker")
        marker.write("mark\n")
        os.close(marker.file)
        before = len(reader.taken)
        while not any(chunk.stream.container.pod == "marker" for chunk in reader.taken[before:]):
            await reader.next()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "pods")


@pytest.fixture
def writer(world: World) -> Iterator[Writer]:
    made = Writer(world.root)
    yield made
    os.close(made.file)


def open_files(root: Path) -> int:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(1 for link in links if os.path.lexists(link) and os.readlink(link).startswith(str(root)))


async def test_lines_come_as_they_are_written(world: World, writer: Writer) -> None:
    writer.write("one\n")
    async with world.follow() as reader:
        first = await reader.next()
        assert (first.data, first.offset, first.started, first.torn) == (b"one\n", 0, True, False)
        assert first.stream.container == ContainerRef(namespace="llm", pod="sglang-0", uid="u1", container="main")
        writer.write("two\n")
        second = await reader.next()
        assert (second.data, second.offset, second.started) == (b"two\n", 4, False)
        assert second.position.offset == 8 and reader.source.last_read == world.now


async def test_a_container_made_later_is_found_and_read_from_its_start(world: World) -> None:
    world.root.mkdir()
    async with world.follow(back_read=0) as reader:
        first = asyncio.ensure_future(reader.next())
        for _ in range(10):
            await asyncio.sleep(0)  # It has begun and found nothing.
        late = Writer(world.root)
        late.write("one\n")
        assert (await first).data == b"one\n"
        side = Writer(world.root, container="side")
        side.write("two\n")
        assert (await reader.next()).stream.container.container == "side"
        assert reader.source.followed == 2
        assert reader.source.keys == {MAIN, "llm/sglang-0/u1/side"}
        os.close(late.file)
        os.close(side.file)


async def test_a_rotation_in_the_measured_order_loses_and_repeats_nothing(world: World, writer: Writer) -> None:
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
        writer.write("2\n")
        old = writer.rename(STAMPS[0])
        writer.write("4\n")
        os.write(old, b"3\n")  # Late, on the old descriptor.
        await world.settle(reader)
        assert reader.text() == "1\n2\n3\n"  # The new file waits for the end of the old one.
        os.close(old)
        await reader.until("1\n2\n3\n4\n")
        writer.write("5\n")
        writer.compress(STAMPS[0])
        writer.rotate(STAMPS[1])
        writer.write("6\n")
        await reader.until("1\n2\n3\n4\n5\n6\n")
        assert (reader.source.lost, reader.source.errors, open_files(world.root)) == (0, 0, 3)


async def test_an_old_file_that_is_never_closed_ends_after_the_grace_period(world: World, writer: Writer) -> None:
    async with world.follow(grace=2.0) as reader:
        writer.write("1\n")
        await reader.until("1\n")
        old = writer.rename(STAMPS[0])
        writer.write("2\n")
        await world.settle(reader)
        assert reader.text() == "1\n" and [delay for delay, _ in world.timers.pending] == [2.0]
        os.write(old, b"late\n")
        world.timers.fire()
        await reader.until("1\nlate\n2\n")
        os.close(old)


async def test_a_write_after_a_close_keeps_the_file_open(world: World, writer: Writer) -> None:
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
        # The runtime restarts: it closes the file and opens it again. Then the container is restarted.
        os.close(writer.file)
        writer.file = writer.open()
        writer.write("2\n")
        await reader.until("1\n2\n")
        old, writer.restart = writer.file, 1
        writer.file = writer.open()
        writer.write("4\n")
        await world.settle(reader)
        assert reader.text() == "1\n2\n"
        os.write(old, b"3\n")
        os.close(old)
        await reader.until("1\n2\n3\n4\n")


async def test_a_new_file_is_open_though_the_one_of_its_name_was_closed(world: World, writer: Writer) -> None:
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
        os.close(writer.file)
        writer.file = writer.open()
        os.close(writer.rename(STAMPS[0]))
        await world.settle(reader)
        old, writer.restart = writer.file, 1
        writer.file = writer.open()
        writer.write("3\n")
        await world.settle(reader)
        assert reader.text() == "1\n"
        os.write(old, b"2\n")
        os.close(old)
        await reader.until("1\n2\n3\n")


async def test_a_rotation_that_is_taken_back_goes_on_in_the_same_file(world: World, writer: Writer) -> None:
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
        live, rotated = writer.dir / "0.log", writer.dir / f"0.log.{STAMPS[0]}"
        live.rename(writer.dir / "aside")
        await world.settle(reader)
        (writer.dir / "aside").rename(rotated)
        await world.settle(reader)
        rotated.rename(live)
        await world.settle(reader)
        world.timers.fire()
        await world.settle(reader)
        writer.write("2\n")
        await reader.until("1\n2\n")


async def test_two_rotations_between_two_looks_are_read_in_order(world: World, writer: Writer) -> None:
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
        for number, stamp in enumerate(STAMPS):
            writer.write(f"{number + 2}\n")
            writer.rotate(stamp)
        writer.write("6\n")
        await reader.until("1\n2\n3\n4\n5\n6\n")
        assert reader.source.lost == 0


async def test_a_file_that_was_compressed_before_it_was_seen_counts_as_a_loss(world: World, writer: Writer) -> None:
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
        writer.write("2\n")
        writer.rotate(STAMPS[0])
        writer.write("missed\n")
        writer.rotate(STAMPS[1])
        writer.compress(STAMPS[0])
        writer.compress(STAMPS[1])
        writer.write("3\n")
        await reader.until("1\n2\n3\n")
        assert reader.source.lost == 1


async def test_a_restart_finishes_the_dead_instance_first(world: World, writer: Writer) -> None:
    writer.write("a\n")
    async with world.follow() as reader:
        await reader.until("a\n")
        writer.write("crash\n")
        writer.begin_restart()
        writer.write("b\n")
        await reader.until("a\ncrash\nb\n")
        assert [chunk.stream.container.restart for chunk in reader.taken] == [0, 0, 1]
        # The next crash: the kubelet deletes the instance before, then begins another.
        writer.begin_restart()
        (writer.dir / "0.log").unlink()
        writer.write("c\n")
        await reader.until("a\ncrash\nb\nc\n")
        assert reader.source.lost == 0 and reader.taken[-1].stream.container.restart == 2


async def test_a_file_deleted_while_held_is_read_to_its_end(world: World, writer: Writer) -> None:
    lines = "".join(f"line {number}\n" for number in range(2000))
    writer.write(lines)
    async with world.follow(block=4096) as reader:
        await reader.next()
        for path in (writer.dir / "0.log", writer.dir, writer.dir.parent):
            path.unlink() if path.is_file() else path.rmdir()
        await reader.until(lines)
        await world.settle(reader)
        world.timers.fire()
        await world.settle(reader)
        assert open_files(world.root) == 2  # The marker's, and the writer's own.
        assert reader.source.followed == 1 and reader.source.errors == 0


async def test_the_end_of_a_deleted_file_without_a_newline_is_handed_on_torn(world: World, writer: Writer) -> None:
    writer.write("whole\nhalf")
    async with world.follow() as reader:
        await reader.until("whole\n")
        (writer.dir / "0.log").unlink()
        await world.settle(reader)
        world.timers.fire()
        await reader.until("whole\nhalf")
        assert reader.taken[-1].torn


async def test_a_truncated_file_is_read_from_its_start(world: World, writer: Writer) -> None:
    writer.write("one\ntwo\n")
    async with world.follow() as reader:
        await reader.until("one\ntwo\n")
        os.ftruncate(writer.file, 0)
        writer.write("new\n")
        await reader.until("one\ntwo\nnew\n")
        last = reader.taken[-1]
        assert last.started and last.position.offset == 4
        assert last.position.fingerprint != reader.taken[0].position.fingerprint
        assert reader.source.truncated == 1 and reader.source.lost == 1


async def test_copy_and_truncate_does_no_harm(world: World, writer: Writer) -> None:
    writer.write("one\ntwo\n")
    async with world.follow() as reader:
        await reader.until("one\ntwo\n")
        (writer.dir / "0.log.1").write_bytes((writer.dir / "0.log").read_bytes())
        os.ftruncate(writer.file, 0)
        writer.write("three\n")
        await reader.until("one\ntwo\nthree\n")


async def test_a_line_written_in_halves_comes_once_and_whole(world: World, writer: Writer) -> None:
    async with world.follow() as reader:
        writer.write("first\n")
        await reader.until("first\n")
        for piece in ("ha", "l", "f"):
            writer.write(piece)
            await world.settle(reader)
        assert reader.text() == "first\n"
        writer.write(" and half\n")
        chunk = await reader.next()
        assert chunk.data == b"half and half\n" and not chunk.torn


async def test_lines_of_16_kib_come_whole(world: World, writer: Writer) -> None:
    lines = "".join(f"{number} " + "x" * 16384 + "\n" for number in range(40))
    writer.write(lines)
    async with world.follow(block=64 * 1024, back_read=1 << 20) as reader:
        await reader.until(lines)
        assert all(chunk.data.endswith(b"\n") and not chunk.torn for chunk in reader.taken)
        assert max(len(chunk.data) for chunk in reader.taken) <= 64 * 1024


async def test_a_line_longer_than_a_block_comes_torn(world: World, writer: Writer) -> None:
    writer.write("y" * 10000 + "\nnext\n")
    async with world.follow(block=4096) as reader:
        await reader.until("y" * 10000 + "\nnext\n")
        assert [chunk.torn for chunk in reader.taken] == [True, True, False]


async def test_a_late_start_reads_the_end_of_the_newest_two_instances_only(world: World, writer: Writer) -> None:
    for restart in range(3):
        writer.write("".join(f"{restart} {number:05}\n" for number in range(1000)))  # 8 bytes a line.
        if restart < 2:
            writer.begin_restart()
    world.now += 60
    async with world.follow(back_read=100) as reader:
        expected = "".join(f"1 {number:05}\n" for number in range(988, 1000))
        await reader.until(expected + expected.replace("1 ", "2 "))
        assert [chunk.stream.container.restart for chunk in reader.taken] == [1, 2]
        assert (reader.source.skipped, reader.source.lost) == (8000 + 2 * 988 * 8, 0)


async def test_a_late_start_that_meets_a_line_start_keeps_that_line(world: World, writer: Writer) -> None:
    writer.write("0123456\n" * 4)
    async with world.follow(back_read=16) as reader:
        await reader.until("0123456\n" * 2)


async def test_a_late_start_looks_back_over_a_rotation(world: World, writer: Writer) -> None:
    writer.write("old\n" * 10 + "crash\n")
    writer.rotate(STAMPS[0])
    writer.write("new\n")
    world.now += 60
    async with world.follow(back_read=10) as reader:
        await reader.until("crash\nnew\n")


async def test_an_unreadable_file_is_an_error_once_and_read_when_it_may_be(world: World, writer: Writer) -> None:
    denied = {"0.log"}

    def opener(path: str) -> int:
        if os.path.basename(path) in denied:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_log(path)

    writer.write("old\n" * 10 + "one\n")
    async with world.follow(opener=opener, back_read=5) as reader:
        other = Writer(world.root, pod="other")
        (other.dir / "0.log").rename(other.dir / "1.log")
        os.write(other.file, b"seen\n")
        await reader.until("seen\n", "llm/other/u1/main")
        for _ in range(3):
            writer.write("two\n")
            os.write(other.file, b"more\n")
            await reader.next()
        assert reader.source.errors >= 1 and "Permission denied" in reader.source.last_error
        errors = reader.source.errors
        denied.clear()
        os.chmod(writer.dir / "0.log", 0o640)  # What a relabel or a chmod shows as.
        await reader.until("two\n")
        assert reader.source.errors == errors and reader.source.skipped == 52
        os.close(other.file)


@pytest.mark.parametrize("begun", [True, False])
async def test_an_older_file_readable_too_late_does_not_break_the_order(
    world: World, writer: Writer, *, begun: bool
) -> None:
    denied = {"0.log"}

    def opener(path: str) -> int:
        if os.path.basename(path) in denied and "sglang" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_log(path)

    writer.write("0\n")
    writer.begin_restart()
    if begun:
        writer.write("1\n")
    async with world.follow(opener=opener) as reader:
        for _ in range(3):
            await world.settle(reader)  # All found at the start had their turn.
        assert reader.text() == ("1\n" if begun else "")
        denied.clear()
        os.chmod(writer.dir / "0.log", 0o640)
        await world.settle(reader)
        world.timers.fire()
        writer.write("2\n")
        await reader.until("1\n2\n" if begun else "0\n2\n")


async def test_a_name_that_is_no_regular_file_is_an_error_and_blocks_nothing(world: World, writer: Writer) -> None:
    os.mkfifo(writer.dir / "1.log")
    (writer.dir / "2.log").symlink_to("/nowhere")
    writer.write("one\n")
    async with world.follow() as reader:
        await reader.until("one\n")
        assert reader.source.errors == 2


async def test_a_reused_inode_with_another_first_line_is_read_from_its_start(world: World, writer: Writer) -> None:
    writer.write("one\ntwo\n")
    async with world.follow() as reader:
        await reader.until("one\ntwo\n")
    os.ftruncate(writer.file, 0)  # The same inode, as after a deletion; another first line.
    writer.write("another\nlonger text\n")
    async with world.follow() as reader:
        await reader.until("another\nlonger text\n")
        assert reader.source.lost == 1


async def test_unread_text_of_a_rotated_file_is_read_first_after_a_pause(world: World, writer: Writer) -> None:
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
    writer.write("2\n")
    writer.rotate(STAMPS[0])
    writer.write("3\n")
    writer.begin_restart()
    writer.write("4\n")
    world.now += 60
    async with world.follow(back_read=0) as reader:
        await reader.until("2\n3\n4\n")
        assert reader.source.lost == 0


async def test_a_position_in_a_compressed_file_is_a_loss_and_the_rest_is_read(world: World, writer: Writer) -> None:
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
    writer.write("2\n")
    writer.rotate(STAMPS[0])
    writer.compress(STAMPS[0])
    writer.write("3\n")
    async with world.follow(back_read=0) as reader:
        await reader.until("3\n")
        assert reader.source.lost == 1


async def test_a_container_not_selected_costs_no_read_and_no_watch(world: World, writer: Writer) -> None:
    opened: list[str] = []
    watched: list[str] = []

    def opener(path: str) -> int:
        opened.append(path)
        return open_log(path)

    class Recording(Inotify):
        def add(self, path: str, mask: int) -> int:
            watched.append(path)
            return super().add(path, mask)

    chosen = {"side"}
    side = Writer(world.root, container="side")
    writer.write("one\n")
    side.write("two\n")
    async with world.follow(
        opener=opener, make_inotify=Recording, select=lambda ref: ref.container in chosen
    ) as reader:
        await reader.until("two\n", "llm/sglang-0/u1/side")
        assert opened == [str(side.dir / "0.log")] and str(writer.dir) not in watched
        chosen.add("main")
        reader.source.reselect()
        await reader.until("one\n")
        chosen.remove("side")
        reader.source.reselect()
        side.write("unheard\n")
        writer.write("three\n")
        await reader.until("one\nthree\n")
        assert reader.source.followed == 1
        chosen.add("side")
        reader.source.reselect()
        await reader.until("two\nunheard\n", "llm/sglang-0/u1/side")
    os.close(side.file)


async def test_dockers_symbolic_links_are_followed_through_its_own_rotation(world: World, tmp_path: Path) -> None:
    store = tmp_path / "containers" / "abc"
    store.mkdir(parents=True)
    target = store / "abc-json.log"
    target.write_bytes(b'{"log":"1\\n"}\n')
    logs = world.root / "llm_sglang-0_u1" / "main"
    logs.mkdir(parents=True)
    (logs / "0.log").symlink_to(target)
    async with world.follow() as reader:
        await reader.until('{"log":"1\\n"}\n')
        with target.open("ab", buffering=0) as file:
            file.write(b'{"log":"2\\n"}\n')
            await reader.until('{"log":"1\\n"}\n{"log":"2\\n"}\n')
            target.rename(store / "abc-json.log.1")
            target.write_bytes(b'{"log":"4\\n"}\n')
            file.write(b'{"log":"3\\n"}\n')
            await world.settle(reader)
        world.timers.fire()
        await reader.until("".join(f'{{"log":"{number}\\n"}}\n' for number in range(1, 5)))


async def test_a_line_written_while_a_links_target_gets_its_watch_is_not_missed(world: World, tmp_path: Path) -> None:
    store = tmp_path / "containers" / "abc"
    store.mkdir(parents=True)
    target = store / "abc-json.log"
    target.write_bytes(b"1\n")

    class Racing(Inotify):
        def add(self, path: str, mask: int) -> int:
            if path == str(store):
                with target.open("ab") as file:
                    file.write(b"2\n")
            return super().add(path, mask)

    logs = world.root / "llm_sglang-0_u1" / "main"
    logs.mkdir(parents=True)
    (logs / "0.log").symlink_to(target)
    async with world.follow(make_inotify=Racing) as reader:
        await reader.until("1\n2\n")


async def test_two_hundred_containers_are_followed_and_share_the_turns(world: World) -> None:
    writers = [Writer(world.root, pod=f"p-{number}", uid=f"u{number}") for number in range(200)]
    for number, each in enumerate(writers):
        each.write(f"start {number}\n")
    async with world.follow(block=4096) as reader:
        while len(reader.taken) < 200:
            await reader.next()
        assert reader.source.followed == 200
        writers[0].write("flood\n" * 10000)
        for each in writers[1:]:
            each.write("line\n")
        while not all(f"start {n}\nline\n" == reader.text(f"llm/p-{n}/u{n}/main") for n in range(1, 200)):
            for _ in range(10):
                await reader.next()
        assert len(reader.text("llm/p-0/u0/main")) < 60000  # The quiet ones did not wait for the flood.
        await reader.until("start 0\n" + "flood\n" * 10000, "llm/p-0/u0/main")
    for each in writers:
        os.close(each.file)
    assert open_files(world.root) == 0


async def test_after_an_overflow_everything_is_looked_at_again(world: World, writer: Writer) -> None:
    class Forgetful(Inotify):
        forget = False

        def read(self) -> bytes:
            data = super().read()
            if self.forget and data:
                return (-1).to_bytes(4, "little", signed=True) + OVERFLOW.to_bytes(4, "little") + bytes(8)
            return data

    made = Forgetful()
    writer.write("1\n")
    async with world.follow(make_inotify=lambda: made) as reader:
        await reader.until("1\n")
        made.forget = True
        writer.write("2\n")
        old = writer.rename(STAMPS[0])
        writer.write("3\n")
        fresh = Writer(world.root, pod="fresh")
        fresh.write("new\n")
        await reader.until("new\n", "llm/fresh/u1/main")
        await reader.until("1\n2\n")
        world.timers.fire()
        await reader.until("1\n2\n3\n")
        assert reader.source.overflows >= 1 and reader.source.lost == 0
        os.close(old)
        os.close(fresh.file)


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EMFILE, errno.EACCES])
async def test_without_inotify_everything_is_found_by_polling(world: World, writer: Writer, refusal: int) -> None:
    def refuse() -> Inotify:
        raise OSError(refusal, os.strerror(refusal))

    async def polled(reader: Reader, text: str, key: str = MAIN) -> None:
        waiting = asyncio.ensure_future(reader.until(text, key))
        async with asyncio.timeout(10):
            while not waiting.done():
                world.timers.fire()
                await asyncio.sleep(0)
        await waiting

    writer.write("1\n")
    async with world.follow(make_inotify=refuse) as reader:
        await reader.until("1\n")
        assert reader.source.polling == os.strerror(refusal)
        writer.write("2\n")
        await polled(reader, "1\n2\n")
        writer.write("3\n")
        writer.rotate(STAMPS[0])
        writer.write("4\n")
        await polled(reader, "1\n2\n3\n4\n")
        fresh = Writer(world.root, pod="fresh")
        fresh.write("new\n")
        await polled(reader, "new\n", "llm/fresh/u1/main")
        os.close(fresh.file)
    assert not world.timers.pending


async def test_a_root_that_comes_later_is_found(world: World) -> None:
    async with world.follow() as reader:
        waiting = asyncio.ensure_future(reader.until("1\n"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert reader.source.errors == 1 and "No such file" in reader.source.polling
        late = Writer(world.root)
        late.write("1\n")
        world.timers.fire()
        await waiting
        assert reader.source.polling == "" and not world.timers.pending
        os.close(late.file)


async def test_cancelling_closes_every_file_and_timer(world: World, writer: Writer) -> None:
    writer.write("1\n")
    reader = Reader(LogSource(world.root, select=lambda _: True, positions={}, call_later=world.timers), {})
    await reader.until("1\n")
    old = writer.rename(STAMPS[0])
    waiting = asyncio.ensure_future(reader.next())
    for _ in range(10):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    os.close(old)
    assert open_files(world.root) == 1 and not world.timers.pending  # The writer's own.


async def test_closing_ends_the_iteration(world: World, writer: Writer) -> None:
    source = LogSource(world.root, select=lambda _: True, positions={})
    waiting = asyncio.ensure_future(anext(source.chunks(), None))
    await asyncio.sleep(0)
    source.close()
    source.close()
    assert await asyncio.wait_for(waiting, 5) is None


async def test_at_rest_nothing_wakes_up(world: World, writer: Writer) -> None:
    loop = asyncio.get_running_loop()
    writer.write("1\n")
    async with world.follow() as reader:
        await reader.until("1\n")
        waiting = asyncio.ensure_future(reader.next())
        for _ in range(10):
            await asyncio.sleep(0)
        scheduled = [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        # What is left is this test's own time limit in Reader.next.
        assert len(scheduled) <= 1 and not world.timers.pending
        writer.write("2\n")
        await waiting


@pytest.mark.parametrize("seed", range(50))
async def test_each_line_comes_exactly_once_over_stops_at_random_points(world: World, seed: int) -> None:
    chance = random.Random(seed)
    writer = Writer(world.root)
    written = 1
    stamps = iter(f"20260720-{number:06}" for number in range(1000))
    uncompressed: list[tuple[str, int]] = []
    writer.write("0 \n")
    async with world.follow() as reader:  # From here on there is a position.
        await reader.until("0 \n")
    seen = "0 \n"

    def step(*, all_read: bool) -> None:
        nonlocal written
        what = chance.random()
        if what < 0.7:
            text = "".join(f"{written + n} {'x' * chance.randrange(120)}\n" for n in range(chance.randrange(1, 20)))
            written += text.count("\n")
            cut = chance.randrange(len(text))
            writer.write(text[:cut])
            writer.write(text[cut:])
        elif what < 0.85:
            stamp = next(stamps)
            writer.rotate(stamp)
            uncompressed.append((stamp, writer.restart))
        elif what < 0.93:
            writer.begin_restart()
            if all_read:
                for path in writer.dir.glob(f"{writer.restart - 2}.log*"):
                    path.unlink()
                uncompressed[:] = [entry for entry in uncompressed if entry[1] != writer.restart - 2]
        elif all_read and len(uncompressed) > 1:
            stamp, restart = uncompressed.pop(0)
            writer.compress(stamp, restart=restart)

    for _ in range(4):
        for _ in range(chance.randrange(1, 6)):
            step(all_read=False)
        async with world.follow(block=chance.choice([256, 1024, 65536]), back_read=1 << 30) as reader:
            for _ in range(chance.randrange(0, 12)):
                if chance.random() < 0.5 or seen.count("\n") + reader.text().count("\n") == written:
                    step(all_read=seen.count("\n") + reader.text().count("\n") == written)
                if seen.count("\n") + reader.text().count("\n") == written:
                    continue
                waiting = asyncio.ensure_future(reader.next())
                while not waiting.done():
                    await asyncio.sleep(0)
                    world.timers.fire()  # A grace period may end at any point.
                await waiting
            seen += reader.text()
    world.now += 60
    async with world.follow(back_read=1 << 30) as reader:
        while seen.count("\n") + reader.text().count("\n") < written:
            await reader.next()
        seen += reader.text()
    assert [line.split(" ")[0] for line in seen.splitlines()] == [str(number) for number in range(written)]
    os.close(writer.file)


async def test_a_line_is_handed_on_within_milliseconds(world: World, writer: Writer) -> None:
    writer.write("start\n")
    delays = []
    async with world.follow() as reader:
        await reader.next()
        for number in range(500):
            begun = time.perf_counter()
            writer.write(f"{number}\n")
            await reader.next()
            delays.append(time.perf_counter() - begun)
    delays.sort()
    print(f"write to chunk: p50 {delays[250] * 1e3:.2f} ms, p99 {delays[495] * 1e3:.2f} ms")
    assert delays[495] < 0.05


async def test_a_big_file_is_read_at_disk_cache_speed(world: World, writer: Writer) -> None:
    size = 64 << 20
    block = (b"x" * 127 + b"\n") * (1 << 13)
    for _ in range(size // len(block)):
        writer.write(block)
    begun, got = time.perf_counter(), 0
    async with world.follow(back_read=1 << 30) as reader:
        while got < size:
            got += len((await reader.next()).data)
            reader.taken.clear()
    rate = size / (time.perf_counter() - begun) / 1e6
    print(f"read: {rate:.0f} MB/s")
    assert rate > 50


async def test_a_source_is_blind_while_its_root_is_missing_or_none_of_its_logs_can_be_opened(tmp_path: Path) -> None:
    root, locked = tmp_path / "pods", True

    def opener(path: str) -> int:
        if locked:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_log(path)

    source = LogSource(root, select=lambda _: True, positions={}, opener=opener, poll=0.01)
    assert source.blind == f"{root} is not there"
    Writer(root).write("one\n")
    assert source.blind == ""
    chunks = source.chunks()
    first = asyncio.ensure_future(anext(chunks))
    for _ in range(1000):
        await asyncio.sleep(0)
        if source.blind:
            break
    async with asyncio.timeout(5):
        assert "none of the logs" in source.blind and "Permission denied" in source.blind
        locked = False
        source.reselect()
        assert (await first).data == b"one\n"
    assert source.blind == ""
    await chunks.aclose()

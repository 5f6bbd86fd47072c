"""Reads raw kernel records from a file that grows; never decides what a record means."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from asyncio import sleep
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from asyncinotify import Inotify, Mask, Watch

from agent.sources.kernel.boot import wall_offset
from agent.sources.kernel.lines import LineCutter
from agent.sources.kernel.record import KernelRecord
from agent.sources.kernel.source import KernelLogUnavailable, KernelSource

BLOCK = 1 << 16


class ByteFeed(KernelSource):
    """Records in the spelling of ``/dev/kmsg``, one a line, from anything that gives bytes.

    A feed is named by the operator and trusted like the device itself; the rule of facility 0 holds all the same.
    """

    def __init__(
        self,
        path: str,
        *,
        boot_id: str,
        after: int | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        accept_user_records: bool = False,
        batch: int = 256,
    ) -> None:
        super().__init__(boot_id=boot_id, after=after, accept_user_records=accept_user_records)
        self.path = path
        self._clock = clock
        self._monotonic = monotonic
        self._batch = batch
        self._cutter = LineCutter()

    @abstractmethod
    def _read_block(self) -> bytes:
        """What can be read now, at most :data:`BLOCK` bytes; nothing when there is nothing."""

    @abstractmethod
    async def _wait(self) -> None:
        """Return when it is worth reading again."""

    async def records(self) -> AsyncGenerator[list[KernelRecord], None]:
        while not self._closed():
            self.last_read = self._clock()
            try:
                data = self._read_block()
            except OSError as problem:
                self.errors += 1
                raise KernelLogUnavailable(
                    f"reading {self.path} failed: {problem.strerror}", "Start again what feeds it, then the agent"
                ) from problem
            if not data:
                await self._wait()
                continue
            offset = wall_offset(self._clock, self._monotonic)
            lines = self._cutter.cut(data)
            for start in range(0, len(lines), self._batch):
                taken = (self._intake.take(line, offset=offset) for line in lines[start : start + self._batch])
                batch = [record for record in taken if record is not None]
                self.position = self._intake.position
                if batch:
                    yield batch
                if self._closed():
                    return
                await sleep(0)


class FileFeed(ByteFeed):
    """A regular file of raw records, followed by inotify; sequence numbers are those written in the records.

    A file that was truncated or replaced is another log: all of it is new. A line counts when its newline is there.
    Opens the file at once: raises OSError.
    """

    kind = "file"

    def __init__(
        self,
        path: str,
        *,
        boot_id: str,
        after: int | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        accept_user_records: bool = False,
        batch: int = 256,
    ) -> None:
        super().__init__(
            path,
            boot_id=boot_id,
            after=after,
            clock=clock,
            monotonic=monotonic,
            accept_user_records=accept_user_records,
            batch=batch,
        )
        self._offset = 0
        self._watch: Watch | None = None
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._inotify = Inotify()
        except OSError:
            os.close(self._fd)
            raise
        try:
            # The directory tells of a new file of that name, the file itself of its growth. Not both of the latter from
            # the directory: its other files may be busy.
            self._inotify.add_watch(os.path.dirname(path) or ".", Mask.CREATE | Mask.MOVED_TO | Mask.ONLYDIR)
            self._watch = self._inotify.add_watch(path, Mask.MODIFY)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self._wakeup.stop()
        self._inotify.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_block(self) -> bytes:
        # Truncated first, then read: a file that was rewritten and has already outgrown the old offset looks like a
        # grown one, and no reader can tell.
        if os.fstat(self._fd).st_size < self._offset:
            self._start_over()
        data = self._read_on()
        if data:
            return data
        if self._intake.cursor_is_alien:
            self.errors += 1
            self._start_over()
        elif self._replaced():
            fresh = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            os.close(self._fd)
            self._fd = fresh
            self._follow()
            self._start_over()
        return self._read_on()

    def _read_on(self) -> bytes:
        data = os.read(self._fd, BLOCK)
        self._offset += len(data)
        return data

    async def _wait(self) -> None:
        await self._wakeup.readable(self._inotify.fd)
        if not self._closed():
            # What happened does not matter: the file is looked at either way.
            os.read(self._inotify.fd, BLOCK)

    def _start_over(self) -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)
        self._offset = 0
        self._cutter.reset()
        self._intake.forget()

    def _replaced(self) -> bool:
        """True when another file has the name now. A name that is gone is not: its file may still grow."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        return not os.path.samestat(named, os.fstat(self._fd))

    def _follow(self) -> None:
        if self._watch is not None:
            with suppress(OSError):  # gone with its file
                self._inotify.rm_watch(self._watch)
        self._watch = self._inotify.add_watch(self.path, Mask.MODIFY)

"""Reads the kernel's records from ``/dev/kmsg`` on the event loop; never decides what a record means."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncGenerator, Callable

from agent.sources.kernel.boot import wall_offset
from agent.sources.kernel.record import KernelRecord
from agent.sources.kernel.source import KernelLogUnavailable, KernelSource

DEFAULT_PATH = "/dev/kmsg"
LARGEST_BUFFER = 1 << 16


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _rewind(fd: int) -> None:
    os.lseek(fd, 0, os.SEEK_SET)


class KmsgSource(KernelSource):
    """The kernel log through its character device: no polling, nothing is consumed for other readers.

    Starts with the oldest record that the ring still holds; ``after`` (a sequence number of this boot) leaves out what
    was handed on before. ``buffer`` is bytes for one record; it grows by itself when a kernel writes longer ones.
    ``batch`` bounds the reads for one batch. Opens the device at once: raises OSError when that is not allowed.
    """

    kind = "kmsg"

    def __init__(
        self,
        path: str = DEFAULT_PATH,
        *,
        boot_id: str,
        after: int | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        accept_user_records: bool = False,
        batch: int = 256,
        buffer: int = 8192,
        open_fd: Callable[[str], int] = _open,
        read: Callable[[int, int], bytes] = os.read,
        rewind: Callable[[int], None] = _rewind,
    ) -> None:
        super().__init__(boot_id=boot_id, after=after, accept_user_records=accept_user_records)
        self.path = path
        self._clock = clock
        self._monotonic = monotonic
        self._batch = batch
        self._buffer = buffer
        self._read = read
        self._rewind = rewind
        self._fd = open_fd(path)

    async def records(self) -> AsyncGenerator[list[KernelRecord], None]:
        while not self._closed():
            try:
                batch, drained = self._read_batch()
            except OSError as problem:
                self.errors += 1
                raise KernelLogUnavailable(
                    f"reading {self.path} failed: {problem.strerror}",
                    "Restart the agent; if it stays so, look at the node's kernel log for the reason",
                ) from problem
            self.position = self._intake.position
            if batch:
                yield batch
            if drained:
                await self._wakeup.readable(self._fd)
            else:
                # A flood must not keep the loop from everything else.
                await asyncio.sleep(0)

    def close(self) -> None:
        self._wakeup.stop()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_batch(self) -> tuple[list[KernelRecord], bool]:
        """Read until the log has no more or the batch is full; true when it has no more. Bounded in reads, not in
        records: a program that floods the log with its own text must not hold us here."""
        batch: list[KernelRecord] = []
        self.last_read = self._clock()
        offset = wall_offset(self._clock, self._monotonic)
        for _ in range(self._batch):
            try:
                raw = self._read(self._fd, self._buffer)
            except BlockingIOError:
                if not self._intake.cursor_is_alien:
                    return batch, True
                self.errors += 1
                self._intake.forget()
                self._rewind(self._fd)
                continue
            except BrokenPipeError:
                self._intake.overrun()
                continue
            except OSError as problem:
                if problem.errno != errno.EINVAL:
                    raise
                self._grow()
                continue
            record = self._intake.take(raw, offset=offset)
            if record is not None:
                batch.append(record)
        return batch, False

    def _grow(self) -> None:
        """Make room for a record that did not fit.

        The kernel has already stepped over it, so the log is read again from its start; what was taken is skipped.
        """
        self.errors += 1
        if self._buffer < LARGEST_BUFFER:
            self._buffer = min(2 * self._buffer, LARGEST_BUFFER)
            self._rewind(self._fd)

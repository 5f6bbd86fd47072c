"""Reads the kernel log through ``syslog(2)``, which needs CAP_SYSLOG and no device; never decides what a line means.

This is the one source that polls: the call has no way to wait for news without consuming them for the whole machine.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import cache

from agent.sources.kernel.boot import wall_offset
from agent.sources.kernel.record import KernelRecord, parse_syslog_line
from agent.sources.kernel.snapshot import Numbering, tail_of, whats_new
from agent.sources.kernel.source import KernelLogUnavailable, KernelSource

_READ_ALL = 3
_SIZE_BUFFER = 10

GLANCE = 1 << 13
"""Bytes of the newest lines that a poll reads first; the whole ring only when they do not reach back far enough."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _klogctl(action: int, buffer: ctypes.Array[ctypes.c_char] | None, size: int) -> int:
    got: int = _libc().klogctl(action, buffer, size)
    if got < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return got


def ring_size() -> int:
    """Bytes of text that the kernel's ring holds. Raises OSError."""
    return _klogctl(_SIZE_BUFFER, None, 0)


def newest_lines(size: int) -> bytes:
    """The newest whole records that fit in ``size`` bytes, as lines. Consumes nothing. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    return ctypes.string_at(buffer, _klogctl(_READ_ALL, buffer, size))


class SyslogSource(KernelSource):
    """The kernel log by polling ``syslog(2)`` every ``interval`` seconds.

    The call tells no sequence numbers: ``seq`` is made up (see :class:`Numbering`), and ``lost`` counts occasions, not
    records: the ring turned over between two polls. A record of several lines comes as several records of one stamp;
    each line carries the facility, so a program cannot forge a line by a newline. Looks once at the start: raises
    OSError when that is not allowed, :class:`KernelLogUnavailable` when the kernel keeps no log or prints no stamps.
    """

    kind = "syslog"

    def __init__(
        self,
        *,
        boot_id: str,
        after: int | None = None,
        interval: float = 1.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        accept_user_records: bool = False,
        batch: int = 256,
        size: Callable[[], int] = ring_size,
        read: Callable[[int], bytes] = newest_lines,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(boot_id=boot_id, after=after, accept_user_records=accept_user_records)
        self._interval = interval
        self._clock = clock
        self._monotonic = monotonic
        self._batch = batch
        self._read = read
        self._sleep = sleep
        self._tail = b""
        self._numbering = Numbering()
        # Prefixes make the text longer than the ring's: 20 bytes for each line, and lines may be short.
        self._whole = 2 * size()
        if self._whole <= 0:
            raise KernelLogUnavailable(
                "syslog(2) says that this kernel keeps no log",
                "Run the agent on the node's own kernel, not in a sandbox",
            )
        glance = self._read(min(GLANCE, self._whole))
        if glance and not any(parse_syslog_line(line) for line in glance.splitlines()):
            raise KernelLogUnavailable(
                "syslog(2) gives lines without time stamps (the kernel parameter printk.time is off)",
                "Turn it on with `echo 1 > /sys/module/printk/parameters/time` on the node, or let the agent read "
                "/dev/kmsg (securityContext.privileged: true)",
            )

    async def records(self) -> AsyncGenerator[list[KernelRecord], None]:
        while not self._closed():
            try:
                news = self._news()
            except OSError as problem:
                self.errors += 1
                raise KernelLogUnavailable(
                    f"syslog(2) failed: {problem.strerror}", "Restart the agent; if it stays so, check its capabilities"
                ) from problem
            for start in range(0, len(news), self._batch):
                numbered = news[start : start + self._batch]
                batch = [record for record in map(self._intake.admit, numbered) if record is not None]
                self.position = numbered[-1].seq
                if batch:
                    yield batch
                if self._closed():
                    return
                await asyncio.sleep(0)
            await self._wakeup.pause(self._sleep(self._interval))

    def close(self) -> None:
        self._wakeup.stop()

    def _news(self) -> list[KernelRecord]:
        first = not self._tail
        fresh: bytes | None = None
        if not first:
            fresh = whats_new(self._read(min(GLANCE, self._whole)), self._tail)
        if fresh is None:
            snapshot = self._read(self._whole)
            fresh = whats_new(snapshot, self._tail)
            if fresh is None:
                self._intake.lost += 1
                fresh = snapshot
        self.last_read = self._clock()
        if not fresh:
            return []
        self._tail = tail_of(self._tail + fresh)
        records = self._parse(fresh)
        return self._behind_cursor(records) if first and self.position is not None else records

    def _parse(self, lines: bytes) -> list[KernelRecord]:
        offset = wall_offset(self._clock, self._monotonic)
        records: list[KernelRecord] = []
        for raw in lines.split(b"\n"):
            if not raw:
                continue
            line = parse_syslog_line(raw)
            if line is None:
                self._intake.malformed += 1
                continue
            records.append(
                KernelRecord(
                    seq=self._numbering.number(line.usec),
                    usec=line.usec,
                    facility=line.prio >> 3,
                    level=line.prio & 7,
                    text=line.text,
                    boot_id=self.boot_id,
                    time=offset + line.usec / 1e6,
                )
            )
        return records

    def _behind_cursor(self, records: list[KernelRecord]) -> list[KernelRecord]:
        """What comes behind the record at which an earlier run stood. By place, not by number: numbers may be out of
        order."""
        after = self.position
        assert after is not None
        for place in range(len(records) - 1, -1, -1):
            if records[place].seq == after:
                self._intake.skipped += place + 1
                return records[place + 1 :]
        later = [record for record in records if record.seq > after]
        if records and not later:
            # Beyond all that the log holds: the cursor of another log. Better twice than blind.
            self.errors += 1
            return records
        self._intake.lost += 1
        self._intake.skipped += len(records) - len(later)
        return later

"""Reads raw kernel records from a FIFO or a local socket; never decides what a record means."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Callable

from agent.sources.kernel.feed import BLOCK, ByteFeed


class StreamFeed(ByteFeed):
    """A FIFO that programs write raw records to, or a Unix socket (seqpacket or stream) that a program serves them on.

    Nothing can be read twice here: ``after`` only leaves out what the writer repeats. When the last writer of a FIFO
    goes, the next one is waited for; when the peer of a socket goes, :meth:`records` raises. Opens at once: raises
    OSError; ``EPROTOTYPE`` for a datagram socket, whose packets only its own owner can read.
    """

    kind = "stream"

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
        read: Callable[[int, int], bytes] = os.read,
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
        self._read = read
        self._packets = False
        self._fifo = not stat.S_ISSOCK(os.stat(path).st_mode)
        self._fd = _open_fifo(path) if self._fifo else self._connect()

    def close(self) -> None:
        self._wakeup.stop()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_block(self) -> bytes:
        try:
            data = self._read(self._fd, BLOCK)
        except BlockingIOError:
            return b""
        if data:
            return data + b"\n" if self._packets else data
        if not self._fifo:
            raise ConnectionResetError(errno.ECONNRESET, "the peer closed the socket")
        # All writers are gone: from now on this descriptor is always readable, a fresh one is not. The fresh one comes
        # first, because a FIFO that nobody holds open loses what is in it.
        fresh = _open_fifo(self.path)
        os.close(self._fd)
        self._fd = fresh
        return b""

    async def _wait(self) -> None:
        await self._wakeup.readable(self._fd)

    def _connect(self) -> int:
        try:
            fd = _connect(self.path, socket.SOCK_SEQPACKET)
            self._packets = True
            return fd
        except OSError as problem:
            if problem.errno != errno.EPROTOTYPE:
                raise
        return _connect(self.path, socket.SOCK_STREAM)


def _open_fifo(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _connect(path: str, kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_UNIX, kind) as peer:
        peer.setblocking(False)
        peer.connect(path)
        return peer.detach()

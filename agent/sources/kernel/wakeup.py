"""Suspends a reader until its file descriptor has news, its pause is over or it is stopped; never reads anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class Wakeup:
    """One waiting place for one reader on one event loop."""

    __slots__ = ("_armed", "_waiter", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        self._waiter: asyncio.Future[None] | None = None
        self._armed: tuple[asyncio.AbstractEventLoop, int] | None = None

    async def readable(self, fd: int) -> None:
        """Return when ``fd`` can be read, or at once after :meth:`stop`.

        The descriptor is registered only while somebody waits: it stays readable as long as there is news, and a busy
        consumer would be called back in vain all the time.
        """
        if self.stopped:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        loop.add_reader(fd, self._settle)
        self._armed = loop, fd
        try:
            await self._waiter
        finally:
            self._disarm()
            self._waiter = None

    async def pause(self, nap: Awaitable[None]) -> None:
        """Return when ``nap`` is over or :meth:`stop` is called; an exception of ``nap`` is raised here."""
        sleeper = asyncio.ensure_future(nap)
        self._waiter = asyncio.get_running_loop().create_future()
        if self.stopped:
            self._settle()
        try:
            await asyncio.wait((sleeper, self._waiter), return_when=asyncio.FIRST_COMPLETED)
            if sleeper.done():
                sleeper.result()
        finally:
            sleeper.cancel()
            self._waiter = None

    def stop(self) -> None:
        """End the wait in progress and every later one."""
        self.stopped = True
        # Now, not when the waiter next runs: the caller closes the descriptor, and its number may return before.
        self._disarm()
        self._settle()

    def _disarm(self) -> None:
        if self._armed is not None:
            loop, fd = self._armed
            self._armed = None
            if not loop.is_closed():
                loop.remove_reader(fd)

    def _settle(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

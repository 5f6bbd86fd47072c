"""The event loop's own clock for tests: it goes forward when the test says so, beside what really passes."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class LoopClock:
    """While it is entered, timeouts and sleeps of the running loop are due as soon as :meth:`forward` says so."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        really = self._loop.time
        self._loop.time = lambda: really() + self.ahead  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._loop.time  # the class's own is seen again

    async def forward(self, seconds: float) -> None:
        """Let ``seconds`` pass at once, and everything that was due by then run."""
        await idle()
        self.ahead += seconds
        await idle()


async def idle() -> None:
    """Lets every task run on until it waits for something outside, unless it goes on by itself for ever."""
    for _ in range(50):
        await asyncio.sleep(0)

"""A clock's bell for tests: what was put off runs when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from agent.sources.logs.watch import Handle


class Timers:
    """Stands in for ``loop.call_later``: nothing runs until the test says so."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay: float, callback: Callable[[], None]) -> Handle:
        entry = (delay, callback)
        self.pending.append(entry)
        pending = self.pending

        class Cancel:
            def cancel(self) -> None:
                if entry in pending:
                    pending.remove(entry)

        return Cancel()

    def fire(self) -> None:
        due, self.pending[:] = list(self.pending), []
        for _, callback in due:
            callback()

"""When to try again: exponential with full jitter, longer where the server says so. Pure; sleeps nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """The waits between tries of one kind of request. ``chance`` gives a number in [0, 1)."""

    first: float = 0.5
    limit: float = 60.0
    chance: Callable[[], float] = field(default=random.random)
    tries: int = 0

    def failed(self, *, retry_after: float | None = None) -> float:
        """Seconds to wait after one more failure; never less than the server asked for."""
        ceiling = min(self.first * 2.0 ** min(self.tries, 30), self.limit)
        self.tries += 1
        # Half is fixed, so that two tries never follow at once; half is drawn, so that a fleet spreads out.
        return max(ceiling / 2 + ceiling / 2 * self.chance(), retry_after or 0.0)

    def succeeded(self) -> None:
        self.tries = 0

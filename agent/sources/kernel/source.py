"""What every kernel-log source has in common: life cycle, figures and how it says that it cannot read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from agent.sources.kernel.intake import Intake
from agent.sources.kernel.record import KernelRecord
from agent.sources.kernel.wakeup import Wakeup


class KernelLogUnavailable(Exception):  # noqa: N818 - a state of the node, not a slip of the program
    """The kernel log cannot be read. ``why`` says what was tried, ``cure`` is one instruction for an operator."""

    def __init__(self, why: str, cure: str) -> None:
        super().__init__(f"{why}. {cure}")
        self.why = why
        self.cure = cure


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where a reader stood: worth nothing in another boot or for another kind of source."""

    kind: str
    boot_id: str
    seq: int


class KernelSource(ABC):
    """One kernel log, read by one consumer.

    ``position`` covers the batch last handed out and the foreign records read with it: store it only when that batch is
    processed. ``last_read`` is the wall time (epoch seconds) of the last look at the log, with or without news.
    """

    kind: str
    """``kmsg``, ``syslog``, ``file`` or ``stream``: the sequence numbers of two kinds cannot be compared."""

    def __init__(self, *, boot_id: str, after: int | None, accept_user_records: bool) -> None:
        self.boot_id = boot_id
        self.accepts_user_records = accept_user_records
        self.position = after
        self.last_read: float | None = None
        self.errors = 0
        self._intake = Intake(boot_id=boot_id, after=after, accept_user_records=accept_user_records)
        self._wakeup = Wakeup()

    @abstractmethod
    def records(self) -> AsyncGenerator[list[KernelRecord], None]:
        """New records in batches of bounded size, never an empty one, for ever; ends after :meth:`close`.

        Raises :class:`KernelLogUnavailable` when the log can no longer be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back and let :meth:`records` end. May be called again. Call it on the event loop's thread."""

    def _closed(self) -> bool:
        return self._wakeup.stopped

    @property
    def cursor(self) -> Cursor | None:
        """The position as it is to be stored; None before the first record."""
        return None if self.position is None else Cursor(kind=self.kind, boot_id=self.boot_id, seq=self.position)

    @property
    def lost(self) -> int:
        """Records that were overwritten before they were read."""
        return self._intake.lost

    @property
    def malformed(self) -> int:
        """Records that could not be parsed."""
        return self._intake.malformed

    @property
    def foreign(self) -> int:
        """Records whose facility is not the kernel's: written by a program, not handed on."""
        return self._intake.foreign

    @property
    def skipped(self) -> int:
        """Records met again: handed on before a restart, or before the log was read from its start once more."""
        return self._intake.skipped

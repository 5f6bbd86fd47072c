"""Keeps the books of one kernel log: which records are new, foreign, lost or malformed. No I/O, no clock."""

from __future__ import annotations

from agent.sources.kernel.record import KernelRecord, parse_record


class Intake:
    """Decides by sequence number and facility whether a record is handed on, and counts what is not.

    ``position`` is the sequence number of the last record taken, also of a foreign one; None before the first.
    ``newest`` is the highest number met since the start or the last :meth:`forget`, taken or not.
    """

    __slots__ = (
        "_accept_user",
        "_boot_id",
        "_unnumbered",
        "foreign",
        "lost",
        "malformed",
        "newest",
        "position",
        "skipped",
    )

    def __init__(self, *, boot_id: str, after: int | None, accept_user_records: bool) -> None:
        self._boot_id = boot_id
        self._accept_user = accept_user_records
        self._unnumbered = 0
        self.position = after
        self.newest: int | None = None
        self.lost = 0
        self.malformed = 0
        self.foreign = 0
        self.skipped = 0

    def take(self, raw: bytes, *, offset: float) -> KernelRecord | None:
        """The record in ``raw`` when it is new and the kernel's own; else None, counted. ``offset``: see the parser."""
        record = parse_record(raw, boot_id=self._boot_id, offset=offset)
        if record is None:
            self.malformed += 1
            self._unnumbered += 1
            return None
        seq = record.seq
        if self.newest is None or seq > self.newest:
            self.newest = seq
        if self.position is not None:
            if seq <= self.position:
                self.skipped += 1
                return None
            # A malformed record used up a number that could not be read: it is counted there, not here.
            self.lost += max(0, seq - self.position - 1 - self._unnumbered)
        self._unnumbered = 0
        self.position = seq
        return self.admit(record)

    def admit(self, record: KernelRecord) -> KernelRecord | None:
        """The record when its facility is the kernel's (0); else None, counted as foreign.

        The kernel never lets a program write with facility 0: this one number tells the driver's Xid from a forged one.
        """
        if record.facility != 0:
            self.foreign += 1
            if not self._accept_user:
                return None
        return record

    def overrun(self) -> None:
        """The log said that records were overwritten. The next number tells how many, if there is one to compare."""
        if self.position is None:
            self.lost += 1

    @property
    def cursor_is_alien(self) -> bool:
        """At the end of a log: true when the position is beyond all that the log holds, so it belongs to another log.

        Sequence numbers of one boot only grow; a machine restored from a snapshot has the old boot id and low numbers.
        Going on to skip would be blindness that looks like health.
        """
        return self.position is not None and self.newest is not None and self.newest < self.position

    def forget(self) -> None:
        """Start over: the log to come is another one, all of it is new."""
        self.position = None
        self.newest = None
        self._unnumbered = 0

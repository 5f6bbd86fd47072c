"""Keeps the log files of one container open and in order, and reads them one after the other.

It must never wait for anything: it is told that something changed, and is asked for the next block.

The kubelet renames ``n.log`` to ``n.log.<stamp>`` and lets the runtime open a new ``n.log``; a restart begins
``n+1.log``. In both cases the writer may add to the old file for some milliseconds. The old one is therefore read to
its end before the new one is begun: its end is known once the writer has closed it, once it was deleted, or once a
grace period has passed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.model import ContainerRef
from agent.sources.logs.chunk import Chunk, LogStream
from agent.sources.logs.paths import BEFORE_ALL, LIVE, Kind, LogName, Order, log_name
from agent.sources.logs.position import Found, Position, Resume, Start, go_on, look_back, resume
from agent.sources.logs.tail import Opener, Tail
from agent.sources.logs.watch import CallLater, Change, Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``block`` and ``back_read`` in bytes, ``grace`` in seconds."""

    block: int = 1 << 20
    back_read: int = 256 * 1024
    grace: float = 2.0


@dataclass(slots=True, kw_only=True)
class Figures:
    """What happened so far. ``lost``: how often an unknown amount of text may have been missed."""

    last_read: float | None = None
    lost: int = 0
    errors: int = 0
    skipped: int = 0
    """Bytes left out on purpose: older than the look back of a late start."""
    truncated: int = 0
    """Files that became shorter than what was read of them; each counts as a loss too."""
    last_error: str = ""


class Container:
    """The log files of one container, oldest first; the first one is being read.

    ``late``: the container was there before we were, so only the end of its newest two instances is read, unless a
    stored ``position`` says where to go on. ``wake`` is called when a grace period ends.
    """

    def __init__(
        self,
        ref: ContainerRef,
        directory: str,
        *,
        late: bool,
        position: Position | None,
        limits: Limits,
        figures: Figures,
        opener: Opener,
        clock: Callable[[], float],
        call_later: CallLater,
        wake: Callable[[Container], None],
    ) -> None:
        self.ref = ref
        self.directory = directory
        self.gone = False
        """The directory is no longer there; what is held is still read."""
        self.position = position
        """Where to go on after the last block handed on."""
        self.target_dirs: frozenset[str] = frozenset()
        """Directories that symbolic links among the logs lead to: writes show there, not here."""
        self._late = late
        self._position = position
        self._limits = limits
        self._figures = figures
        self._opener = opener
        self._clock = clock
        self._call_later = call_later
        self._wake = wake
        self._files: list[Tail] = []
        self._done: Order = BEFORE_ALL
        self._first = True
        self._denied = False
        self._stale = True
        self._closed_names: set[str] = set()
        self._compressed: set[Order] = set()
        self._blocked: dict[str, int] = {}
        self._blocked_first: frozenset[str] = frozenset()
        self._retry_at = 0.0
        self._timers: set[Handle] = set()

    @property
    def held(self) -> int:
        """Number of files held open."""
        return len(self._files)

    @property
    def refused(self) -> bool:
        """True when there is something to read and none of it can be opened."""
        return self._denied or (bool(self._blocked) and not self._files)

    def note(self, change: Change) -> None:
        """Take in a change. Cheap: the directory is looked at when the next block is asked for."""
        if change.directory != self.directory:
            # A link's target: its names are not ours.
            self._stale = self._stale or not (change.written or change.closed)
            return
        if change.closed:
            self._closed_names.add(change.name)
        elif change.written:
            self._closed_names.discard(change.name)
            if change.name in self._blocked and self._clock() >= self._retry_at:
                self._stale = True
            return
        elif change.renamed:
            self._closed_names.discard(change.name)
        if not change.closed:
            self._stale = True

    def look_again(self) -> None:
        """Nothing is known any more: look at the directory before the next block."""
        self._stale = True

    def next_block(self) -> Chunk | None:
        """The next whole lines in the order they were written; None when all that can be read was."""
        if self._stale:
            self._look()
        while self._files:
            tail = self._files[0]
            # Asked before reading: what was written before the end is then read for certain.
            ended = self._ended(tail)
            chunk = self._read(tail, final=ended)
            if chunk is not None:
                self._figures.last_read = self._clock()
                self.position = chunk.position
                return chunk
            if not ended:
                return None
            self._drop(tail)
            if tail.listed or tail.order[1] != LIVE:  # A live name may mean a younger file by now.
                self._done = max(self._done, tail.order)
        return None

    @property
    def more(self) -> bool:
        """True when asking again at once may bring something."""
        return self._stale or len(self._files) > 1 or any(tail.size > tail.offset for tail in self._files)

    def close(self) -> None:
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()
        for tail in self._files:
            tail.close()
        self._files.clear()

    def _read(self, tail: Tail, *, final: bool) -> Chunk | None:
        before = tail.truncated
        try:
            return tail.read(block=self._limits.block, final=final)
        except OSError as problem:
            self._fail(tail.stream.path, problem)
            return None
        finally:
            self._figures.truncated += tail.truncated - before
            self._figures.lost += tail.truncated - before

    def _ended(self, tail: Tail) -> bool:
        if not tail.superseded:
            return False
        if tail.expired or (tail.unlinked and len(self._files) > 1):
            return True
        return tail.name in self._closed_names and (tail.listed or not self._named(tail.name))

    def _named(self, name: str) -> bool:
        """True when a file held has this name now, not only once had it."""
        return any(tail.listed and tail.name == name for tail in self._files)

    def _drop(self, tail: Tail) -> None:
        self._files.remove(tail)
        tail.close()

    def _guard(self, tail: Tail, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as problem:
            self._fail(tail.stream.path, problem)

    def _fail(self, path: str, problem: Exception) -> None:
        self._figures.errors += 1
        self._figures.last_error = f"{path}: {getattr(problem, 'strerror', None) or problem}"

    def _look(self) -> None:
        """Bring the files held up to what the directory shows."""
        self._stale = False
        try:
            names = os.listdir(self.directory)
            self.gone = False
            self._denied = False
        except (FileNotFoundError, NotADirectoryError):
            names = []
            self.gone = True
        except OSError as problem:
            if not self._denied:
                self._fail(self.directory, problem)
            self._denied = True
            return
        logs = {name: parts for name in names if (parts := log_name(name)) is not None}
        unknown = self._recognise({name: parts for name, parts in logs.items() if parts.readable})
        opened = self._open(unknown)
        if self._first:
            self._begin(opened)
        else:
            for tail in opened:
                self._begin_late(tail)
        # Files whose name is gone are the oldest: the kubelet removes no younger one first.
        self._files.sort(key=lambda tail: tail.order if tail.listed else BEFORE_ALL)
        self._account_compressed(logs)
        self._first = self._first and bool(self._blocked) and not self._files
        self._supersede(opened)
        self._closed_names &= {tail.name for tail in self._files}
        self._blocked = {name: number for name, number in self._blocked.items() if name in logs}

    def _recognise(self, logs: dict[str, LogName]) -> list[tuple[str, LogName]]:
        """Give the files held their present names; the names that are left, oldest first."""
        held = {(tail.dev, tail.ino): tail for tail in self._files}
        for tail in self._files:
            tail.listed = False
        unknown: list[tuple[str, LogName]] = []
        for name, parts in sorted(logs.items(), key=lambda item: item[1].order):
            known: Tail | None = None
            try:
                facts = os.stat(os.path.join(self.directory, name))
                known = held.get((facts.st_dev, facts.st_ino))
            except OSError:
                pass  # Opening it tells why.
            if known is not None:
                known.name, known.order, known.listed = name, parts.order, True
            elif parts.order > self._done:
                unknown.append((name, parts))
        for tail in self._files:
            if not tail.listed:
                self._guard(tail, tail.refresh)
        return unknown

    def _open(self, unknown: list[tuple[str, LogName]]) -> list[Tail]:
        """Open files not held yet, but none older than text already handed on: order would be broken."""
        first = self._files[0] if self._files else None
        floor = first.order if first is not None and first.started and first.listed else self._done
        held = {(tail.dev, tail.ino) for tail in self._files}
        opened = []
        for name, parts in unknown:
            if parts.order < floor:
                continue
            tail = self._open_one(name, parts)
            if tail is not None and (tail.dev, tail.ino) in held:
                tail.close()  # Renamed between the two looks; the event of that is on its way.
                self._stale = True
            elif tail is not None:
                held.add((tail.dev, tail.ino))
                opened.append(tail)
        self._files += opened
        return opened

    def _open_one(self, name: str, parts: LogName) -> Tail | None:
        path = os.path.join(self.directory, name)
        stream = LogStream(container=replace(self.ref, restart=parts.restart), path=path)
        try:
            tail = Tail(self._opener(path), stream=stream, name=name, order=parts.order)
        except (OSError, ValueError) as problem:
            number = getattr(problem, "errno", None) or -1
            if isinstance(problem, FileNotFoundError) and not os.path.lexists(path):
                return None  # Rotated or removed since the directory was read.
            if self._blocked.get(name) != number:
                self._fail(path, problem)  # Once a reason, not once a try.
            self._blocked[name] = number
            self._retry_at = self._clock() + self._limits.grace
            return None
        self._blocked.pop(name, None)
        if os.path.islink(path):
            self.target_dirs |= {os.path.dirname(os.path.realpath(path))}
        return tail

    def _begin(self, opened: list[Tail]) -> None:
        """Choose where to start in the files found first."""
        self._blocked_first = frozenset(self._blocked) if self._late else frozenset()
        if self._position is not None:
            found = [self._found(tail) for tail in opened]
            start = go_on(self._position, found)
            if self._blocked and start.lost:
                start = start._replace(lost=0)  # The file may be the one that cannot be opened yet.
            else:
                self._position = None
        elif self._late:
            start = self._look_back(opened)
        else:
            start = Start((0,) * len(opened), 0)
        self._figures.lost += start.lost
        for tail, offset in zip(opened, start.offsets, strict=True):
            if offset is None:
                self._done = max(self._done, tail.order)
                self._drop(tail)
            else:
                tail.offset = offset

    def _look_back(self, opened: list[Tail]) -> Start:
        newest = {restart for restart, _ in sorted({(tail.order[0], "") for tail in opened})[-2:]}
        offsets: list[int | None] = []
        for restart in sorted({tail.order[0] for tail in opened}):
            files = [tail for tail in opened if tail.order[0] == restart]
            limit = self._limits.back_read if restart in newest else 0
            start = look_back([tail.size for tail in files], limit=limit)
            for tail, offset in zip(files, start.offsets, strict=True):
                offsets.append(self._aligned(tail, offset))
        return Start(tuple(offsets), 0)

    def _aligned(self, tail: Tail, offset: int | None) -> int | None:
        """The offset moved to a line start; what is left out is counted."""
        if offset is None:
            self._figures.skipped += tail.size
            return None
        self._guard(tail, lambda: tail.align(offset, block=self._limits.block))
        self._figures.skipped += tail.offset
        return tail.offset

    def _begin_late(self, tail: Tail) -> None:
        """Choose where to start in a file that appeared, or that could not be opened at first."""
        if self._position is not None and resume(self._position, self._found(tail)) is Resume.SAME:
            tail.offset = self._position.offset
            self._position = None
        elif tail.name in self._blocked_first:
            self._aligned(tail, max(0, tail.size - self._limits.back_read))

    def _found(self, tail: Tail) -> Found:
        try:
            return tail.found()
        except OSError as problem:
            self._fail(tail.stream.path, problem)
            return Found(tail.ino, tail.size, "")

    def _account_compressed(self, logs: dict[str, LogName]) -> None:
        """Count rotated files that were compressed before they were seen: their text was missed."""
        there = {parts.order for parts in logs.values() if parts.kind is Kind.COMPRESSED}
        new = {order for order in there - self._compressed if order > self._done}
        self._compressed = there
        if self._first:
            return
        for tail in self._files:
            if tail.order in new:
                new.discard(tail.order)  # The copy is made before the file is removed.
            elif not tail.listed and tail.order[1] == LIVE:
                # Renamed, compressed and removed between two looks: the oldest new copy is its own.
                new.discard(min((order for order in new if order[0] == tail.order[0]), default=BEFORE_ALL))
        self._figures.lost += len(new)

    def _supersede(self, opened: list[Tail]) -> None:
        """Set the end of files that a younger one follows, or whose name is gone."""
        for index, tail in enumerate(self._files):
            if tail.listed and index == len(self._files) - 1:
                tail.superseded = tail.expired = False  # The kubelet renames back when the runtime will not reopen.
            elif not tail.superseded:
                tail.superseded = True
                # Quiet for long when we came: over. Else the writer may be just about to change files.
                tail.expired = tail in opened and self._clock() - tail.mtime >= self._limits.grace
                if not tail.expired:
                    self._expire_later(tail)

    def _expire_later(self, tail: Tail) -> None:
        def expire() -> None:
            self._timers.discard(handle)
            tail.expired = tail.superseded
            self._wake(self)

        handle = self._call_later(self._limits.grace, expire)
        self._timers.add(handle)

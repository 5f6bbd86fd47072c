"""Tells when something changed in a set of directories; it must never read a log or decide what a change means.

One inotify instance serves all of them. A directory that cannot be watched (limits used up, no permission, not there
yet) is announced at a fixed interval instead, so that whoever listens looks for himself. At rest nothing wakes up.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import NamedTuple, Protocol

from agent.sources.logs import inotify as ino
from agent.sources.logs.inotify import Inotify

TREE = ino.CREATE | ino.MOVED_TO | ino.ONLYDIR
"""What to hear about a directory of directories."""

FILES = TREE | ino.MODIFY | ino.CLOSE_WRITE | ino.MOVED_FROM | ino.DELETE | ino.ATTRIB
"""What to hear about a directory of logs. The files themselves are not watched: each write would then come twice."""

# Refusals that may pass. A denied watch (EACCES, SELinux) is not tried again: each try is a line in the audit log.
_PASSING = {errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT, errno.ENOTDIR}


class Why(NamedTuple):
    """Why directories are polled: the errno of the last refusal and its text."""

    errno: int
    text: str


class Change(NamedTuple):
    """One thing that happened. ``name`` is empty when the directory itself is meant."""

    directory: str
    name: str
    mask: int

    @property
    def overflow(self) -> bool:
        """True when the kernel dropped events: anything may have happened anywhere."""
        return bool(self.mask & ino.OVERFLOW)

    @property
    def gone(self) -> bool:
        """True when the directory itself was removed."""
        return bool(self.mask & ino.IGNORED)

    @property
    def polled(self) -> bool:
        """True when nothing is known but that it is time to look."""
        return self.mask == 0

    @property
    def written(self) -> bool:
        return bool(self.mask & ino.MODIFY)

    @property
    def closed(self) -> bool:
        return bool(self.mask & ino.CLOSE_WRITE)

    @property
    def renamed(self) -> bool:
        """True when the name means another file than before, or none."""
        return bool(self.mask & (ino.CREATE | ino.MOVED_FROM | ino.MOVED_TO))

    @property
    def permission(self) -> bool:
        return bool(self.mask & ino.ATTRIB)


class Handle(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Handle]
"""``loop.call_later``, or a test's stand-in."""


class Watcher:
    """Watches directories and hands changes, in order, to ``on_changes``, which must be quick and must not raise.

    ``interval``: seconds between announcements of directories that cannot be watched. ``coalesce``: the least time
    in seconds between two reads of the queue; a change after a pause is handed on at once. Must be started inside a
    running event loop.
    """

    def __init__(
        self,
        on_changes: Callable[[list[Change]], None],
        *,
        interval: float = 1.0,
        coalesce: float = 0.002,
        call_later: CallLater | None = None,
        make: Callable[[], Inotify] = Inotify,
    ) -> None:
        self._on_changes = on_changes
        self._interval = interval
        self._coalesce = coalesce
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._call_later: CallLater = call_later or self._loop.call_later
        self._inotify: Inotify | None = None
        self._by_wd: dict[int, str] = {}
        self._by_path: dict[str, int] = {}
        self._unwatched: dict[str, tuple[int, int]] = {}  # path -> (mask, errno)
        self._drained = float("-inf")
        self._pause: Handle | None = None
        self._timer: Handle | None = None
        self._closed = False
        self.overflows = 0
        """How often the kernel's queue ran over."""
        self.why: Why | None = None
        """Why some directories are polled; None while all are watched."""

    @property
    def watched(self) -> int:
        """Number of directories watched by inotify."""
        return len(self._by_path)

    def watch(self, path: str, *, mask: int) -> None:
        """Watch a directory from now on. Again for one that was removed and made anew: the new one."""
        number = self._try(path, mask)
        if number:
            self._unwatched[path] = (mask, number)
            if self._timer is None and not self._closed:
                self._timer = self._call_later(self._interval, self._tick)
        else:
            self._settled(path)

    def unwatch(self, path: str) -> None:
        """Hear nothing more of a directory."""
        self._settled(path)
        wd = self._by_path.pop(path, None)
        if wd is not None and self._by_wd.pop(wd, None) is not None and self._inotify is not None:
            try:
                self._inotify.remove(wd)
            except OSError:
                pass  # The directory is gone and its watch with it; the event is only not read yet.

    def close(self) -> None:
        self._closed = True
        for handle in (self._pause, self._timer):
            if handle is not None:
                handle.cancel()
        self._pause = self._timer = None
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    def _try(self, path: str, mask: int) -> int:
        """Add the watch; the errno of the refusal, 0 when it stands."""
        try:
            if self._inotify is None:
                self._inotify = self._make()
                self._loop.add_reader(self._inotify.fd, self._on_readable)
            wd = self._inotify.add(path, mask)
        except OSError as refused:
            self.why = Why(refused.errno or errno.EIO, refused.strerror or str(refused))
            return self.why.errno
        before = self._by_path.get(path)
        if before is not None and before != wd:
            self._by_wd.pop(before, None)
        self._by_path[path], self._by_wd[wd] = wd, path
        return 0

    def _settled(self, path: str) -> None:
        self._unwatched.pop(path, None)
        if not self._unwatched:
            self.why = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _on_readable(self) -> None:
        # The first change after a pause goes through at once. While they keep coming the queue is read every few
        # milliseconds only: repeated writes then merge in the kernel, and reading gets whole blocks, not single lines.
        wait = self._drained + self._coalesce - self._loop.time()
        if wait <= 0:
            self._drain()
        elif self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._pause = self._loop.call_later(wait, self._resume)

    def _resume(self) -> None:
        self._pause = None
        if self._inotify is not None:
            self._loop.add_reader(self._inotify.fd, self._on_readable)
            self._drain()

    def _drain(self) -> None:
        """Hand on what is queued: one buffer full, so that a flood of events never holds up the loop."""
        if self._inotify is None:
            return
        self._drained = self._loop.time()
        changes: list[Change] = []
        for wd, mask, name in ino.events(self._inotify.read()):
            if mask & ino.OVERFLOW:
                self.overflows += 1
                changes.append(Change("", "", ino.OVERFLOW))
                continue
            path = self._by_wd.get(wd)
            if path is None:
                continue  # Of a watch given up since.
            if mask & ino.IGNORED:
                del self._by_wd[wd]
                self._by_path.pop(path, None)
            changes.append(Change(path, name, mask))
        if changes:
            self._on_changes(changes)

    def _tick(self) -> None:
        self._timer = None
        polled = list(self._unwatched.items())
        for path, (mask, number) in polled:
            if number not in _PASSING:
                continue
            refused = self._try(path, mask)
            if not refused:
                self._settled(path)
            elif refused not in (errno.ENOENT, errno.ENOTDIR):
                break  # A limit is used up; the others would hear the same.
        if self._unwatched:
            self._timer = self._call_later(self._interval, self._tick)
        self._on_changes([Change(path, "", 0) for path, _ in polled])

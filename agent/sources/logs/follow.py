"""Follows the logs of a node's containers and yields what is written to them; it must never judge what a line means.

Everything waits on one event; the iterator pulls, so nothing piles up: while the consumer is busy the text stays in
the files. Files with something to read take turns, one block each, and the loop runs in between, so that a flood in
one log holds up neither the other logs nor the kernel log. Files are read on the loop: they come from the page cache.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

from agent.model import ContainerRef
from agent.sources.logs.chunk import Chunk, LogStream
from agent.sources.logs.container import Container, Figures, Limits
from agent.sources.logs.inotify import Inotify
from agent.sources.logs.paths import PodDir, container_ref, pod_dir
from agent.sources.logs.position import FINGERPRINT_BYTES, Position
from agent.sources.logs.tail import Opener, open_log
from agent.sources.logs.watch import FILES, TREE, CallLater, Change, Watcher

__all__ = ["Chunk", "LogSource", "LogStream", "Position"]


class LogSource:
    """The container logs below ``root`` (``/var/log/pods``), from now on or from stored positions on.

    ``select`` says which containers to follow (asked with restart 0; one that is refused costs no watch and no read);
    ``positions`` are those of chunks handled before, by ``stream.container.key``. ``block``: most bytes of a chunk.
    ``back_read``: most bytes read of what an instance wrote before the start, where no position is known. ``grace``:
    seconds that late writes to a superseded file are waited for. ``poll``: seconds between looks at directories that
    cannot be watched. ``clock``: wall time in seconds.

    The life cycle: construct, iterate :meth:`chunks` once, :meth:`close` (also done when the iteration ends or is
    cancelled). Nothing that the file system does is fatal: it is counted in ``errors`` and tried again on a change.
    """

    def __init__(
        self,
        root: Path,
        *,
        select: Callable[[ContainerRef], bool],
        positions: Mapping[str, Position],
        clock: Callable[[], float] = time.time,
        back_read: int = 256 * 1024,
        block: int = 1 << 20,
        grace: float = 2.0,
        poll: float = 1.0,
        coalesce: float = 0.002,
        opener: Opener = open_log,
        call_later: CallLater | None = None,
        make_inotify: Callable[[], Inotify] = Inotify,
    ) -> None:
        if block < FINGERPRINT_BYTES or back_read < 0:
            raise ValueError(f"block must be at least {FINGERPRINT_BYTES} bytes and back_read not negative")
        self._root = str(root)
        self._select = select
        self._positions = dict(positions)
        self._clock = clock
        self._limits = Limits(block=block, back_read=back_read, grace=grace)
        self._poll = poll
        self._coalesce = coalesce
        self._opener = opener
        self._given_call_later = call_later
        self._make_inotify = make_inotify
        self._figures = Figures()
        self._watcher: Watcher | None = None
        self._wake = asyncio.Event()
        self._pods: dict[str, PodDir] = {}
        self._containers: dict[str, Container] = {}
        self._owners: dict[str, set[Container]] = {}
        self._stale: dict[str, bool] = {}  # Root and pod directories to look through; True: found late.
        self._denied: set[str] = set()
        self._dirty: dict[Container, None] = {}  # In the order of their turns.
        self._late = True
        self._everything = True
        self._closed = False

    @property
    def last_read(self) -> float | None:
        """When a log was last read, by ``clock``."""
        return self._figures.last_read

    @property
    def lost(self) -> int:
        """How often text may have been missed, each time an unknown amount."""
        return self._figures.lost

    @property
    def errors(self) -> int:
        """Failures to open or read; a file that stays unreadable counts once."""
        return self._figures.errors

    @property
    def last_error(self) -> str:
        """The last failure with its path; empty when there was none."""
        return self._figures.last_error

    @property
    def blind(self) -> str:
        """Why nothing can be read now, by a look at the root: it cannot be listed, or no log found can be opened.

        Empty while something can be read, or while there is nothing to read.
        """
        try:
            with os.scandir(self._root):
                pass
        except FileNotFoundError:
            return f"{self._root} is not there"
        except OSError as problem:
            return f"{self._root} cannot be read: {problem.strerror}"
        denied = self._denied & self._pods.keys()
        if (denied or self._containers) and all(c.refused for c in self._containers.values()):
            return f"none of the logs below {self._root} can be opened ({self.last_error})"
        return ""

    @property
    def skipped(self) -> int:
        """Bytes left out on purpose at the start: older than ``back_read``."""
        return self._figures.skipped

    @property
    def truncated(self) -> int:
        """How often a file became shorter than what was read of it (counted in ``lost`` too)."""
        return self._figures.truncated

    @property
    def followed(self) -> int:
        """Number of containers followed."""
        return len(self._containers)

    @property
    def keys(self) -> frozenset[str]:
        """``ContainerRef.key`` of each container followed: stored positions under other keys may be dropped in time."""
        return frozenset(container.ref.key for container in self._containers.values())

    @property
    def overflows(self) -> int:
        """How often the kernel dropped change events; each led to a look at everything and lost no text."""
        return self._watcher.overflows if self._watcher else 0

    @property
    def polling(self) -> str:
        """Why some directories are polled instead of watched; empty while all are watched."""
        why = self._watcher.why if self._watcher else None
        return why.text if why else ""

    def reselect(self) -> None:
        """Ask ``select`` again about every container: its rules have changed, or more is known of them."""
        self._late = self._everything = True
        self._wake.set()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """What is written to the logs, for ever, until :meth:`close`. Iterate once.

        Taking the next chunk says that the one before was handled and its position stored.
        """
        loop = asyncio.get_running_loop()
        call_later = self._given_call_later or loop.call_later
        self._watcher = Watcher(
            self._on_changes,
            interval=self._poll,
            coalesce=self._coalesce,
            call_later=call_later,
            make=self._make_inotify,
        )
        try:
            while not self._closed:
                if self._everything or self._stale:
                    self._look(call_later)
                    await asyncio.sleep(0)
                container = next(iter(self._dirty), None)
                if container is None:
                    if not (self._everything or self._stale or self._closed):
                        self._wake.clear()
                        await self._wake.wait()
                    continue
                del self._dirty[container]
                chunk = container.next_block()
                self._watch_targets(container)
                if chunk is not None:
                    if container.more:
                        self._dirty[container] = None
                    yield chunk
                elif container.gone and not container.held:
                    self._forget(container)
                await asyncio.sleep(0)
        finally:
            self.close()

    def close(self) -> None:
        """Stop: files and watches are closed, and the iteration ends. May be called more than once."""
        self._closed = True
        self._wake.set()
        if self._watcher is not None:
            self._watcher.close()
        for container in self._containers.values():
            container.close()
        self._containers.clear()
        self._owners.clear()
        self._dirty.clear()

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            if change.overflow:
                self._everything = True
            elif change.directory == self._root or change.directory in self._pods:
                self._stale.setdefault(change.directory, False)
            for container in self._owners.get(change.directory, ()):
                container.note(change)
                self._dirty.setdefault(container)
        self._wake.set()

    def _mark(self, container: Container) -> None:
        self._dirty.setdefault(container)
        self._wake.set()

    def _look(self, call_later: CallLater) -> None:
        """Bring one directory's part of the tree up to what it shows; all of the tree, a part a turn, if need be."""
        if self._everything:
            late, self._late, self._everything = self._late, False, False
            self._look_at_root()
            self._stale = dict.fromkeys(self._pods, late)
            for container in self._containers.values():
                container.look_again()
                self._mark(container)
            return
        directory = next(iter(self._stale))
        late = self._stale.pop(directory)
        if directory == self._root:
            self._look_at_root()
        elif directory in self._pods:
            self._look_at_pod(directory, late=late, call_later=call_later)

    def _look_at_root(self) -> None:
        # Watched before it is read: what appears in between is then seen twice, not never.
        self._watch(self._root, TREE)
        found = {}
        for name in self._subdirectories(self._root):
            parts = pod_dir(name)
            if parts is not None:
                found[os.path.join(self._root, name)] = parts
        for directory in self._pods.keys() - found.keys():
            del self._pods[directory]
            self._denied.discard(directory)
            self._unwatch(directory)
        for directory in found.keys() - self._pods.keys():
            self._stale.setdefault(directory, False)
        self._pods.update(found)

    def _look_at_pod(self, directory: str, *, late: bool, call_later: CallLater) -> None:
        self._watch(directory, TREE)
        for name in self._subdirectories(directory):
            path = os.path.join(directory, name)
            ref = container_ref(self._pods[directory], name)
            if ref is None:
                continue
            known = self._containers.get(path)
            if not self._select(ref):
                if known is not None:
                    if known.position is not None:
                        self._positions[ref.key] = known.position  # In case it is selected again.
                    self._forget(known)
                continue
            for watched in (path, *(known.target_dirs if known else ())):
                self._watch(watched, FILES)
            if known is None:
                known = Container(
                    ref,
                    path,
                    late=late,
                    position=self._positions.pop(ref.key, None),
                    limits=self._limits,
                    figures=self._figures,
                    opener=self._opener,
                    clock=self._clock,
                    call_later=call_later,
                    wake=self._mark,
                )
                self._containers[path] = known
                self._owners.setdefault(path, set()).add(known)
            known.look_again()
            self._mark(known)

    def _watch_targets(self, container: Container) -> None:
        for directory in container.target_dirs:
            owners = self._owners.setdefault(directory, set())
            if container not in owners:
                owners.add(container)
                self._watch(directory, FILES)
                container.look_again()  # For what was written before the watch stood.
                self._mark(container)

    def _forget(self, container: Container) -> None:
        container.close()
        self._containers.pop(container.directory, None)
        self._dirty.pop(container, None)
        for directory in (container.directory, *container.target_dirs):
            owners = self._owners.get(directory, set())
            owners.discard(container)
            if not owners:
                self._owners.pop(directory, None)
                self._unwatch(directory)

    def _subdirectories(self, directory: str) -> list[str]:
        try:
            with os.scandir(directory) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as problem:
            # A pod may go at any time; the root may not. Counted when it begins, not each time it is seen.
            if directory not in self._denied and (directory == self._root or problem.errno != errno.ENOENT):
                self._denied.add(directory)
                self._figures.errors += 1
                self._figures.last_error = f"{directory}: {problem.strerror}"
            return []
        self._denied.discard(directory)
        return names

    def _watch(self, directory: str, mask: int) -> None:
        if self._watcher is not None:
            self._watcher.watch(directory, mask=mask)

    def _unwatch(self, directory: str) -> None:
        if self._watcher is not None:
            self._watcher.unwatch(directory)

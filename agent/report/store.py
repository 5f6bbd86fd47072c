"""Durable state in one SQLite file: positions together with what was found up to them. Never decides what to keep.

A position and the objects it gave rise to are one transaction. After a kill at any point the sources go on from the
last position that was committed, and everything found before it is there: each signal counts once.

`synchronous=NORMAL` with a write-ahead log costs no disk flush per commit. A power cut may lose the newest commits,
but loses positions and objects together, so what was lost is simply read again.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

SCHEMA_VERSION = 2
FILE_NAME = "state.db"

FAULT, FAILURE, VERDICT = "fault", "failure", "verdict"
"""The kinds of objects that a snapshot names; others may be stored too."""

_BUSY_TIMEOUT = 0.25
"""Seconds a commit waits for another process that reads the file by hand. The event loop may be waiting for us."""

_KEPT_ASIDE = 2
"""How many unusable files are kept for a person to look at."""

_SCHEMA = """
CREATE TABLE positions (source TEXT PRIMARY KEY, body BLOB NOT NULL, changed REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (
    kind TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, changed REAL NOT NULL, PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class StoreInUseError(Exception):
    """Another agent works on the same state: two would report everything twice."""


class UndecodableError(ValueError):
    """A stored body that is no value of the kind asked for."""


def encode(value: object) -> bytes:
    """A word of `agent.model` (or any dataclass, struct or plain value) as JSON bytes."""
    return msgspec.json.encode(value)


def decode(body: bytes, kind: type[T]) -> T:
    """The value of an encoded body. Fields unknown to this version are ignored. Raises UndecodableError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableError(f"not a {kind.__name__}: {error}") from None


def decode_all(bodies: Mapping[str, bytes], kind: type[T]) -> tuple[dict[str, T], tuple[str, ...]]:
    """The values by id, and the ids of those that could not be decoded (written by a version with other fields)."""
    values: dict[str, T] = {}
    bad: list[str] = []
    for name, body in bodies.items():
        try:
            values[name] = decode(body, kind)
        except UndecodableError:
            bad.append(name)
    return values, tuple(bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that is stored. `outbox` holds (sequence, body), oldest first; the rest is by id."""

    positions: Mapping[str, bytes] = field(default_factory=dict)
    objects: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    outbox: tuple[tuple[int, bytes], ...] = ()
    meta: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def faults(self) -> Mapping[str, bytes]:
        return self.objects.get(FAULT, {})

    @property
    def failures(self) -> Mapping[str, bytes]:
        return self.objects.get(FAILURE, {})

    @property
    def verdicts(self) -> Mapping[str, bytes]:
        return self.objects.get(VERDICT, {})


class _Pending:
    """Changes that are not on disk yet: the latest per key, so that its size is bounded by what exists."""

    __slots__ = ("done", "dropped", "lossy", "meta", "objects", "outbox", "positions")

    def __init__(self) -> None:
        self.positions: dict[str, bytes] = {}
        self.objects: dict[tuple[str, str], bytes | None] = {}
        self.meta: dict[str, bytes] = {}
        self.outbox: dict[int, bytes] = {}
        self.done: set[int] = set()
        self.dropped = 0
        self.lossy = False
        """Something that was found is gone: until the disk takes changes again, no position may pass it."""

    @property
    def empty(self) -> bool:
        return not (self.positions or self.objects or self.meta or self.outbox or self.done)

    @property
    def size(self) -> int:
        return len(self.positions) + len(self.objects) + len(self.meta) + len(self.outbox) + len(self.done)

    def bound(self, limit: int) -> None:
        """Forget the oldest beyond `limit` of each sort, and then every position: from an older one, what was
        forgotten is read again."""
        gone = _trim(self.objects, limit) + _trim(self.outbox, limit)
        self.lossy = self.lossy or gone > 0
        if self.lossy:
            self.positions.clear()
        self.dropped += gone + _trim(self.positions, limit)


def _trim(entries: dict[K, V], limit: int) -> int:
    over = max(len(entries) - limit, 0)
    for key in list(itertools.islice(entries, over)):
        del entries[key]
    return over


class Store:
    """The state file. Made by :meth:`open`; a store without a file keeps nothing beyond the process.

    Safe to use from several threads (`asyncio.to_thread`): a lock orders the calls. Apart from StoreInUseError at the
    start it never raises for what the disk does: `durable` is then false and `error` says why.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_bytes: int = 64 << 20,
        max_pending: int = 10_000,
        retry_seconds: float = 1.0,
    ) -> None:
        self.path = None if directory is None else directory / FILE_NAME
        self.error = ""
        self.errors = 0
        self.commits = 0
        self.notices: list[str] = []
        """What a person should know of the opening: a file that was moved aside, and why."""
        self._clock, self._monotonic = clock, monotonic
        self._max_bytes, self._max_pending, self._retry_seconds = max_bytes, max_pending, retry_seconds
        self._pending = _Pending()
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._guard: int | None = None
        self._not_before = float("-inf")
        # Microseconds since the epoch, so that a number given out while the disk is away meets none on it later.
        self._next_seq = int(clock() * 1_000_000)

    @classmethod
    def open(
        cls,
        directory: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_bytes: int = 64 << 20,
        max_pending: int = 10_000,
        retry_seconds: float = 1.0,
    ) -> Store:
        """The store in `directory` (made where it is missing); None: memory only.

        A file that is damaged or of a newer version is moved aside and a new one begun (`notices`). A directory that
        cannot be used makes a store that is not durable and tries again at each commit. Raises StoreInUseError.
        """
        store = cls(
            directory,
            clock=clock,
            monotonic=monotonic,
            max_bytes=max_bytes,
            max_pending=max_pending,
            retry_seconds=retry_seconds,
        )
        if directory is not None:
            try:
                store._connect()
            except (OSError, sqlite3.Error) as error:
                store._failed(error)
        return store

    @property
    def durable(self) -> bool:
        """True when everything committed so far is on disk."""
        return self._db is not None and not self.error

    @property
    def pending(self) -> int:
        """How many changes wait in memory for a disk that takes them."""
        return self._pending.size

    @property
    def dropped(self) -> int:
        """How many waiting changes were given up because too many waited."""
        return self._pending.dropped

    def load(self) -> Snapshot:
        """What is on disk; empty when it cannot be read (`error` says why) or there is no file."""
        with self._lock:
            if self._db is None:
                return Snapshot()
            try:
                objects: dict[str, dict[str, bytes]] = {}
                for kind, name, body in self._db.execute("SELECT kind, id, body FROM objects ORDER BY changed, id"):
                    objects.setdefault(kind, {})[name] = bytes(body)
                return Snapshot(
                    outbox=self.queue(),
                    positions={k: bytes(v) for k, v in self._db.execute("SELECT source, body FROM positions")},
                    objects=objects,
                    meta={k: bytes(v) for k, v in self._db.execute("SELECT key, value FROM meta")},
                )
            except sqlite3.Error as error:
                self._failed(error)
                return Snapshot()

    def commit(
        self,
        *,
        positions: Mapping[str, bytes] | None = None,
        put: Iterable[tuple[str, str, bytes]] = (),
        drop: Iterable[tuple[str, str]] = (),
        outbox: Iterable[bytes] = (),
        done: Iterable[int] = (),
        meta: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Write all of it in one transaction, with whatever waited before it; True when it is on disk.

        `put` holds (kind, id, body), `drop` (kind, id), applied after `put`; `done` the sequences of outbox entries
        that were delivered. When the disk refuses, the changes wait in memory, latest per key, and go with the first
        commit that succeeds; a refused disk is asked again after `retry_seconds`.
        """
        with self._lock:
            pending = self._pending
            for body in outbox:
                pending.outbox[self._next_seq] = body
                self._next_seq += 1
            for seq in done:
                if pending.outbox.pop(seq, None) is None:
                    pending.done.add(seq)
            if self.path is None:
                pending.done.clear()
                pending.bound(self._max_pending)
                return False
            pending.positions.update(positions or {})
            for kind, name, body in put:
                pending.objects.pop((kind, name), None)  # so that the order stays that of the last change
                pending.objects[kind, name] = body
            for kind, name in drop:
                pending.objects.pop((kind, name), None)
                pending.objects[kind, name] = None
            pending.meta.update(meta or {})
            if self.error and self._monotonic() < self._not_before:
                pending.bound(self._max_pending)
                return False
            return self.flush()

    def queue(self) -> tuple[tuple[int, bytes], ...]:
        """The outbox as (sequence, body), oldest first: what waits on disk and, with or without one, in memory."""
        with self._lock:
            waiting = {s: b for s, b in self._pending.outbox.items()}
            if self._db is not None:
                try:
                    for seq, body in self._db.execute("SELECT seq, body FROM outbox"):
                        waiting.setdefault(seq, bytes(body))
                except sqlite3.Error as error:
                    self._failed(error)
            return tuple(sorted((s, b) for s, b in waiting.items() if s not in self._pending.done))

    def flush(self) -> bool:
        """Try to write what waits, at once; True when nothing waits any more."""
        with self._lock:
            if self.path is None:
                return False
            try:
                if self._db is None:
                    self._connect()
                if self._pending.lossy:
                    self._pending.positions.clear()
                if not self._pending.empty:
                    self._write(self._pending)
            except (OSError, sqlite3.Error, StoreInUseError) as error:
                self._failed(error)
                self._pending.bound(self._max_pending)
                return False
            dropped, self._pending = self._pending.dropped, _Pending()
            self._pending.dropped = dropped
            self.error = ""
            return True

    def prune(self, kind: str, *, older_than: float, keep: Collection[str] = (), at_most: int | None = None) -> int:
        """Delete objects of a kind last changed before `older_than` (epoch seconds), and the oldest beyond `at_most`.

        Ids in `keep` stay in any case. Returns how many went; 0 when the disk refuses.
        """
        with self._lock:
            if self._db is None:
                return 0
            try:
                rows = self._db.execute(
                    "SELECT id, changed FROM objects WHERE kind = ? ORDER BY changed, id", (kind,)
                ).fetchall()
                over = 0 if at_most is None else len(rows) - at_most
                gone = [
                    (kind, name)
                    for i, (name, at) in enumerate(rows)
                    if name not in keep and (at < older_than or i < over)
                ]
                if gone:
                    with _Transaction(self._db) as db:
                        db.executemany("DELETE FROM objects WHERE kind = ? AND id = ?", gone)
                return len(gone)
            except sqlite3.Error as error:
                self._failed(error)
                return 0

    def prune_positions(self, *, older_than: float, keep: Collection[str] = ()) -> int:
        """Delete positions last stored before `older_than` (epoch seconds), but none in `keep`; how many went."""
        return self._prune("positions", "source", "changed < ?", (older_than,), keep)

    def prune_meta(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        """Delete the meta values whose keys begin with `prefix`, but none in `keep`; how many went."""
        return self._prune("meta", "key", "substr(key, 1, ?) = ?", (len(prefix), prefix), keep)

    def _prune(self, table: str, key: str, where: str, values: tuple[object, ...], keep: Collection[str]) -> int:
        with self._lock:
            if self._db is None:
                return 0
            try:
                rows = self._db.execute(f"SELECT {key} FROM {table} WHERE {where}", values).fetchall()
                gone = [(name,) for (name,) in rows if name not in keep]
                if gone:
                    with _Transaction(self._db) as db:
                        db.executemany(f"DELETE FROM {table} WHERE {key} = ?", gone)
                return len(gone)
            except sqlite3.Error as error:
                self._failed(error)
                return 0

    def close(self) -> None:
        """Write what waits, then let go of the file. May be called twice."""
        with self._lock:
            if self._db is not None:
                self.flush()
            self._disconnect()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, changes: _Pending) -> None:
        assert self._db is not None
        now = self._clock()
        with _Transaction(self._db) as db:
            # Deletions first: in a full file they make the room for what follows.
            db.executemany(
                "DELETE FROM objects WHERE kind = ? AND id = ?",
                [key for key, body in changes.objects.items() if body is None],
            )
            db.executemany("DELETE FROM outbox WHERE seq = ?", [(seq,) for seq in changes.done])
            db.executemany(
                "INSERT INTO objects VALUES (?, ?, ?, ?) "
                "ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body, changed = excluded.changed",
                [(kind, name, body, now) for (kind, name), body in changes.objects.items() if body is not None],
            )
            db.executemany("INSERT OR REPLACE INTO outbox VALUES (?, ?)", list(changes.outbox.items()))
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(changes.meta.items()))
            db.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?)",
                [(source, body, now) for source, body in changes.positions.items()],
            )
        self.commits += 1

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self._not_before = self._monotonic() + self._retry_seconds
        self.error = _explain(error, self.path)

    def _connect(self) -> None:
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._take_guard()
        try:
            self._db = self._open_file()
        except _UnusableError as unusable:
            self._move_aside(unusable)
            self._db = self._open_file()
        (last,) = self._db.execute("SELECT max(seq) FROM outbox").fetchone()
        self._next_seq = max(self._next_seq, (last or 0) + 1)

    def _take_guard(self) -> None:
        """Hold a lock beside the file for as long as we live; the kernel lets go of it however we die."""
        if self._guard is not None:
            return
        assert self.path is not None
        guard = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            try:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    holder = os.pread(guard, 32, 0).decode("ascii", "replace").strip() or "unknown"
                    raise StoreInUseError(
                        f"{self.path}: another agent (pid {holder}) works on this state; stop it, or give this one "
                        "its own state_dir"
                    ) from None
                raise
            finally:
                os.close(guard)
        self._guard = guard
        try:
            os.ftruncate(guard, 0)
            os.pwrite(guard, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # a full disk: the lock holds without the number, which only serves a message

    def _open_file(self) -> sqlite3.Connection:
        assert self.path is not None
        db = sqlite3.connect(
            self.path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        try:
            # Read before the first write: a damaged file must not be written to.
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                known = f"(schema {version}, known: {SCHEMA_VERSION})"
                raise _UnusableError("newer", f"was written by a newer version {known}")
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise _UnusableError("damaged", f"is damaged: {verdict}")
            (tables,) = db.execute(
                "SELECT count(*) FROM sqlite_master WHERE name IN ('positions', 'objects', 'outbox', 'meta')"
            ).fetchone()
            if tables != (4 if version else 0):
                raise _UnusableError("foreign", "does not hold our tables")
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(f"PRAGMA journal_size_limit={4 << 20}")
            (page,) = db.execute("PRAGMA page_size").fetchone()
            db.execute(f"PRAGMA max_page_count={max(self._max_bytes // page, 16)}")
            if version == 0:
                with _Transaction(db):
                    for statement in _SCHEMA.split(";"):
                        if statement.strip():
                            db.execute(statement)
                    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            elif version == 1:
                with _Transaction(db):
                    db.execute("ALTER TABLE positions ADD COLUMN changed REAL NOT NULL DEFAULT 0")
                    db.execute("UPDATE positions SET changed = ?", (self._clock(),))
                    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        except _UnusableError:
            db.close()
            raise
        except sqlite3.OperationalError:
            db.close()
            raise
        except sqlite3.DatabaseError as error:
            db.close()
            raise _UnusableError("damaged", f"is damaged: {error}") from None
        return db

    def _move_aside(self, unusable: _UnusableError) -> None:
        assert self.path is not None
        aside = self.path.with_name(f"{self.path.name}.{unusable.word}-{int(self._clock())}")
        # The main file goes last: when we die in between, the next start sees it and finishes the job.
        for suffix in ("-wal", "-shm", ""):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.replace(aside.with_name(aside.name + suffix))
        self.notices.append(
            f"{self.path} {unusable.why}; moved to {aside.name} and begun anew: what lies in the logs is reported again"
        )
        earlier = [p for p in self.path.parent.glob(f"{self.path.name}.*-*") if not p.name.endswith(("-wal", "-shm"))]
        for old in sorted(earlier, key=lambda p: p.stat().st_mtime)[:-_KEPT_ASIDE]:
            for suffix in ("-wal", "-shm", ""):
                old.with_name(old.name + suffix).unlink(missing_ok=True)

    def _disconnect(self) -> None:
        if self._db is not None:
            try:
                self._db.close()
            except sqlite3.Error as error:
                self._failed(error)
            self._db = None
        if self._guard is not None:
            os.close(self._guard)
            self._guard = None


class _UnusableError(Exception):
    """A state file that this version cannot go on with; `word` becomes part of its new name."""

    def __init__(self, word: str, why: str) -> None:
        self.word, self.why = word, why
        super().__init__(why)


class _Transaction:
    """All or nothing. sqlite3's own context manager leaves BEGIN to its guess of what a statement is."""

    __slots__ = ("_db",)

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._db.execute("COMMIT")
                return
            except sqlite3.Error:
                self._rollback()
                raise
        self._rollback()

    def _rollback(self) -> None:
        # A full disk may have rolled back by itself already.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")


def _explain(error: Exception, path: Path | None) -> str:
    """One sentence: what failed, and the cure where there is one."""
    said = str(error) or type(error).__name__
    if isinstance(error, OSError):
        said = os.strerror(error.errno) if error.errno else said
    cure = ""
    if "full" in said or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        cure = "free space there or raise limits.store_bytes"
    elif "readonly" in said or "unable to open" in said or getattr(error, "errno", None) in (errno.EACCES, errno.EROFS):
        cure = "mount a writable directory there (hostPath or emptyDir) or set state_dir"
    elif "locked" in said:
        cure = "another program holds the file; close it"
    elif "malformed" in said or "not a database" in said:
        cure = "restart the agent: it moves the damaged file aside"
    if isinstance(error, StoreInUseError):
        return said
    return f"{path}: {said}" + (f"; {cure}" if cure else "") + ". The state is kept in memory until then"

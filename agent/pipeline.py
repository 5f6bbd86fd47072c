"""From what the sources read to what is known and stored: detection, diagnosis, one commit. Waits for nothing.

Everything that a batch changed is committed together with the position after it, so that a kill at any point loses and
repeats nothing. A batch that changed nothing moves its position with the next commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from agent.detect.container import ContainerDetector, StreamState
from agent.detect.kernel import KernelDetector
from agent.detect.server_info import server_signals
from agent.diagnose.diagnostician import Changes, Diagnostician
from agent.diagnose.knowledge import Knowledge
from agent.model import Allocation, ContainerRef, Evidence, Failure, Fault, Signal
from agent.report.store import FAILURE, FAULT, Store, UndecodableError, decode, decode_all, encode
from agent.rulebook import Rulebook
from agent.sources.kernel import Cursor, KernelRecord
from agent.sources.logs.follow import Chunk, Position
from agent.sources.sglang import Answered

KERNEL = "kernel"
LOGS = "log:"
DETECTOR = "kernel-detector"
LOADED = "driver-loaded"
STREAM_LIMIT = 2000

LIVE_HIT_LIMIT = 64
"""Finds in a mebibyte of a live log that are looked at one by one: a flood of errors must not delay the kernel log."""


class Listener(Protocol):
    """Who is told what a batch led to, in the same turn; what it returns is stored in the same commit."""

    def signals(self, signals: Sequence[Signal], *, read: float) -> None: ...

    def changed(self, changes: Changes) -> list[tuple[str, str, bytes]]:
        """Objects (kind, id, body) to store beside the changes."""
        ...


@dataclass(slots=True)
class PipelineFigures:
    kernel_records: int = 0
    log_chunks: int = 0
    deferred: int = 0
    restored: int = 0
    undecodable: tuple[str, ...] = ()


class Pipeline:
    """The agent's state: detectors, diagnosis, store. One for each process."""

    def __init__(
        self,
        book: Rulebook,
        *,
        store: Store,
        listener: Listener,
        clock: Callable[[], float],
        boot_id: str,
        window: float,
        by_content: Callable[[ContainerRef], bool] = lambda _: False,
        on_ready: Callable[[ContainerRef, Mapping[str, str]], None] = lambda _container, _facts: None,
    ) -> None:
        """`on_ready` is told each server that says it is ready, with the facts of its log."""
        self._on_ready = on_ready
        self._store, self._listener, self._clock = store, listener, clock
        self._loaded_key = f"{LOADED}/{boot_id}"
        self.driver_loaded: float | None = None
        """When the kernel log last said, in this boot, that the driver was loaded (epoch seconds)."""
        self._detector_key = f"{DETECTOR}/{boot_id}"  # bus addresses keep their UUIDs for one boot only
        self._by_content = by_content
        self.figures = PipelineFigures()
        self.book = book
        self._containers = _detector(book)
        self._kernel = KernelDetector(book.catalogue, [r for r in book.rules if r.reads in ("kernel", "any")])
        self.diagnostician = Diagnostician(
            self._knowledge(book), window=window, kernel_read=False, boot=boot_id, images=lambda: self.book.images
        )
        self._streams: dict[str, StreamState] = {}
        self._recognised: dict[str, bool] = {}
        self._waiting: dict[str, bytes] = {}
        self._detector_state = b""
        self._stored_load: float | None = None

    @staticmethod
    def _knowledge(book: Rulebook) -> Knowledge:
        return Knowledge.of(book.rules, lambda: book.catalogue, book.alternatives)

    # -- life

    def restore(self) -> tuple[Cursor | None, dict[str, Position]]:
        """Takes up what an earlier run knew; returns where the kernel log and each container's log go on."""
        snapshot = self._store.load()
        faults, bad = decode_all(snapshot.faults, Fault)
        failures, bad_too = decode_all(snapshot.failures, Failure)
        self.figures.undecodable = (*bad, *bad_too)
        self.figures.restored = len(faults) + len(failures)
        self.diagnostician.restore(faults=faults.values(), failures=failures.values())
        if (kept := snapshot.meta.get(self._detector_key)) is not None:
            try:
                self._kernel.restore(decode(kept, dict))
                self._detector_state = kept
            except UndecodableError as error:
                self._store.notices.append(f"what the kernel log's detector knew is begun anew: {error}")
        if (loaded := snapshot.meta.get(self._loaded_key)) is not None:
            with suppress(UndecodableError):  # then only a later load is known
                self.driver_loaded = decode(loaded, float)
        cursor: Cursor | None = None
        positions: dict[str, Position] = {}
        for key, body in snapshot.positions.items():
            try:
                if key == KERNEL:
                    cursor = decode(body, Cursor)
                elif key.startswith(LOGS) and (position := Position.from_json(decode(body, dict))) is not None:
                    positions[key.removeprefix(LOGS)] = position
            except UndecodableError as error:
                self._store.notices.append(f"the position of {key} is not taken up, it is read anew: {error}")
        return cursor, positions

    def learn(self, book: Rulebook) -> None:
        """Takes other rules into force, between two batches; known faults and failures are worded anew."""
        self.book = book
        self._containers = _detector(book)
        kept = self._kernel.state()
        self._kernel = KernelDetector(book.catalogue, [r for r in book.rules if r.reads in ("kernel", "any")])
        self._kernel.restore(kept)
        self._commit(self.diagnostician.learn(self._knowledge(book)), {})

    def flush(self) -> None:
        """Stores positions that no finding carried along, with what was learned up to them."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._store.commit(positions=waiting, meta=self._learned())

    # -- what the sources bring

    def kernel_readable(self, readable: bool) -> None:
        """The kernel log can be read now, or no longer: silence means something, or nothing."""
        if self.diagnostician.kernel_read is not readable:
            self.diagnostician.kernel_read = readable
            self._commit(self.diagnostician.reconsider(), {})

    def kernel(self, records: Iterable[KernelRecord], cursor: Cursor | None) -> None:
        """A batch of kernel records; `cursor` is the place after them."""
        read = self._clock()
        signals: list[Signal] = []
        for record in records:
            self.figures.kernel_records += 1
            signals += self._kernel.signals(record.text, time=record.time, source="kernel log", line=None)
        for signal in signals:
            if signal.fields.get("marker") == LOADED and signal.time is not None:
                self.driver_loaded = signal.time
        positions = {} if cursor is None else {KERNEL: encode(cursor)}
        self._take(signals, positions, read)

    def chunk(self, chunk: Chunk) -> None:
        """A block of one container's log."""
        read = self._clock()
        self.figures.log_chunks += 1
        container = chunk.stream.container
        state = self._stream(chunk)
        signals = self._containers.signals(chunk.data, state=state, container=container, source=str(container))
        if signals and self._by_content(container):
            signals = self._of_interest(signals, container)
        positions = {LOGS + container.key: encode(chunk.position.to_json())}
        self._take(signals, positions, read)
        if any(s.fields.get("ready") == "yes" for s in signals):
            self._on_ready(container, self.diagnostician.facts(container))

    def node(self, facts: Mapping[str, str], *, source: str) -> None:
        """Facts about this node (its driver); `source` is where they were read."""
        text = ", ".join(f"{name}={value}" for name, value in sorted(facts.items()))
        evidence = Evidence(source=source, text=text, time=self._clock())
        self._commit(self.diagnostician.node(facts, evidence=evidence, time=self._clock()), {})

    def server(self, answered: Answered) -> None:
        """What a running server said of itself."""
        info, model, metrics = (
            answer.body if answer is not None and answer.ok else None
            for answer in (answered.info, answered.model, answered.metrics)
        )
        signals = server_signals(
            answered.container,
            source=str(answered.server.url("")).rstrip("/"),
            time=answered.time,
            info=info,
            model=model,
            metrics=metrics,
        )
        self._take(signals, {}, self._clock())

    def adopt(self, faults: Iterable[Fault]) -> None:
        """Faults that a mark in the cluster tells of; those that are known here already are left as they are."""
        changes = self.diagnostician.adopt(faults)
        if changes:
            self._commit(changes, {})

    def end(self, over: Mapping[str, str], *, at: float) -> None:
        """Faults that are over, by id, and why."""
        changes = self.diagnostician.end(over, at=at)
        if changes:
            self._commit(changes, {})

    def held(self, allocations: Iterable[Allocation]) -> None:
        """What containers hold now."""
        self._commit(self.diagnostician.held(allocations), {})

    @property
    def capture_timeouts(self) -> int:
        return self._containers.figures.capture_timeouts

    @property
    def sampled_blocks(self) -> int:
        return self._containers.figures.sampled_blocks

    @property
    def log_bytes(self) -> int:
        return self._containers.figures.bytes

    def uuids(self) -> Mapping[str, str]:
        """PCI address -> UUID, as the driver told them in the kernel log."""
        return {str(pci): uuid for pci, uuid in self._kernel.uuids.items()}

    # -- inside

    def _stream(self, chunk: Chunk) -> StreamState:
        key = chunk.stream.container.key
        state = self._streams.pop(key, None)
        if state is None or chunk.started or state.offset != chunk.offset:
            state = StreamState(offset=chunk.offset)
        self._streams[key] = state
        if len(self._streams) > STREAM_LIMIT:
            del self._streams[next(iter(self._streams))]
        return state

    def _of_interest(self, signals: list[Signal], container: ContainerRef) -> list[Signal]:
        """For a container that nothing but its text identifies: SGLang's own words, and errors a GPU may be behind."""
        rules = {r.id: r for r in self.book.rules} if not self._recognised.get(container.key) else {}
        if not rules:
            return signals
        if any((rule := rules.get(s.rule)) is not None and rule.engine == "sglang" for s in signals):
            if len(self._recognised) > STREAM_LIMIT:
                self._recognised.clear()
            self._recognised[container.key] = True
            return signals
        return [s for s in signals if (rule := rules.get(s.rule)) is not None and rule.suspects]

    def _take(self, signals: list[Signal], positions: dict[str, bytes], read: float) -> None:
        if not signals:
            self._waiting |= positions
            self.figures.deferred += 1
            return
        self._listener.signals(signals, read=read)
        self._commit(self.diagnostician.apply(signals), positions)

    def _learned(self) -> dict[str, bytes]:
        """The kernel detector's state, when it is not the one that is stored: UUIDs by bus address, a begun message."""
        learned = {}
        state = encode(self._kernel.state())
        if state != self._detector_state:
            self._detector_state = state
            learned[self._detector_key] = state
        if self.driver_loaded != self._stored_load:
            self._stored_load = self.driver_loaded
            learned[self._loaded_key] = encode(self.driver_loaded)
        return learned

    def _commit(self, changes: Changes, positions: dict[str, bytes]) -> None:
        put = self._listener.changed(changes) if changes else []
        put += [(FAULT, f.id, encode(f)) for f in changes.faults.values()]
        put += [(FAILURE, f.id, encode(f)) for f in changes.failures.values()]
        meta = self._learned()
        if put or changes.dropped or positions or meta:
            waiting, self._waiting = self._waiting, {}
            self._store.commit(
                positions=waiting | positions,
                put=put,
                drop=[(FAILURE if i.startswith("failure-") else FAULT, i) for i in changes.dropped if _stored(i)],
                meta=meta,
            )


def _detector(book: Rulebook) -> ContainerDetector:
    detector = ContainerDetector(book.rules, anchors=book.anchors, limit=LIVE_HIT_LIMIT)
    detector.prepare()
    return detector


def _stored(name: str) -> bool:
    return name.startswith(("failure-", "fault-"))


@dataclass(slots=True)
class NullListener:
    """Keeps what it was told; for tests and for tools without reports."""

    seen: list[Signal] = field(default_factory=list)

    def signals(self, signals: Sequence[Signal], *, read: float) -> None:
        self.seen += signals

    def changed(self, changes: Changes) -> list[tuple[str, str, bytes]]:
        return []

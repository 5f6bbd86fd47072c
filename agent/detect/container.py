"""Turns blocks of container log bytes into signals. Reads no file and judges no GPU: a tenant wrote this text."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_
from typing import NamedTuple, Protocol, cast

import regex

from agent.detect.documents import OF_A_DOCUMENT, DocumentState
from agent.detect.framing import Framed, PartialJoiner, frame, open_envelope
from agent.detect.literals import HIT_LIMIT, LiteralIndex
from agent.detect.redact import redact
from agent.detect.rules import Rule
from agent.detect.server_args import facts_of, parse_server_args
from agent.model import NO_GPU, ContainerRef, Evidence, GpuRef, Role, Signal, parse_pci

LINE_CAP = 256 * 1024
"""The most bytes of one line that are looked at: a `server_args` line of 20 kB must come whole, a bomb must not."""

EVIDENCE_CAP = 600
"""The most characters of a line that are quoted."""

MARGIN = 4096
"""Characters beyond what is quoted that are searched for secrets: one may begin in the quotation and end behind it."""

SLOW_RULES = 2
"""Rules that may run out of time on one line before the line is left: a hostile one must not meet them all."""

VARIANTS = 16
"""Different signals of one rule that one block may give; what comes after is counted with the last of them."""

REPEATS = 512
"""Different lines of one block that are remembered, to know them when they come again."""

TRACEBACK_REACH = 128 * 1024
"""Bytes after the head of a traceback within which its last line still belongs to the head's rank."""

_PARTIAL_MARKS = (b" stdout P ", b" stderr P ")
_DOCKER = b'{"log":"'


class Block(Protocol):
    """A stretch of a log: bytes, a memoryview, or a file that is read where it is looked at."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


@dataclass(slots=True)
class StreamState:
    """What must be remembered between two blocks of one log."""

    offset: int = 0
    docker: bool | None = None
    joiner: PartialJoiner = field(default_factory=lambda: PartialJoiner(cap=LINE_CAP))
    ranks: set[str] = field(default_factory=set)
    ranks_at: int = 0
    ranks_used: bool = False
    document: DocumentState = field(default_factory=DocumentState)


class Line(NamedTuple):
    offset: int
    text: bytes
    """One physical line in its envelope, or the joined content of a split record."""
    literals: tuple[int, ...]
    time: float | None = None
    """The runtime's stamp of a joined record; its content has none."""


@dataclass(slots=True)
class DetectorFigures:
    """Counts since the start, read by `report`."""

    bytes: int = 0
    hits: int = 0
    sampled_blocks: int = 0
    capture_timeouts: int = 0
    abandoned_lines: int = 0
    """Lines left before all their rules were tried."""
    cut_lines: int = 0


class ContainerDetector:
    """All rules that read container text, compiled once; one StreamState for each log."""

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        extras: Sequence[bytes] = (),
        anchors: Sequence[bytes] = (),
        limit: int = HIT_LIMIT,
    ) -> None:
        """`extras` are further texts to look for in the same pass; `met` holds the places of those that were found.

        `anchors` are fragments chosen for the rules' literals (`choose_anchors`): they make it fast. `limit` is how
        many finds of a block are looked at before it is only sampled.
        """
        self.met: set[int] = set()
        self._limit = limit
        self.rules = tuple(r for r in rules if r.reads in ("container", "any") and r.role is not Role.ADVICE)
        owners: dict[bytes, list[int]] = {}
        for i, rule in enumerate(self.rules):
            for literal in rule.literals:
                owners.setdefault(literal.encode(), []).append(i)
        self._owners = [tuple(ids) for ids in owners.values()]
        self._marks = len(owners)
        self._extras = self._marks + len(_PARTIAL_MARKS)
        anchors = (*anchors, *_PARTIAL_MARKS) if anchors else ()
        self._index = LiteralIndex((*owners, *_PARTIAL_MARKS, *extras), anchors=anchors)
        self.figures = DetectorFigures()

    def signals(
        self,
        block: Block,
        *,
        state: StreamState,
        container: ContainerRef,
        source: str,
        line_number: Callable[[int], int | None] = lambda _: None,
        hits: tuple[Sequence[tuple[int, int]], int] | None = None,
    ) -> list[Signal]:
        """The signals in a block of whole lines that follows the last one of this stream.

        `line_number` gives the 1-based line of an offset in the stream, for each line that is quoted. `hits` are those
        of `scan` on this block, where that was done elsewhere. Equal signals of one block come once, with their count.
        """
        found: dict[Hashable, Signal] = {}
        again: dict[Hashable, tuple[Hashable, ...]] = {}
        variants: dict[str, list[Hashable]] = {}
        for line in self._lines(block, state, hits):
            framed = frame(line.text.decode("utf-8", "replace"))
            if line.time is not None:
                framed = framed._replace(time=line.time)
            # A log that repeats itself is read once: the same words from the same rank are the same signals.
            words = (framed.message, framed.rank, frozenset(state.ranks))
            key: Hashable
            if (known := again.get(words)) is not None:
                for key in known:
                    found[key] = with_(found[key], count=found[key].count + 1, time=framed.time)
                continue
            made: list[Hashable] = []
            read = list(self._of_line(line, framed, state, container, source, line_number))
            alone = not any(one.rule in OF_A_DOCUMENT for one in read)
            for signal in (s for one in read for s in state.document.refine(one, offset=line.offset)):
                key = (signal.rule, signal.rank, *sorted(signal.fields.items()))
                of_rule = variants.setdefault(signal.rule, [])
                if key not in found and len(of_rule) >= VARIANTS:
                    key = of_rule[-1]  # one more way to say the same: counted, not told
                seen = found.get(key)
                found[key] = signal if seen is None else with_(seen, count=seen.count + 1, time=signal.time)
                if seen is None:
                    of_rule.append(key)
                made.append(key)
            if alone and len(again) < REPEATS and words[2] == frozenset(state.ranks):
                again[words] = tuple(made)
        state.offset += len(block)
        self.figures.bytes += len(block)
        return list(found.values())

    def scan(self, block: bytes | memoryview) -> tuple[list[tuple[int, int]], bool]:
        """Where this detector's texts are in a block: see `LiteralIndex.scan`."""
        return self._index.scan(block, limit=self._limit)

    def prepare(self) -> None:
        """Makes now what the first hit would need."""
        self._index.prepare()

    @property
    def longest(self) -> int:
        """Bytes of the longest text that is searched for."""
        return self._index.longest

    @staticmethod
    def is_docker(head: bytes) -> bool:
        """True for the beginning of a log of docker's json-file driver, whose text must be decoded to be searched."""
        return head.startswith(_DOCKER)

    # -- lines that hold a literal

    def _lines(
        self, block: Block, state: StreamState, given: tuple[Sequence[tuple[int, int]], int] | None
    ) -> Iterator[Line]:
        if state.docker is None and len(block):
            state.docker = self.is_docker(bytes(block[: len(_DOCKER)]))
        if state.docker and given is None:
            yield from self._docker_lines(bytes(block[:]), state)
            return
        hits, sampled = self.scan(cast(bytes, block)) if given is None else given
        self.figures.sampled_blocks += sampled
        consumed = -1
        if state.joiner.waiting:
            consumed = yield from self._join(block, 0, state)
        start, stop, done = -1, -1, False
        literals: list[int] = []
        for literal, end in hits:
            if literal >= self._extras:
                self.met.add(literal - self._extras)
                continue
            if end > stop:
                if literals:
                    yield self._line(block, state, start, stop, literals)
                    literals = []
                start, stop = _bounds(block, end)
                done = start < consumed
                if not done and literal >= self._marks:
                    consumed = yield from self._join(block, start, state)
                    done = True
            if not done and literal < self._marks:
                literals.append(literal)
        if literals:
            yield self._line(block, state, start, stop, literals)

    @staticmethod
    def _line(block: Block, state: StreamState, start: int, stop: int, literals: list[int]) -> Line:
        return Line(state.offset + start, bytes(block[start : min(stop, start + LINE_CAP)]), tuple(literals))

    def _join(self, block: Block, start: int, state: StreamState) -> Generator[Line, None, int]:
        """Joins split records from `start` on until none is open; returns the offset up to which lines are used up.

        Lines of the other stream between the parts are looked at one by one.
        """
        at = start
        while at < len(block):
            stop = _line_end(block, at)
            raw = bytes(block[at : min(stop, at + LINE_CAP)])
            record = open_envelope(raw.decode("utf-8", "replace"))
            whole = state.joiner.feed(record.stream, record.content, partial=record.partial)
            if whole is not None:
                yield from self._whole(Line(state.offset + at, whole.encode(), (), record.time))
            at = stop + 1
            if not state.joiner.waiting:
                break
        self.figures.cut_lines += state.joiner.cut_lines
        state.joiner.cut_lines = 0
        return at

    def _whole(self, line: Line) -> Iterator[Line]:
        hits, _ = self._index.scan(line.text)
        literals = tuple(literal for literal, _ in hits if literal < self._marks)
        if literals:
            yield line._replace(literals=literals)

    def _docker_lines(self, block: bytes, state: StreamState) -> Iterator[Line]:
        at = 0
        for raw in block.split(b"\n"):
            if raw:
                # JSON escapes quotes and angle brackets, so literals are searched in the decoded text.
                framed = frame(raw[:LINE_CAP].decode("utf-8", "replace"))
                for line in self._whole(Line(state.offset + at, framed.message.encode(), ())):
                    yield line._replace(text=raw[:LINE_CAP])
            at += len(raw) + 1

    # -- one line

    def _of_line(
        self,
        line: Line,
        framed: Framed,
        state: StreamState,
        container: ContainerRef,
        source: str,
        line_number: Callable[[int], int | None],
    ) -> Iterator[Signal]:
        rules = [self.rules[i] for i in dict.fromkeys(i for literal in line.literals for i in self._owners[literal])]
        claimed, slow = False, 0
        evidence: Evidence | None = None
        for rule in sorted(rules, key=lambda r: r.role is Role.UNCLAIMED):
            if claimed and rule.role is Role.UNCLAIMED:
                break
            self.figures.hits += 1
            try:
                fields = rule.capture_fields(framed.message)
            except TimeoutError:
                self.figures.capture_timeouts += 1
                slow += 1
                if slow >= SLOW_RULES:
                    self.figures.abandoned_lines += 1
                    break
                continue
            if fields is not None:
                claimed = claimed or rule.role is not Role.CONTEXT
                evidence = evidence or Evidence(
                    source=source,
                    line=line_number(line.offset),
                    offset=line.offset,
                    text=shorten(_shown(framed.message)),
                    time=framed.time,
                )
                yield self._signal(rule, fields, framed, line, state, container, evidence)

    def _signal(
        self,
        rule: Rule,
        fields: dict[str, str],
        framed: Framed,
        line: Line,
        state: StreamState,
        container: ContainerRef,
        evidence: Evidence,
    ) -> Signal:
        if text := fields.pop("server_args", None):
            fields |= facts_of(parse_server_args(text) or {})
        fields = {k: _shown(v)[:EVIDENCE_CAP] for k, v in fields.items()} | dict(rule.facts)
        rank = self._rank(rule, framed, line.offset, state)
        xid = _int(fields.get("xid"))
        return Signal(
            rule=rule.id,
            role=rule.role,
            time=framed.time,
            fields=fields,
            gpu=_gpu(fields, rank),
            pid=_int(fields.get("pid")),
            xid=xid,
            container=container,
            rank=rank,
            evidence=evidence,
        )

    def _rank(self, rule: Rule, framed: Framed, offset: int, state: StreamState) -> int | None:
        """The tensor-parallel rank that wrote the line, or whose traceback it ends; None where two could have."""
        own = _tp_rank(framed.rank)
        if rule.facts.get("traceback") == "opens":
            if state.ranks_used or offset - state.ranks_at > TRACEBACK_REACH:
                state.ranks = set()
                state.ranks_used = False
            state.ranks.add(framed.rank)
            state.ranks_at = offset
            return own
        if own is None and not framed.rank and state.ranks and offset - state.ranks_at <= TRACEBACK_REACH:
            state.ranks_used = True
            if len(state.ranks) == 1:
                return _tp_rank(next(iter(state.ranks)))
        return own


def _shown(text: str) -> str:
    """The beginning of a tenant's text without secrets, ready to be stored; more than is shown of it, if there is.

    Looking for secrets is the dearest step of all, so that it is spared what nobody will see.
    """
    beginning = text[: EVIDENCE_CAP + MARGIN]
    clean = redact(beginning)
    if len(beginning) < len(text) and len(clean) <= EVIDENCE_CAP:
        # So much was hidden that the cut would show: what stands there may be a secret's half.
        kept, blank, _ = clean.rpartition(" ")
        clean = f"{kept}{blank}…"
    return encodable(clean)


def encodable(text: str) -> str:
    """The text without halves of surrogate pairs: what is stored and sent must be UTF-8."""
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def shorten(text: str, *, cap: int = EVIDENCE_CAP) -> str:
    """A line fit to quote: no control characters, at most `cap` characters."""
    text = text[: cap + 1].rstrip()
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= cap else text[: cap - 1] + "…"


_SURROGATE = regex.compile(r"[\ud800-\udfff]")
_TP = regex.compile(r"(?:^| )(?:TP|RANK)(\d+)")


def _tp_rank(head: str) -> int | None:
    found = _TP.search(head)
    return int(found[1]) if found else None


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 12 else None


def _gpu(fields: dict[str, str], rank: int | None) -> GpuRef:
    pci = parse_pci(fields["pci"]) if "pci" in fields else None
    uuid, index = fields.get("uuid"), _int(fields.get("gpu_index"))
    tp_rank = _int(fields.get("tp_rank"))
    if pci is None and uuid is None and index is None and tp_rank is None and rank is None:
        return NO_GPU
    return GpuRef(pci=pci, uuid=uuid, index=index, tp_rank=rank if tp_rank is None else tp_rank)


_WINDOW = 4096


def _bounds(block: Block, end: int) -> tuple[int, int]:
    """Start and end of the line around a hit that ends at `end`. Looks at a window: slicing copies nothing larger."""
    window = _WINDOW
    while True:
        low = max(0, end - window)
        cut = bytes(block[low:end]).rfind(b"\n")
        if cut >= 0 or low == 0:
            return (low + cut + 1 if cut >= 0 else 0), _line_end(block, end)
        window *= 8


def _line_end(block: Block, start: int) -> int:
    window = _WINDOW
    while True:
        high = min(len(block), start + window)
        cut = bytes(block[start:high]).find(b"\n")
        if cut >= 0:
            return start + cut
        if high == len(block):
            return high
        window *= 8

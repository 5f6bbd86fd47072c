"""Takes a container log's line out of its envelopes and gives the text that the program printed.

It must never judge what the text means, never fail on any input, and never eat text that belongs to the program:
an envelope is only taken off where its whole shape is there.

Two steps can be had apart, for logs whose long lines the runtime split: :func:`open_envelope` takes off what the
runtime and the tools put around a record, a :class:`PartialJoiner` puts split records together, and :func:`frame`
reads the joined text.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

_A = re.ASCII

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|[PX^_][^\x1b\n]{0,4096}\x1b\\|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)

_QUOTE = re.compile(r"(?:>(?!>) ?){1,6}")
"""Mail and forum quoting. `>>> ` is Python's prompt and stays."""

_STAMP = r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})"
_CRI = re.compile(_STAMP + r" (stdout|stderr) ([PF])(?::[^ ]{0,64})?(?: |\Z)", _A)
_KUBECTL_STAMP = re.compile(_STAMP + r"(?: |\Z)", _A)

_KUBECTL_PREFIX = re.compile(r"\[pod/[\w.-]{1,253}/[\w.-]{1,63}\](?: |\Z)", _A)
_ARROW = re.compile(r"[\w./-]{1,253}(?: [\w./-]{1,253})? › ?", _A)

_COMPOSE = re.compile(
    r"(?:[A-Za-z0-9][\w.-]{0,127}[-_][0-9]{1,4} {1,64}"  # service and replica: sglang-1, sglang_1
    r"|[A-Za-z0-9][\w.-]{0,127}@[\w.-]{1,127} {1,64}"  # a swarm task: sglang.1.x7k@node
    r"|[A-Za-z0-9][\w-]{0,127} {2,64})"  # container_name: no replica, so the padding must be there
    r"\|(?: |\Z)",
    _A,
)

_STERN_DEPLOYMENT = re.compile(
    r"[a-z0-9][a-z0-9.-]{0,200}-(?=[a-z0-9-]{0,15}[0-9])[a-z0-9]{6,10}-[a-z0-9]{5} "
    r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])? ",
    _A,
)
_STERN_OTHER = re.compile(
    r"[a-z0-9][a-z0-9.-]{0,200}-(?:[0-9]{1,4}|[a-z0-9]{5}) [a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])? "
    r"(?=\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]|Traceback \(most|  File \"|(?:\w+\.)*\w+(?:Error|Exception): )",
    _A,
)
"""A StatefulSet's or a Job's pod name alone is too common a shape: the text behind it must be a program's."""

_HEAD = re.compile(
    r"\[([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{3})?"
    r"((?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)[0-9]{1,6}){0,6})\](?: |\Z)",
    _A,
)
_TORCH_RANK = re.compile(r"\[rank([0-9]{1,6})\]:(?: |\Z)", _A)
"""What torch's exception hook puts before each line. Its C++ log heads (`[rank3]:[E716 ...`) have no blank and stay."""


class Framed(NamedTuple):
    """One line of a program, bare."""

    message: str
    """What the program printed, without envelopes and without SGLang's head."""
    time: float | None
    """Epoch seconds: the runtime's stamp, else kubectl's, else SGLang's head (taken as UTC), else None."""
    rank: str
    """``TP3``, ``DP0 TP3 EP3`` from SGLang's head, ``RANK3`` from torch's, or empty."""
    stream: str
    """``stdout``, ``stderr``, or empty where no runtime says it."""
    partial: bool
    """True where the runtime split the line and the rest follows in a later record."""


class Enveloped(NamedTuple):
    """A record as the runtime and the tools wrapped it, unwrapped. SGLang's head is still in `content`."""

    content: str
    time: float | None
    stream: str
    partial: bool
    enveloped: bool
    """True where there was an envelope of a runtime or a tool (not only quoting or colour)."""


def strip_ansi(text: str) -> str:
    """The text without terminal escape sequences (colour, cursor, window title)."""
    if "\x1b" in text or "\x9b" in text:
        return _ESCAPE.sub("", text)
    return text


def parse_stamp(base: str, fraction: str | None, zone: str) -> float | None:
    """Epoch seconds of an RFC 3339 stamp in its three parts; None for a date that does not exist."""
    try:
        at = datetime.fromisoformat(base)
        offset = timedelta(0)
        if zone != "Z":
            offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])) * (-1 if zone[0] == "-" else 1)
        seconds = at.replace(tzinfo=timezone(offset) if offset else UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


class _Peeled(NamedTuple):
    content: str
    stamp: tuple[str, str | None, str] | None
    stream: str
    partial: bool
    enveloped: bool


def _docker(line: str) -> _Peeled | None:
    """A record of docker's json-file driver. A record without a newline at its end was split by docker."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("log"), str):
        return None
    stream, when = record.get("stream"), record.get("time")
    if not isinstance(when, str) and stream not in ("stdout", "stderr"):
        return None  # a program's own JSON, which happens to have a key of that name
    log: str = record["log"]
    if not log.isascii():
        log = log.encode("utf-8", "replace").decode()  # half a surrogate pair must not break whoever writes the text
    stamp = _KUBECTL_STAMP.fullmatch(when) if isinstance(when, str) else None
    return _Peeled(
        log[:-1] if log.endswith("\n") else log,
        (stamp[1], stamp[2], stamp[3]) if stamp else None,
        stream if stream in ("stdout", "stderr") else "",
        not log.endswith("\n"),
        True,
    )


def _tool_prefix(line: str) -> int:
    """The length of what kubectl, stern or compose puts before a line; 0 for none."""
    first = line[:1]
    if first == "[":
        found = _KUBECTL_PREFIX.match(line)
        return found.end() if found else 0
    if not first.isalnum():
        return 0
    head = line[:400]
    if "|" in head and (found := _COMPOSE.match(line)):
        # A row of a program's own table has more columns, or ends in the frame.
        return 0 if "|" in line[found.end() :] and line.rstrip().endswith("|") else found.end()
    if "›" in head and (found := _ARROW.match(line)):
        return found.end()
    if "-" in head and (found := _STERN_DEPLOYMENT.match(line) or _STERN_OTHER.match(line)):
        return found.end()
    return 0


def _peel(line: str) -> _Peeled:
    line = strip_ansi(line).rstrip("\r\n")
    if line[:1] in (">", "\ufeff"):
        line = line.lstrip("\ufeff")
        if quote := _QUOTE.match(line):
            line = line[quote.end() :]
    stamp: tuple[str, str | None, str] | None = None
    enveloped = prefixed = False
    # Tools wrap in either order (`[pod/x/y] 2026-... text`, `2026-... sglang-1  | text`), each at most once. Behind a
    # runtime's envelope everything is the program's.
    for _ in range(3):
        first = line[:1]
        if first.isdecimal():
            if cri := _CRI.match(line):
                own = (cri[1], cri[2], cri[3])
                return _Peeled(strip_ansi(line[cri.end() :]), own, cri[4], cri[5] == "P", True)
            if stamp is None and (found := _KUBECTL_STAMP.match(line)):
                stamp, line, enveloped = (found[1], found[2], found[3]), line[found.end() :], True
                continue
        elif first == "{" and '"log"' in line and (record := _docker(line)):
            return record._replace(content=strip_ansi(record.content), stamp=record.stamp or stamp)
        if prefixed or not (end := _tool_prefix(line)):
            break
        line, enveloped, prefixed = line[end:], True, True
    return _Peeled(line, stamp, "", False, enveloped)


def _last_fragment(content: str) -> str:
    """The text behind the last carriage return: what a terminal would show of a progress bar's line."""
    if "\r" not in content:
        return content
    fragments = content.rstrip("\r\n").split("\r")
    return next((text for text in reversed(fragments) if text and not text.isspace()), fragments[0])


def open_envelope(line: str) -> Enveloped:
    """One physical line (no newline) without what runtime and tools put around it. Total."""
    peeled = _peel(line)
    time = parse_stamp(*peeled.stamp) if peeled.stamp else None
    return Enveloped(peeled.content, time, peeled.stream, peeled.partial, peeled.enveloped)


def frame(line: str) -> Framed:
    """One physical line (no newline) in any form in which container logs are handed over. Total."""
    peeled = _peel(line)
    content = _last_fragment(peeled.content)
    time = parse_stamp(*peeled.stamp) if peeled.stamp else None
    rank = ""
    if content[:1] == "[":
        if head := _HEAD.match(content):
            content, rank = content[head.end() :], head[3][1:]
            if time is None:
                time = parse_stamp(head[1], head[2][1:] if head[2] else None, "Z")
        if content[:5] == "[rank" and (torch := _TORCH_RANK.match(content)):
            content, rank = content[torch.end() :], rank or f"RANK{torch[1]}"
    return Framed(content, time, rank, peeled.stream, peeled.partial)


def message_of(line: str) -> str:
    """``frame(line).message``, without the price of reading stamps."""
    content = _last_fragment(_peel(line).content)
    if content[:1] == "[":
        if head := _HEAD.match(content):
            content = content[head.end() :]
        if content[:5] == "[rank" and (torch := _TORCH_RANK.match(content)):
            content = content[torch.end() :]
    return content


def has_head(content: str) -> bool:
    """True when the text begins with SGLang's own head or torch's rank."""
    return content[:1] == "[" and bool(_HEAD.match(content) or _TORCH_RANK.match(content))


class PartialJoiner:
    """Puts the records together into which a runtime split a long line, each stream by itself, under a cap.

    Feed it :func:`open_envelope`'s results in the order of the file. Not bound to one file: make one for each.
    """

    __slots__ = ("_cap", "_held", "_streams", "cut", "cut_lines")

    def __init__(self, *, cap: int = 256 * 1024, streams: int = 4) -> None:
        """`cap`: the most characters of one joined line; `streams`: the most streams held at once."""
        self._cap = cap
        self._streams = streams
        self._held: dict[str, tuple[list[str], int, int]] = {}
        self.cut = 0
        """Characters left out because of the caps."""
        self.cut_lines = 0
        """Lines that lost something."""

    def feed(self, stream: str, content: str, *, partial: bool) -> str | None:
        """The whole line when this record ends one, else None."""
        held = self._held.pop(stream, None)
        if held is None:
            if not partial:
                return self._take(content)
            held = ([], 0, 0)
        parts, length, lost = held
        room = max(0, self._cap - length)
        kept = content if len(content) <= room else content[:room]
        if kept:
            parts.append(kept)
        length, lost = length + len(kept), lost + len(content) - len(kept)
        if not partial:
            return self._finish(parts, lost)
        if len(self._held) >= self._streams:
            gone = next(iter(self._held))
            _, dropped, before = self._held.pop(gone)
            self.cut, self.cut_lines = self.cut + dropped + before, self.cut_lines + 1
        self._held[stream] = (parts, length, lost)
        return None

    @property
    def waiting(self) -> bool:
        """True while some stream's line is not whole yet."""
        return bool(self._held)

    def flush(self) -> list[tuple[str, str]]:
        """What is still waiting for its rest, as (stream, text): the log ends in the middle of a line."""
        rest = [(stream, self._finish(parts, lost)) for stream, (parts, _, lost) in self._held.items()]
        self._held.clear()
        return rest

    def _take(self, content: str) -> str:
        lost = max(0, len(content) - self._cap)
        return self._finish([content[: self._cap] if lost else content], lost)

    def _finish(self, parts: list[str], lost: int) -> str:
        if lost:
            self.cut, self.cut_lines = self.cut + lost, self.cut_lines + 1
        return "".join(parts)

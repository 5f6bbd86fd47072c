"""The agent's own log on standard error: text or JSON lines, limited in rate. Never shows a tenant's text unescaped.

A message that repeats (one per bad line, one per failed read) is written a few times, then once a minute with how
often it was left out: a flood of input must not become a flood of ours that fills the node's disk.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TextIO

import msgspec

from agent.text import cut, printable

BURST = 5
"""How often one message is written before it is held back."""

QUIET_SECONDS = 60.0
"""How long a repeating message is held back, once its burst is spent."""

LINES_PER_SECOND = 50
"""The most lines of all messages together; warnings and errors beyond it are counted as well."""

_LINE_BYTES = 8 * 1024
_KEYS = 1000

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "suppressed", "taskName"}


def setup_logging(
    *,
    format: Literal["text", "json"] = "text",
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RateLimit:
    """Send the log of this process to `stream` (standard error) in one form, replacing what was set up before.

    May be called again at a reload. Returns the filter, whose `suppressed` counts what was left out.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    limit = RateLimit(clock=clock)
    handler.addFilter(limit)
    root = logging.getLogger()
    for old in [h for h in root.handlers if getattr(h, "faultline", False)]:
        root.removeHandler(old)
    handler.faultline = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(level.upper())
    # A standard error that is gone must not become an error of each line.
    logging.raiseExceptions = False
    return limit


class RateLimit(logging.Filter):
    """Lets each message through `burst` times, then once every `quiet` seconds; all together `per_second`.

    A message is known by its logger, level and template, so the values in it make no new one. A record that is let
    through after others were held back carries their number as `suppressed`.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        burst: int = BURST,
        quiet: float = QUIET_SECONDS,
        per_second: int = LINES_PER_SECOND,
    ) -> None:
        super().__init__()
        self.suppressed = 0
        self._clock, self._burst, self._quiet, self._per_second = clock, burst, quiet, per_second
        self._keys: OrderedDict[tuple[str, int, str], _Repeats] = OrderedDict()
        self._second, self._in_second = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        key = record.name, record.levelno, str(record.msg)[:200]
        repeats = self._keys.get(key)
        if repeats is None:
            repeats = self._keys[key] = _Repeats(since=now)
            if len(self._keys) > _KEYS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(key)
        if now - repeats.since >= self._quiet:
            # The burst comes back only to a message that kept silent for a while.
            repeats.left = self._burst if repeats.held == 0 else 1
            repeats.since = now
        elif repeats.left is None:
            repeats.left = self._burst
        if not repeats.left or not self._room(now):
            repeats.held += 1
            self.suppressed += 1
            return False
        repeats.left -= 1
        record.suppressed, repeats.held = repeats.held, 0
        return True

    def _room(self, now: float) -> bool:
        if now - self._second >= 1.0:
            self._second, self._in_second = now, 0
        self._in_second += 1
        return self._in_second <= self._per_second


class _Repeats:
    __slots__ = ("held", "left", "since")

    def __init__(self, *, since: float) -> None:
        self.since = since
        self.left: int | None = None
        self.held = 0


class TextLines(logging.Formatter):
    """One line for a person: time, level, logger, message, fields. A traceback follows indented."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_plain(value)}" for name, value in _fields(record).items())
        head = f"{_stamp(record.created)} {record.levelname:<7} {record.name}: {printable(record.getMessage())}{fields}"
        lines = [cut(head, _LINE_BYTES)]
        if record.exc_info:
            # An exception's text may quote input: escaped line by line, the tracebacks' own line ends kept.
            trace = self.formatException(record.exc_info).splitlines()[-60:]
            lines += ["    " + cut(printable(line), 1000) for line in trace]
        return "\n".join(lines)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, object] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cut(record.getMessage(), _LINE_BYTES),
        }
        for name, value in _fields(record).items():
            body.setdefault(name, value if isinstance(value, int | float | bool) else cut(str(value), 1024))
        if record.exc_info:
            body["exception"] = cut(self.formatException(record.exc_info), _LINE_BYTES)
        return msgspec.json.encode(body).decode()


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What the caller gave as `extra`, and how often the message was left out before this line."""
    fields = {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
    if suppressed := getattr(record, "suppressed", 0):
        fields["suppressed"] = suppressed
    return fields


def _plain(value: object) -> str:
    text = cut(printable(str(value)), 1024)
    return f'"{text}"' if " " in text or text == "" else text


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"

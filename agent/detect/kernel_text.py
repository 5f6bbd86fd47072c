"""Reads one line of kernel-log text in any form in which people hand it over.

It must never take a container's line that quotes the kernel for the kernel's own, never look for a kernel message
anywhere but at the start of the text, and never fail on any input. What a message means is not its business.

One line shows its shape only. A text file proves nothing about its origin, whatever the shape: `trusted_shape` is
False where the line itself gives away that user space wrote it; True means only that nothing speaks against it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from agent.detect.framing import parse_stamp, strip_ansi

_A = re.ASCII


class KernelLine(NamedTuple):
    """A kernel-log line taken apart."""

    message: str
    """The record's text; holds newlines where the record does."""
    usec: int | None
    """Microseconds since boot."""
    time: float | None
    """Epoch seconds. Stamps without a zone are taken as UTC; None where the year or the language is missing."""
    facility: int | None
    """0 is the kernel, everything else user space; None where the form does not tell."""
    seq: int | None
    form: str
    """kmsg, dmesg, dmesg-T, dmesg-iso, syslog, journal-json, journal-export, talos; bare: the stamp is cut off."""
    trusted_shape: bool
    """False where the line shows that a program wrote it."""


_FACILITIES = {
    name: number
    for number, name in enumerate(
        ("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp")
    )
} | {f"local{n}": 16 + n for n in range(8)}
_LEVELS = r"(?:emerg|alert|crit|critical|err|error|warn|warning|notice|info|debug)"

_QUOTE = re.compile(r"(?:>(?!>) ?){1,6}")
_PRIORITY = re.compile(r"<([0-9]{1,3})>", _A)
_DECODED = re.compile(rf"([a-z]+[0-7]?) *: ?{_LEVELS} *: ", _A)
_KMSG = re.compile(r"([0-9]{1,10}),([0-9]{1,20}),([0-9]{1,20}),[-a-zA-Z+]*(?:,[^;]{0,512})?;", _A)
_SECONDS = re.compile(
    r"\[ {0,12}([0-9]{1,10})\.([0-9]{1,9})(?: {0,4}<[ 0-9.]{1,24}>)?\](?: ?\[ {0,8}[TC][0-9]{1,10}\])?(?: |\Z)", _A
)
_DELTA = re.compile(r"\[(?:[ ]{0,8}\+[0-9]{1,8}\.[0-9]{6}|[A-Z][a-z]{2} ?[0-9]{1,2} [0-9]{2}:[0-9]{2})\] ", _A)
_CTIME = re.compile(
    r"\[(\S{1,20}) {1,4}(\S{1,20}) {1,3}([0-9]{1,2}) ([0-9]{2}:[0-9]{2}:[0-9]{2}) ([0-9]{4})"
    r"(?: {0,4}<[ 0-9.]{1,24}>)?\](?: ?\[ {0,8}[TC][0-9]{1,10}\])?(?: |\Z)"
)
_STAMP = r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:%s([0-9]{1,%d}))?(Z|[+-][0-9]{2}:?[0-9]{2})"
_DMESG_ISO = re.compile(_STAMP.replace(")?(Z", ")(Z") % (",", 6) + r" (?:\[ {0,8}[TC][0-9]{1,10}\] )?", _A)
"""The comma is what tells `dmesg --time-format iso` from kubectl's stamps."""
_SYSLOG_ISO = re.compile(_STAMP % (r"\.", 6) + r" ", _A)
"""Nine decimals are a container runtime's stamp, never a syslog daemon's."""
_SYSLOG_BSD = re.compile(r"\S{1,12} {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})? ")
_SYSLOG_FULL = re.compile(
    r"\S{1,12} ([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,6}))? (\S{1,6}) "
)
_SYSLOG_UNIX = re.compile(r"([0-9]{9,11}\.[0-9]{6}) ", _A)
_RFC5424 = re.compile(
    _STAMP % (r"\.", 6) + r" \S{1,253} (\S{1,48}) \S{1,128} \S{1,32} (?:-|\[[^\]]{0,512}\]) ?\ufeff?", _A
)
_HOST_KERNEL = re.compile(r"[\w.:-]{1,253} kernel(?:\[[0-9]{1,10}\])?: ", _A)
_HOST_DRIVER = re.compile(r"[\w.:-]{1,253} (?=(?:NVRM|nvidia-nvswitch[0-9]{0,3})(?:\[[0-9]{1,10}\])?: )", _A)
_HOST_OTHER = re.compile(r"[\w.:-]{1,253} [\w.@/()-]{1,128}(?:\[[0-9]{1,10}\])?: ", _A)
_TALOS = re.compile(
    rf"(?:[\w.:-]{{1,253}}: )?([a-z]+[0-7]?): {{1,4}}{_LEVELS}: \[" + _STAMP % (r"\.", 9) + r"\]:(?: |\Z)", _A
)
_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_DRIVER = re.compile(
    rf"NVRM: |nvidia-nvswitch[0-9]{{0,3}}: |nvidia-(?:nvlink|modeset|uvm|peermem|fs)[ :]"
    rf"|pcieport {_BDF}: |nvidia {_BDF}: ",
    _A,
)
_XID_WORD = re.compile(r"S?Xid \(", _A)

_MONTHS = {m: n for n, m in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
_DAYS = frozenset("Mon Tue Wed Thu Fri Sat Sun".split())

_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")


def decode_record_text(raw: bytes) -> str:
    r"""The text of a `/dev/kmsg` record with its ``\xNN`` undone; bytes that are no UTF-8 become U+FFFD."""
    if b"\\x" in raw:
        raw = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), raw)
    return raw.decode("utf-8", "replace")


def kernel_line(line: str) -> KernelLine | None:
    """One physical line (no newline) of a kernel log; None for anything else: a container's line, prose. Total."""
    line = strip_ansi(line).rstrip("\r\n")
    if line[:1] in (">", "\ufeff"):
        line = line.lstrip("\ufeff")
        if quote := _QUOTE.match(line):
            line = line[quote.end() :]
    text = line.lstrip(" \t")
    return _any_form(text)


def is_system_line(line: str) -> bool:
    """True for a syslog or journal line of some daemon: it stands among the kernel's lines in `messages`."""
    text = strip_ansi(line).lstrip(" \t>\ufeff")
    for pattern in (_SYSLOG_ISO, _SYSLOG_BSD, _SYSLOG_FULL, _SYSLOG_UNIX):
        if found := pattern.match(text):
            return _HOST_OTHER.match(text, found.end()) is not None
    return False


def journal_transport(lines: Sequence[str], index: int) -> str | None:
    """The ``_TRANSPORT`` of the `journalctl -o export` entry that holds ``lines[index]``; None where it is not given.

    An entry's fields have no order and a blank line ends it, so one line cannot tell by itself where it came from.
    """
    for step in (-1, 1):
        at = index
        while 0 <= at < len(lines) and lines[at].strip():
            if lines[at].startswith("_TRANSPORT="):
                return lines[at].removeprefix("_TRANSPORT=").strip()
            at += step
    return None


def _any_form(text: str) -> KernelLine | None:
    first = text[:1]
    if first == "[":
        return _bracketed(text, facility=None)
    if first == "{":
        return _journal_json(text) if '"MESSAGE"' in text else None
    if first == "<":
        if priority := _PRIORITY.match(text):
            return _behind_priority(text[priority.end() :], facility=int(priority[1]) >> 3)
        return None
    if first.isdecimal() and (record := _KMSG.match(text)):
        return _kmsg(text, record)
    if _DRIVER.match(text):
        return KernelLine(text, None, None, None, None, "bare", True)
    if text.startswith("kernel: ") and _DRIVER.match(text, len("kernel: ")):
        # Host and stamp were cut off by whoever pasted it.
        return KernelLine(text.removeprefix("kernel: "), None, None, None, None, "bare", True)
    if text.startswith("MESSAGE="):
        return _journal_export(text.removeprefix("MESSAGE="))
    if (decoded := _DECODED.match(text)) and (facility := _FACILITIES.get(decoded[1])) is not None:
        rest = text[decoded.end() :]
        if behind := _bracketed(rest, facility=facility) or _dmesg_iso(rest, facility=facility):
            return behind
    if (talos := _TALOS.match(text)) and (facility := _FACILITIES.get(talos[1])) is not None:
        time = parse_stamp(talos[2], talos[3], talos[4])
        return KernelLine(text[talos.end() :], None, time, facility, None, "talos", facility == 0)
    return _dmesg_iso(text, facility=None) or _syslog(text, facility=None)


def _trusted(facility: int | None) -> bool:
    return facility in (None, 0)


def _kmsg(text: str, record: re.Match[str]) -> KernelLine:
    message = text[record.end() :]
    if "\\x" in message:
        message = decode_record_text(message.encode("utf-8", "replace"))
    facility = int(record[1]) >> 3
    return KernelLine(message, int(record[3]), None, facility, int(record[2]), "kmsg", facility == 0)


def _bracketed(text: str, *, facility: int | None) -> KernelLine | None:
    if stamp := _SECONDS.match(text):
        usec = _usec(stamp)
        message = text[stamp.end() :]
        # journalctl -o short-monotonic has the same stamp, then host and identifier.
        if host := _HOST_KERNEL.match(message):
            return KernelLine(message[host.end() :], usec, None, facility, None, "syslog", _trusted(facility))
        if host := _HOST_DRIVER.match(message):
            return KernelLine(message[host.end() :], usec, None, facility, None, "syslog", False)
        return KernelLine(message, usec, None, facility, None, "dmesg", _trusted(facility))
    if stamp := _CTIME.match(text):
        time = None
        if stamp[1] in _DAYS and (month := _MONTHS.get(stamp[2])):
            time = parse_stamp(f"{stamp[5]}-{month:02d}-{int(stamp[3]):02d}T{stamp[4]}", None, "Z")
        return KernelLine(text[stamp.end() :], None, time, facility, None, "dmesg-T", _trusted(facility))
    if stamp := _DELTA.match(text):
        return KernelLine(text[stamp.end() :], None, None, facility, None, "dmesg", _trusted(facility))
    return None


def _usec(stamp: re.Match[str]) -> int:
    return int(stamp[1]) * 1_000_000 + int(stamp[2].ljust(6, "0")[:6])


def _dmesg_iso(text: str, *, facility: int | None) -> KernelLine | None:
    if not (stamp := _DMESG_ISO.match(text)):
        return None
    time = parse_stamp(stamp[1], stamp[2], stamp[3])
    return KernelLine(text[stamp.end() :], None, time, facility, None, "dmesg-iso", _trusted(facility))


def _behind_priority(text: str, *, facility: int) -> KernelLine | None:
    if text[:1] == "[":
        return _bracketed(text, facility=facility)
    if text.startswith("1 "):
        if (stamp := _RFC5424.match(text, 2)) and stamp[4] == "kernel":
            time = parse_stamp(stamp[1], stamp[2], stamp[3])
            return _own_stamp(text[stamp.end() :], time=time, facility=facility, trusted=_trusted(facility))
        return None
    return _syslog(text, facility=facility)


def _syslog(text: str, *, facility: int | None) -> KernelLine | None:
    time: float | None = None
    if stamp := _SYSLOG_ISO.match(text):
        time = parse_stamp(stamp[1], stamp[2], stamp[3])
    elif stamp := _SYSLOG_UNIX.match(text):
        time = float(stamp[1])
    elif stamp := _SYSLOG_FULL.match(text):
        # Names of zones are no stable thing: only UTC is read.
        time = parse_stamp(f"{stamp[1]}T{stamp[2]}", stamp[3], "Z") if stamp[4] in ("UTC", "GMT") else None
    elif not (stamp := _SYSLOG_BSD.match(text)):
        return None
    rest = text[stamp.end() :]
    if host := _HOST_KERNEL.match(rest):
        return _own_stamp(rest[host.end() :], time=time, facility=facility, trusted=_trusted(facility))
    if host := _HOST_DRIVER.match(rest):
        # The journal takes the first word of a user-space record for its identifier.
        return _own_stamp(rest[host.end() :], time=time, facility=facility, trusted=False)
    return None


def _own_stamp(message: str, *, time: float | None, facility: int | None, trusted: bool) -> KernelLine:
    """A syslog line's message, without the kernel's own stamp that some daemons leave in it."""
    usec = None
    if message[:1] == "[" and (stamp := _SECONDS.match(message)):
        usec, message = _usec(stamp), message[stamp.end() :]
    return KernelLine(message, usec, time, facility, None, "syslog", trusted)


def _journal_export(message: str) -> KernelLine | None:
    if _DRIVER.match(message):
        return KernelLine(message, None, None, None, None, "journal-export", True)
    if _XID_WORD.match(message):
        return KernelLine(message, None, None, None, None, "journal-export", False)
    return None


def _journal_json(text: str) -> KernelLine | None:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not any(k in entry for k in ("_TRANSPORT", "__REALTIME_TIMESTAMP", "__CURSOR")):
        return None  # a program's own JSON
    message, identifier = _field(entry, "MESSAGE"), _field(entry, "SYSLOG_IDENTIFIER")
    transport = _field(entry, "_TRANSPORT")
    if message is None or transport not in (None, "kernel"):
        return None
    if transport is None and identifier != "kernel" and not _DRIVER.match(message):
        return None
    facility = _number(entry, "SYSLOG_FACILITY")
    trusted = _trusted(facility) and identifier in (None, "kernel") and not _XID_WORD.match(message)
    realtime = _number(entry, "_SOURCE_REALTIME_TIMESTAMP") or _number(entry, "__REALTIME_TIMESTAMP")
    return KernelLine(
        message,
        _number(entry, "_SOURCE_MONOTONIC_TIMESTAMP"),
        realtime / 1e6 if realtime is not None else None,
        facility,
        None,
        "journal-json",
        trusted,
    )


def _field(entry: dict[str, Any], name: str) -> str | None:
    """A journal field as text: a string, or a list of bytes where it is not printable."""
    value = entry.get(name)
    if isinstance(value, list) and value and all(isinstance(b, int) and 0 <= b < 256 for b in value):
        return bytes(value).decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _number(entry: dict[str, Any], name: str) -> int | None:
    value = entry.get(name)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20:
        return int(value)
    return value if type(value) is int and 0 <= value < 1 << 64 else None

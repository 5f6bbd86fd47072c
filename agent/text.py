"""Makes text that others wrote safe to show in a terminal, an event or a page. Never changes what it means.

Log lines are a tenant's text. Escape sequences would act on the reader's terminal, and characters that turn the
writing direction would make a line read as what it is not; both are shown as visible escapes instead.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls: escape sequences, carriage returns, bells
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"  # direction, zero width, separators
    "\ud800-\udfff"  # what is left of bytes that were no text
    "\U000e0000-\U000e007f]"  # invisible tags
)

_ELLIPSIS = "…"


def printable(text: str) -> str:
    """The text on one line, with everything that could act on a terminal shown as an escape; tabs become spaces."""
    return _UNSAFE.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    char = found[0]
    if char == "\t":
        return " "
    if char == "\n":
        return "\\n"
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, cut between characters; an ellipsis shows that something is missing."""
    body = text.encode("utf-8", "replace")
    if len(body) <= limit:
        return body.decode("utf-8")
    mark = _ELLIPSIS if limit >= len(_ELLIPSIS.encode()) else ""
    kept = body[: limit - len(mark.encode())].decode("utf-8", "ignore")
    return kept.rstrip() + mark if mark else kept


def duration(seconds: float) -> str:
    """An age as kubectl prints it: `5s`, `2m10s`, `3h5m`, `2d4h`, `1y20d`."""
    if seconds != seconds or seconds < -1 or seconds > 1e12:
        return "<invalid>"
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 10:
        return f"{minutes}m" + (f"{whole % 60}s" if whole % 60 else "")
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return f"{hours}h" + (f"{minutes % 60}m" if minutes % 60 else "")
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if hours < 192:
        return f"{days}d" + (f"{hours % 24}h" if hours % 24 else "")
    if days < 730:
        return f"{days}d"
    years = days // 365
    if years < 8:
        return f"{years}y" + (f"{days % 365}d" if days % 365 else "")
    return f"{years}y"

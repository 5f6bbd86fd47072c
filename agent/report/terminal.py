"""Tables for a terminal, as kubectl prints them. Pure string building: writes nothing and asks no terminal anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agent.report.events import Report
from agent.text import duration, printable

_RESET = "\x1b[0m"
_YELLOW, _GREEN, _BOLD = "\x1b[33m", "\x1b[32m", "\x1b[1m"

_GAP = 3
"""Spaces between columns, as kubectl has them."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns as wide as their widest cell; the last one is not padded. Ends with a newline."""
    lines = [tuple(header), *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "".join(
        "".join(cell.ljust(width + _GAP) for cell, width in zip(line[:-1], widths, strict=False)) + line[-1] + "\n"
        for line in lines
    )


def events_table(
    reports: Iterable[Report], *, now: float, colour: bool = False, wide: bool = False, namespace: bool = False
) -> str:
    """Reports as `kubectl get events` prints them, the oldest first.

    `wide` adds the part of the object and how often it was seen; `namespace` is kubectl's `-A`. With `colour` the
    warnings stand out.
    """
    ordered = sorted(reports, key=lambda r: r.last_seen if r.last_seen is not None else float("-inf"))
    header = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    rows = [[_age(r.last_seen, now=now), r.type, r.reason.value, str(r.regarding), r.note] for r in ordered]
    if wide:
        header[4:4] = ["SUBOBJECT", "COUNT"]
        for row, report in zip(rows, ordered, strict=True):
            row[4:4] = [report.regarding.field_path, str(report.count)]
    if namespace:
        header.insert(0, "NAMESPACE")
        for row, report in zip(rows, ordered, strict=True):
            # The API server keeps events of cluster-wide objects in `default`.
            row.insert(0, report.regarding.namespace or "default")
    if not rows:
        return "No events found.\n"
    text = table(header, rows)
    if not colour:
        return text
    head, *lines = text.splitlines()
    painted = [f"{_BOLD}{head}{_RESET}"]
    for line, report in zip(lines, ordered, strict=True):
        painted.append(f"{_YELLOW if report.type == 'Warning' else _GREEN}{line}{_RESET}")
    return "\n".join(painted) + "\n"


def _age(at: float | None, *, now: float) -> str:
    return "<unknown>" if at is None else duration(now - at)


def changes_table(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """The metric samples that differ between two readings (sample name with labels to value)."""
    rows = [
        (name, f"{before.get(name, 0):g}", f"{value:g}")
        for name, value in sorted(after.items())
        if value != before.get(name, 0)
    ]
    return table(("METRIC", "BEFORE", "AFTER"), rows) if rows else "No metric changed.\n"

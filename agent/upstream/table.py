"""Writes a comparison of rules and SGLang versions as text, Markdown or JSON. Pure string building."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from agent.upstream.compare import Comparison, Covered, Standing

SHOWN = 60
"""Checks without a rule that the text form lists per version; JSON and Markdown have all."""

_LONGEST = 160


def percent(have: int, total: int) -> str:
    return f"{100 * have / total:.1f} %" if total else "-"


def as_json(compared: Comparison) -> str:
    """One JSON object: `versions` (coverage, checks), `rules` (bounds, places), `stale`, `unplaced`."""
    shown = {
        "versions": {
            version: {
                "covered": compared.coverage(version)[0],
                "checks": compared.coverage(version)[1],
                "internal": sum(c.internal for c in compared.checks[version]),
                "all": [_check(c) for c in compared.checks[version]],
            }
            for version in compared.versions
        },
        "rules": [
            {
                "id": s.rule,
                "versions": s.bounds,
                "places": {v: str(p) if p else None for v, p in zip(compared.versions, s.places, strict=True)},
                "stale": s.stale,
                "unclaimed": s.unclaimed,
            }
            for s in compared.rules
        ],
        "stale": [s.rule for s in compared.stale],
        "unplaced": [s.rule for s in compared.unplaced],
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=1).decode() + "\n"


def _check(covered: Covered) -> dict[str, object]:
    return {
        "at": str(covered.place),
        "area": covered.area,
        "kind": covered.check.kind,
        "exception": covered.check.exception,
        "text": str(covered.check.text),
        "counts": covered.counts,
        "rules": covered.rules,
    }


def as_text(compared: Comparison) -> str:
    """Coverage, stale rules, checks without a rule, and one line per rule."""
    return "".join(line + "\n" for line in _text(compared))


def _text(compared: Comparison) -> Iterator[str]:
    yield from _columns(
        ("SGLANG", "ARGUMENT CHECKS", "WITH A RULE", "COVERAGE", "LATER CHECKS WITH A RULE"), _coverage(compared)
    )
    if compared.stale:
        yield ""
        yield f"Stale: {len(compared.stale)} rules claim a version that does not print their text."
        yield from _columns(
            ("RULE", "CLAIMS", "NOT IN"), ((s.rule, s.bounds, ", ".join(s.stale)) for s in compared.stale)
        )
    unclaimed = [s for s in compared.rules if s.unclaimed]
    if unclaimed:
        yield ""
        yield f"Too narrow: {len(unclaimed)} rules leave out a version that prints their text."
        yield from _columns(
            ("RULE", "CLAIMS", "ALSO IN"), ((s.rule, s.bounds, ", ".join(s.unclaimed)) for s in unclaimed)
        )
    if compared.unplaced:
        yield ""
        yield f"Found nowhere: {len(compared.unplaced)} rules without version bounds (put together at run time)."
        yield from (f"  {s.rule}" for s in compared.unplaced)
    for version in compared.versions:
        missing = compared.missing(version)
        if not missing:
            continue
        yield ""
        yield f"SGLang {version}: {len(missing)} argument checks without a rule."
        yield from (f"  {c.place}: {c.check.exception}: {_short(c)}" for c in missing[:SHOWN])
        if len(missing) > SHOWN:
            yield f"  ... and {len(missing) - SHOWN} more (--format json has all)"
    yield ""
    yield from _columns(("RULE", "VERSIONS", *compared.versions), _places(compared.rules))


_COVERAGE = ("SGLang", "argument checks", "with a rule", "coverage", "later checks with a rule")


def _coverage(compared: Comparison) -> Iterator[tuple[str, ...]]:
    for version in compared.versions:
        have, total = compared.coverage(version)
        later = [
            c for c in compared.checks[version] if c.area == "start" and c.check.kind != "log" and c.check.text.known
        ]
        yield (
            version,
            str(total),
            str(have),
            percent(have, total),
            f"{sum(bool(c.rules) for c in later)} of {len(later)}",
        )


def _places(standings: Iterable[Standing]) -> Iterator[tuple[str, ...]]:
    for s in standings:
        yield s.rule, s.bounds or "any", *(str(p) if p else "-" for p in s.places)


def _short(covered: Covered) -> str:
    text = " ".join(str(covered.check.text).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def as_markdown(compared: Comparison) -> str:
    """The page of the documentation: coverage, every rule's places, every check without a rule."""
    return "".join(line + "\n" for line in _markdown(compared))


_PREFACE = (
    "Written by `faultline rules check --format markdown --sglang WHEEL ...`; do not edit.",
    "",
    "An *argument check* is a `raise`, an `assert` or a `parser.error` where SGLang holds its arguments, its",
    "environment and the model's configuration against each other. Checks of SGLang's own programming (a field that is",
    "not declared) are not counted. *Later checks* are those of model loading and running; the JSON form lists them.",
)


def _markdown(compared: Comparison) -> Iterator[str]:
    yield "# SGLang's refusals and the rules that know them"
    yield ""
    yield from _PREFACE
    yield ""
    yield from _md_table(_COVERAGE, _coverage(compared))
    yield ""
    yield f"{len(compared.rules)} rules speak SGLang's words; stale: {len(compared.stale)}."
    if compared.stale:
        yield ""
        yield from _md_table(
            ("stale rule", "claims", "not in"), ((f"`{s.rule}`", s.bounds, ", ".join(s.stale)) for s in compared.stale)
        )
    for version in compared.versions:
        missing = compared.missing(version)
        if missing:
            yield ""
            yield f"## Argument checks of {version} without a rule"
            yield ""
            yield from _md_table(
                ("where", "raised as", "text"),
                ((f"`{c.place}`", c.check.exception, f"`{_short(c).replace('`', chr(39))}`") for c in missing),
            )
    yield ""
    yield "## Where each rule's text stands"
    yield ""
    yield from _md_table(
        ("rule", "versions", *compared.versions),
        ((f"`{rule}`", f"`{bounds}`", *places) for rule, bounds, *places in _places(compared.rules)),
    )


def _md_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


_GAP = 3


def _columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        yield "".join(cell.ljust(width + _GAP) for cell, width in zip(line, widths, strict=True)).rstrip()

"""Proposes each rule's `versions` from SGLang's own source, and writes them; run by hand, see README.md.

    python -m tests.sglang.propose_versions wheels/*.whl            # shows what would change
    python -m tests.sglang.propose_versions --write wheels/*.whl    # changes the `versions` lines, nothing else

It reads the wheels given and the packaged rules; it never downloads.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from agent.cli.upstream import surveys
from agent.rulebook import load_rulebook
from agent.upstream.compare import Standing, compare
from agent.upstream.versions import bounds_of

_RULE = re.compile(r"^  - id: (?P<id>\S+)\s*$", re.M)
_VERSIONS = re.compile(r"^    versions: .*\n", re.M)
_LITERALS = re.compile(r"^    literals:", re.M)


def proposed(standing: Standing, versions: tuple[str, ...]) -> str | None:
    """New bounds for a rule, or None where its own hold: all versions with its text are inside, no other is."""
    if not standing.stale and not standing.unclaimed:
        return None
    alive = [v for v, place in zip(versions, standing.places, strict=True) if place is not None]
    if not alive or all(str(place).startswith("python/") for place in standing.places if place):
        return None  # nowhere, or Python's own words: no bound can be told from here
    bounds = bounds_of(alive, versions)
    return None if bounds == standing.bounds else bounds  # the same: a release between lost the text for a while


def rewritten(text: str, bounds: Mapping[str, str]) -> str:
    """A rule file with new `versions` lines; a rule without such a line gets one before its literals."""
    starts = [found.start() for found in _RULE.finditer(text)]
    if not starts:
        return text
    blocks = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    return text[: starts[0]] + "".join(_bounded(block, bounds) for block in blocks)


def _bounded(block: str, bounds: Mapping[str, str]) -> str:
    found = _RULE.match(block)
    new = bounds.get(found["id"], "") if found else ""
    if not new:
        return block
    line = f"    versions: '{new}'\n"
    if _VERSIONS.search(block):
        return _VERSIONS.sub(lambda _: line, block, count=1)
    at = _LITERALS.search(block)
    return block[: at.start()] + line + block[at.start() :] if at else block


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.propose_versions", description=__doc__)
    parser.add_argument("--write", action="store_true", help="change the rule files")
    parser.add_argument("wheels", nargs="+", type=Path)
    given = parser.parse_args(arguments)
    book = load_rulebook()
    compared = compare(book.rules, surveys(given.wheels))
    bounds = {s.rule: b for s in compared.rules if (b := proposed(s, compared.versions)) is not None}
    for standing in compared.rules:
        if standing.rule in bounds:
            print(f"{standing.rule}: {standing.bounds or 'any'} -> {bounds[standing.rule] or 'any'}")
        elif all(place is None for place in standing.places):
            print(f"{standing.rule}: found in none of the versions", file=sys.stderr)
    if given.write:
        for file in sorted({book.origins[rule] for rule in bounds}):
            path = Path(file)
            path.write_text(rewritten(path.read_text("utf-8"), bounds), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Holds rules against the texts of one or more SGLang versions: which rules are still spoken there, which checks have
no rule. Pure; it reads no file."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, product

from agent.detect.framing import message_of
from agent.detect.rules import Rule
from agent.model import Role
from agent.upstream.areas import INTERNAL, area_of
from agent.upstream.texts import Check, Spoken, Text, checks_of, parse, strings_of
from agent.upstream.versions import version_of, within

FILLINGS = ("8", "fp8_e4m3", "['a', 'b']", "0.5", "--page-size", "a b")
"""Values put into a text's holes to see whether a rule would know it."""

MOST_HOLES_MIXED = 3
"""Up to so many holes every mix of fillings is tried; beyond, all holes get the same."""

HEADS = ("", "ValueError: ")
"""What Python prints before a text: nothing for a log line, the type for an exception (its name does not matter)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stands."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Covered:
    """One check of one version and the rules that know its text."""

    check: Check
    place: Place
    area: str
    internal: bool
    rules: tuple[str, ...]

    @property
    def refuses(self) -> bool:
        """True for what stops the server with a text that can be known."""
        return self.check.kind != "log" and self.check.text.known and not self.internal

    @property
    def counts(self) -> bool:
        """True for the checks that coverage is about."""
        return self.area == "arguments" and self.refuses


@dataclass(frozen=True, slots=True)
class Standing:
    """One rule in all versions looked at."""

    rule: str
    bounds: str
    places: tuple[Place | None, ...]
    """Per version, where its text is; None where it is not there."""
    stale: tuple[str, ...]
    """Versions that the rule claims and whose source does not have its text."""
    unclaimed: tuple[str, ...]
    """Versions whose source has its text although the rule's bounds leave them out."""


@dataclass(frozen=True)
class Survey:
    """The texts of one version."""

    version: str
    checks: tuple[tuple[Place, Check], ...]
    strings: tuple[tuple[Place, Text], ...]
    unread: tuple[str, ...]
    """Files that this interpreter does not parse."""

    @cached_property
    def templates(self) -> list[tuple[Place, str, Text]]:
        """Texts with holes that can be known by their fixed pieces, each with its longest piece."""
        return [
            (place, max(text.pieces, key=len), text)
            for place, text in self.strings
            if len(text.pieces) > 1 and text.known
        ]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rules against versions."""

    versions: tuple[str, ...]
    rules: tuple[Standing, ...]
    checks: Mapping[str, tuple[Covered, ...]]

    def coverage(self, version: str) -> tuple[int, int]:
        """Argument checks that have a rule, and all of them."""
        counted = [c for c in self.checks[version] if c.counts]
        return sum(bool(c.rules) for c in counted), len(counted)

    @property
    def stale(self) -> tuple[Standing, ...]:
        """Rules that claim a version whose source does not have their text."""
        return tuple(s for s in self.rules if s.bounds and s.stale)

    @property
    def unplaced(self) -> tuple[Standing, ...]:
        """Rules that claim no version and are found in none: put together at run time, or another program's words."""
        return tuple(s for s in self.rules if not s.bounds and all(p is None for p in s.places))

    def missing(self, version: str) -> tuple[Covered, ...]:
        """Argument checks without a rule."""
        return tuple(c for c in self.checks[version] if c.counts and not c.rules)


def survey(version: str, files: Mapping[str, bytes]) -> Survey:
    """Everything that a version's files can print."""
    checks: list[tuple[Place, Check]] = []
    strings: list[tuple[Place, Text]] = []
    unread: list[str] = []
    for file, source in sorted(files.items()):
        tree = parse(source)
        if tree is None:
            unread.append(file)
            continue
        spoken: Iterable[Spoken] = strings_of(tree)
        strings.extend((Place(file, s.line), s.text) for s in spoken)
        if area_of(file):
            found = [(Place(file, c.line), c) for c in checks_of(tree, source)]
            checks.extend(found)
            strings.extend((place, c.text) for place, c in found)
    return Survey(version, tuple(checks), tuple(strings), tuple(unread))


def compare(rules: Sequence[Rule], surveys: Iterable[Survey]) -> Comparison:
    """Every rule with `engine: sglang` and a literal against every version, the oldest first.

    Surveys are taken one by one and not kept: a version's texts are a few hundred thousand objects.
    """
    ours = [r for r in rules if r.engine == "sglang" and r.literals]
    # A text of CUDA's or of a library may stand in argument handling too: its rule need not be SGLang's.
    explaining = [r for r in rules if r.reads != "kernel" and r.literals and r.role is not Role.CONTEXT]
    known: dict[Text, tuple[str, ...]] = {}
    seen = {s.version: (_places(ours, s), tuple(_covered(s, explaining, known))) for s in surveys}
    versions = tuple(sorted(seen, key=version_of))
    return Comparison(
        versions=versions,
        rules=tuple(_standing(rule, {v: seen[v][0][i] for v in versions}) for i, rule in enumerate(ours)),
        checks={version: seen[version][1] for version in versions},
    )


def _standing(rule: Rule, places: Mapping[str, Place | None]) -> Standing:
    claimed = {version for version in places if within(version, rule.versions)}
    return Standing(
        rule=rule.id,
        bounds=rule.versions,
        places=tuple(places.values()),
        stale=tuple(v for v, place in places.items() if v in claimed and place is None),
        unclaimed=tuple(v for v, place in places.items() if v not in claimed and place is not None),
    )


def _places(rules: Sequence[Rule], texts: Survey) -> list[Place | None]:
    index = _Index(texts)
    return [_place(rule, texts, index) for rule in rules]


class _Index:
    """Which texts hold a literal. One haystack: `in` over it is far faster than over a hundred thousand strings."""

    def __init__(self, texts: Survey) -> None:
        owners: dict[str, list[tuple[Place, Text]]] = {}
        for place, text in texts.strings:
            for piece in text.pieces:
                if len(piece) >= _SHORTEST_LITERAL:
                    owners.setdefault(piece, []).append((place, text))
        self._haystack = "\0".join(owners)
        self._owners = list(owners.values())
        self._starts: list[int] = []
        at = 0
        for piece in owners:
            self._starts.append(at)
            at += len(piece) + 1

    def holding(self, literal: str) -> Iterator[tuple[Place, Text]]:
        at = self._haystack.find(literal)
        while at >= 0:
            yield from self._owners[bisect_right(self._starts, at) - 1]
            at = self._haystack.find(literal, at + len(literal))


_SHORTEST_LITERAL = 4
_MOST_CANDIDATES = 300


def _place(rule: Rule, texts: Survey, index: _Index) -> Place | None:
    """Where the rule's text is. A literal alone is not enough: the rule must recognise the text around it."""
    candidates = (found for literal in rule.literals for found in index.holding(literal))
    for place, text in islice(candidates, _MOST_CANDIDATES):
        if knows(rule, text):
            return place
    return _spoken_with_holes(rule, texts)


def _spoken_with_holes(rule: Rule, texts: Survey) -> Place | None:
    """Where a literal runs over a hole (`--{name}-backend`), the rule's examples, real texts, find the place."""
    lines = [message_of(line) for text in rule.examples.match for line in text.splitlines()]
    for place, longest, text in texts.templates:
        for line in lines:
            if longest in line and _told(rule, _shape(text), line):
                return place
    return None


_ENOUGH = 0.5
"""Share of a literal that a text must have printed for the text to be the literal's origin."""


def _told(rule: Rule, shape: re.Pattern[str], line: str) -> bool:
    """True when the text's own words, not what stood in its holes, make up enough of one of the rule's literals."""
    found = shape.search(line)
    if found is None:
        return False
    spans = [found.span(i) for i in range(1, shape.groups + 1)]
    for literal in rule.literals:
        at = line.find(literal)
        end = at + len(literal)
        own = sum(max(0, min(stop, end) - max(start, at)) for start, stop in spans)
        if at >= 0 and own >= _ENOUGH * len(literal):
            return True
    return False


def _shape(text: Text) -> re.Pattern[str]:
    # A hole at the end runs to the end of the line, else it would hold nothing.
    return re.compile(".*?".join(f"({re.escape(piece)})" for piece in text.pieces) + ("" if text.pieces[-1] else ".*"))


def _covered(texts: Survey, rules: Sequence[Rule], known: dict[Text, tuple[str, ...]]) -> Iterator[Covered]:
    for place, check in texts.checks:
        if check.text not in known:
            known[check.text] = tuple(r.id for r in rules if check.text.known and knows(r, check.text))
        name = check.function.rpartition(".")[2]
        yield Covered(check, place, area_of(place.file), name in INTERNAL, known[check.text])


def knows(rule: Rule, text: Text) -> bool:
    """True when the rule would recognise this text in a log, whatever stands in its holes."""
    # Nearly every pair ends here: only a text that can hold a literal is read in full.
    if any(literal in reading for reading in _likeliest(text) for literal in rule.literals):
        for line in _readings(text):
            try:
                if rule.capture_fields(line) is not None:
                    return True
            except TimeoutError:
                continue
    return _knows_by_example(rule, text)


@lru_cache(maxsize=512)
def _likeliest(text: Text) -> tuple[str, ...]:
    return tuple(text.filled(filling) for filling in FILLINGS)


@lru_cache(maxsize=512)
def _readings(text: Text) -> tuple[str, ...]:
    """The lines that the text gives with its holes filled, with and without an exception's type before them."""
    filled = list(_likeliest(text))
    holes = len(text.pieces) - 1
    if 1 < holes <= MOST_HOLES_MIXED:
        for values in product(FILLINGS, repeat=holes):
            filled.append(text.pieces[0] + "".join(v + p for v, p in zip(values, text.pieces[1:], strict=True)))
    return tuple(dict.fromkeys(line for head in HEADS for one in filled for line in (head + one).split("\n")))


def _knows_by_example(rule: Rule, text: Text) -> bool:
    for line_text in _lines(text):
        if not line_text.known:
            continue
        shape = None
        longest = max(line_text.pieces, key=len)
        for example in rule.examples.match:
            for line in example.splitlines():
                if longest not in line:
                    continue
                shape = shape or _shape(line_text)
                if _told(rule, shape, message_of(line)):
                    return True
    return False


def _lines(text: Text) -> Iterator[Text]:
    """A text of several lines line by line, as a log has it."""
    pieces: list[str] = []
    for piece in text.pieces:
        head, *rest = piece.split("\n")
        pieces.append(head)
        for line in rest:
            yield Text(tuple(pieces))
            pieces = [line]
    yield Text(tuple(pieces))

"""Finds texts that two rules claim, so that one text has one explanation; never judges which of the two is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agent.detect.framing import message_of
from agent.detect.rules import Rule
from agent.model import Role


class Clash(NamedTuple):
    """One line of a rule's examples that another rule, reading the same input, matches too."""

    rule: Rule
    other: Rule
    line: str


def same_input(one: Rule, other: Rule) -> bool:
    """True when both rules are ever shown the same line: a kernel rule never sees a container's log."""
    return one.reads == other.reads or "any" in (one.reads, other.reads)


def rule_clashes(rules: Sequence[Rule], *, among: Sequence[Rule] | None = None) -> Iterator[Clash]:
    """The clashes of the match examples of `rules` with `among` (default: `rules` themselves), in their order.

    Only lines that the example's own rule matches count: the other lines of an example are its surroundings. Advice
    has no text and never clashes; nor does a rule for what no other rule knows. Raises TimeoutError when an expression
    takes too long on an example.
    """
    others = [r for r in (rules if among is None else among) if r.literals and r.role is not Role.UNCLAIMED]
    for rule in rules:
        if rule.role is Role.UNCLAIMED:
            continue
        for line in (line for text in rule.examples.match for line in text.splitlines()):
            message = message_of(line)
            if not rule.literals or rule.capture_fields(message) is None:
                continue
            for other in others:
                if other is not rule and same_input(rule, other) and other.capture_fields(message) is not None:
                    yield Clash(rule, other, line)

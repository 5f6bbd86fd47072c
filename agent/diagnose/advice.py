"""Notices a run that works but runs badly, from the facts that its log told. Holds no knowledge: rules do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from agent.detect.rules import Rule
from agent.model import Evidence, Role, Signal


class Advice:
    """Rules of role `advice`: each with the facts that must all hold."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(r for r in rules if r.role is Role.ADVICE)

    def holds(self, rule_id: str, facts: Mapping[str, str]) -> bool:
        """Whether advice that was given still holds; that of a rule which is no more does not."""
        return any(_all_hold(rule, facts) for rule in self._rules if rule.id == rule_id)

    def __call__(self, facts: Mapping[str, str]) -> tuple[Signal, ...]:
        """The rules whose facts all hold, in order, as signals without container and evidence; the caller adds those.

        A rule that asks for the same facts as another and for more is the closer one: the other is then left out.
        """
        held = [rule for rule in self._rules if _all_hold(rule, facts)]
        return tuple(
            Signal(
                rule=rule.id,
                role=Role.ADVICE,
                fields={name: facts[name] for name in rule.when if name in facts},
                evidence=Evidence(source="", text=""),
            )
            for rule in held
            if not any(rule.when.keys() < other.when.keys() for other in held)
        )


def _all_hold(rule: Rule, facts: Mapping[str, str]) -> bool:
    return all(_holds(facts.get(name), allowed) for name, allowed in rule.when.items())


def _holds(value: str | None, allowed: tuple[str, ...]) -> bool:
    """True when the value fits one of the allowed patterns (`*` wild); `!unset` allows a fact that is not known."""
    if value is None:
        return "!unset" in allowed
    return any(fnmatchcase(value, pattern) for pattern in allowed)

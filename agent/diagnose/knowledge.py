"""What the rules and the Xid catalogue say about a signal, in one shape. Looks things up; decides nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agent.detect.causes import Alternative
from agent.detect.redact import redact
from agent.detect.rules import NO_BUS, FixStep, Rule, render
from agent.detect.rules import Change as RuleChange
from agent.model import Action, Change, Component, Remedy, Signal

if TYPE_CHECKING:
    from agent.detect.catalogue import Catalogue, Judgement

_PLAIN = re.compile(r"(?!--)[\w.,:/=+@%-]{1,200}\Z")
"""What a captured value must look like to become part of a change: the text of a log is not trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """One signal explained. `value` is what a taint for it would say: ``xid-79``."""

    title: str
    component: Component
    action: Action
    cause: str
    fix: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    check: tuple[str, ...] = ()
    value: str = ""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Rules by id, the alternatives of ambiguous errors by id, and the Xid catalogue."""

    rules: Mapping[str, Rule]
    load_catalogue: Callable[[], Catalogue]
    alternatives: Mapping[str, Alternative] = field(default_factory=dict)

    @classmethod
    def of(
        cls, rules: Iterable[Rule], catalogue: Callable[[], Catalogue], alternatives: Iterable[Alternative] = ()
    ) -> Knowledge:
        """`catalogue` is called at the first Xid: a container's log alone never needs it."""
        return cls({r.id: r for r in rules}, catalogue, {a.id: a for a in alternatives})

    @property
    def catalogue(self) -> Catalogue:
        return self.load_catalogue()

    def about(self, signal: Signal, facts: Mapping[str, str] | None = None) -> About:
        """Total: a signal of a rule that is no longer there is described by its own line."""
        rule = self.rules.get(signal.rule)
        if rule is not None:
            return self._of_rule(rule, signal, facts or {})
        judged: Judgement | None = None
        if signal.rule.startswith("xid/") and signal.xid is not None and signal.fault is not None:
            judged = self.catalogue.explain(signal.xid, signal.fault, signal.fields, pci=signal.gpu.pci)
        elif signal.rule.startswith("sxid/"):
            judged = self.catalogue.explain_switch(signal.fields)
        if judged is not None:
            return About(
                title=judged.title,
                component=judged.hint.component,
                action=judged.action,
                cause=judged.why,
                fix=judged.fix,
                value=signal.rule.replace("/", "-"),
            )
        return About(
            title=signal.rule,
            component=signal.fault.component if signal.fault else Component.UNDECIDED,
            action=Action.ADVISE,
            cause=signal.evidence.text,
        )

    def _of_rule(self, rule: Rule, signal: Signal, facts: Mapping[str, str]) -> About:
        fields = {"pci": str(signal.gpu.pci or NO_BUS), **facts, **signal.fields}
        if signal.rank is not None:
            fields.setdefault("rank", str(signal.rank))
        action = rule.warrants
        value = ""
        remedies = remedies_of(rule.fix, fields, known=facts)
        if rule.fault is not None:
            action = rule.action or self.catalogue.action(rule.fault.severity, rule.fault.recovery)
            value = rule.fault.taint or (f"xid-{rule.fault.xid}" if rule.fault.xid else rule.id.rsplit("/", 1)[-1])
        return About(
            title=rule.title,
            component=rule.component,
            action=action,
            cause=render(rule.cause, fields) or rule.title,
            fix=tuple(remedy.say for remedy in remedies),
            remedies=remedies,
            check=tuple(render(text, fields, known_only=True) for text in rule.check),
            value=value,
        )


def remedies_of(
    steps: Iterable[FixStep], fields: Mapping[str, str], *, known: Mapping[str, str] | None = None
) -> tuple[Remedy, ...]:
    """The steps with their captures filled in, without those that do not hold for this run.

    `known` are the run's facts; its `sglang_version` and `gpu_arch` leave steps out. Where the version is not known, a
    step that depends on it says so.
    """
    known = known or {}
    version, arch = known.get("sglang_version"), known.get("gpu_arch")
    remedies = []
    for step in steps:
        held = holds_for(version, step.versions)
        if held is False or not suits(arch, step.gpu_arch):
            continue
        say = render(step.say, fields)
        if held is None:
            say += f" (Holds for SGLang {step.versions}; the version of this run is not known.)"
        remedies.append(
            Remedy(
                say=say,
                changes=tuple(_change(change, fields) for change in step.changes),
                standing=step.standing,
                source=step.source,
                versions=step.versions,
                gpu_arch=step.gpu_arch,
            )
        )
    return tuple(remedies)


def holds_for(version: str | None, versions: str) -> bool | None:
    """Whether an SGLang version is one of `versions` (PEP 440); None where that cannot be told.

    A pre-release or development build counts as the release that it leads to. Total: neither text need be valid.
    """
    if not versions:
        return True
    # Only a verdict with a version-bound step needs it: 15 ms that the others do not pay.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        parsed = Version(version or "")
        release = parsed.base_version + (f".post{parsed.post}" if parsed.post is not None else "")
        return SpecifierSet(versions).contains(release)
    except (InvalidVersion, InvalidSpecifier):
        return None


def suits(arch: str | None, allowed: tuple[str, ...]) -> bool:
    """True when an architecture is one of those allowed, or either is not said."""
    return not allowed or arch is None or any(fnmatchcase(arch, pattern) for pattern in allowed)


def _change(change: RuleChange, fields: Mapping[str, str]) -> Change:
    verb = change.verb
    return Change(verb=verb, name=str(getattr(change, verb, "")), value=_value(change.value, fields))


def _value(template: str | None, fields: Mapping[str, str]) -> str | None:
    """A change's value; None where the line did not tell it, or what it told cannot be a plain value."""
    if template is None or "{" not in template:
        return template
    value = render(template, fields, known_only=True)
    return value if _PLAIN.match(value) and redact(value) == value else None

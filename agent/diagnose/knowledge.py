"""What the rules and the Xid catalogue say about a signal, in one shape. Looks things up; decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agent.detect.catalogue import NO_BUS, Catalogue, Judgement
from agent.detect.causes import Alternative
from agent.detect.rules import Rule, render
from agent.model import Action, Component, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """One signal explained. `value` is what a taint for it would say: ``xid-79``."""

    title: str
    component: Component
    action: Action
    cause: str
    fix: tuple[str, ...] = ()
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
        if rule.fault is not None:
            action = rule.action or self.catalogue.action(rule.fault.severity, rule.fault.recovery)
            value = rule.fault.taint or (f"xid-{rule.fault.xid}" if rule.fault.xid else rule.id.rsplit("/", 1)[-1])
        return About(
            title=rule.title,
            component=rule.component,
            action=action,
            cause=render(rule.cause, fields) or rule.title,
            fix=tuple(render(step.say, fields) for step in rule.fix),
            check=tuple(render(text, fields) for text in rule.check),
            value=value,
        )

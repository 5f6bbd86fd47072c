"""What the rules and the Xid catalogue say about a signal, in one shape. Looks things up; decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agent.detect.catalogue import Catalogue
from agent.detect.causes import Alternative
from agent.detect.rules import Rule, render
from agent.detect.xid import parse_xid
from agent.model import Action, Component, Scope, Severity, Signal

_SEVERITY_ACTION = {
    Severity.INFO: Action.NONE,
    Severity.CONTEXT: Action.NONE,
    Severity.APP: Action.ADVISE,
    Severity.UNKNOWN: Action.ADVISE,
    Severity.PENDING: Action.ADVISE,
    Severity.DEGRADED: Action.ADVISE,
}


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
        if signal.xid is not None and (line := parse_xid(signal.evidence.text)) is not None:
            judged = self.catalogue.judge(line)
            return About(
                title=judged.title,
                component=judged.hint.component,
                action=judged.action,
                cause=judged.why,
                fix=judged.fix,
                value=f"xid-{signal.xid}",
            )
        return About(
            title=signal.rule,
            component=signal.fault.component if signal.fault else Component.UNDECIDED,
            action=Action.ADVISE,
            cause=signal.evidence.text,
        )

    def _of_rule(self, rule: Rule, signal: Signal, facts: Mapping[str, str]) -> About:
        fields = {**facts, **signal.fields}
        if signal.rank is not None:
            fields.setdefault("rank", str(signal.rank))
        action = rule.warrants
        value = ""
        if rule.fault is not None:
            action = rule.action or self.action_of(rule.fault.severity, rule.fault.recovery, rule.fault.scope)
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

    def action_of(self, severity: Severity, recovery: str, scope: Scope) -> Action:
        """What a fault of this severity warrants when the catalogue's recovery says how it ends."""
        if severity is not Severity.FATAL:
            return _SEVERITY_ACTION[severity]
        planned = self.catalogue.action_of_recovery(recovery)
        return Action.TAINT if planned in (Action.NONE, Action.ADVISE) and scope is not Scope.NODE else planned

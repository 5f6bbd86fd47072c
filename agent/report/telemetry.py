"""Turns what the pipeline does into metrics and reports, in the same turn. Measures; decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from agent.detect.rules import Rule
from agent.diagnose.diagnostician import Changes
from agent.model import Confidence, Fault, Signal, Verdict
from agent.report import metrics as m
from agent.report.reporter import Reporter


class Telemetry:
    """The pipeline's listener of the running agent."""

    def __init__(self, metrics: m.Metrics, reporter: Reporter, *, clock: Callable[[], float]) -> None:
        self._metrics, self._reporter, self._clock = metrics, reporter, clock
        self.on_change: Callable[[], None] = lambda: None
        """Called after faults changed and their plans were made."""
        self._started = clock()
        # Counted when told: until then the cause may still come, and one failure must not be two.
        reporter.on_failure = lambda v: metrics.add(m.FAILURES, component=v.component, confidence=v.confidence)
        self.hits: Counter[str] = Counter()
        self._faults: dict[str, Fault] = {}
        self._verdicts: dict[str, Verdict] = {}

    def rules_in_force(self, rules: Iterable[Rule], xids: Iterable[int]) -> None:
        """Which label values rules and codes may have from now on."""
        packs: Counter[str] = Counter(r.id.split("/", 1)[0] for r in rules)
        self._metrics.allow(m.RULE, (r.id for r in rules))
        self._metrics.allow(m.XID, map(str, xids))
        self._metrics.allow(m.PACK, packs)
        self._metrics.replace(m.RULES_LOADED, {(pack,): float(n) for pack, n in packs.items()})

    def known(self, faults: Iterable[Fault], verdicts: Iterable[Verdict]) -> None:
        """What an earlier run left: shown, but not counted again."""
        self._faults = {f.id: f for f in faults}
        self._verdicts = {v.id: v for v in verdicts}
        self._gauges()

    def signals(self, signals: Sequence[Signal], *, read: float) -> None:
        now = self._clock()
        for signal in signals:
            source = "kernel" if signal.from_kernel else "logs"
            self.hits[signal.rule] += signal.count
            self._metrics.add(m.SIGNALS, signal.count, source=source)
            if signal.count > 1:
                self._metrics.add(m.SIGNALS_SUPPRESSED, signal.count - 1)
            if signal.rule.startswith("xid/"):
                self._metrics.add(m.XID_RECORDS, signal.count, xid=str(signal.xid))
            else:
                self._metrics.add(m.RULE_SIGNALS, signal.count, rule=signal.rule)
            since = signal.time if signal.from_kernel and signal.time is not None else read
            if since >= self._started:  # what is older was caught up on: no measure of our speed
                self._metrics.observe(m.DETECTION, now - since, source=source)

    def changed(self, changes: Changes) -> list[tuple[str, str, bytes]]:
        for fault in changes.faults.values():
            if fault.id not in self._faults:
                self._metrics.add(m.FAULTS_TOTAL, severity=fault.severity, scope=fault.scope)
            self._faults[fault.id] = fault
        for gone in changes.dropped:
            self._verdicts.pop(gone, None)
            self._faults.pop(gone, None)
        for verdict in changes.verdicts.values():
            self._verdicts[verdict.id] = verdict
        stored = self._reporter.changed(changes)
        self._gauges()
        if changes.faults or changes.dropped:
            self.on_change()
        return stored

    def _gauges(self) -> None:
        open_faults = Counter((f.severity, f.scope) for f in self._faults.values() if f.open)
        self._metrics.replace(m.FAULTS_OPEN, {(str(s), str(c)): float(n) for (s, c), n in open_faults.items()})
        sure: Counter[Confidence] = Counter(v.confidence for v in self._verdicts.values())
        self._metrics.replace(m.VERDICTS, {(str(c),): float(n) for c, n in sure.items()})
        plans = self._reporter.plans.values()
        self._metrics.replace(m.PLANS, {(str(a),): float(n) for a, n in Counter(p.action for p in plans).items()})
        self._metrics.set(m.PLANS_WITHHELD, sum(1 for p in plans if p.withheld))

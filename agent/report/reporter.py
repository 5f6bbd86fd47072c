"""Keeps the series of event reports and the plans: what was told, when again, what must wait. Sends nothing.

One series for each fault and verdict. An undecided verdict is held back until the kernel's record, which may come
later, has had its time; a decided one is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from agent.diagnose.diagnostician import Changes
from agent.model import Confidence, Fault, Plan, Role, Verdict
from agent.report.events import Report, fault_reports, mark_reports, verdict_reports, withheld_report
from agent.report.store import encode
from agent.respond.policy import Mode, Situation, plan_for

REPORT = "report"
REPEAT_SECONDS = 60.0
"""A series that goes on is told again at most this often."""

SERIES_LIMIT = 2000


class Reporter:
    """Event series by key, plans by fault. `sink` is called for each report when it is due, new or repeated."""

    def __init__(
        self,
        *,
        node: str,
        mode: Mode,
        settle: float,
        clock: Callable[[], float],
        role_of: Callable[[str], Role],
        sink: Callable[[Report], None],
    ) -> None:
        self.node, self.mode, self.settle = node, mode, settle
        self.situation = Situation()
        self._clock, self._role_of, self._sink = clock, role_of, sink
        self._faults: dict[str, Fault] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._held: dict[str, tuple[float, Verdict]] = {}
        self._series: dict[str, Report] = {}
        self._told: dict[str, float] = {}
        self.plans: dict[str, Plan] = {}
        self.on_failure: Callable[[Verdict], None] = lambda _: None
        """Called once for each failure, when it is first told."""

    def restore(self, *, faults: Iterable[Fault], verdicts: Iterable[Verdict], series: Mapping[str, Report]) -> None:
        """Takes up what an earlier run told; what it had not told yet is told when it is due."""
        self._series = dict(series)
        self._told = {key: r.last_seen or 0.0 for key, r in series.items()}
        self._faults = {f.id: f for f in faults if any(k.startswith(f"fault/{f.id}/") for k in series)}
        told = {key.split("/")[1] for key in series if key.startswith("verdict/")}
        now = self._clock()
        for verdict in verdicts:
            if verdict.id in told:
                self._verdicts[verdict.id] = verdict
            elif _is_told(verdict):
                self._held[verdict.id] = (now if _settled(verdict) else now + self.settle, verdict)
        self.plans = {f.id: self._plan(f) for f in self._faults.values()}

    def change(self, *, mode: Mode, settle: float) -> None:
        """Takes other settings into force; plans are made anew by them."""
        self.mode, self.settle = mode, settle
        self.plans = {f.id: self._plan(f) for f in self._faults.values()}

    def now_in(self, situation: Situation) -> None:
        """Takes another situation into account; plans are made anew by it."""
        if situation != self.situation:
            self.situation = situation
            self.plans = {f.id: self._plan(f) for f in self._faults.values()}

    def marked(self, means: str, value: str, *, since: float | None, why: str) -> list[tuple[str, str, bytes]]:
        """What stands on the node now, and which plans are withheld: tells what was not told yet."""
        now = self._clock()
        fresh = mark_reports(means, value, since=since, why=why, told=self._series, node=self.node, at=now)
        for plan in self.plans.values():
            # In mode observe withholding is what was asked for; what would be done is on the page.
            if plan.withheld and self.mode != "observe":
                report = withheld_report(plan, node=self.node, at=now)
                if report.key not in self._series:
                    fresh.append(report)
        return self._tell(fresh)

    @property
    def reports(self) -> tuple[Report, ...]:
        return tuple(self._series.values())

    def changed(self, changes: Changes) -> list[tuple[str, str, bytes]]:
        """The stored form of every series that these changes began or continued."""
        fresh: list[Report] = []
        for fault in changes.faults.values():
            fresh += fault_reports(self._faults.get(fault.id), fault, node=self.node)
            self._faults[fault.id] = fault
            self.plans[fault.id] = self._plan(fault)
        for verdict_id in changes.dropped:
            self._verdicts.pop(verdict_id, None)
            self._held.pop(verdict_id, None)
            self._faults.pop(verdict_id, None)
            self.plans.pop(verdict_id, None)
        now = self._clock()
        for verdict in changes.verdicts.values():
            if not _is_told(verdict):
                continue
            if _settled(verdict):
                self._held.pop(verdict.id, None)
                fresh += self._verdict(verdict)
            else:
                due = self._held[verdict.id][0] if verdict.id in self._held else now + self.settle
                self._held[verdict.id] = (due, verdict)
        return self._tell(fresh)

    def due(self) -> float | None:
        """When the next held-back verdict is to be told (epoch seconds); None when none is held."""
        return min((at for at, _ in self._held.values()), default=None)

    def settled(self) -> list[tuple[str, str, bytes]]:
        """Tells what was held back long enough; the stored form of its series."""
        now = self._clock()
        ripe = [v for at, v in self._held.values() if at <= now]
        for verdict in ripe:
            del self._held[verdict.id]
        return self._tell([r for v in ripe for r in self._verdict(v)])

    def once(self, report: Report) -> list[tuple[str, str, bytes]]:
        """A report of a state that is told when it begins; nothing where its series was told."""
        return [] if report.key in self._series else self._tell([report])

    def add(self, report: Report) -> list[tuple[str, str, bytes]]:
        """A report about the agent itself (a blind source)."""
        return self._tell([report])

    def _verdict(self, verdict: Verdict) -> list[Report]:
        before = self._verdicts.get(verdict.id)
        self._verdicts[verdict.id] = verdict
        if before is None:
            self.on_failure(verdict)
        return verdict_reports(before, verdict, node=self.node, role=self._role_of(verdict.rule))

    def _plan(self, fault: Fault) -> Plan:
        return plan_for(fault, mode=self.mode, node=self.node, situation=self.situation)

    def _tell(self, fresh: Iterable[Report]) -> list[tuple[str, str, bytes]]:
        now, stored = self._clock(), []
        for report in fresh:
            known = self._series.pop(report.key, None)
            if known is not None and known.first_seen is not None:
                report = replace(report, first_seen=known.first_seen)
            self._series[report.key] = report
            stored.append((REPORT, report.key, encode(report)))
            if known is None or now - self._told.get(report.key, 0.0) >= REPEAT_SECONDS:
                self._told[report.key] = now
                self._sink(report)
        while len(self._series) > SERIES_LIMIT:
            gone = next(iter(self._series))
            del self._series[gone]
            self._told.pop(gone, None)
        return stored


def _is_told(verdict: Verdict) -> bool:
    """False for what is told as its fault, or as part of the undecided verdict beside it."""
    return verdict.container is not None and not verdict.rule.startswith("causes/")


def _settled(verdict: Verdict) -> bool:
    return verdict.confidence in (Confidence.CERTAIN, Confidence.LIKELY)

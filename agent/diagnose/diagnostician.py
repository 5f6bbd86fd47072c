"""The one way in to the pure core: signals in, what changed out. No I/O; the caller gives the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agent.diagnose.advice import Advice
from agent.diagnose.correlate import blame, parent_of
from agent.diagnose.failures import FailureChange, FailureLog
from agent.diagnose.faults import FaultLedger
from agent.diagnose.image import DERIVED, IMAGE_FACTS, NODE_FACTS, NODE_TEXT, ImageTable, derived, settle
from agent.diagnose.knowledge import Knowledge
from agent.diagnose.verdicts import of_failure, of_fault
from agent.model import Allocation, ContainerRef, Evidence, Failure, Fault, Role, Scope, Severity, Signal, Verdict

ALLOCATION_LIMIT = 2000

FIGURES = frozenset({"server/metrics"})
"""Signals that say how fast a server is."""


@dataclass(slots=True)
class Changes:
    """What a batch of signals changed; `dropped` are ids of failures and verdicts that are no more."""

    faults: dict[str, Fault] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.faults or self.failures or self.verdicts or self.dropped)


class Diagnostician:
    """Ledger, failures and allocations of one node (or of one set of handed-in files)."""

    def __init__(
        self,
        knowledge: Knowledge,
        *,
        window: float = 120.0,
        kernel_read: bool = True,
        boot: str = "",
        images: Callable[[], ImageTable] = ImageTable,
    ) -> None:
        """`images` is called once the first fact is known that the table of images and drivers says something of."""
        self.knowledge = knowledge
        self._images = images
        self._node: dict[str, str] = {}
        self._shared: dict[str, str | None] = {}
        self.kernel_read = kernel_read
        """False while no kernel log can be read: then nothing is concluded from its silence."""
        self.hinted: frozenset[str] = frozenset()
        """Alternatives (`causes/...`) that something else which was read points to."""
        self.window = window
        self.ledger = FaultLedger(lambda signal: self.knowledge.about(signal), boot=boot)
        self.log = FailureLog(
            advice=lambda facts: self._advice(facts),
            holds=lambda rule, facts: self._advice.holds(rule, facts),
            complete=self.complete,
            figures=FIGURES,
        )
        self._advice = Advice(knowledge.rules.values())
        self._allocations: dict[str, Allocation] = {}
        self._verdicts: dict[str, tuple[Verdict, ...]] = {}
        self._known: dict[str, Fault] = {}
        self._blamed: set[str | None] = set()

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.ledger.faults

    @property
    def failures(self) -> tuple[Failure, ...]:
        return self.log.failures

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts in order of arrival, but what failed and what is faulted before what only runs badly."""
        advice = {f.id for f in self.log.failures if f.primary.role is Role.ADVICE}
        return tuple(v for key in sorted(self._verdicts, key=advice.__contains__) for v in self._verdicts[key])

    def restore(self, *, faults: Iterable[Fault], failures: Iterable[Failure]) -> None:
        """Takes up the state of an earlier run; verdicts are drawn anew from it."""
        self.ledger.restore(faults)
        self._known = {f.id: f for f in self.ledger.faults}
        self.log.restore(failures)
        self._judge(Changes(), self.log.failures, anew=True)

    def adopt(self, faults: Iterable[Fault]) -> Changes:
        """Takes up faults that were found earlier and forgotten here; one that is on record is not changed."""
        changes = Changes()
        for fault in faults:
            if self.ledger.adopt(fault):
                changes.faults[fault.id] = self._known[fault.id] = fault
        if changes:
            self._judge(changes, self.log.failures)
        return changes

    def end(self, over: Mapping[str, str], *, at: float) -> Changes:
        """Ends faults, by id, each with why it is over."""
        changes = Changes()
        for fault_id, why in over.items():
            if (fault := self.ledger.close(fault_id, at=at, why=why)) is not None:
                changes.faults[fault.id] = self._known[fault.id] = fault
        if changes:
            self._judge(changes, self.log.failures)
        return changes

    def holders(self, uuid: str) -> tuple[ContainerRef, ...]:
        """The containers that hold this GPU now, or a part of it."""
        now = [a for a in self._allocations.values() if a.until is None]
        return tuple(a.container for a in now if uuid in {parent_of(d) for d in a.devices})

    def held(self, allocations: Iterable[Allocation]) -> Changes:
        """What containers hold now; failures of those whose devices were not known so are judged again.

        What one held before stays known: a crashed pod's devices still matter.
        """
        news: set[str] = set()
        for allocation in allocations:
            key = _holder(allocation.container)
            known = self._allocations.pop(key, None)
            self._allocations[key] = allocation
            if known is None or set(known.devices) != set(allocation.devices):
                news.add(key)
        while len(self._allocations) > ALLOCATION_LIMIT:
            del self._allocations[next(iter(self._allocations))]
        changes = Changes()
        touched = [f for f in self.log.failures if _holder(f.container) in news]
        if touched:
            self._judge(changes, touched)
        return changes

    def facts(self, container: ContainerRef) -> Mapping[str, str]:
        return self.log.facts(container)

    def complete(self, facts: Mapping[str, str]) -> dict[str, str]:
        """Facts of one container, with those of its node and with what follows from both."""
        known = {k: v for k, v in self._shared.items() if v is not None}
        if facts and facts.keys() <= NODE_TEXT:
            known = {}  # a text about the node alone: no image of another text's is its own
        known |= {k: v for k, v in facts.items() if k not in DERIVED}
        known |= self._node
        if known.keys().isdisjoint(NODE_FACTS | IMAGE_FACTS):
            return known
        return known | derived(known, self._images())

    def node(self, facts: Mapping[str, str], *, evidence: Evidence, time: float | None = None) -> Changes:
        """Facts about the node itself (its driver), which are true of every container on it."""
        changes = Changes()
        if self._learned(facts, of_node=True):
            self._completed(changes, evidence=evidence, time=time)
            self._judge(changes, self.log.failures)
        return changes

    def _learned(self, facts: Mapping[str, str], *, of_node: bool) -> bool:
        """Takes facts up that are true of more than one container; whether anything is new."""
        names = NODE_FACTS if of_node else NODE_FACTS | IMAGE_FACTS
        fresh = {k: v for k, v in facts.items() if k in names}
        if of_node:
            if fresh.items() <= self._node.items():
                return False
            self._node |= fresh
            return True
        before = dict(self._shared)
        for name, value in fresh.items():
            # Two files that differ speak of two nodes or images: then neither is taken for a third one's.
            self._shared[name] = value if self._shared.get(name, value) == value else None
        return self._shared != before

    def _completed(self, changes: Changes, *, evidence: Evidence, time: float | None) -> None:
        for change in self.log.completed(evidence=evidence, time=time):
            self._take(change, changes)

    def _take(self, change: FailureChange, changes: Changes) -> None:
        if change.failure is not None:
            changes.failures[change.failure.id] = change.failure
        if change.dropped:
            changes.failures.pop(change.dropped, None)
            changes.dropped.add(change.dropped)
            self._drop(change.dropped, changes)

    def apply(self, signals: Iterable[Signal]) -> Changes:
        """Folds signals in, in the order in which they were read, and judges anew what they touch."""
        changes, material = Changes(), False
        for signal in signals:
            if signal.container is None:
                for fault in self.ledger.apply(signal):
                    material = material or _essence(fault) != _essence(self._known.get(fault.id))
                    self._known[fault.id] = fault
                    changes.faults[fault.id] = fault
            else:
                if (change := self.log.apply(signal)) is not None:
                    self._take(change, changes)
                for change in self.log.ended():
                    self._take(change, changes)
            if signal.role is Role.CONTEXT and (signal.container is None or signal.container.file):
                # The kernel's word is the node's; what files handed in together say is held to be of one node.
                if self._learned(signal.fields, of_node=signal.container is None):
                    self._completed(changes, evidence=signal.evidence, time=signal.time)
                    material = True
        for gone in (*self.ledger.evicted(), *self.log.evicted()):
            changes.faults.pop(gone, None)
            changes.failures.pop(gone, None)
            changes.dropped.add(gone)
            self._known.pop(gone, None)
            self._drop(gone, changes)
        if changes or material:
            # A new fault may explain failures that came before it; one more record of a known one does not.
            self._judge(changes, self.log.failures if material else tuple(changes.failures.values()))
        return changes

    def close(self) -> Changes:
        """The logs are at their end: what no rule knows is told too."""
        changes = Changes()
        for change in self.log.close():
            self._take(change, changes)
        self._judge(changes, tuple(changes.failures.values()))
        return changes

    def learn(self, knowledge: Knowledge) -> Changes:
        """Takes other rules into force; what is known already is worded anew."""
        self.knowledge = knowledge
        self._advice = Advice(knowledge.rules.values())
        return self.reconsider()

    def reconsider(self) -> Changes:
        """Judges every failure again: allocations became known, or the kernel log became readable."""
        changes = Changes()
        self._judge(changes, self.log.failures, anew=True)
        return changes

    def _judge(self, changes: Changes, failures: Iterable[Failure], *, anew: bool = False) -> None:
        """Draws the verdicts on these failures again; `anew`: on all faults that no failure blames too."""
        for failure in failures:
            rule = self.knowledge.rules.get(failure.primary.rule)
            if rule is None:
                continue
            found = blame(
                failure,
                rule,
                faults=self.ledger.faults,
                held=self._allocations.get(_holder(failure.container)),
                window=self.window,
                kernel_read=self.kernel_read,
            )
            verdicts = of_failure(failure, rule, found, self.knowledge, hinted=self.hinted)
            self._put(failure.id, self._settled(verdicts, failure), changes)
        blamed = {v.fault for group in self._verdicts.values() for v in group if v.container is not None} - {None}
        freed, self._blamed = self._blamed - blamed, blamed
        for fault_id in blamed:
            self._drop(str(fault_id), changes)
        alone = self.ledger.faults if anew else (*changes.faults.values(), *self.ledger.some(freed))
        for fault in alone:
            if fault.id not in blamed and (
                fault.severity is not Severity.CONTEXT or fault.xids or fault.scope is Scope.FABRIC
            ):
                self._put(fault.id, (of_fault(fault),), changes)

    def _settled(self, verdicts: tuple[Verdict, ...], failure: Failure) -> tuple[Verdict, ...]:
        if failure.facts.keys().isdisjoint(DERIVED):
            return verdicts
        return tuple(settle(v, failure.facts, self._images()) for v in verdicts)

    def _put(self, key: str, verdicts: tuple[Verdict, ...], changes: Changes) -> None:
        before = {v.id: v for v in self._verdicts.get(key, ())}
        self._verdicts[key] = verdicts
        for verdict in verdicts:
            if before.pop(verdict.id, None) != verdict:
                changes.verdicts[verdict.id] = verdict
        changes.dropped |= before.keys()

    def _drop(self, key: str, changes: Changes) -> None:
        for verdict in self._verdicts.pop(key, ()):
            changes.verdicts.pop(verdict.id, None)
            changes.dropped.add(verdict.id)


def _holder(container: ContainerRef) -> str:
    """Pod uid and container name: all that every source of allocations knows of a container."""
    return f"{container.uid}/{container.container}" if container.uid else container.key


def _essence(fault: Fault | None) -> tuple[object, ...]:
    """What of a fault can change a verdict; its counts and later lines cannot."""
    return () if fault is None else (fault.severity, fault.recovery, fault.cleared, fault.xids, fault.gpu)

"""The log of failures: which container failed, in whose words, how often. Explains nothing; names no GPU.

Within one instance of a container the text that explains most is the primary signal: a cause before a symptom before an
echo, and the first among equals, since what comes later is usually its consequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.model import ContainerRef, Evidence, Failure, Role, Signal

OTHERS_LIMIT = 24
CONTAINER_LIMIT = 2000
"""Containers remembered; the one not heard of for longest goes first."""

FAILURE_LIMIT = 1000
"""Failures kept; the one not heard of for longest goes first."""

FACTS_LIMIT = 128
UNCLAIMED_LIMIT = 3
UNCLAIMED_SECONDS = 60.0
"""An exception that no rule knows belongs to the end of the program when it came this shortly before it."""

_RANK = {Role.CAUSE: 0, Role.SYMPTOM: 1, Role.UNCLAIMED: 2, Role.ECHO: 3, Role.ADVICE: 4}


@dataclass(slots=True)
class _Instance:
    container: ContainerRef
    failure: str = ""
    """Id of the failure that this instance is counted under; empty while nothing failed."""
    signals: list[Signal] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    unclaimed: list[Signal] = field(default_factory=list)
    """Exceptions that no rule knows, while nothing shows that the program ended."""
    figures: Signal | None = None
    """How fast it was when last asked; quoted beside advice."""

    @property
    def restart(self) -> int:
        return self.container.restart


@dataclass(frozen=True, slots=True)
class FailureChange:
    """`failure` as it is now; `dropped` is an id that this failure was known by before its cause was.

    Without a failure, `dropped` is one that is no more: advice that no longer holds.
    """

    failure: Failure | None
    dropped: str = ""


class FailureLog:
    """Folds container signals into failures, in the order in which each container wrote them."""

    def __init__(
        self,
        *,
        advice: Callable[[Mapping[str, str]], Sequence[Signal]] | None = None,
        holds: Callable[[str, Mapping[str, str]], bool] = lambda _rule, _facts: True,
        complete: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda facts: facts,
        figures: frozenset[str] = frozenset(),
    ) -> None:
        """`holds` tells whether advice given earlier still does; `complete` adds what is known beside a container's
        own text; `figures` are rules whose signals are quoted beside advice.
        """
        self._failures: dict[str, Failure] = {}
        self._instances: dict[str, _Instance] = {}
        self._over: list[_Instance] = []
        self._evicted: list[str] = []
        self._advice = advice or (lambda _: ())
        self._holds, self._complete, self._figures = holds, complete, figures

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(self._failures.values())

    def facts(self, container: ContainerRef) -> Mapping[str, str]:
        instance = self._instances.get(container.key)
        return self._complete(instance.facts) if instance is not None else {}

    def completed(self, *, evidence: Evidence, time: float | None) -> list[FailureChange]:
        """What changes because `complete` adds other facts than before; `evidence` is where they come from."""
        changes = [self._advised(i, i.container, time=time, evidence=evidence) for i in [*self._instances.values()]]
        return [change for change in changes if change is not None]

    def restore(self, failures: Iterable[Failure]) -> None:
        for failure in failures:
            self._failures[failure.id] = failure
            signals = [s for s in (failure.primary, *failure.others) if s.role is not Role.CONTEXT]
            self._instances[failure.container.key] = _Instance(
                failure.container, failure.id, signals, dict(failure.facts)
            )

    def apply(self, signal: Signal) -> FailureChange | None:
        """What this signal changed: a new failure, or one that is better explained; None for mere context."""
        container = signal.container
        if container is None:
            return None
        instance = self._instance(container)
        if signal.role is Role.CONTEXT:
            return self._learned(signal, instance, container)
        if signal.role is Role.UNCLAIMED and all(s.role is Role.ADVICE for s in instance.signals):
            instance.unclaimed = [*instance.unclaimed, signal][-UNCLAIMED_LIMIT:]
            return None
        return self._failed(signal, instance, container)

    def ended(self) -> list[FailureChange]:
        """Failures of instances that are over and left nothing but exceptions that no rule knows."""
        over, self._over = self._over, []
        return [change for instance in over if (change := self._unclaimed(instance)) is not None]

    def close(self) -> list[FailureChange]:
        """The same for every instance: the logs are at their end."""
        self._over += self._instances.values()
        return self.ended()

    def _unclaimed(self, instance: _Instance) -> FailureChange | None:
        if not instance.unclaimed or any(s.role is not Role.ADVICE for s in instance.signals):
            return None
        signals, instance.unclaimed = instance.unclaimed, []
        instance.signals += signals
        return self._told(instance, instance.container, signals=sum(s.count for s in signals))

    def evicted(self) -> list[str]:
        """Ids of failures that were given up for room since this was last asked."""
        gone, self._evicted = self._evicted, []
        return gone

    def _instance(self, container: ContainerRef) -> _Instance:
        known = self._instances.pop(container.key, None)
        if known is None or known.restart != container.restart:
            if known is not None and known.unclaimed:
                self._over.append(known)
            known = _Instance(container)
        self._instances[container.key] = known  # last heard of goes last
        if len(self._instances) > CONTAINER_LIMIT:
            del self._instances[next(iter(self._instances))]
        return known

    def _learned(self, signal: Signal, instance: _Instance, container: ContainerRef) -> FailureChange | None:
        for name, value in signal.fields.items():
            if name in instance.facts or len(instance.facts) < FACTS_LIMIT:
                instance.facts[name] = value
        if signal.rule in self._figures:
            instance.figures = signal
        return self._advised(instance, container, time=signal.time, evidence=signal.evidence)

    def _advised(
        self, instance: _Instance, container: ContainerRef, *, time: float | None, evidence: Evidence
    ) -> FailureChange | None:
        """Gives advice that the facts call for now, and takes back what no longer holds."""
        facts = self._complete(instance.facts)
        change = self._withdrawn(instance, container, facts)
        dropped = change.dropped if change is not None else ""
        told = {s.rule for s in instance.signals}
        for signal in self._advice(facts):
            if signal.rule not in told:
                signal = replace(signal, container=container, time=time, evidence=evidence)
                # Advice explains least of all: it never takes another signal's place, so that no id is dropped here.
                change = replace(self._failed(signal, instance, container), dropped=dropped)
        return self._refreshed(instance, facts) if change is None else change

    def _withdrawn(
        self, instance: _Instance, container: ContainerRef, facts: Mapping[str, str]
    ) -> FailureChange | None:
        """Takes advice out that no longer holds; another piece of advice may become the first by that."""
        gone = {s.rule for s in instance.signals if s.role is Role.ADVICE and not self._holds(s.rule, facts)}
        if not gone:
            return None
        instance.signals = [s for s in instance.signals if s.rule not in gone]
        known = self._failures.get(instance.failure)
        if known is None:
            return None
        if known.primary.rule not in gone:
            fresh = replace(known, facts=dict(facts), others=self._others(instance, known.primary))
            self._failures[known.id] = fresh
            return FailureChange(fresh)
        dropped = self._uncount(known.id, instance.restart)
        instance.failure = ""
        if instance.signals:
            return replace(self._told(instance, container, signals=0), dropped=dropped)
        return FailureChange(None, dropped) if dropped else None

    def _refreshed(self, instance: _Instance, facts: Mapping[str, str]) -> FailureChange | None:
        """Facts that became known after the failure are part of it; not worth a change by themselves.

        Figures beside advice are: they are what shows whether following it helped.
        """
        known = self._failures.get(instance.failure)
        if known is None:
            return None
        others = self._others(instance, known.primary)
        self._failures[known.id] = fresh = replace(known, facts=dict(facts), others=others)
        return FailureChange(fresh) if others != known.others and known.primary.role is Role.ADVICE else None

    def _others(self, instance: _Instance, primary: Signal) -> tuple[Signal, ...]:
        figures = (instance.figures,) if instance.figures is not None and primary.role is Role.ADVICE else ()
        return (*figures, *(s for s in instance.signals if s is not primary and s.rule not in self._figures))[
            :OTHERS_LIMIT
        ]

    def _failed(self, signal: Signal, instance: _Instance, container: ContainerRef) -> FailureChange:
        if instance.unclaimed and signal.role is not Role.ADVICE:
            instance.signals += [s for s in instance.unclaimed if _shortly_before(s, signal)]
            instance.unclaimed = []
        if len(instance.signals) < OTHERS_LIMIT or _RANK[signal.role] < min(_RANK[s.role] for s in instance.signals):
            instance.signals.append(signal)
        return self._told(instance, container, signals=signal.count)

    def _told(self, instance: _Instance, container: ContainerRef, *, signals: int) -> FailureChange:
        """The instance's failure as its signals tell it; `signals` is how many more there are."""
        primary = min(instance.signals, key=lambda s: _RANK[s.role])
        new_id = _id(container, primary)
        dropped = ""
        if instance.failure and instance.failure != new_id:
            dropped = self._uncount(instance.failure, container.restart)
        instance.failure = new_id
        known = self._failures.get(new_id)
        times = [s.time for s in instance.signals if s.time is not None]
        first = known.first_seen if known is not None and known.first_seen is not None else min(times, default=None)
        failure = Failure(
            id=new_id,
            container=container,
            primary=primary,
            signals=max((known.signals if known else 0) + signals, 1),
            count=_count(known, container.restart),
            restarts=_restarts(known, container.restart),
            first_seen=first,
            last_seen=max(times, default=known.last_seen if known else None),
            facts=dict(self._complete(instance.facts)),
            others=self._others(instance, primary),
        )
        self._failures.pop(new_id, None)
        self._failures[new_id] = failure  # last heard of goes last
        if len(self._failures) > FAILURE_LIMIT:
            gone = next(iter(self._failures))
            del self._failures[gone]
            self._evicted.append(gone)
        return FailureChange(failure, dropped)

    def _uncount(self, failure_id: str, restart: int) -> str:
        """Takes an instance out of the failure that it was first counted under; returns the id if nothing is left."""
        known = self._failures.get(failure_id)
        if known is None:
            return ""
        left = tuple(r for r in known.restarts if r != restart)
        if left:
            self._failures[failure_id] = replace(known, restarts=left, count=known.count - 1)
            return ""
        del self._failures[failure_id]
        return failure_id


def _shortly_before(earlier: Signal, later: Signal) -> bool:
    if earlier.time is None or later.time is None:
        return True
    return later.time - earlier.time <= UNCLAIMED_SECONDS


def _count(known: Failure | None, restart: int) -> int:
    if known is None:
        return 1
    return known.count + (restart not in known.restarts)


def _restarts(known: Failure | None, restart: int) -> tuple[int, ...]:
    if known is None:
        return (restart,)
    return known.restarts if restart in known.restarts else (*known.restarts[-99:], restart)


def _id(container: ContainerRef, primary: Signal) -> str:
    seed = f"{container.key}|{primary.rule}"
    return "failure-" + hashlib.blake2b(seed.encode(), digest_size=6).hexdigest()

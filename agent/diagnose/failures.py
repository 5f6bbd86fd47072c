"""The log of failures: which container failed, in whose words, how often. Explains nothing; names no GPU.

Within one instance of a container the text that explains most is the primary signal: a cause before a symptom before an
echo, and the first among equals, since what comes later is usually its consequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.model import ContainerRef, Failure, Role, Signal

OTHERS_LIMIT = 24
CONTAINER_LIMIT = 2000
"""Containers remembered; the one not heard of for longest goes first."""

FACTS_LIMIT = 64
_RANK = {Role.CAUSE: 0, Role.SYMPTOM: 1, Role.ECHO: 2, Role.ADVICE: 3}


@dataclass(slots=True)
class _Instance:
    restart: int
    failure: str = ""
    """Id of the failure that this instance is counted under; empty while nothing failed."""
    signals: list[Signal] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailureChange:
    """`failure` as it is now; `dropped` is an id that this failure was known by before its cause was."""

    failure: Failure
    dropped: str = ""


class FailureLog:
    """Folds container signals into failures, in the order in which each container wrote them."""

    def __init__(self, *, advice: Callable[[Mapping[str, str]], Sequence[Signal]] | None = None) -> None:
        self._failures: dict[str, Failure] = {}
        self._instances: dict[str, _Instance] = {}
        self._advice = advice or (lambda _: ())

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(self._failures.values())

    def facts(self, container: ContainerRef) -> Mapping[str, str]:
        instance = self._instances.get(container.key)
        return instance.facts if instance is not None else {}

    def restore(self, failures: Iterable[Failure]) -> None:
        for failure in failures:
            self._failures[failure.id] = failure
            self._instances[failure.container.key] = _Instance(
                failure.container.restart, failure.id, [failure.primary, *failure.others], dict(failure.facts)
            )

    def apply(self, signal: Signal) -> FailureChange | None:
        """What this signal changed: a new failure, or one that is better explained; None for mere context."""
        container = signal.container
        if container is None:
            return None
        instance = self._instance(container)
        if signal.role is Role.CONTEXT:
            return self._learned(signal, instance, container)
        return self._failed(signal, instance, container)

    def forget(self, failure_id: str) -> None:
        self._failures.pop(failure_id, None)

    def _instance(self, container: ContainerRef) -> _Instance:
        known = self._instances.pop(container.key, None)
        if known is None or known.restart != container.restart:
            known = _Instance(container.restart)
        self._instances[container.key] = known  # last heard of goes last
        if len(self._instances) > CONTAINER_LIMIT:
            del self._instances[next(iter(self._instances))]
        return known

    def _learned(self, signal: Signal, instance: _Instance, container: ContainerRef) -> FailureChange | None:
        for name, value in signal.fields.items():
            if name in instance.facts or len(instance.facts) < FACTS_LIMIT:
                instance.facts[name] = value
        told = {s.rule for s in instance.signals}
        change: FailureChange | None = None
        for advice in self._advice(instance.facts):
            if advice.rule not in told:
                advice = replace(advice, container=container, time=signal.time, evidence=signal.evidence)
                # Advice explains least of all: it never takes another signal's place, so that no id is dropped here.
                change = self._failed(advice, instance, container)
        return self._refreshed(instance) if change is None else change

    def _refreshed(self, instance: _Instance) -> FailureChange | None:
        """Facts that became known after the failure are part of it; not worth a change by themselves."""
        known = self._failures.get(instance.failure)
        if known is not None:
            self._failures[known.id] = replace(known, facts=dict(instance.facts))
        return None

    def _failed(self, signal: Signal, instance: _Instance, container: ContainerRef) -> FailureChange:
        if len(instance.signals) < OTHERS_LIMIT or _RANK[signal.role] < min(_RANK[s.role] for s in instance.signals):
            instance.signals.append(signal)
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
            signals=(known.signals if known else 0) + signal.count,
            count=_count(known, container.restart),
            restarts=_restarts(known, container.restart),
            first_seen=first,
            last_seen=max(times, default=known.last_seen if known else None),
            facts=dict(instance.facts),
            others=tuple(s for s in instance.signals if s is not primary)[:OTHERS_LIMIT],
        )
        self._failures[new_id] = failure
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

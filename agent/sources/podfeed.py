"""The pods of one node as a feed of changes, whatever tells of them: which are known, and which went unseen. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from agent.pods import Pod

POD_LIMIT = 8192
"""Pods remembered at once. A kubelet allows hundreds, but a node that rejects pods collects failed ones."""

ChangeKind = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodChange:
    """One change. A DELETED pod is as it was last seen."""

    kind: ChangeKind
    pod: Pod


class PodFeed(Protocol):
    """What both sources of pods are."""

    known: KnownPods

    @property
    def error(self) -> str:
        """Why it is blind now; empty while it is read."""

    @property
    def errors(self) -> int: ...

    @property
    def synced(self) -> bool:
        """True once all pods there are were told, and until the feed is lost."""

    def changes(self) -> AsyncIterator[PodChange]: ...


class KnownPods:
    """The pods known now, by uid and by name."""

    def __init__(self, *, limit: int = POD_LIMIT) -> None:
        self.forgotten = 0
        """Pods told of but not remembered, for want of room."""
        self._limit = limit
        self._pods: dict[str, Pod] = {}
        self._names: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[Pod]:
        return iter(tuple(self._pods.values()))

    def get(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def uid_of(self, namespace: str, name: str) -> str | None:
        """The uid of the pod that has this name now."""
        return self._names.get((namespace, name))

    def seen(self, pod: Pod) -> PodChange | None:
        """A pod as it is now; None when nothing that is kept of it changed."""
        before = self._pods.get(pod.uid)
        if before == pod:
            return None
        if before is None and len(self._pods) >= self._limit:
            self.forgotten += 1
            return PodChange(kind="ADDED", pod=pod)
        self._pods[pod.uid] = pod
        name = (pod.namespace, pod.name)
        if before is None or self._names.get(name) is None:
            self._names[name] = pod.uid  # of two, the later one's: the other was deleted by force and still ends
        return PodChange(kind="ADDED" if before is None else "MODIFIED", pod=pod)

    def gone(self, pod: Pod) -> PodChange | None:
        """A pod that is no more; None when it was not known."""
        before = self._pods.pop(pod.uid, None)
        if before is None:
            return None
        if self._names.get((before.namespace, before.name)) == pod.uid:
            del self._names[before.namespace, before.name]
        return PodChange(kind="DELETED", pod=before)

    def missing(self, present: Iterable[str]) -> tuple[Pod, ...]:
        """The known pods whose uids are not among these."""
        there = set(present)
        return tuple(pod for uid, pod in self._pods.items() if uid not in there)

"""What else decides on a plan: whether a faulted GPU is offered, can be withheld alone, or pulls the whole node down.

Remembers since when; sends nothing and reads nothing: what is known is given to each look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.diagnose.advertised import Offer, advertised
from agent.diagnose.placement import black_hole
from agent.model import Fault, GpuRef, Scope
from agent.pods import Pod
from agent.respond.means import Reach
from agent.respond.policy import Situation
from agent.slices import SliceDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the node and its GPUs now; None is "not known"."""

    pods: Iterable[Pod] = ()
    capacity: Mapping[str, str] | None = None
    allocatable: Mapping[str, str] | None = None
    allocatable_ids: Collection[str] | None = None
    devices: Sequence[SliceDevice] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StillOffered:
    """A faulted GPU that new pods are given, and what says so."""

    fault: Fault
    why: str


class Circumstances:
    """One node's, from look to look."""

    def __init__(self, *, node: str, reach: Callable[[GpuRef], Reach], says: Callable[[str], bool]) -> None:
        """`says` tells whether a rejected pod's message means that the node refuses every GPU pod."""
        self._node, self._reach = node, reach
        self.says = says
        self._withdrawn: dict[str, float] = {}
        self._holes: dict[str, str] = {}

    def look(
        self, before: Situation, faults: Iterable[Fault], known: Known, *, now: float, settle: float
    ) -> tuple[Situation, tuple[StillOffered, ...]]:
        """The situation now, and what is still offered. `settle`: seconds that a withdrawal must last to count."""
        accused = [f for f in faults if f.accuses]
        ids = {f.id for f in accused}
        self._withdrawn = {i: t for i, t in self._withdrawn.items() if i in ids}
        # Once marked, a node gets no pods that it could reject: a hole is over with its fault, not with the silence.
        self._holes = {i: why for i, why in self._holes.items() if i in ids}
        pods = tuple(known.pods)
        if (hole := black_hole(pods, accused, node=self._node, now=now, says=self.says)) is not None:
            # Such a message wraps the cause in layers of the call: what happened stands at its end.
            said = hole.example if len(hole.example) <= 200 else f"…{hole.example[-200:]}"
            told = f"{hole.count} so far, {hole.pods[-1]}: {said}"
            self._holes[hole.fault] = f"the kubelet rejects GPU pods of this node ({told})"
        devices: dict[str, str] = {}
        withheld: dict[str, str] = {}
        still: list[StillOffered] = []
        health = [h for p in pods for c in p.containers for h in c.devices]
        for fault in accused:
            if fault.scope is not Scope.GPU:
                continue
            reach = self._reach(fault.gpu)
            if reach.can:
                devices[fault.id] = reach.why
            elif reach.already:
                withheld[fault.id] = reach.why
            offer = advertised(
                fault.gpu,
                allocatable_ids=known.allocatable_ids,
                capacity=known.capacity,
                allocatable=known.allocatable,
                devices=known.devices,
                health=health,
            )
            # An empty list may be a plugin that is gone: it comes back and offers the faulted GPU again.
            if offer.offer is Offer.WITHDRAWN and known.allocatable_ids:
                since = self._withdrawn.setdefault(fault.id, now)
                if now - since >= settle:
                    withheld.setdefault(fault.id, offer.why)
            else:
                self._withdrawn.pop(fault.id, None)
            if offer.offer is Offer.ADVERTISED:
                still.append(StillOffered(fault=fault, why=offer.why))
        hole_words = next(iter(self._holes.values()), "")
        return replace(before, devices=devices, withheld=withheld, black_hole=hole_words), tuple(still)

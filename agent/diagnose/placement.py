"""The black hole: one lost GPU makes the kubelet reject every GPU pod of a node that stays Ready. Pure.

A rejected pod alone accuses nothing: the plugin may be restarting. It counts together with a fault of the hardware.
What a rejection looks like is in the rules, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.detect.redact import redact
from agent.detect.rules import Rule
from agent.model import Fault, GpuRef, Scope
from agent.pods import Pod

REJECTED = "UnexpectedAdmissionError"
NODE_WIDE = frozenset({"kubernetes/preferred-allocation-failed"})
"""Rules whose text says that the whole node refuses, healthy GPUs included."""

WINDOW_SECONDS = 600.0
ENOUGH = 2
MESSAGE_LIMIT = 4096
NAMED = 16
"""Pods that are named; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackHole:
    """``gpu`` and ``fault`` are those of the fault that explains it."""

    pods: tuple[str, ...]
    """The latest, as ``namespace/name``."""
    count: int
    first: float
    last: float
    example: str
    gpu: GpuRef
    fault: str


def node_wide(rules: Iterable[Rule], *, ids: frozenset[str] = NODE_WIDE) -> Callable[[str], bool]:
    """Tells whether a kubelet's message says that one GPU makes it refuse all; by the rules of these ids."""
    mine = [rule for rule in rules if rule.id in ids]

    def says(message: str) -> bool:
        text = message[:MESSAGE_LIMIT]
        for rule in mine:
            try:
                if rule.capture_fields(text) is not None:
                    return True
            except TimeoutError:
                continue
        return False

    return says


def black_hole(
    pods: Iterable[Pod],
    faults: Iterable[Fault],
    *,
    node: str,
    now: float,
    says: Callable[[str], bool],
    window: float = WINDOW_SECONDS,
) -> BlackHole | None:
    """The pods that this node swallowed within ``window`` seconds, if a fault of its hardware explains them.

    One pod is enough beside a fault of a GPU or the fabric that accuses now; without one no number is.
    A rejected pod was never started: when it was made is when it was rejected, as near as its status tells.
    """
    accused = [f for f in faults if f.accuses and f.scope in (Scope.GPU, Scope.FABRIC, Scope.NODE)]
    if not accused:
        return None
    found: dict[str, tuple[float, Pod]] = {}
    for pod in pods:
        if pod.node != node or pod.reason != REJECTED or pod.created is None:
            continue
        if now - window <= pod.created and says(pod.message):
            found[pod.uid] = (min(pod.created, now), pod)
    # The fault that is blamed: a GPU that is named before one that is not, then the one seen last.
    fault = max(accused, key=lambda f: (f.scope is Scope.GPU, f.gpu.known, f.last_seen or 0.0))
    if len(found) < (1 if fault.scope is Scope.GPU and fault.gpu.known else ENOUGH):
        return None
    ordered = sorted(found.values(), key=lambda item: item[0])
    return BlackHole(
        pods=tuple(f"{p.namespace}/{p.name}" for _, p in ordered[-NAMED:]),
        count=len(ordered),
        first=ordered[0][0],
        last=ordered[-1][0],
        example=redact(ordered[-1][1].message[:MESSAGE_LIMIT])[:600],
        gpu=fault.gpu,
        fault=fault.id,
    )

"""Verdicts in, plan out: what to change in the cluster, as little as will do. Pure; sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agent.model import Action, Fault, Means, Plan, Scope

Mode = Literal["observe", "device", "taint", "cordon"]
MODES: tuple[Mode, ...] = ("observe", "device", "taint", "cordon")
"""Each allows what stands before it."""

NO_CLUSTER = "there is no cluster to carry it out in (no service account, no cluster.kubeconfig)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What else decides: facts about this node and the cluster, by fault id where they are about one GPU."""

    obstacle: str = NO_CLUSTER
    """Why nothing can be carried out at all; empty in a cluster."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Faults whose one GPU can be withheld through its device, and how."""
    withheld: Mapping[str, str] = field(default_factory=dict)
    """Faults whose GPU no new pod is given anyway, and why (withdrawn by its plugin, tainted by its driver)."""
    black_hole: str = ""
    """What shows that the kubelet rejects every GPU pod of the node, healthy GPUs' included."""
    brake: str = ""
    """Why no further node may be marked."""


def plan_for(fault: Fault, *, mode: Mode, node: str, situation: Situation | None = None) -> Plan:
    """The plan for one open fault: what its evidence warrants, cut down to the least that will do.

    Only faults lead to plans: they come from the kernel and the driver, never from a container's text. What the
    mode or the situation does not allow is kept, with `withheld` saying why.
    """
    now = situation or Situation()
    action = fault.action if fault.accuses else (Action.ADVISE if fault.action is not Action.NONE else Action.NONE)
    if not fault.open:
        action = Action.NONE
    why = fault.why.rstrip(".") + "."
    if action not in (Action.TAINT, Action.CORDON):
        target = fault.gpu.pci or f"node {node}"
        return Plan(action=action, target=target, why=why, value=fault.value, fault=fault.id)

    means: Means = "node"
    withheld = ""
    device = now.devices.get(fault.id) if fault.scope is Scope.GPU else None
    if action is Action.CORDON:
        why += " The node itself must be rebooted."
        if mode == "cordon":
            means = "cordon"
        elif mode == "device" and device:
            means, action = "device", Action.TAINT
        elif mode == "taint":
            # Less than the evidence warrants is better than nothing: the taint keeps new pods away as well.
            action = Action.TAINT
        else:
            withheld = f"mode is {mode}; cordon needs mode cordon"
    else:
        if fault.scope is Scope.GPU:
            why += " New pods must not be given this GPU."
        if now.black_hole and fault.scope is Scope.GPU:
            why += f" The node must get no GPU pod at all: {now.black_hole}."
        elif device:
            means = "device"
        elif fault.id in now.withheld:
            withheld = f"not needed: {now.withheld[fault.id]}"
        if not withheld and MODES.index(mode) < MODES.index("device" if means == "device" else "taint"):
            withheld = f"mode is {mode}; taint needs mode {'device' if means == 'device' else 'taint'}"
    if not withheld:
        withheld = now.obstacle or now.brake
    target = f"device {device}" if means == "device" else f"node {node}"
    return Plan(
        action=action,
        target=target,
        why=why,
        value=fault.value,
        withheld=withheld,
        fault=fault.id,
        means="" if withheld else means,
    )

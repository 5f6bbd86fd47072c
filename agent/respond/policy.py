"""Verdicts in, plan out: what to change in the cluster, as little as will do. Pure; sends nothing."""

from __future__ import annotations

from typing import Literal

from agent.model import Action, Fault, Plan, Scope

Mode = Literal["observe", "device", "taint", "cordon"]
MODES: tuple[Mode, ...] = ("observe", "device", "taint", "cordon")
"""Each allows what stands before it."""

_NEEDS: dict[Action, Mode] = {
    Action.NONE: "observe",
    Action.ADVISE: "observe",
    Action.TAINT: "taint",
    Action.CORDON: "cordon",
}


NOT_CARRIED_OUT = "this version shows its plans and carries none of them out"


def plan_for(fault: Fault, *, mode: Mode, node: str, acts: bool = False) -> Plan:
    """The plan for one open fault: what its evidence warrants, cut down to what the mode allows.

    Only faults lead to plans: they come from the kernel and the driver, never from a container's text. A plan
    that the mode does not allow, or that nobody `acts` on, is kept, with `withheld` saying why.
    """
    action = fault.action if fault.accuses else (Action.ADVISE if fault.action is not Action.NONE else Action.NONE)
    if not fault.open:
        action = Action.NONE
    target = f"node {node}" if action in (Action.TAINT, Action.CORDON) else (fault.gpu.pci or f"node {node}")
    withheld = ""
    if MODES.index(mode) < MODES.index(_NEEDS[action]):
        withheld = f"mode is {mode}; {action.value} needs mode {_NEEDS[action]}"
    elif action in (Action.TAINT, Action.CORDON) and not acts:
        withheld = NOT_CARRIED_OUT
    why = fault.why.rstrip(".") + "."
    if action is Action.TAINT and fault.scope is Scope.GPU:
        why += " New pods must not be given this GPU."
    if action is Action.CORDON:
        why += " The node itself must be rebooted."
    return Plan(action=action, target=target, why=why, value=fault.value, withheld=withheld, fault=fault.id)

"""The truth table of the policy: evidence and mode in, plan out."""

import pytest

from agent.model import Action, Component, Evidence, Fault, GpuRef, Scope, Severity, parse_pci
from agent.respond.policy import MODES, plan_for


def fault(
    action: Action, severity: Severity = Severity.FATAL, *, scope: Scope = Scope.GPU, cleared: float | None = None
) -> Fault:
    return Fault(
        id="fault-1", scope=scope, gpu=GpuRef(pci=parse_pci("0000:5d:00")), cause="xid/79", title="Xid 79",
        severity=severity, recovery="reset_gpu", component=Component.GPU, action=action, value="xid-79",
        why="Xid 79 is fatal", cleared=cleared,
        evidence=(Evidence(source="kernel log", text="NVRM: Xid"),),
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", list(Action))
def test_a_mode_allows_what_stands_before_it_and_withholds_the_rest(mode: str, action: Action) -> None:
    plan = plan_for(fault(action), mode=mode, node="n1", acts=True)  # type: ignore[arg-type]
    needs = {Action.NONE: 0, Action.ADVISE: 0, Action.TAINT: 2, Action.CORDON: 3}[action]
    assert plan.action is action
    assert bool(plan.withheld) is (MODES.index(mode) < needs)  # type: ignore[arg-type]
    if plan.withheld:
        assert mode in plan.withheld and action.value in plan.withheld


@pytest.mark.parametrize("severity", [s for s in Severity if s is not Severity.FATAL])
def test_what_does_not_accuse_changes_nothing_in_the_cluster(severity: Severity) -> None:
    assert plan_for(fault(Action.CORDON, severity), mode="cordon", node="n1").action is Action.ADVISE


def test_a_cleared_fault_asks_for_nothing() -> None:
    assert plan_for(fault(Action.CORDON, cleared=5.0), mode="cordon", node="n1").action is Action.NONE


def test_the_plan_says_why_and_what_the_taint_says() -> None:
    plan = plan_for(fault(Action.TAINT), mode="taint", node="n1")
    assert plan.target == "node n1" and plan.value == "xid-79" and plan.fault == "fault-1"
    assert plan.why == "Xid 79 is fatal. New pods must not be given this GPU."


@pytest.mark.parametrize("action", [Action.TAINT, Action.CORDON])
def test_what_nobody_carries_out_is_said_to_be_withheld(action: Action) -> None:
    assert "carries none of them out" in plan_for(fault(action), mode="cordon", node="n1").withheld
    assert plan_for(fault(Action.ADVISE), mode="cordon", node="n1").withheld == ""

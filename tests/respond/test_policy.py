"""The truth table of the policy: evidence and mode in, plan out."""

from dataclasses import replace

import pytest

from agent.model import Action, Component, Evidence, Fault, GpuRef, Scope, Severity, parse_pci
from agent.respond.policy import MODES, NO_CLUSTER, Mode, Situation, plan_for

HERE = Situation(obstacle="")
DRA = Situation(obstacle="", devices={"fault-1": "gpu.nvidia.com/n1/gpu-3"})


def fault(
    action: Action, severity: Severity = Severity.FATAL, *, scope: Scope = Scope.GPU, cleared: float | None = None
) -> Fault:
    return Fault(
        id="fault-1", scope=scope, gpu=GpuRef(pci=parse_pci("0000:5d:00")), cause="xid/79", title="Xid 79",
        severity=severity, recovery="reset_gpu", component=Component.GPU, action=action, value="xid-79",
        why="Xid 79 is fatal", cleared=cleared,
        evidence=(Evidence(source="kernel log", text="NVRM: Xid"),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("warranted", "mode", "situation", "action", "means", "withheld"),
    [
        (Action.NONE, "cordon", HERE, Action.NONE, "", ""),
        (Action.ADVISE, "cordon", HERE, Action.ADVISE, "", ""),
        (Action.TAINT, "observe", HERE, Action.TAINT, "", "mode is observe; taint needs mode taint"),
        (Action.TAINT, "device", HERE, Action.TAINT, "", "mode is device; taint needs mode taint"),
        (Action.TAINT, "taint", HERE, Action.TAINT, "node", ""),
        (Action.TAINT, "cordon", HERE, Action.TAINT, "node", ""),
        (Action.TAINT, "observe", DRA, Action.TAINT, "", "mode is observe; taint needs mode device"),
        (Action.TAINT, "device", DRA, Action.TAINT, "device", ""),
        (Action.TAINT, "taint", DRA, Action.TAINT, "device", ""),
        (Action.TAINT, "cordon", DRA, Action.TAINT, "device", ""),
        (Action.CORDON, "observe", HERE, Action.CORDON, "", "mode is observe; cordon needs mode cordon"),
        (Action.CORDON, "device", HERE, Action.CORDON, "", "mode is device; cordon needs mode cordon"),
        (Action.CORDON, "device", DRA, Action.TAINT, "device", ""),
        (Action.CORDON, "taint", HERE, Action.TAINT, "node", ""),
        (Action.CORDON, "cordon", HERE, Action.CORDON, "cordon", ""),
        (Action.CORDON, "cordon", DRA, Action.CORDON, "cordon", ""),
    ],
)
def test_the_least_that_will_do_and_that_the_mode_allows(
    warranted: Action, mode: Mode, situation: Situation, action: Action, means: str, withheld: str
) -> None:
    plan = plan_for(fault(warranted), mode=mode, node="n1", situation=situation)
    assert (plan.action, plan.means, plan.withheld) == (action, means, withheld)


@pytest.mark.parametrize("warranted", [Action.TAINT, Action.CORDON])
def test_each_mode_does_at_least_what_the_one_before_it_does(warranted: Action) -> None:
    for situation in (HERE, DRA):
        strength = [
            ("", "device", "node", "cordon").index(
                plan_for(fault(warranted), mode=mode, node="n1", situation=situation).means
            )
            for mode in MODES
        ]
        assert strength == sorted(strength)


def test_a_gpu_that_no_pod_is_given_anyway_needs_no_mark_unless_the_node_rejects_every_pod() -> None:
    gone = Situation(obstacle="", withheld={"fault-1": "its device plugin has withdrawn it"})
    plan = plan_for(fault(Action.TAINT), mode="taint", node="n1", situation=gone)
    assert (plan.means, plan.withheld) == ("", "not needed: its device plugin has withdrawn it")
    hole = replace(gone, black_hole="7 pods were rejected")
    plan = plan_for(fault(Action.TAINT), mode="taint", node="n1", situation=hole)
    assert plan.means == "node" and "7 pods were rejected" in plan.why


def test_the_brake_holds_a_mark_back_and_says_so() -> None:
    plan = plan_for(fault(Action.TAINT), mode="taint", node="n1", situation=Situation(obstacle="", brake="brake: 3"))
    assert (plan.means, plan.withheld) == ("", "brake: 3")


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
def test_without_a_cluster_a_plan_is_shown_as_withheld(action: Action) -> None:
    assert plan_for(fault(action), mode="cordon", node="n1").withheld == NO_CLUSTER
    assert plan_for(fault(Action.ADVISE), mode="cordon", node="n1").withheld == ""

"""What else decides on a plan: what is known of the node in, the situation out. The times are made up."""

from dataclasses import replace

from agent.diagnose.placement import node_wide
from agent.model import Action, Component, Fault, GpuRef, PciAddress, Scope, Severity
from agent.pods import Pod
from agent.respond.circumstances import Circumstances, Known
from agent.respond.means import Reach
from agent.respond.policy import Situation, plan_for
from agent.rulebook import load_rulebook

GPU, OTHER = "GPU-4", "GPU-5"
FAULT = Fault(
    id="fault-1", scope=Scope.GPU, gpu=GpuRef(pci=PciAddress("0000:5d:00"), uuid=GPU), cause="xid/119", title="Xid 119",
    severity=Severity.FATAL, recovery="reset_gpu", component=Component.GPU, action=Action.TAINT, value="xid-119",
    first_seen=1000.0, last_seen=1000.0, why="Xid 119 is fatal",
)  # fmt: skip
HERE = Situation(obstacle="")
NO_DEVICE = Reach(can=False, why="no DRA")
REJECTED = (
    "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = "
    "error getting list of preferred allocation devices: unable to retrieve list of available devices: error creating "
    "nvml.Device 3: nvml: GPU is lost, which is unexpected"
)


def of_node(reach: Reach = NO_DEVICE) -> Circumstances:
    return Circumstances(node="n1", reach=lambda _: reach, says=node_wide(load_rulebook([]).rules))


def means(situation: Situation) -> str:
    return plan_for(FAULT, mode="taint", node="n1", situation=situation).means


def test_a_gpu_on_offer_is_marked_and_said_to_be_offered() -> None:
    found, still = of_node().look(HERE, [FAULT], Known(allocatable_ids={GPU, OTHER}), now=1001.0, settle=60)
    assert means(found) == "node"
    assert [s.fault.id for s in still] == ["fault-1"] and GPU in still[0].why


def test_a_gpu_that_its_plugin_withdrew_for_long_enough_needs_no_mark() -> None:
    node, known = of_node(), Known(allocatable_ids={OTHER})
    assert means(node.look(HERE, [FAULT], known, now=1010.0, settle=60)[0]) == "node"
    assert means(node.look(HERE, [FAULT], known, now=1069.0, settle=60)[0]) == "node"
    found, still = node.look(HERE, [FAULT], known, now=1070.0, settle=60)
    assert means(found) == "" and still == ()
    back, _ = node.look(HERE, [FAULT], Known(allocatable_ids={GPU, OTHER}), now=1080.0, settle=60)
    assert means(back) == "node", "a plugin that was restarted offers it again"
    assert means(node.look(HERE, [FAULT], known, now=1090.0, settle=60)[0]) == "node", "the wait begins anew"


def test_a_plugin_that_is_gone_has_not_withdrawn_anything() -> None:
    node = of_node()
    gone = Known(allocatable_ids=set(), capacity={"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "0"})
    for now in (1000.0, 5000.0):
        assert means(node.look(HERE, [FAULT], gone, now=now, settle=60)[0]) == "node"


def test_the_black_hole_is_marked_although_the_gpu_was_withdrawn_until_its_fault_is_over() -> None:
    node, known = of_node(), Known(allocatable_ids={OTHER})
    node.look(HERE, [FAULT], known, now=1000.0, settle=60)
    assert means(node.look(HERE, [FAULT], known, now=1100.0, settle=60)[0]) == ""
    eaten = Pod(
        namespace="ns", name="p", uid="u", node="n1", phase="Failed", reason="UnexpectedAdmissionError",
        message=REJECTED, created=1099.0,
    )  # fmt: skip
    found, _ = node.look(HERE, [FAULT], replace(known, pods=(eaten,)), now=1101.0, settle=60)
    assert means(found) == "node" and "ns/p" in found.black_hole and "GPU is lost" in found.black_hole
    later, _ = node.look(HERE, [FAULT], known, now=9999.0, settle=60)
    assert means(later) == "node", "a marked node gets no pods to reject: silence does not end it"
    over, _ = node.look(HERE, [replace(FAULT, cleared=9999.0)], known, now=10000.0, settle=60)
    assert over.black_hole == ""


def test_rejected_pods_without_a_fault_mark_nothing() -> None:
    eaten = Pod(
        namespace="ns", name="p", uid="u", node="n1", reason="UnexpectedAdmissionError", message=REJECTED, created=999.0
    )
    assert of_node().look(HERE, [], Known(pods=(eaten,)), now=1000.0, settle=60) == (HERE, ())


def test_the_device_is_the_smallest_mark_and_the_drivers_own_is_not_doubled() -> None:
    found, _ = of_node(Reach(can=True, why="gpu-3 of gpu.nvidia.com")).look(HERE, [FAULT], Known(), now=1.0, settle=60)
    assert means(found) == "device"
    already = of_node(Reach(can=False, already=True, why="already withheld by the driver"))
    found, _ = already.look(HERE, [FAULT], Known(), now=1.0, settle=60)
    assert means(found) == ""

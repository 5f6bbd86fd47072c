"""Whether a GPU is still offered, and the black hole: pure tables."""

import pytest

from agent.diagnose.advertised import Offer, advertised
from agent.diagnose.placement import black_hole, node_wide
from agent.model import Action, Component, Fault, GpuRef, Scope, Severity
from agent.pods import DeviceHealth, Pod
from agent.rulebook import load_rulebook

GPU = GpuRef(uuid="GPU-1")
N = "nvidia.com/gpu"
LOST = (
    "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: "
    "code = Unknown desc = Unable to retrieve list of available devices: error creating nvml.Device 5: nvml: "
    "GPU is lost, which is unexpected"
)
FAULT = Fault(
    id="f1", scope=Scope.GPU, gpu=GPU, cause="xid/79", title="", severity=Severity.FATAL, recovery="reboot_node",
    component=Component.GPU, action=Action.TAINT,
)  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "there", "total", "health", "offer"),
    [
        (None, None, None, (), Offer.UNKNOWN),
        ({"GPU-1", "GPU-2"}, "2", "2", (), Offer.ADVERTISED),
        ({"GPU-2"}, "1", "2", (), Offer.WITHDRAWN),
        (set(), "1", "2", (), Offer.UNKNOWN),
        ({"0", "1"}, "1", "2", (), Offer.UNKNOWN),
        (None, "4", "4", (), Offer.ADVERTISED),
        (None, "0", "4", (), Offer.WITHDRAWN),
        (None, "0", "0", (), Offer.UNKNOWN),
        (None, "3", "4", (), Offer.UNKNOWN),
        (None, "3", "4", (DeviceHealth(resource=N, id="GPU-1", health="Unhealthy"),), Offer.WITHDRAWN),
        (None, "3", "4", (DeviceHealth(resource=N, id="GPU-2", health="Unhealthy"),), Offer.UNKNOWN),
    ],
)
def test_offer(
    ids: set[str] | None, there: str | None, total: str | None, health: tuple[DeviceHealth, ...], offer: Offer
) -> None:
    found = advertised(
        GPU,
        allocatable_ids=ids,
        allocatable=None if there is None else {N: there},
        capacity=None if total is None else {N: total},
        health=health,
    )
    assert found.offer is offer
    assert found.why


def rejected(name: str, *, message: str = LOST, created: float = 100.0) -> Pod:
    return Pod(
        namespace="d", name=name, uid=name, node="n", reason="UnexpectedAdmissionError", message=message,
        created=created,
    )  # fmt: skip


def test_black_hole() -> None:
    says = node_wide(load_rulebook().rules)
    found = black_hole([rejected("a"), rejected("b")], [FAULT], node="n", now=110.0, says=says)
    assert found is not None
    assert (found.count, found.gpu, found.fault) == (2, GPU, "f1")
    assert black_hole([rejected("a")], [], node="n", now=110.0, says=says) is None
    assert black_hole([rejected("a")], [FAULT], node="n", now=9000.0, says=says) is None
    assert black_hole([rejected("a")], [FAULT], node="m", now=110.0, says=says) is None
    assert black_hole([rejected("a", message="no")], [FAULT], node="n", now=110.0, says=says) is None

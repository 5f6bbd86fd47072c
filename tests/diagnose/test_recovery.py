"""Proof of recovery: what was seen since a fault in, whether it is over out. The times are made up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.catalogue import Proof
from agent.diagnose.recovery import Proofs, hold_for, recovered
from agent.diagnose.release import released
from agent.model import Action, Component, Fault, GpuRef, PciAddress, Scope, Severity

PCI, UUID = PciAddress("0000:5d:00"), "GPU-4"
SEEN, HOLD = 1000.0, 600.0
HERE = {PCI: UUID, PciAddress("0000:5e:00"): "GPU-5"}

FAULT = Fault(
    id="fault-1", scope=Scope.GPU, gpu=GpuRef(pci=PCI, uuid=UUID), cause="xid/79", title="Xid 79",
    severity=Severity.FATAL, recovery="reboot_node", component=Component.GPU, action=Action.CORDON,
    first_seen=SEEN, last_seen=SEEN, boot="b1",
)  # fmt: skip
SAME_BOOT = Proofs(now=9999.0, boot="b1", booted=0.0, gpus=HERE)
REBOOTED = Proofs(now=9999.0, boot="b2", booted=2000.0, gpus=HERE)
RELOADED = replace(SAME_BOOT, driver_loaded=2000.0)


@pytest.mark.parametrize(
    ("proof", "proofs", "state", "why"),
    [
        ("reboot", SAME_BOOT, "open", "was not rebooted"),
        ("reboot", RELOADED, "open", "was not rebooted"),
        ("reboot", REBOOTED, "proved", "the node was rebooted, and nothing was seen of it for 600 s"),
        ("reboot", replace(REBOOTED, now=2599.0), "waiting", "quiet until"),
        ("reboot", replace(REBOOTED, now=2600.0), "proved", "rebooted"),
        ("reboot", replace(REBOOTED, gpus=None), "open", "cannot be read"),
        ("reboot", replace(REBOOTED, gpus={}), "open", "has not come back"),
        ("reboot", replace(REBOOTED, gpus={PCI: ""}), "open", "does not tell the UUID"),
        ("reboot", replace(REBOOTED, boot=""), "open", "was not rebooted"),
        ("reset", SAME_BOOT, "open", "was not reset"),
        ("reset", RELOADED, "proved", "the driver was loaded anew"),
        ("reset", replace(RELOADED, now=2100.0), "waiting", "quiet until"),
        ("reset", replace(RELOADED, driver_loaded=999.0), "open", "was not reset"),
        ("reset", REBOOTED, "proved", "rebooted"),
        ("service", REBOOTED, "open", "only other hardware"),
        ("none", SAME_BOOT, "open", "was not reset"),
        ("none", REBOOTED, "proved", "rebooted"),
        *(
            (proof, replace(SAME_BOOT, now=1000.0, gpus={PCI: "GPU-new"}), "proved", "was replaced")
            for proof in ("none", "reset", "reboot", "service")
        ),
    ],
)
def test_what_proves_what(proof: Proof, proofs: Proofs, state: str, why: str) -> None:
    found = recovered(FAULT, proofs, proof=proof, hold=HOLD)
    assert found.state == state and why in found.why
    assert (found.until is not None) is (state == "waiting")


def test_a_fault_of_the_node_needs_no_gpu_to_come_back() -> None:
    wide = replace(FAULT, scope=Scope.NODE, gpu=GpuRef())
    assert recovered(wide, replace(REBOOTED, gpus=None), proof="reboot", hold=HOLD).state == "proved"


def test_the_faulted_card_in_another_slot_is_not_replaced() -> None:
    gpus = {PCI: "GPU-new", PciAddress("0000:5e:00"): UUID}
    for proof in ("none", "reset", "reboot", "service"):
        assert recovered(FAULT, replace(SAME_BOOT, gpus=gpus), proof=proof, hold=HOLD).state == "open"
    assert recovered(FAULT, replace(REBOOTED, gpus=gpus), proof="service", hold=HOLD).state == "open"
    assert recovered(FAULT, replace(REBOOTED, gpus=gpus, now=2100.0), proof="reboot", hold=HOLD).state == "waiting"
    assert recovered(FAULT, replace(REBOOTED, gpus=gpus), proof="reboot", hold=HOLD).state == "proved"


def test_a_gpu_without_an_address_must_come_back_too() -> None:
    by_uuid = replace(FAULT, gpu=GpuRef(uuid=UUID))
    assert recovered(by_uuid, replace(REBOOTED, gpus={}), proof="reboot", hold=HOLD).state == "open"
    assert recovered(by_uuid, REBOOTED, proof="reboot", hold=HOLD).state == "proved"
    unnamed = replace(FAULT, gpu=GpuRef())
    assert recovered(unnamed, replace(REBOOTED, gpus=None), proof="reboot", hold=HOLD).state == "open"


def test_the_hold_counts_from_the_last_record_of_it() -> None:
    again = replace(FAULT, last_seen=9000.0, boot="b1")
    assert recovered(again, REBOOTED, proof="reboot", hold=HOLD).state == "proved"
    assert recovered(again, replace(REBOOTED, now=9500.0), proof="reboot", hold=HOLD).until == 9600.0


TIMES = st.floats(0, 1e6)


@given(st.sampled_from(["none", "reset", "reboot"]), TIMES, TIMES, TIMES, st.floats(0, 1e4))
def test_nothing_is_proved_before_the_hold_is_over(
    proof: Proof, now: float, last: float, done: float, hold: float
) -> None:
    fault = replace(FAULT, last_seen=last)
    for proofs in (replace(REBOOTED, now=now, booted=done), replace(RELOADED, now=now, driver_loaded=done)):
        if recovered(fault, proofs, proof=proof, hold=hold).state == "proved":
            assert now >= last + hold and now >= done + hold


@given(st.sampled_from(["none", "reset", "reboot", "service"]), st.floats(0, 1e6), st.sampled_from(["", "b1", "b2"]))
def test_what_cannot_be_read_is_never_healthy(proof: Proof, now: float, boot: str) -> None:
    blind = Proofs(now=now, boot=boot, booted=0.0, driver_loaded=2000.0, gpus=None)
    assert recovered(FAULT, blind, proof=proof, hold=0).state != "proved"


def test_each_return_doubles_the_hold_up_to_its_limit() -> None:
    def past(ended: float, *, gpu: GpuRef = FAULT.gpu) -> Fault:
        return replace(FAULT, id=f"fault-{ended}", cleared=ended, gpu=gpu)

    fault = replace(FAULT, first_seen=100_000.0)
    assert hold_for(fault, [], hold=600, limit=86400) == 600
    assert hold_for(fault, [past(99_000), past(50_000)], hold=600, limit=86400) == 2400
    assert hold_for(fault, [past(1_000)], hold=600, limit=86400) == 600, "more than a day ago"
    assert hold_for(fault, [past(99_000, gpu=GpuRef(pci=PciAddress("0000:01:00")))], hold=600, limit=86400) == 600
    assert hold_for(fault, [past(99_000 - i) for i in range(30)], hold=600, limit=86400) == 86400


def test_a_release_names_faults_in_any_spelling_and_says_what_it_did_not_understand() -> None:
    other = replace(FAULT, id="fault-2", gpu=GpuRef(pci=PciAddress("0000:5e:00"), uuid="GPU-5"))
    over = replace(FAULT, id="fault-3", cleared=5.0)
    known = (FAULT, other, over)
    assert released("all", known) == (("fault-1", "fault-2"), ())
    assert released("00000000:5D:00.0", known) == (("fault-1",), ())
    assert released("GPU-5, fault-1", known) == (("fault-2", "fault-1"), ())
    assert released("fault-3 nonsense", known) == ((), ("fault-3", "nonsense"))
    assert released("", known) == ((), ())

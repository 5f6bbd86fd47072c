"""The pure core as a whole: signals in any order of arrival, the same verdict out."""

import itertools

import pytest

from agent.diagnose.diagnostician import Diagnostician
from agent.diagnose.failures import FAILURE_LIMIT
from agent.diagnose.knowledge import Knowledge
from agent.model import Action, Allocation, Component, Confidence, Severity, Verdict
from agent.rulebook import load_rulebook

from .make import ALTERNATIVES, BUSY, FLAG, ILLEGAL, RULES, SLOW, gpu, pod, said, told, xid

BOOK = load_rulebook()


def core(**options: object) -> Diagnostician:
    return Diagnostician(Knowledge.of(RULES, lambda: BOOK.catalogue, ALTERNATIVES), **options)  # type: ignore[arg-type]


def only(verdicts: tuple[Verdict, ...]) -> Verdict:
    (verdict,) = verdicts
    return verdict


def test_busy_then_xid_and_xid_then_busy_end_the_same() -> None:
    ends = []
    for order in itertools.permutations([said(BUSY, at=100), xid(79, at=101, recovery="reboot_node")]):
        d = core()
        for signal in order:
            d.apply([signal])
        ends.append(only(d.verdicts))
    for verdict in ends:
        assert (verdict.component, verdict.gpu.pci, verdict.action) == (Component.GPU, "0000:5d:00", Action.CORDON)
        assert verdict.xids == (79,)
        assert {e.source for e in verdict.evidence} == {"log", "kernel"}
    assert ends[0].id == ends[1].id


def test_an_undecided_verdict_names_no_gpu_and_says_what_was_checked_and_what_to_check() -> None:
    d = core()
    d.apply([said(BUSY, rank=3)])
    first, *possible = d.verdicts
    assert first.component is Component.UNDECIDED and first.confidence is Confidence.UNDECIDED
    assert not first.gpu.known and first.action is Action.ADVISE
    assert first.checked and first.fix
    assert {v.component for v in possible} == {Component.SHARING, Component.GPU}
    assert all(v.confidence is Confidence.POSSIBLE and v.action is Action.ADVISE for v in possible)


def test_what_was_handed_in_beside_it_points_to_one_of_the_causes() -> None:
    d = core()
    d.hinted = frozenset({"causes/mps"})
    d.apply([said(BUSY)])
    verdict = only(d.verdicts)
    assert verdict.component is Component.SHARING and verdict.confidence is Confidence.LIKELY


def test_a_container_on_sound_gpus_is_not_told_that_a_gpu_is_possible() -> None:
    d = core()
    d.held([Allocation(container=pod(), devices=("GPU-9",), since=0.0)])
    d.apply([xid(79, of=gpu(uuid="GPU-5")), said(BUSY)])
    assert Component.GPU not in {v.component for v in d.verdicts if v.container is not None}


def test_an_allocation_that_becomes_known_later_makes_it_certain() -> None:
    d = core()
    d.apply([xid(79, of=gpu(uuid="GPU-5")), said(BUSY)])
    assert only(d.verdicts).confidence is Confidence.LIKELY
    changes = d.held([Allocation(container=pod(restart=4), devices=("GPU-5",), since=0.0)])
    assert only(tuple(changes.verdicts.values())).confidence is Confidence.CERTAIN


def test_container_text_alone_never_warrants_more_than_advice() -> None:
    lines = [
        said(r, text="NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.") for r in RULES if r is not SLOW
    ]
    for n in range(1, len(lines) + 1):
        for some in itertools.permutations(lines, n):
            d = core()
            d.apply(some)
            assert d.faults == ()
            assert all(v.action in (Action.NONE, Action.ADVISE) for v in d.verdicts)


def test_programs_own_errors_mark_nothing_and_are_told_as_such() -> None:
    d = core()
    d.apply([xid(31, at=100, severity=Severity.APP, recovery="restart_app"), said(ILLEGAL, at=100.2)])
    verdict = only(d.verdicts)
    assert verdict.component is Component.APPLICATION and verdict.action is Action.ADVISE and verdict.xids == (31,)


def test_a_refused_flag_on_a_node_with_a_dead_gpu_is_still_the_flag() -> None:
    d = core()
    d.apply([xid(79, recovery="reboot_node"), said(FLAG, fields={"value": "flash_attn", "choices": "'triton'"})])
    flag = next(v for v in d.verdicts if v.container is not None)
    assert flag.component is Component.CONFIG and flag.cause == "flash_attn is not known."
    assert flag.fix == ("Use one of 'triton'.",) and not flag.gpu.known


def test_a_fault_that_no_failure_blames_has_a_verdict_of_its_own_until_one_does() -> None:
    d = core()
    alone = d.apply([xid(79, recovery="reboot_node")])
    (own,) = alone.verdicts
    assert d.verdicts[0].container is None
    joined = d.apply([said(BUSY, at=100)])
    assert own in joined.dropped
    assert only(d.verdicts).container is not None


def test_a_slow_default_is_advice() -> None:
    d = core()
    d.apply([told({"attention_backend": "triton", "gpu_arch": "sm100"})])
    verdict = only(d.verdicts)
    assert verdict.rule == SLOW.id and verdict.action is Action.ADVISE


def test_more_records_of_a_known_fault_do_not_judge_every_failure_again() -> None:
    d = core()
    d.apply([xid(79, recovery="reboot_node"), said(BUSY, at=100)])
    changes = d.apply([xid(79, recovery="reboot_node", at=99.0)])
    assert changes.faults and not changes.verdicts


def test_state_that_was_stored_and_restored_gives_the_same_verdicts() -> None:
    d = core()
    d.apply([xid(79, recovery="reboot_node"), said(BUSY, at=100), said(FLAG, by=pod("other"), at=101)])
    again = core()
    again.restore(faults=d.faults, failures=d.failures)
    assert {v.id: v for v in again.verdicts} == {v.id: v for v in d.verdicts}


@pytest.mark.parametrize("kernel_read", [True, False])
def test_blindness_never_looks_like_health(kernel_read: bool) -> None:
    d = core(kernel_read=kernel_read)
    d.held([Allocation(container=pod(), devices=("GPU-9",), since=0.0)])
    d.apply([said(BUSY)])
    told_gpu_possible = Component.GPU in {v.component for v in d.verdicts}
    assert told_gpu_possible is not kernel_read


def test_a_failure_on_a_gpu_that_was_cleared_since_asks_for_nothing_in_the_cluster() -> None:
    clear = xid(154, severity=Severity.INFO, recovery="none", verdict=True, clears=True, at=200.0)
    d = core()
    d.apply([xid(95, at=95.0), said(BUSY, at=100), clear])
    verdict = next(v for v in d.verdicts if v.container is not None)
    assert verdict.action is Action.ADVISE and "was faulted" in verdict.cause


def test_a_crash_long_after_the_fault_was_cleared_is_not_its_doing() -> None:
    clear = xid(154, severity=Severity.INFO, recovery="none", verdict=True, clears=True, at=200.0)
    d = core()
    d.apply([xid(95, at=95.0), said(BUSY, by=pod(restart=0), at=100), clear])
    d.apply([said(BUSY, by=pod(restart=1), at=90_000)])
    first = next(v for v in d.verdicts if v.container is not None)
    assert first.fault is None and first.confidence is Confidence.UNDECIDED


def test_devices_of_other_containers_make_nothing_be_judged_again() -> None:
    d = core()
    d.apply([xid(79, of=gpu(uuid="GPU-5")), said(BUSY)])
    assert not d.held([Allocation(container=pod("other"), devices=("GPU-5",), since=0.0)])


def test_what_is_given_up_for_room_leaves_no_verdict_behind() -> None:
    d = core()
    for n in range(FAILURE_LIMIT + 40):
        d.apply([said(FLAG, by=pod(f"p{n}"), at=float(n))])
    assert len(d.failures) == FAILURE_LIMIT
    assert len({v.container for v in d.verdicts}) == FAILURE_LIMIT


def test_a_failure_that_goes_on_is_not_the_first_to_be_given_up() -> None:
    d = core()
    for n in range(FAILURE_LIMIT + 40):
        d.apply([said(BUSY, by=pod("old"), at=float(n)), said(FLAG, by=pod(f"p{n}"), at=float(n))])
    assert any(f.container.pod == "old" for f in d.failures)

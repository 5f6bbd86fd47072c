"""The truth table of correlation: what the ledger, the allocation and the times say together."""

import pytest

from agent.diagnose.correlate import blame
from agent.diagnose.failures import FailureLog
from agent.diagnose.faults import FaultLedger
from agent.model import Allocation, Confidence, Failure, Fault, GpuRef, Scope, Severity, Signal, parse_pci

from .make import BUSY, FLAG, ILLEGAL, gpu, kernel, pod, said, told, xid
from .test_faults import about

U5, U9 = "GPU-55555555-0000", "GPU-99999999-0000"
G5, G9 = gpu("0000:5d:00", U5), gpu("0000:9b:00", U9)


def failed(*signals: Signal) -> Failure:
    log = FailureLog()
    for signal in signals:
        log.apply(signal)
    return log.failures[-1]


def faults(*signals: Signal) -> tuple[Fault, ...]:
    book = FaultLedger(about)
    for signal in signals:
        book.apply(signal)
    return book.faults


def holds(*devices: str) -> Allocation:
    return Allocation(container=pod(), devices=devices, since=0.0)


CASES = [
    # name, faults, held, named, confidence, sound
    ("one fault, allocation unknown", [xid(79, of=G5)], None, G5, "likely", False),
    ("one fault, held", [xid(79, of=G5)], holds(U5), G5, "certain", False),
    ("one fault, another held", [xid(79, of=G5)], holds(U9), None, "undecided", True),
    ("one fault, a MIG instance of it held", [xid(79, of=G5)], holds(f"MIG-{U5}/3/0"), G5, "certain", False),
    ("one fault, a MIG id that names no GPU held", [xid(79, of=G5)], holds("MIG-0a1b2c3d"), G5, "likely", False),
    ("one fault, an index held", [xid(79, of=G5)], holds("nvidia4"), G5, "likely", False),
    ("nothing on record, a MIG id held", [], holds("MIG-0a1b2c3d"), None, "undecided", False),
    ("one fault among several held", [xid(79, of=G5)], holds(U9, U5), G5, "certain", False),
    ("two faults, allocation unknown", [xid(79, of=G5), xid(95, of=G9)], None, None, "likely", False),
    ("two faults, one held", [xid(79, of=G5), xid(95, of=G9)], holds(U9), G9, "certain", False),
    ("two faults, both held", [xid(79, of=G5), xid(95, of=G9)], holds(U5, U9), None, "likely", False),
    ("fault without address", [kernel()], holds(U5), None, "likely", False),
    ("fault whose UUID is not known, device held", [xid(79, of=gpu("0000:5d:00"))], holds(U9), gpu(), "likely", False),
    ("the fabric", [kernel(scope=Scope.FABRIC)], holds(U5), None, "likely", False),
    ("the node", [kernel(scope=Scope.NODE, recovery="reboot_node")], None, None, "likely", False),
    ("nothing on record", [], None, None, "undecided", False),
    ("nothing on record, devices known", [], holds(U5), None, "undecided", True),
    ("only programs' own Xids", [xid(31, of=G5, severity=Severity.APP)], None, None, "undecided", False),
    ("only a pending repair", [xid(63, of=G5, severity=Severity.PENDING)], holds(U5), None, "undecided", True),
]


@pytest.mark.parametrize(
    ("kernel_signals", "held", "named", "confidence", "sound"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_busy_or_unavailable(kernel_signals, held, named: GpuRef | None, confidence: str, sound: bool) -> None:  # type: ignore[no-untyped-def]
    got = blame(failed(said(BUSY)), BUSY, faults=faults(*kernel_signals), held=held, window=120, kernel_read=True)
    assert got.confidence is Confidence(confidence)
    assert (got.gpu.pci if named else got.gpu.known) == (named.pci if named else False)
    assert got.sound is sound


def test_an_xid_that_comes_after_the_error_counts_within_the_window_and_not_later() -> None:
    for at, found in ((100 + 119, True), (100 + 121, False)):
        got = blame(
            failed(said(BUSY, at=100)), BUSY, faults=faults(xid(79, at=at)), held=None, window=120, kernel_read=True
        )
        assert bool(got.faults) is found


def test_a_fault_that_was_over_before_the_failure_is_not_blamed() -> None:
    clear = xid(154, severity=Severity.INFO, recovery="none", verdict=True, clears=True, at=50.0)
    over = faults(xid(95, at=10.0), clear)
    assert not blame(failed(said(BUSY, at=100)), BUSY, faults=over, held=None, window=120, kernel_read=True).faults
    during = blame(failed(said(BUSY, at=30)), BUSY, faults=over, held=None, window=120, kernel_read=True)
    assert during.faults


def test_an_address_in_the_text_settles_which_of_two() -> None:
    named = said(BUSY, gpu=GpuRef(pci=parse_pci("00000000:9B:00.0")))
    got = blame(
        failed(named), BUSY, faults=faults(xid(79, of=G5), xid(95, of=G9)), held=None, window=120, kernel_read=True
    )
    assert got.gpu.pci == "0000:9b:00" and got.confidence is Confidence.CERTAIN


def test_a_bad_address_beside_xid_31_is_the_programs_own() -> None:
    got = blame(
        failed(said(ILLEGAL)),
        ILLEGAL,
        faults=faults(xid(31, severity=Severity.APP)),
        held=None,
        window=120,
        kernel_read=True,
    )
    assert got.application and got.gpu.pci == "0000:5d:00"


def test_a_refused_flag_is_never_held_against_a_gpu() -> None:
    got = blame(failed(said(FLAG)), FLAG, faults=faults(xid(79)), held=holds(U5), window=120, kernel_read=True)
    assert not got.faults and got.confidence is Confidence.UNDECIDED


def test_without_a_kernel_log_its_silence_proves_nothing() -> None:
    got = blame(failed(said(BUSY)), BUSY, faults=(), held=holds(U5), window=120, kernel_read=False)
    assert not got.sound
    assert any("kernel log: not given" in line for line in got.checked)


def test_times_that_are_not_known_exclude_nothing() -> None:
    got = blame(
        failed(said(BUSY, at=None)), BUSY, faults=faults(xid(79, at=None)), held=None, window=120, kernel_read=True
    )
    assert got.gpu.pci == "0000:5d:00"


def test_the_gpus_that_the_log_itself_lists_stand_in_for_an_unknown_allocation() -> None:
    for listed, named, sound in ((U5, "0000:5d:00", False), (U9, None, True), (f"{U9} {U5}", "0000:5d:00", False)):
        failure = failed(told({"visible_gpus": listed}), said(BUSY))
        got = blame(failure, BUSY, faults=faults(xid(79, of=G5)), held=None, window=120, kernel_read=True)
        assert (got.gpu.pci, got.sound) == (named, sound), listed


def test_a_list_shorter_than_the_server_is_wide_clears_nothing_for_a_lost_gpu_is_missing_in_it() -> None:
    failure = failed(told({"visible_gpus": U9, "tp_size": "2"}), said(BUSY))
    got = blame(failure, BUSY, faults=faults(xid(79, of=G5)), held=None, window=120, kernel_read=True)
    assert got.gpu.pci == "0000:5d:00" and not got.sound


def test_a_text_that_names_its_gpu_is_not_about_another_one() -> None:
    named = said(BUSY, gpu=GpuRef(pci=parse_pci("00000000:9B:00.0")))
    got = blame(failed(named), BUSY, faults=faults(xid(79, of=G5)), held=None, window=120, kernel_read=True)
    assert not got.faults and not got.gpu.known
    assert "the GPU that its text names has no fault on record" in got.checked


def test_a_name_that_cannot_be_compared_excludes_nothing() -> None:
    named = said(BUSY, gpu=GpuRef(uuid="GPU-1"))
    got = blame(failed(named), BUSY, faults=faults(xid(79)), held=None, window=120, kernel_read=True)
    assert got.gpu.pci == "0000:5d:00" and got.confidence is Confidence.LIKELY


def test_what_the_kubelet_gave_out_outranks_what_the_text_names() -> None:
    named = said(BUSY, gpu=GpuRef(pci=parse_pci("0000:5d:00")))
    got = blame(failed(named), BUSY, faults=faults(xid(79, of=G5)), held=holds(U9), window=120, kernel_read=True)
    assert not got.faults and got.sound


def test_a_fault_whose_uuid_is_not_known_is_likely_at_most_where_the_devices_are_known() -> None:
    named = said(BUSY, gpu=GpuRef(pci=parse_pci("0000:5d:00")))
    got = blame(failed(named), BUSY, faults=faults(xid(79)), held=holds(U9), window=120, kernel_read=True)
    assert got.confidence is Confidence.LIKELY and got.by == "named"
    assert any("UUID of the faulted GPU is not known" in line for line in got.checked)


def test_an_unreadable_kernel_log_makes_nothing_sound() -> None:
    got = blame(failed(said(BUSY)), BUSY, faults=faults(xid(79, of=G5)), held=holds(U9), window=120, kernel_read=False)
    assert not got.sound

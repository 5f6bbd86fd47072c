from agent.diagnose.faults import FAULT_LIMIT, FaultLedger
from agent.diagnose.knowledge import About
from agent.model import Action, Component, Scope, Severity, Signal

from .make import gpu, kernel, xid


def about(signal: Signal) -> About:
    grave = signal.fault is not None and signal.fault.severity is Severity.FATAL
    action = Action.NONE
    if signal.fault is not None and grave:
        action = Action.CORDON if signal.fault.recovery == "reboot_node" else Action.TAINT
    return About(
        title=signal.rule, component=Component.GPU, action=action, cause=signal.rule, fix=(f"mend {signal.rule}",)
    )


def ledger() -> FaultLedger:
    return FaultLedger(about)


def test_many_records_of_one_gpu_are_one_fault() -> None:
    book = ledger()
    for n in range(500):
        book.apply(xid(79, recovery="reboot_node", at=float(n)))
    (fault,) = book.faults
    assert (fault.signals, fault.xids, fault.first_seen, fault.last_seen) == (500, (79,), 0.0, 499.0)
    assert len(fault.evidence) == 10


def test_a_follow_up_goes_under_its_cause() -> None:
    book = ledger()
    book.apply(xid(79, recovery="reboot_node"))
    book.apply(xid(45, severity=Severity.CONTEXT, recovery="follow_cause"))
    book.apply(xid(43, severity=Severity.APP, recovery="none"))
    (fault,) = book.faults
    assert fault.cause == "xid/79" and fault.xids == (79, 45, 43) and fault.action is Action.CORDON


def test_a_graver_record_takes_over_and_a_milder_one_does_not() -> None:
    book = ledger()
    book.apply(xid(63, severity=Severity.PENDING, recovery="none"))
    book.apply(xid(79, recovery="reboot_node"))
    book.apply(xid(63, severity=Severity.PENDING, recovery="none"))
    (fault,) = book.faults
    assert fault.cause == "xid/79" and fault.severity is Severity.FATAL and fault.xids == (63, 79)


def test_a_programs_own_xid_long_after_is_a_matter_of_its_own() -> None:
    book = ledger()
    book.apply(xid(79, recovery="reboot_node", at=0.0))
    book.apply(xid(31, severity=Severity.APP, recovery="restart_app", at=4000.0))
    assert len(book.faults) == 2


def test_programs_xids_never_add_up_to_an_accusation() -> None:
    book = ledger()
    for n in range(1000):
        book.apply(xid((13, 31, 43, 45)[n % 4], severity=Severity.APP, recovery="restart_app", at=float(n)))
    assert not any(f.accuses for f in book.faults)


def test_the_drivers_verdict_overrides_the_catalogue() -> None:
    book = ledger()
    book.apply(xid(79, recovery="reboot_node"))
    book.apply(xid(154, recovery="reset_gpu", verdict=True))
    (fault,) = book.faults
    assert fault.cause == "xid/79" and fault.recovery == "reset_gpu" and fault.action is Action.TAINT


def test_the_drivers_all_clear_ends_the_fault_of_that_gpu_only() -> None:
    book = ledger()
    book.apply(xid(95, of=gpu("0000:5d:00")))
    book.apply(xid(95, of=gpu("0000:9b:00")))
    book.apply(
        xid(154, of=gpu("0000:5d:00"), severity=Severity.INFO, recovery="none", verdict=True, clears=True, at=200.0)
    )
    assert {str(f.gpu.pci): f.open for f in book.faults} == {"0000:5d:00": False, "0000:9b:00": True}


def test_a_new_fault_after_the_all_clear_is_a_new_fault() -> None:
    book = ledger()
    book.apply(xid(95))
    book.apply(xid(154, severity=Severity.INFO, recovery="none", verdict=True, clears=True, at=200.0))
    book.apply(xid(95, at=300.0))
    assert [f.open for f in book.faults] == [False, True]


def test_a_record_without_address_joins_the_only_accused_gpu_and_else_names_none() -> None:
    book = ledger()
    book.apply(kernel("kernel/reset-required"))
    assert not book.faults[0].gpu.known
    book = ledger()
    book.apply(xid(95))
    book.apply(kernel("kernel/reset-required"))
    (fault,) = book.faults
    assert str(fault.gpu.pci) == "0000:5d:00" and fault.signals == 2
    book = ledger()
    book.apply(xid(95, of=gpu("0000:5d:00")))
    book.apply(xid(95, of=gpu("0000:9b:00")))
    book.apply(kernel("kernel/reset-required"))
    assert [f.gpu.known for f in book.faults] == [True, True, False]


def test_the_line_that_names_the_root_cause_keeps_it() -> None:
    book = ledger()
    book.apply(xid(45, severity=Severity.CONTEXT, recovery="follow_cause", caused_by=149))
    assert book.faults[0].xids == (149, 45)


def test_scopes_do_not_mix() -> None:
    book = ledger()
    book.apply(xid(95))
    book.apply(kernel("sxid/20034", scope=Scope.FABRIC))
    book.apply(kernel("kernel/uvm", scope=Scope.NODE, recovery="reboot_node"))
    assert [f.scope for f in book.faults] == [Scope.GPU, Scope.FABRIC, Scope.NODE]


def test_a_broken_log_cannot_fill_the_memory_nor_push_out_an_accusation() -> None:
    book = ledger()
    book.apply(xid(79, of=gpu("0000:00:00"), recovery="reboot_node"))
    for n in range(FAULT_LIMIT + 20):
        book.apply(xid(31, of=gpu(f"{n + 1:04x}:01:00"), severity=Severity.APP, recovery="restart_app"))
    assert len(book.faults) == FAULT_LIMIT
    assert any(f.accuses for f in book.faults)


def test_what_only_accompanies_a_note_does_not_take_it_over_and_a_note_takes_over_an_accompaniment() -> None:
    for first, second in ((Severity.INFO, Severity.CONTEXT), (Severity.CONTEXT, Severity.INFO)):
        book = ledger()
        book.apply(xid(145, severity=first, recovery="none"))
        book.apply(xid(45, severity=second, recovery="none"))
        (fault,) = book.faults
        assert fault.severity is Severity.INFO


def test_the_drivers_all_clear_without_a_fault_is_noted_once_and_is_over() -> None:
    book = ledger()
    for at in (5.0, 9.0):
        book.apply(xid(154, severity=Severity.INFO, recovery="none", verdict=True, clears=True, at=at))
    (fault,) = book.faults
    assert not fault.open and fault.xids == (154,) and fault.severity is Severity.INFO and fault.signals == 2
    book.apply(xid(79, recovery="reboot_node", at=20.0))
    assert [f.open for f in book.faults] == [False, True]

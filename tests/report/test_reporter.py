"""When a series is told, told again, and held back; with a turned clock."""

from agent.diagnose.diagnostician import Changes, Diagnostician
from agent.diagnose.knowledge import Knowledge
from agent.model import Allocation, Role, Signal
from agent.report.events import Reason, Report
from agent.report.reporter import REPEAT_SECONDS, SERIES_LIMIT, Reporter
from agent.report.store import decode
from agent.rulebook import load_rulebook
from tests.diagnose.make import ALTERNATIVES, BUSY, FLAG, RULES, gpu, pod, said, xid

BOOK = load_rulebook()
KNOWLEDGE = Knowledge.of(RULES, lambda: BOOK.catalogue, ALTERNATIVES)


class Desk:
    """A diagnostician and a reporter with a clock to turn."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.told: list[Report] = []
        self.core = Diagnostician(KNOWLEDGE)
        self.reporter = Reporter(
            node="n1", mode="observe", settle=10.0, clock=lambda: self.now,
            role_of=lambda rule: KNOWLEDGE.rules[rule].role if rule in KNOWLEDGE.rules else Role.CAUSE,
            sink=self.told.append,
        )  # fmt: skip

    def see(self, *signals: Signal) -> list[tuple[str, str, bytes]]:
        return self.reporter.changed(self.core.apply(signals))

    @property
    def reasons(self) -> list[Reason]:
        return [r.reason for r in self.told]


def test_a_decided_failure_is_told_at_once_and_only_once() -> None:
    desk = Desk()
    desk.see(said(FLAG))
    desk.see(said(FLAG))
    assert desk.reasons == [Reason.BACKEND_VALIDATION_FAILED]


def test_an_undecided_failure_waits_for_the_kernel_and_is_told_when_nothing_comes() -> None:
    desk = Desk()
    desk.see(said(BUSY))
    assert desk.told == [] and desk.reporter.due() == 1010.0
    desk.now = 1009.9
    desk.reporter.settled()
    assert desk.told == []
    desk.now = 1010.0
    desk.reporter.settled()
    assert desk.reasons == [Reason.BACKEND_FAILURE_UNDECIDED] and desk.reporter.due() is None


def test_a_record_that_comes_in_time_makes_it_the_gpus_and_no_undecided_event_is_left() -> None:
    desk = Desk()
    desk.see(said(BUSY))
    desk.now = 1005.0
    desk.see(xid(79, recovery="reboot_node"))
    desk.now = 1020.0
    desk.reporter.settled()
    assert sorted(desk.reasons) == sorted([Reason.GPU_FAULT, Reason.BACKEND_FAILED_ON_FAULTED_GPU])


def test_a_failure_that_goes_on_does_not_put_off_its_own_telling() -> None:
    desk = Desk()
    for n in range(9):
        desk.now = 1000.0 + n
        desk.see(said(BUSY, by=pod(restart=n), at=desk.now))
    assert desk.reporter.due() == 1010.0


def test_a_crash_loop_is_one_series_that_is_told_again_at_most_once_a_minute() -> None:
    desk = Desk()
    for n in range(121):
        desk.now = 1000.0 + n
        desk.see(said(FLAG, by=pod(restart=n), at=desk.now))
    assert len(desk.reporter.reports) == 1 and desk.reporter.reports[0].count == 121
    assert len(desk.told) == 1 + int(120 / REPEAT_SECONDS)


def test_a_flood_of_records_is_one_series() -> None:
    desk = Desk()
    for n in range(1000):
        desk.see(xid(79, recovery="reboot_node", at=float(n)))
    assert desk.reasons == [Reason.GPU_FAULT] and desk.reporter.reports[0].count == 1000


def test_possible_causes_beside_an_undecided_failure_are_no_events_of_their_own() -> None:
    desk = Desk()
    desk.see(said(BUSY))
    desk.now = 2000.0
    desk.reporter.settled()
    assert len(desk.told) == 1


def test_what_an_earlier_run_told_is_not_told_again() -> None:
    desk = Desk()
    stored = desk.see(xid(79, recovery="reboot_node"), said(FLAG, by=pod("a")), said(BUSY, by=pod("b")))
    again = Desk()
    again.core.restore(faults=desk.core.faults, failures=desk.core.failures)
    series = {key: decode(body, Report) for kind, key, body in stored if kind == "report"}
    again.reporter.restore(faults=again.core.faults, verdicts=again.core.verdicts, series=series)
    again.core.held([Allocation(container=pod("a"), devices=("GPU-1",), since=0.0)])
    again.reporter.changed(again.core.reconsider())
    assert again.told == []


def test_series_are_bounded() -> None:
    desk = Desk()
    for n in range(SERIES_LIMIT + 10):
        desk.see(said(FLAG, by=pod(f"p{n}")))
    assert len(desk.reporter.reports) == SERIES_LIMIT


def test_the_plan_of_each_fault_is_kept() -> None:
    desk = Desk()
    desk.see(xid(79, recovery="reboot_node", of=gpu("0000:1a:00")), xid(48, of=gpu("0000:2a:00")))
    assert len(desk.reporter.plans) == 2
    assert all(p.withheld or p.action in ("none", "advise") for p in desk.reporter.plans.values())


def test_no_change_tells_nothing() -> None:
    desk = Desk()
    assert desk.reporter.changed(Changes()) == [] and desk.told == []


def test_a_verdict_that_was_held_back_at_the_stop_is_told_by_the_next_run() -> None:
    desk = Desk()
    desk.see(said(BUSY))
    again = Desk()
    again.now = 1060.0
    again.core.restore(faults=desk.core.faults, failures=desk.core.failures)
    again.reporter.restore(faults=again.core.faults, verdicts=again.core.verdicts, series={})
    assert again.reporter.due() == 1070.0
    again.now = 1070.0
    again.reporter.settled()
    assert again.reasons == [Reason.BACKEND_FAILURE_UNDECIDED]


def test_a_failure_is_counted_once_when_it_is_told_whatever_it_was_taken_for_before() -> None:
    desk = Desk()
    counted: list[str] = []
    desk.reporter.on_failure = lambda verdict: counted.append(verdict.rule)
    desk.see(said(BUSY))
    desk.see(said(FLAG))
    desk.now = 5000.0
    desk.reporter.settled()
    assert counted == [FLAG.id]

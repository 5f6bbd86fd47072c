from agent.diagnose.advice import Advice
from agent.diagnose.failures import CONTAINER_LIMIT, FailureLog

from .make import BUSY, DIED, FLAG, SLOW, UNKNOWN, pod, said, told


def test_a_cause_outranks_a_symptom_and_an_echo_whatever_came_first() -> None:
    log = FailureLog()
    log.apply(said(DIED, at=1))
    log.apply(said(BUSY, at=2))
    change = log.apply(said(FLAG, at=3))
    assert change is not None
    assert change.failure.primary.rule == FLAG.id
    assert len(log.failures) == 1


def test_the_first_of_two_causes_is_the_cause_and_what_follows_is_noise() -> None:
    log = FailureLog()
    log.apply(said(FLAG, at=1, text="first"))
    change = log.apply(said(FLAG, at=2, text="second"))
    assert change is not None
    assert change.failure.primary.evidence.text == "first"
    assert change.failure.signals == 2


def test_a_crash_loop_is_one_failure_with_a_count() -> None:
    log = FailureLog()
    ids = {log.apply(said(FLAG, by=pod(restart=n), at=n)).failure.id for n in range(5)}  # type: ignore[union-attr]
    assert len(ids) == 1
    assert log.failures[0].restarts == (0, 1, 2, 3, 4)


def test_an_echo_that_is_explained_later_is_not_counted_twice() -> None:
    log = FailureLog()
    first = log.apply(said(DIED, at=1))
    second = log.apply(said(BUSY, at=2))
    assert first is not None and second is not None
    assert second.dropped == first.failure.id
    assert [f.id for f in log.failures] == [second.failure.id]


def test_an_instance_that_failed_otherwise_leaves_the_earlier_failure_as_it_was() -> None:
    log = FailureLog()
    log.apply(said(BUSY, by=pod(restart=0), at=1))
    log.apply(said(FLAG, by=pod(restart=1), at=2))
    assert {f.primary.rule: f.restarts for f in log.failures} == {BUSY.id: (0,), FLAG.id: (1,)}


def test_context_alone_is_no_failure() -> None:
    log = FailureLog()
    assert log.apply(told({"attention_backend": "triton"})) is None
    assert log.failures == ()


def test_a_slow_default_is_noticed_once_from_its_facts() -> None:
    log = FailureLog(advice=Advice([SLOW]))
    assert log.apply(told({"attention_backend": "triton"})) is None
    change = log.apply(told({"gpu_arch": "sm100"}))
    assert change is not None and change.failure.primary.rule == SLOW.id
    assert log.apply(told({"page_size": "1"})) is None


def test_a_failure_of_the_slow_run_is_told_as_the_failure() -> None:
    log = FailureLog(advice=Advice([SLOW]))
    log.apply(told({"attention_backend": "triton", "gpu_arch": "sm100"}))
    change = log.apply(said(BUSY, at=200))
    assert change is not None and change.failure.primary.rule == BUSY.id


def test_containers_without_number_cannot_fill_the_memory() -> None:
    log = FailureLog()
    for n in range(CONTAINER_LIMIT + 50):
        log.apply(told({"a": "b"}, by=pod(f"p{n}")))
    assert len(log._instances) == CONTAINER_LIMIT


def test_restored_failures_go_on_counting() -> None:
    log = FailureLog()
    log.apply(said(FLAG, by=pod(restart=0), at=1))
    later = FailureLog()
    later.restore(log.failures)
    change = later.apply(said(FLAG, by=pod(restart=1), at=2))
    assert change is not None and change.failure.restarts == (0, 1)


def test_an_unknown_exception_of_a_server_that_goes_on_is_not_told() -> None:
    log = FailureLog()
    assert log.apply(said(UNKNOWN, at=1)) is None
    assert log.ended() == [] and log.failures == ()


def test_an_unknown_exception_shortly_before_the_end_is_the_explanation_of_the_end() -> None:
    log = FailureLog()
    log.apply(said(UNKNOWN, at=100, text="the words"))
    change = log.apply(said(DIED, at=101))
    assert change is not None and change.failure is not None
    assert change.failure.primary.evidence.text == "the words"


def test_an_unknown_exception_long_before_the_end_is_not() -> None:
    log = FailureLog()
    log.apply(said(UNKNOWN, at=100))
    change = log.apply(said(DIED, at=1000))
    assert change is not None and change.failure is not None
    assert change.failure.primary.rule == DIED.id


def test_a_known_cause_outranks_an_unknown_exception() -> None:
    log = FailureLog()
    log.apply(said(UNKNOWN, at=100))
    change = log.apply(said(FLAG, at=101))
    assert change is not None and change.failure is not None and change.failure.primary.rule == FLAG.id


def test_an_instance_that_came_again_had_ended_on_its_unknown_exception() -> None:
    log = FailureLog()
    log.apply(said(UNKNOWN, by=pod(restart=0), at=1))
    log.apply(told({"a": "b"}, by=pod(restart=1)))
    (change,) = log.ended()
    assert change.failure is not None and change.failure.primary.rule == UNKNOWN.id and change.failure.restarts == (0,)


def test_at_the_end_of_the_logs_unknown_exceptions_are_told() -> None:
    log = FailureLog()
    log.apply(said(UNKNOWN, at=1))
    assert [c.failure.primary.rule for c in log.close() if c.failure] == [UNKNOWN.id]
    assert log.close() == []

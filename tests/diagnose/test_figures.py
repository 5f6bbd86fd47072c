"""A server's figures beside advice: before a change, and after it."""

from __future__ import annotations

from agent.diagnose.diagnostician import Diagnostician
from agent.diagnose.knowledge import Knowledge
from agent.model import Evidence, Role, Signal

from .make import BUSY, RULES, pod, said, told

SLOW_FACTS = {"attention_backend": "triton", "gpu_arch": "sm100"}


def core() -> Diagnostician:
    return Diagnostician(Knowledge.of(RULES, lambda: None))  # type: ignore[arg-type, return-value]


def figures(text: str, *, at: float = 200.0) -> Signal:
    return Signal(
        rule="server/metrics",
        role=Role.CONTEXT,
        container=pod(),
        time=at,
        fields={"ttft_mean_seconds": "75.8"},
        evidence=Evidence(source="http://10.0.0.9:30000/metrics", text=text),
    )


def test_figures_stand_beside_the_advice_and_the_newest_replaces_the_one_before() -> None:
    one = core()
    one.apply([told(SLOW_FACTS)])
    changes = one.apply([figures("75.8 s")])
    assert [e.text for e in one.verdicts[0].evidence] == ["fact", "75.8 s"]
    assert changes.verdicts and changes.failures, "they are stored"
    one.apply([figures("74.0 s", at=500.0)])
    assert [e.text for e in one.verdicts[0].evidence] == ["fact", "74.0 s"]
    assert one.failures[0].facts["ttft_mean_seconds"] == "75.8"
    assert one.failures[0].signals == 1, "figures are no failure"


def test_figures_that_came_first_are_quoted_too() -> None:
    one = core()
    one.apply([figures("75.8 s"), told(SLOW_FACTS)])
    assert "75.8 s" in [e.text for e in one.verdicts[0].evidence]


def test_figures_say_nothing_about_a_crash() -> None:
    one = core()
    one.apply([figures("75.8 s"), said(BUSY)])
    assert "75.8 s" not in [e.text for v in one.verdicts for e in v.evidence]


def test_figures_survive_a_restart_as_evidence_and_are_no_failure() -> None:
    one, two = core(), core()
    one.apply([told(SLOW_FACTS), figures("75.8 s")])
    two.restore(faults=(), failures=one.failures)
    assert two.verdicts == one.verdicts
    two.apply([said(BUSY)])
    assert two.failures[0].primary.rule == BUSY.id

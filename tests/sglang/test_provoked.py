"""Holds the rules to what the real sglang 0.5.15.post1 printed when its own checks refused; needs no wheel."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import pytest

from agent.detect.framing import message_of
from agent.detect.recognise import recognise
from agent.explain import as_json, explain
from agent.rulebook import Rulebook, load_rulebook
from agent.sources.handed import open_handed
from tests.sglang.provoke import ATTEMPTS, KEPT, Attempt

ENOUGH = 25


@cache
def book() -> Rulebook:
    return load_rulebook()


def answer(name: str) -> dict[str, Any]:
    inputs = open_handed([str(KEPT / f"{name}.log")], stdin=io.BytesIO(), recognise=recognise)
    told: dict[str, Any] = json.loads(as_json(explain(inputs, book())))
    return told


def test_there_are_enough_real_refusals_and_a_log_for_each() -> None:
    kept = {path.stem for path in KEPT.glob("*.log")}
    assert kept == {attempt.name for attempt in ATTEMPTS}
    assert len(kept) >= ENOUGH


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_a_real_refusal_is_explained_by_its_rule_and_blames_no_gpu(attempt: Attempt) -> None:
    told = answer(attempt.name)
    assert [verdict["rule"] for verdict in told["verdicts"]] == [attempt.rule]
    assert told["verdicts"][0]["component"] in ("config", "image")
    assert told["faults"] == [] and told["action"] == "advise"


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_the_advice_is_complete_and_nothing_in_it_is_left_open(attempt: Attempt) -> None:
    verdict = answer(attempt.name)["verdicts"][0]
    steps = verdict["fix"]
    assert steps and all(len(step) > 8 for step in steps)
    for text in (verdict["cause"], *steps):
        assert "unknown" not in text and "{" not in text.replace("{{", "").replace('{"', "")


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_only_one_rule_recognises_the_text(attempt: Attempt) -> None:
    lines = (KEPT / f"{attempt.name}.log").read_text().splitlines()
    rules = [r for r in book().rules if r.engine == "sglang" and r.role in ("cause", "symptom") and r.literals]
    found = {rule.id for line in lines for rule in rules if rule.capture_fields(message_of(line)) is not None}
    assert found == {attempt.rule}

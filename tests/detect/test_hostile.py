"""Lines made to cost time: every step that a tenant's line goes through takes time in proportion to its length."""

import time

import pytest

from agent.detect.container import EVIDENCE_CAP, LINE_CAP, MARGIN, SLOW_RULES, ContainerDetector, StreamState
from agent.detect.framing import frame
from agent.detect.redact import redact
from agent.detect.rules import Rule
from agent.detect.server_args import parse_server_args
from agent.model import ContainerRef
from agent.rulebook import load_rulebook

BOOK = load_rulebook()
ERROR = "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable "
UNITS = [
    "-",
    "=",
    ":",
    "@",
    '"',
    "'",
    " ",
    "\\",
    "--a",
    "a:",
    "key=",
    "token=",
    "://",
    "a://b",
    "[",
    "(",
    "\r",
    "%s",
    "Bearer ",
]


def seconds(work, text: str) -> float:  # type: ignore[no-untyped-def]
    """The best of three: other work on the machine only adds."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work(text)
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("work", [redact, frame, parse_server_args], ids=lambda f: f.__name__)
def test_four_times_the_line_costs_about_four_times_the_time(work, unit: str) -> None:  # type: ignore[no-untyped-def]
    head = "server_args=ServerArgs(a=" if work is parse_server_args else ERROR
    size = 16_000
    small = seconds(work, head + unit * (size // len(unit)))
    large = seconds(work, head + unit * (4 * size // len(unit)))
    assert large < max(12 * small, 0.1)


@pytest.mark.parametrize("unit", UNITS)
def test_a_known_error_with_a_hostile_tail_is_known_in_no_time(unit: str) -> None:
    detector = ContainerDetector(BOOK.rules, anchors=BOOK.anchors)
    detector.prepare()
    line = (ERROR + unit * (LINE_CAP // len(unit)))[: LINE_CAP - 1].replace("\n", " ") + "\n"

    def look(_: str) -> None:
        detector.signals(line.encode(), state=StreamState(), container=ContainerRef(file="x"), source="x")

    look("")  # expressions are compiled at their first use
    assert seconds(look, "") < 0.5


@pytest.mark.parametrize("begins", [*range(EVIDENCE_CAP - 40, EVIDENCE_CAP, 3), EVIDENCE_CAP + MARGIN - 20])
@pytest.mark.parametrize("before", ["", "token="], ids=["plain", "after a secret that hides all before"])
@pytest.mark.parametrize("secret", ["https://user:{}@host/", "--api-key {}", "Bearer {}"])
def test_no_half_of_a_secret_is_quoted_where_the_quotation_ends(begins: int, before: str, secret: str) -> None:
    detector = ContainerDetector(BOOK.rules, anchors=BOOK.anchors)
    line = f"{ERROR + before:k<{begins}} {secret.format('Zq7hunter2')} tail{' more' * 2000}\n"
    found = list(detector.signals(line.encode(), state=StreamState(), container=ContainerRef(file="x"), source="x"))
    assert found
    for signal in found:
        assert "Zq7" not in signal.evidence.text
        assert not any("Zq7" in value for value in signal.fields.values())


def test_a_line_that_makes_rules_slow_is_left_after_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = ContainerDetector(BOOK.rules, anchors=BOOK.anchors)
    detector.prepare()
    asked = []

    def slow(self: Rule, text: str) -> None:
        asked.append(self.id)
        raise TimeoutError

    monkeypatch.setattr(Rule, "capture_fields", slow)
    several = " ".join(dict.fromkeys(literal for rule in BOOK.rules for literal in rule.literals[:1]))[: LINE_CAP - 1]
    line = f"{several}\n".replace("\n", " ").encode() + b"\n"
    assert not list(detector.signals(line, state=StreamState(), container=ContainerRef(file="x"), source="x"))
    assert len(asked) == SLOW_RULES
    assert detector.figures.abandoned_lines == 1

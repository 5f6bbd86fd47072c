"""The agent's own log: its two forms, and what a flood of messages costs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.log import JsonLines, RateLimit, TextLines, setup_logging


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    level, handlers, raising = root.level, root.handlers[:], logging.raiseExceptions
    yield io.StringIO()
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)


def test_text_lines_hold_time_level_logger_message_and_fields(out: io.StringIO) -> None:
    setup_logging(stream=out)
    logging.getLogger("agent.x").warning("read %d lines", 3, extra={"file": "a b.log", "n": 1})
    line = out.getvalue()
    assert line[10] == "T" and line[23] == "Z"
    assert line[24:] == ' WARNING agent.x: read 3 lines file="a b.log" n=1\n'


def test_json_lines_are_one_object_each(out: io.StringIO) -> None:
    setup_logging(format="json", level="debug", stream=out)
    log = logging.getLogger("agent.x")
    log.debug("a\nb", extra={"n": 1, "level": "mine", "what": object})
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("failed")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"], first["n"]) == ("debug", "agent.x", "a\nb", 1)
    assert second["level"] == "error" and "ValueError: bad" in second["exception"]


def test_a_level_below_the_set_one_is_not_written(out: io.StringIO) -> None:
    setup_logging(level="warning", stream=out)
    logging.getLogger("agent.x").info("quiet")
    assert out.getvalue() == ""


def test_a_second_set_up_replaces_the_first(out: io.StringIO) -> None:
    other = io.StringIO()
    setup_logging(stream=other)
    setup_logging(format="json", stream=out)
    logging.getLogger("agent.x").error("once")
    assert other.getvalue() == ""
    assert len(out.getvalue().splitlines()) == 1


def test_a_repeating_message_is_held_back_and_counted(out: io.StringIO) -> None:
    clock = Clock()
    limit = setup_logging(stream=out, clock=clock)
    log = logging.getLogger("agent.x")
    for i in range(1000):
        clock.now += 0.01
        log.warning("bad line %d", i)
    assert len(out.getvalue().splitlines()) == 5
    assert limit.suppressed == 995
    log.warning("another message")
    assert "another message" in out.getvalue()
    clock.now += 60
    log.warning("bad line %d", 1000)
    log.warning("bad line %d", 1001)
    assert out.getvalue().splitlines()[-1].endswith("bad line 1000 suppressed=995")
    clock.now += 60
    log.warning("bad line %d", 1002)
    clock.now += 60
    log.warning("bad line %d", 1003)
    log.warning("bad line %d", 1004)
    assert out.getvalue().splitlines()[-1].endswith("bad line 1004"), "after a silence the burst is back"


def test_even_messages_that_all_differ_cannot_flood(out: io.StringIO) -> None:
    clock = Clock()
    limit = setup_logging(stream=out, clock=clock)
    log = logging.getLogger("agent.x")
    for i in range(3000):
        log.error(f"made up {i}")
    assert len(out.getvalue().splitlines()) == 50
    assert limit.suppressed == 2950
    assert len(limit._keys) <= 1000
    clock.now += 1
    log.error("back")
    assert "back" in out.getvalue()


@given(st.text(), st.text(), st.text(min_size=1))
def test_any_text_is_one_line_that_acts_on_no_terminal(message: str, value: str, error: str) -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": (message,), "levelname": "INFO", "name": "n", "given": value})
    line = TextLines().format(record)
    assert "\n" not in line and "\x1b" not in line
    assert json.loads(JsonLines().format(record))["logger"] == "n"
    assert "\n" not in JsonLines().format(record)


def test_a_traceback_that_quotes_input_is_escaped() -> None:
    try:
        raise ValueError("\x1b[2J")
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "m", "exc_info": (type(error), error, error.__traceback__)})
    assert "\x1b" not in TextLines().format(record)
    assert "\\x1b[2J" in TextLines().format(record)


def test_a_standard_error_that_is_gone_is_survived(out: io.StringIO) -> None:
    setup_logging(stream=out)
    out.close()
    logging.getLogger("agent.x").error("nobody reads this")


def test_the_limit_counts_by_template_and_level() -> None:
    limit = RateLimit(clock=Clock(), burst=1)

    def record(level: int, msg: str) -> logging.LogRecord:
        return logging.makeLogRecord({"levelno": level, "msg": msg, "name": "n"})

    assert limit.filter(record(20, "a")) and limit.filter(record(30, "a")) and limit.filter(record(20, "b"))
    assert not limit.filter(record(20, "a"))

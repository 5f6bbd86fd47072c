"""Single lines: each is told for what it is, and none that a program could have written accuses a GPU.

`tests/data/lines/*.yaml` holds them; `raw` lines get a stamp, `container` lines stand in a container's log, any other
form stands as it is in a kernel log.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.detect.recognise import recognise
from agent.explain import as_json, explain
from agent.rulebook import Rulebook, load_rulebook
from agent.sources.handed import open_handed

LINES = [
    line
    for file in sorted((Path(__file__).parent / "data" / "lines").glob("*.yaml"))
    for line in yaml.safe_load(file.read_text())["lines"]
]
MARKS = ("taint", "cordon")


@cache
def _book() -> Rulebook:
    return load_rulebook()


def _answer(line: dict[str, Any], folder: Path) -> dict[str, Any]:
    file = folder / ("container.log" if line["form"] == "container" else "kmsg.txt")
    file.write_text(("[   12.345678] " if line["form"] == "raw" else "") + line["line"] + "\n")
    inputs = open_handed([str(file)], stdin=io.BytesIO(), recognise=recognise)
    answer: dict[str, Any] = json.loads(as_json(explain(inputs, _book())))
    return answer


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["id"])
def test_a_single_line_is_told_for_what_it_is(line: dict[str, Any], tmp_path: Path) -> None:
    answer, want = _answer(line, tmp_path), line["expect"]
    xids = {x for item in (*answer["faults"], *answer["verdicts"]) for x in item["xids"]}
    if not want["match"]:
        assert answer["action"] not in MARKS
        assert want.get("would_be_code") not in xids
        return
    assert answer["faults"] or answer["verdicts"] or want["kind"] == "text"
    if want["kind"] == "xid":
        assert want["code"] in xids
    if "bdf" in want:
        assert want["bdf"] in json.dumps(answer)
    if want["hardware_fault"] == "yes":
        assert answer["action"] in MARKS
    if want["hardware_fault"] == "no":
        assert answer["action"] not in MARKS


def test_no_line_stands_there_twice() -> None:
    assert len({line["id"] for line in LINES}) == len(LINES)

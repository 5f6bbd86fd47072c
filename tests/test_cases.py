"""Holds `explain` to its word on logs as people hand them in: a folder a case, the answer beside the log.

`tests/data/cases/<number-name>/` holds the inputs (every file but `expect.yaml`) and `expect.yaml`: `source`, `action`
(or a list of those allowed), `component` (or a list), `gpu` (null: no GPU may be named; or any of `pci`, `uuid`,
`index`, `tp_rank`), `xids`, `rule`, `fix_mentions` (each must occur in the answer; `a|b` = either), `must_not` (none
may occur in a title, cause or fix). An `expect.yaml` with `nothing: true` wants no verdict at all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.detect.recognise import recognise
from agent.explain import as_json, explain
from agent.rulebook import Rulebook, load_rulebook
from agent.sources.handed import open_handed

CASES = Path(__file__).parent / "data" / "cases"
KEYS = {
    "source", "summary", "action", "component", "gpu", "xids", "rule", "fix_mentions", "must_not", "nothing",
}  # fmt: skip


@cache
def _book() -> Rulebook:
    return load_rulebook()


def _answer(folder: Path) -> dict[str, Any]:
    files = sorted(str(p) for p in folder.iterdir() if p.name != "expect.yaml")
    inputs = open_handed(files, stdin=io.BytesIO(), recognise=recognise)
    answer: dict[str, Any] = json.loads(as_json(explain(inputs, _book())))
    return answer


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _wrong(answer: dict[str, Any], want: dict[str, Any]) -> Iterator[str]:
    """What of an answer is not as wanted, one sentence each."""
    verdicts, faults = answer["verdicts"], answer["faults"]
    if unknown := want.keys() - KEYS:
        yield f"expect.yaml has keys that mean nothing: {sorted(unknown)}"
    if want.get("nothing"):
        if verdicts or faults:
            yield f"found {[v['rule'] for v in verdicts]} where there is nothing"
        return
    if answer["action"] not in _listed(want["action"]):
        yield f"action is {answer['action']}, not {want['action']}"
    components = [v["component"] for v in verdicts]
    if not set(components) & set(_listed(want["component"])):
        yield f"component is {components} ({[v['rule'] for v in verdicts]}), not {want['component']}"
    if "rule" in want and not {v["rule"] for v in verdicts} & set(_listed(want["rule"])):
        yield f"rule is {[v['rule'] for v in verdicts]}, not {want['rule']}"
    yield from _wrong_gpu([i["gpu"] or {} for i in (*verdicts, *faults)], want.get("gpu"))
    xids = {x for i in (*verdicts, *faults) for x in i["xids"]}
    if missing := set(want.get("xids", ())) - xids:
        yield f"Xids {sorted(missing)} are not named, only {sorted(xids)}"
    whole = json.dumps({k: answer[k] for k in ("faults", "verdicts", "action")}, ensure_ascii=False).lower()
    for mention in want.get("fix_mentions", ()):
        if not any(one.strip().lower() in whole for one in str(mention).split("|")):
            yield f"the answer does not mention {mention!r}"
    said = [t for i in (*verdicts, *faults) for t in (i["title"], i.get("cause") or "", i["why"], *i["fix"])]
    for text in want.get("must_not", ()):
        yield from (f"says {text!r}: {t}" for t in said if str(text).lower() in t.lower())


def _wrong_gpu(named: list[dict[str, Any]], want: dict[str, Any] | None) -> Iterator[str]:
    if want is None:
        for gpu in named:
            if gpu.get("pci") or gpu.get("uuid"):
                yield f"names {gpu} where no GPU can be named"
        return
    if not any(all(gpu.get(k) == v for k, v in want.items()) for gpu in named):
        yield f"names {named}, not {want}"


@pytest.mark.parametrize("folder", sorted(p.parent for p in CASES.glob("*/expect.yaml")), ids=lambda p: p.name)
def test_a_log_from_a_public_report_is_explained_rightly(folder: Path) -> None:
    want = yaml.safe_load((folder / "expect.yaml").read_text())
    answer = _answer(folder)
    wrong = list(_wrong(answer, want))
    assert not wrong, "\n".join([want["source"], *wrong])

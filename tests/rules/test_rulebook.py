"""Holds the packaged rulebook together: one text has one rule, ordinary lines have none. Reads only packaged files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from agent.cli.explain import command as explain
from agent.detect.clashes import rule_clashes, same_input
from agent.detect.framing import message_of
from agent.detect.rules import Rule, _strip_exception, parse_rules
from agent.model import Role
from agent.rulebook import Rulebook, load_rulebook, packaged_rules

DATA = Path(__file__).resolve().parents[1] / "data"
COVERAGE = yaml.safe_load((DATA / "rules" / "catalogue-coverage.yaml").read_text())["lines"]
CATALOGUE_SIZE = 154
FAILING = frozenset({Role.CAUSE, Role.SYMPTOM, Role.ECHO})
ORDINARY = (
    "Decode batch, #running-req: 4, #token: 512, token usage: 0.01, cuda graph: True, gen throughput (token/s): 210.11,"
    " #queue-req: 0",
    "Decode batch, #running-req: 1, #full token: 200131, full token usage: 0.25, mamba num: 3, mamba usage: 0.01, "
    "accept len: 2.91, accept rate: 0.73, cuda graph: True, gen throughput (token/s): 71.93, #queue-req: 0",
    "Prefill batch, #new-seq: 1, #new-token: 16384, #cached-token: 0, full token usage: 0.02, mamba usage: 0.01, "
    "#running-req: 0, #queue-req: 0, #pending-token: 184000, cuda graph: False, input throughput (token/s): 2640.11",
    'INFO:     10.0.3.4:59028 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    'INFO:     10.0.3.4:59028 - "GET /health HTTP/1.1" 200 OK',
    'INFO:     10.0.3.4:59028 - "GET /health HTTP/1.1" 503 Service Unavailable',
    'INFO:     10.0.3.4:59028 - "POST /v1/completions HTTP/1.1" 400 Bad Request',
)
INNER = (
    "CUDA error: ", "CUDA driver error: ", "Cuda failure ", "CUDA_ERROR_", "Unexpected error from cudaGetDeviceCount",
    "NCCL error: ", "NCCL error in: ", "Triton Error [CUDA]: ", "[../third_party/gloo/",
)  # fmt: skip
"""How the errors begin that SGLang's wrappers really hold."""


@cache
def book() -> Rulebook:
    return load_rulebook(thorough=True)


@cache
def container_rules() -> tuple[Rule, ...]:
    return tuple(rule for rule in book().rules if rule.reads != "kernel" and rule.literals)


def found_in(line: str) -> list[str]:
    message = message_of(line)
    return [
        rule.id
        for rule in container_rules()
        if rule.role is not Role.UNCLAIMED and rule.capture_fields(message) is not None
    ]


def inner_errors() -> list[tuple[str, str]]:
    """Rule id and bare text of every example that one of SGLang's wrappers could hold."""
    return [
        (rule.id, bare)
        for rule in container_rules()
        for text in rule.examples.match
        for line in text.splitlines()
        if rule.capture_fields(message_of(line)) is not None
        and (bare := _strip_exception(message_of(line))).startswith(INNER)
    ]


def test_the_whole_rulebook_holds_to_its_expressions_templates_and_examples() -> None:
    assert len(book().rules) > 350
    book().catalogue.check()


def test_each_example_matches_its_own_rule_and_no_other_that_reads_the_same_input() -> None:
    assert [(c.rule.id, c.other.id, c.line) for c in rule_clashes(book().rules)] == []


def test_a_clash_is_told_with_both_rules_and_only_for_the_same_input() -> None:
    text = b"""
schema: 1
rules:
  - {id: a/one, title: The one, literals: [it broke], role: context, source: here, examples: {match: [it broke twice]}}
  - {id: a/two, title: The two, literals: [it broke], role: context, source: here, examples: {match: [it broke]}}
  - {id: a/dmesg, title: Kernel, literals: [it broke], role: context, reads: kernel, source: here,
     examples: {match: [it broke]}}
"""
    one, two, kernel = parse_rules(text, file="x.yaml")
    told = [(c.rule.id, c.other.id) for c in rule_clashes([one, two, kernel])]
    assert told == [("a/one", "a/two"), ("a/two", "a/one")]
    assert not same_input(one, kernel)
    assert list(rule_clashes([one, kernel])) == []
    assert [c.line for c in rule_clashes([one], among=[two])] == ["it broke twice"]


def test_the_catalogue_of_sglangs_errors_is_covered() -> None:
    covered = {entry["id"] for entry in COVERAGE}
    assert len(covered) == len(COVERAGE)
    assert 140 <= len(covered) <= CATALOGUE_SIZE


@pytest.mark.parametrize("entry", COVERAGE, ids=lambda entry: str(entry["id"]))
def test_a_text_of_the_catalogue_is_explained_by_its_one_rule(entry: dict[str, str]) -> None:
    assert found_in(entry["line"]) == [entry["rule"]]


@pytest.mark.parametrize("kind", ["cuda", "prefill CUDA", "decode CUDA", "frozen-KV MTP cuda"])
def test_an_error_inside_a_failed_graph_capture_is_explained_by_the_inner_errors_rule(kind: str) -> None:
    inner = inner_errors()
    assert len(inner) > 50
    for rule_id, bare in inner:
        found = found_in(f"Exception: Capture {kind} graph failed: {bare}")
        if "out of memory" in bare:
            rule_id = "sglang/mem-graph-capture-oom"
        assert found == [rule_id], bare


@pytest.mark.parametrize(
    "reason", ["nvidia-smi failed (exit code 9: no).", "Failed to get GPU memory capacity from nvidia-smi."]
)
def test_an_error_inside_a_failed_memory_query_is_explained_by_the_inner_errors_rule(reason: str) -> None:
    for rule_id, bare in inner_errors():
        if bare.startswith(("CUDA error: ", "Unexpected error from")):
            line = f"RuntimeError: {reason} torch.cuda.mem_get_info() fallback also failed: {bare}"
            assert found_in(line) == [rule_id], bare


def test_a_lost_gpu_in_a_failed_memory_query_is_named_rather_than_the_busy_device() -> None:
    line = (
        "RuntimeError: nvidia-smi failed (exit code 15: Unable to determine the device handle for GPU0000:5D:00.0: GPU "
        "is lost. Reboot the system to recover this GPU). torch.cuda.mem_get_info() fallback also failed: CUDA error: "
        "CUDA-capable device(s) is/are busy or unavailable"
    )
    assert found_in(line) == ["cuda/nvml-gpu-lost"]


@pytest.mark.parametrize("log", ["03-startup-and-serving.real", "21-hybrid-on-sm100-ready.reconstructed"])
def test_a_healthy_serving_log_tells_of_no_failure(log: str) -> None:
    roles = {rule.id: rule.role for rule in container_rules()}
    lines = (DATA / "sglang" / f"{log}.log").read_text().splitlines()
    assert [(line, id_) for line in lines for id_ in found_in(line) if roles[id_] in FAILING] == []


def test_every_literal_is_long_enough_and_none_hits_an_ordinary_serving_line() -> None:
    literals = [(rule.id, literal) for rule in book().rules for literal in rule.literals]
    assert [(id_, literal) for id_, literal in literals if len(literal.encode()) < 4] == []
    real = (DATA / "sglang" / "03-startup-and-serving.real.log").read_text().splitlines()
    serving = [line for line in real if "batch, #" in line or "HTTP/1.1" in line]
    assert len(serving) > 5
    lines = [*serving, *(f"[2026-07-20 09:14:02 TP0] {line}" for line in ORDINARY)]
    assert [(id_, literal, line) for id_, literal in literals for line in lines if literal in line] == []


def test_a_traceback_of_one_rank_gives_the_failure_that_ranks_number() -> None:
    log = DATA / "sglang" / "20-busy-unavailable-tp4-rank3.reconstructed.log"
    result = CliRunner().invoke(explain, ["--format", "json", str(log)])
    verdict = json.loads(result.stdout)["verdicts"][0]
    assert (verdict["rule"], verdict["gpu"]["tp_rank"]) == ("cuda/device-busy", 3)


def test_only_texts_of_sglang_alone_are_credited_to_sglang() -> None:
    for rule in book().rules:
        if rule.id.split("/")[0] in ("cuda", "torch", "nccl", "model", "host"):
            assert rule.engine != "sglang", rule.id


def test_a_rule_names_its_engine_only_by_a_known_name() -> None:
    assert {rule.engine for rule in book().rules} <= {"", "sglang", "vllm", "tgi", "dynamo"}


def test_every_rule_lies_in_the_folder_of_its_id() -> None:
    for rule in book().rules:
        assert Path(book().origins[rule.id]).parent == packaged_rules() / rule.id.split("/")[0]


def test_every_sentence_for_a_person_ends_as_one_and_is_said_once() -> None:
    for rule in book().rules:
        said = [step.say for step in rule.fix]
        assert len({*said, *rule.check}) == len(said) + len(rule.check), rule.id
        for text in said:
            assert text[0].isupper() and text.rstrip("`")[-1] in ".)", (rule.id, text)

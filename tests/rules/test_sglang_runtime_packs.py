"""SGLang's packs for speculation, parallelism, memory, environment, life cycle, run facts and slow defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.detect.framing import frame
from agent.detect.rules import Rule, matches, parse_rules, render
from agent.detect.server_args import facts_of, parse_server_args
from agent.diagnose.advice import Advice
from agent.model import Action, Component, Role
from agent.rulebook import load_rulebook

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data" / "sglang"
PACKS = ("speculative", "parallelism", "memory", "environment", "lifecycle", "run-facts", "slow-defaults")
LOUD = (Role.CAUSE, Role.SYMPTOM, Role.ECHO)


def load(pack: str) -> tuple[Rule, ...]:
    path = ROOT / "rules" / "sglang" / f"{pack}.yaml"
    return parse_rules(path.read_bytes(), file=path.name, thorough=True)


RULES = tuple(rule for pack in PACKS for rule in load(pack))
READ = tuple(rule for rule in RULES if rule.role is not Role.ADVICE)
ADVICE = tuple(rule for rule in RULES if rule.role is Role.ADVICE)
BY_ID: Mapping[str, Rule] = {rule.id: rule for rule in RULES}


def found(lines: list[str]) -> list[tuple[int, Rule, dict[str, str]]]:
    """Every rule that recognises a line, with the 1-based line and the captures."""
    hits = []
    for number, line in enumerate(lines, 1):
        message = frame(line).message
        for rule in READ:
            fields = rule.capture_fields(message)
            if fields is not None:
                hits.append((number, rule, fields))
    return hits


def facts_from(lines: list[str]) -> dict[str, str]:
    """What the context lines of a log prove: their captures, their fixed facts, and the arguments."""
    facts: dict[str, str] = {}
    for _, rule, fields in found(lines):
        if rule.role is not Role.CONTEXT:
            continue
        facts.update(rule.facts)
        facts.update(fields)
        args = parse_server_args(fields.get("server_args", ""))
        if args is not None:
            facts.update(facts_of(args))
    return facts


def holds(rule: Rule, facts: Mapping[str, str]) -> bool:
    return bool(Advice([rule])(facts))


def log(prefix: str) -> list[str]:
    (path,) = DATA.glob(f"{prefix}*")
    return path.read_text().splitlines()


def test_every_rule_has_its_own_id_and_belongs_to_sglang() -> None:
    assert len(BY_ID) == len(RULES)
    assert len(RULES) > 110
    for rule in RULES:
        assert rule.id.startswith("sglang/")
        assert rule.reads == "container" and rule.fault is None


@pytest.mark.parametrize("rule", READ, ids=lambda rule: rule.id)
def test_an_example_belongs_to_one_rule_only(rule: Rule) -> None:
    for text in rule.examples.match:
        hits = {other.id for other in READ if any(matches(other, line) for line in text.splitlines())}
        assert hits == {rule.id}, text


@pytest.mark.parametrize("rule", READ, ids=lambda rule: rule.id)
def test_a_quoted_error_is_no_failure(rule: Rule) -> None:
    """A prompt, a completion or a request log that holds the text must not look like the server's own words."""
    for text in rule.examples.match:
        for line in text.splitlines():
            if not matches(rule, line):
                continue
            message = frame(line).message
            for quote in (
                f"[2026-07-20 09:14:02] Receive: obj=GenerateReqInput(text='why do I get {message}')",
                f"user> {message}",
                f'data: {{"choices": [{{"text": "{message}"}}]}}',
            ):
                assert not matches(rule, quote), quote


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_never_the_reason_for_a_mark(rule: Rule) -> None:
    assert rule.warrants in (Action.NONE, Action.ADVISE)
    assert rule.component not in (Component.GPU, Component.FABRIC, Component.DRIVER)


@pytest.mark.parametrize("rule", READ, ids=lambda rule: rule.id)
def test_literals_are_long_enough_to_search_everywhere(rule: Rule) -> None:
    assert all(len(literal) >= 8 for literal in rule.literals)


@pytest.mark.parametrize("rule", [r for r in RULES if r.role is Role.CAUSE], ids=lambda rule: rule.id)
def test_a_cause_says_what_to_change_and_where_that_was_read(rule: Rule) -> None:
    assert rule.cause and rule.fix
    assert all(step.source for step in rule.fix)
    assert rule.component is not Component.UNDECIDED
    assert any(step.changes for step in rule.fix) or rule.check


TABLE = {
    "03-": [],
    "04-": ["sglang/subprocess-killed", "sglang/serve-sigquit", "sglang/crash-diagnostics"],
    "05-": ["sglang/launch-sigquit"],
    "06-": ["sglang/launch-sigquit"],
    "09-": [],
    "10-": [],
    "15-": ["sglang/env-no-accelerator"],
    "16-": [],
    "20-": ["sglang/launch-sigquit"],
    "21-": [],
    "22-": ["sglang/mem-no-kv-room", "sglang/mem-unbalanced", "sglang/mem-graph-capture-oom"],
    "23-": [
        "sglang/watchdog-timeout",
        "sglang/serve-sigquit",
        "sglang/health-check-failed",
        "sglang/subprocess-aborted",
    ],
    "case-013": ["sglang/mem-unbalanced", "sglang/launch-sigquit"],
    "case-018": ["sglang/launch-sigquit"],
    "case-023": ["sglang/launch-sigquit"],
    "case-038": ["sglang/health-check-failed", "sglang/health-check-failed"],
}


@pytest.mark.parametrize("name", TABLE)
def test_a_real_log_gives_these_failures_and_no_other(name: str) -> None:
    assert [rule.id for _, rule, _ in found(log(name)) if rule.role in LOUD] == TABLE[name]


def test_an_ordinary_log_gives_few_hits() -> None:
    text = "\n".join(log("03-"))
    assert sum(text.count(literal) for rule in READ for literal in set(rule.literals)) < 15


def test_batch_lines_give_no_hit_at_all() -> None:
    lines = [
        "[2026-07-20 09:14:59] Prefill batch, #new-seq: 1, #new-token: 16384, #cached-token: 0, "
        "full token usage: 0.02, mamba usage: 0.01, #running-req: 0, #queue-req: 0, cuda graph: False, "
        "input throughput (token/s): 1.1",
        "[2026-07-20 09:14:59] Decode batch, #running-req: 1, #full token: 200131, full token usage: 0.25, "
        "mamba num: 3, mamba usage: 0.01, cuda graph: True, gen throughput (token/s): 71.93, #queue-req: 0",
        '[2026-07-20 09:14:59] INFO:     10.0.0.1:40000 - "GET /health HTTP/1.1" 200 OK',
    ]
    for line in lines:
        assert not [literal for rule in READ for literal in rule.literals if literal in line]


def test_the_rank_that_could_not_select_its_device_is_known() -> None:
    (hit,) = [fields for _, rule, fields in found(log("20-")) if rule.id == "sglang/device-context"]
    assert hit == {"device": "cuda", "gpu_id": "3", "tp_rank": "3", "tp_size": "4"}


def test_the_healthy_hybrid_tells_all_that_the_advice_needs() -> None:
    facts = facts_from(log("21-"))
    assert facts["gpu_arch"] == "sm100"
    assert facts["architecture"] == "Qwen3_5ForConditionalGeneration"
    assert facts["attention_backend"] == "triton"
    assert facts["page_size"] == "1"
    assert facts["gdn_extend_kernel"] == "TritonGDNKernel"
    assert facts["ready"] == "yes"


@pytest.mark.parametrize("name", ["10-", "21-"])
def test_the_slow_default_is_noticed_from_the_log_alone(name: str) -> None:
    facts = facts_from(log(name))
    assert [rule.id for rule in ADVICE if holds(rule, facts)] == ["sglang/slow-hybrid-triton-sm100"]


def test_a_healthy_ordinary_server_gets_no_advice() -> None:
    facts = facts_from(log("03-"))
    assert facts["architecture"] == "LlamaForCausalLM"
    assert [rule.id for rule in ADVICE if holds(rule, facts)] == []


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({}, ["sglang/slow-hybrid-triton-sm100"]),
        ({"mamba_radix_cache_strategy": "auto"}, ["sglang/slow-hybrid-triton-sm100"]),
        ({"gpu_arch": "sm90"}, []),
        ({"architecture": "LlamaForCausalLM"}, []),
        ({"attention_backend": "trtllm_mha", "page_size": "64"}, []),
        ({"attention_backend": "flashinfer"}, []),
        ({"speculative_algorithm": "EAGLE"}, ["sglang/slow-hybrid-speculation-sm100"]),
        ({"linear_attn_backend": "flashinfer"}, ["sglang/slow-linear-attn-base-flag-sm100"]),
        ({"attention_backend": "torch_native", "device": "cuda"}, ["sglang/slow-torch-native-attention"]),
    ],
)
def test_advice_goes_by_what_runs(change: dict[str, str], advice: list[str]) -> None:
    facts = {
        "gpu_arch": "sm100",
        "architecture": "Qwen3_5ForConditionalGeneration",
        "attention_backend": "triton",
        "page_size": "1",
        "mamba_radix_cache_strategy": "extra_buffer",
        "speculative_algorithm": "none",
        "linear_attn_backend": "triton",
    } | change
    assert [rule.id for rule in ADVICE if holds(rule, facts)] == advice


def test_an_advice_holds_for_its_own_example() -> None:
    for rule in ADVICE:
        for text in rule.examples.match:
            assert holds(rule, dict(line.split("=", 1) for line in text.splitlines())), rule.id
        for text in rule.examples.no_match:
            assert not holds(rule, dict(line.split("=", 1) for line in text.splitlines())), rule.id


def test_only_what_was_measured_is_called_measured() -> None:
    slow = BY_ID["sglang/slow-hybrid-triton-sm100"]
    assert [step.standing for step in slow.fix].count("measured") == 1
    first = slow.fix[0]
    assert first.standing == "measured"
    assert "75.8 s" in first.say and "29.2 s" in first.say and "0.5.15.post1" in first.say
    assert [(c.verb, c.set_flag, c.value) for c in first.changes] == [("set_flag", "--attention-backend", "flashinfer")]
    assert "this run: unknown" in render(slow.cause, {"architecture": "X"})


def test_the_graph_hints_are_no_advice_where_memory_is_not_the_reason() -> None:
    symptom = BY_ID["sglang/mem-graph-capture-failed"]
    assert symptom.role is Role.SYMPTOM
    said = (symptom.cause, *symptom.check, *(step.say for step in symptom.fix))
    assert "--mem-fraction-static" not in " ".join(said)


def test_unequal_memory_names_both_causes_and_both_switches() -> None:
    rule = BY_ID["sglang/mem-unbalanced"]
    said = " ".join(step.say for step in rule.fix)
    for wanted in ("other process", "leftover", "different sizes", "mixed cards"):
        assert wanted in said
    for wanted in ("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"):
        assert wanted in said
    assert rule.component is Component.PLACEMENT
    assert not rule.suspects


CATALOGUE = (
    [f"SPEC-{n}" for n in range(1, 9)]
    + [f"PAR-{n}" for n in range(1, 11)]
    + [f"MEM-{n}" for n in range(1, 13)]
    + [f"ENV-{n}" for n in range(1, 18)]
)


@pytest.mark.parametrize("entry", CATALOGUE)
def test_every_catalogue_entry_of_these_groups_has_a_rule(entry: str) -> None:
    rules = load_rulebook().rules
    assert any(entry in rule.source.replace(";", " ").replace(",", " ").split() for rule in rules)

"""Holds the rule packs of SGLang's refused arguments to their examples and to real logs; never runs SGLang."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from agent.detect.framing import message_of
from agent.detect.rules import FACTS, Rule, matches, parse_rules, render

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "sglang"
PACKS = (
    "argument-checks-cache",
    "argument-checks-lora",
    "argument-checks-models",
    "argument-checks-moe",
    "argument-checks-parallelism",
    "argument-checks-scheduling",
    "argument-checks-serving",
    "attention",
    "command-line",
    "kv-cache",
    "linear-attention",
    "moe-quantization",
)


def load(name: str) -> tuple[Rule, ...]:
    return parse_rules((ROOT / "rules" / "sglang" / f"{name}.yaml").read_bytes(), file=f"{name}.yaml", thorough=True)


RULES = tuple(rule for name in PACKS for rule in load(name))
BY_ID = {rule.id: rule for rule in RULES}


def found_in(text: str) -> list[str]:
    return [rule.id for line in text.splitlines() for rule in RULES if matches(rule, line)]


def explained(rule_id: str, line: str) -> tuple[str, list[str]]:
    """The cause and the steps that a rule gives for a line, as a person reads them."""
    rule = BY_ID[rule_id]
    fields = rule.capture_fields(message_of(line))
    assert fields is not None
    return render(rule.cause, fields), [render(step.say, fields) for step in rule.fix]


def names_in(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_no_two_rules_share_an_id() -> None:
    assert len(BY_ID) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_example_matches_its_rule_and_no_other(rule: Rule) -> None:
    for text in rule.examples.match:
        assert set(found_in(text)) == {rule.id}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_an_example_quoted_in_a_request_is_nobodys_failure(rule: Rule) -> None:
    for text in rule.examples.match:
        for line in text.splitlines():
            assert found_in(f"[2026-07-20 09:14:02] Receive: obj=GenerateReqInput(text='why? {line}')") == []
            assert found_in(f"user: {line}") == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_an_example_is_found_behind_the_runtimes_and_sglangs_own_heads(rule: Rule) -> None:
    for text in rule.examples.match:
        wrapped = "\n".join(f"2026-07-20T09:14:02.1Z stderr F [2026-07-20 09:14:02 TP1] {s}" for s in text.splitlines())
        assert set(found_in(wrapped)) == {rule.id}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_complete(rule: Rule) -> None:
    assert rule.engine == "sglang"
    assert rule.cause and rule.fix and rule.examples.no_match
    assert all(len(literal) >= 12 for literal in rule.literals), "short literals hit ordinary lines"
    for step in rule.fix:
        assert step.source, "a way out says where it is from"
        for change in step.changes:
            flag = change.set_flag or change.drop_flag or change.lower or change.higher
            assert flag is None or flag.startswith("--")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_changed_value_is_always_captured(rule: Rule) -> None:
    wanted = {name for step in rule.fix for change in step.changes for name in names_in(change.value or "")} - FACTS
    for text in rule.examples.match:
        fields: dict[str, str] = {}
        for line in text.splitlines():
            fields |= rule.capture_fields(message_of(line)) or {}
        assert wanted <= fields.keys()


@pytest.mark.parametrize(
    ("log", "rules"),
    [
        ("argparse-attention-backend", ["sglang/attention-backend-flash-attn"]),
        (
            "argparse-other-errors",
            [
                "sglang/linear-attn-backend-choice",
                "sglang/kv-cache-dtype-choice",
                "sglang/argument-value-type",
                "sglang/argument-unknown",
            ],
        ),
        ("linear-attn-decode-needs-bf16", ["sglang/linear-attn-decode-needs-bf16"]),
        ("linear-attn-prefill-needs-cuda13", ["sglang/linear-attn-prefill-needs-cuda13"]),
        ("trtllm-mha-on-hopper", ["sglang/trtllm-mha-prefill-arch"]),
        ("no-buffer-needs-no-overlap", ["sglang/mamba-no-buffer-overlap"]),
        ("moe-cutlass-quantization", ["sglang/moe-cutlass-quantization"]),
        ("extra-buffer-trtllm-mha", []),
        ("startup-and-serving", []),
    ],
)
def test_a_real_log_gets_the_right_rules(log: str, rules: list[str]) -> None:
    assert found_in((DATA / f"{log}.log").read_text()) == rules


def test_an_ordinary_log_gives_few_literal_hits() -> None:
    hits = [
        (literal, line[:80])
        for log in ("extra-buffer-trtllm-mha", "startup-and-serving")
        for line in (DATA / f"{log}.log").read_text().splitlines()
        for rule in RULES
        for literal in rule.literals
        if literal in line
    ]
    assert hits == []


def test_flash_attn_is_answered_for_both_generations_with_the_printed_list_as_the_authority() -> None:
    line = (DATA / "argparse-attention-backend.log").read_text().splitlines()[-1]
    cause, steps = explained("sglang/attention-backend-flash-attn", line)
    assert "'triton', 'torch_native'" in cause and "authority" in cause
    assert "Hopper" in steps[0] and "fa3" in steps[0]
    assert "Blackwell" in steps[1] and "trtllm_mha" in steps[1]
    assert "Blackwell" in steps[2] and "flashinfer" in steps[2]
    assert "unset" in steps[3]


def test_only_backends_of_the_printed_list_are_proposed() -> None:
    line = "sglang serve: error: argument --attention-backend: invalid choice: 'x' (choose from 'triton', 'flashinfer')"
    rule = BY_ID["sglang/attention-backend-choice"]
    fields = rule.capture_fields(line)
    assert fields is not None
    values = [render(c.value, fields) for step in rule.fix for c in step.changes if c.value]
    assert values and set(values) <= {"triton", "flashinfer"}


def test_the_hybrid_gate_proposes_members_of_its_own_set_and_never_flashinfer() -> None:
    rule = BY_ID["sglang/hybrid-gdn-backend-refused"]
    for allowed in ("'trtllm_mha', 'triton', 'fa4'", "'fa4', 'triton'", "'flashinfer', 'triton', 'fa4'"):
        line = (
            f"AssertionError: Only {{{allowed}}} backends are supported on Blackwell GPUs for hybrid GDN models. "
            "Got prefill=flashinfer, decode=flashinfer."
        )
        fields = rule.capture_fields(line)
        assert fields is not None
        for step in rule.fix:
            for change in step.changes:
                if change.set_flag == "--attention-backend":
                    value = render(change.value or "", fields)
                    assert value in allowed and value != "flashinfer"
    assert any("flag of its own" in step.say for step in rule.fix)


def test_the_two_blackwell_refusals_of_linear_attention_lead_past_each_other() -> None:
    decode, prefill = BY_ID["sglang/linear-attn-decode-needs-bf16"], BY_ID["sglang/linear-attn-prefill-needs-cuda13"]
    first, second = decode.fix[0], decode.fix[1]
    assert [(c.set_flag, c.value) for c in first.changes] == [("--mamba-ssm-dtype", "bfloat16")]
    assert "-cu130" in first.say
    assert {(c.verb, c.value) for c in second.changes} >= {("image_tag", None), ("driver_branch", None)}
    assert any(c.set_flag == "--linear-attn-prefill-backend" and c.value == "flashinfer" for c in second.changes)
    assert any(c.image_tag == "-cu130" for c in prefill.fix[0].changes)
    assert any(c.driver_branch == 580 for c in prefill.fix[0].changes)
    assert any(c.value == "triton" for c in prefill.fix[1].changes)


def test_speculative_decoding_without_the_extra_buffer_names_both_flags_and_the_environment() -> None:
    line = (
        "ValueError: Speculative decoding for Qwen3_5MoeForConditionalGeneration is not compatible with radix cache "
        "when using --mamba-scheduler-strategy no_buffer.To use radix cache with speculative decoding, please use "
        "--mamba-scheduler-strategy extra_buffer and set SGLANG_ENABLE_SPEC_V2=1."
    )
    _, steps = explained("sglang/mamba-spec-decoding-no-buffer", line)
    for word in (
        "--mamba-radix-cache-strategy",
        "--mamba-scheduler-strategy",
        "extra_buffer",
        "SGLANG_ENABLE_SPEC_V2=1",
    ):
        assert word in steps[0]


def test_an_fp8_shard_that_does_not_divide_is_answered_by_a_smaller_tp_and_not_by_expert_parallelism() -> None:
    line = "ValueError: Weight output_partition_size = 320 is not divisible by weight quantization block_n = 128."
    cause, steps = explained("sglang/block-quant-not-divisible", line)
    assert "320" in cause and "128" in cause
    assert "--tp-size" in steps[0]
    assert not any("--ep" in step for step in steps)


@pytest.mark.parametrize("prog", ["vllm serve", "api_server.py", "text-generation-launcher", "trtllm-serve"])
def test_another_engines_command_line_is_not_credited_to_sglang(prog: str) -> None:
    for rest in (
        "argument --attention-backend: invalid choice: 'flash_attn' (choose from 'triton', 'flashinfer')",
        "unrecognized arguments: --enable-prefix-caching",
        "argument --port: invalid int value: 'x'",
    ):
        assert found_in(f"{prog}: error: {rest}") == []

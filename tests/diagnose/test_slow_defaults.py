"""Runs that work but run badly: from real logs, and from facts for what no log shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.detect.recognise import recognise
from agent.diagnose.advice import Advice
from agent.diagnose.diagnostician import Diagnostician
from agent.diagnose.knowledge import Knowledge, holds_for
from agent.explain import explain
from agent.model import ContainerRef, Evidence, Role, Signal, Verdict
from agent.rulebook import load_rulebook
from agent.sources.handed import open_handed

DATA = Path(__file__).parent.parent / "data" / "sglang"
BOOK = load_rulebook()
SLOW = "sglang/slow-hybrid-triton-sm100"
BASE_FLAG = "sglang/slow-linear-attn-base-flag-sm100"
DEFAULT = {
    "device": "cuda", "gpu_arch": "sm100", "architecture": "Qwen3_5ForConditionalGeneration",
    "attention_backend": "triton", "page_size": "1", "speculative_algorithm": "none", "linear_attn_backend": "triton",
    "mamba_radix_cache_strategy": "extra_buffer", "disable_overlap_schedule": "no", "disable_radix_cache": "no",
    "disaggregation_mode": "null", "is_embedding": "no", "enable_hisparse": "no", "cuda_graph": "full",
}  # fmt: skip


def verdicts_of(log: str) -> tuple[Verdict, ...]:
    return explain(open_handed((str(DATA / log),), stdin=None, recognise=recognise), BOOK).verdicts


def advice(**facts: str) -> list[str]:
    return [s.rule for s in Advice(BOOK.rules)(DEFAULT | facts)]


def judged(*lines: dict[str, str]) -> tuple[Verdict, ...]:
    d = Diagnostician(Knowledge.of(BOOK.rules, lambda: BOOK.catalogue, BOOK.alternatives))
    d.apply(
        Signal(
            rule="sglang/server-args", role=Role.CONTEXT, container=ContainerRef(file="pod.log"), fields=fields,
            evidence=Evidence(source="pod.log", text=f"line {i}", line=i),
        )
        for i, fields in enumerate(lines, 1)
    )  # fmt: skip
    return d.verdicts


@pytest.mark.parametrize(
    "log", ["10-qwen35-default-triton-on-sm100.patched.log", "21-hybrid-on-sm100-ready.reconstructed.log"]
)
def test_the_slow_default_is_noticed_in_a_real_log(log: str) -> None:
    first, *rest = verdicts_of(log)
    assert (first.rule, rest) == (SLOW, [])
    assert first.evidence[0].text.startswith("server_args=") or "server_args=" in first.evidence[0].text


def test_the_extra_buffer_run_on_trtllm_mha_is_left_alone() -> None:
    assert verdicts_of("extra-buffer-trtllm-mha.log") == ()


@pytest.mark.parametrize(
    ("version", "first", "standing"),
    [
        ("0.5.15.post1", ("--attention-backend", "flashinfer"), "measured"),
        ("0.5.18", ("--mamba-radix-cache-strategy", "extra_buffer"), "untried"),
        ("0.5.20", ("--mamba-radix-cache-strategy", "extra_buffer"), "untried"),
        ("0.5.23", ("--mamba-radix-cache-strategy", "extra_buffer"), "untried"),
        ("0.5.23.dev4+g12ab", ("--mamba-radix-cache-strategy", "extra_buffer"), "untried"),
        ("0.5.14", (">=0.5.15.post1", None), "untried"),
    ],
)
def test_the_advice_goes_by_version(version: str, first: tuple[str, str | None], standing: str) -> None:
    (verdict,) = judged(DEFAULT | {"sglang_version": version})
    remedy = verdict.remedies[0]
    assert (remedy.changes[0].name, remedy.changes[0].value, remedy.standing) == (*first, standing)
    assert "not known" not in " ".join(r.say for r in verdict.remedies)
    flashinfer = any(c.name == "--attention-backend" and c.value == "flashinfer" for r in verdict.remedies
                     for c in r.changes)  # fmt: skip
    assert flashinfer == (version not in ("0.5.18", "0.5.20"))


def test_the_reported_strategy_decides_nothing() -> None:
    for strategy in ("auto", "extra_buffer", "no_buffer"):
        assert advice(mamba_radix_cache_strategy=strategy) == [SLOW]
        assert advice(mamba_radix_cache_strategy=strategy, attention_backend="trtllm_mha", page_size="64") == []


@pytest.mark.parametrize(
    "facts",
    [
        {"gpu_arch": "sm90", "attention_backend": "fa3"},
        {"gpu_arch": "sm120", "attention_backend": "flashinfer"},
        {"gpu_arch": "sm90"},
        {"architecture": "LlamaForCausalLM"},
        {"attention_backend": "flashinfer"},
        {"attention_backend": "trtllm_mha", "page_size": "64"},
    ],
)
def test_other_gpus_models_and_backends_are_left_alone(facts: dict[str, str]) -> None:
    assert advice(**facts) == []


def test_b300_is_meant_too() -> None:
    assert advice(gpu_arch="sm103") == [SLOW]


def test_the_base_flag_that_silently_keeps_triton_is_noticed() -> None:
    facts = {
        "linear_attn_backend": "flashinfer", "mamba_ssm_dtype": "bfloat16",
        "mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": "yes",
    }  # fmt: skip
    assert advice(**facts) == [BASE_FLAG]
    (verdict,) = judged(DEFAULT | facts | {"sglang_version": "0.5.18"})
    assert [c.name for c in verdict.remedies[0].changes if c.verb == "drop_flag"] == ["--linear-attn-backend"]
    assert advice(**facts, attention_backend="flashinfer") == ["sglang/slow-linear-attn-base-flag"]


def test_speculation_on_triton_has_advice_of_its_own() -> None:
    assert advice(speculative_algorithm="EAGLE") == ["sglang/slow-hybrid-speculation-sm100"]


def test_a_prefix_cache_that_is_off_is_told_by_the_closer_rule_only() -> None:
    off = {"disable_radix_cache": "yes", "attention_backend": "trtllm_mha", "page_size": "64"}
    assert advice(**off) == ["sglang/slow-no-prefix-cache-hybrid-sm100"]
    assert advice(**off, gpu_arch="sm90") == ["sglang/slow-no-prefix-cache"]


def test_graphs_that_are_off_are_told_unless_the_backend_has_none() -> None:
    assert advice(cuda_graph="disabled", attention_backend="fa3") == ["sglang/slow-cuda-graph-off"]
    assert advice(cuda_graph="disabled", attention_backend="torch_native") == ["sglang/slow-torch-native-attention"]


def test_each_thing_that_runs_badly_has_its_own_verdict_and_evidence() -> None:
    verdicts = judged(DEFAULT | {"cuda_graph": "disabled"}, {"kv_scales": "none"})
    assert [(v.rule, [e.line for e in v.evidence]) for v in verdicts] == [
        (SLOW, [1]),
        ("sglang/slow-cuda-graph-off", [1]),
        ("sglang/fp8-kv-without-scales", [2]),
    ]
    assert len({v.id for v in verdicts}) == 3


def test_a_version_that_cannot_be_read_holds_nothing_against_a_step() -> None:
    assert holds_for("main-4f2a", ">=0.5.15") is None
    assert holds_for(None, ">=0.5.15") is None
    assert holds_for(None, "") is True
    assert holds_for("0.5.15.post1", ">=0.5.15,<0.5.16") is True
    assert holds_for("0.5.16", ">=0.5.15,<0.5.16") is False


@pytest.mark.parametrize("version", ["0.5.3", "0.5.15.post1", "0.5.18", "0.5.23"])
def test_no_rule_is_left_without_a_next_step_in_a_version_that_it_is_for(version: str) -> None:
    knowledge = Knowledge.of(BOOK.rules, lambda: BOOK.catalogue, BOOK.alternatives)
    for rule in BOOK.rules:
        if rule.engine == "sglang" and rule.fix and holds_for(version, rule.versions):
            signal = Signal(rule=rule.id, evidence=Evidence(source="x", text="x"), container=ContainerRef(file="x"))
            about = knowledge.about(signal, {"sglang_version": version})
            assert about.fix or about.check, f"{rule.id} has nothing to say on {version}"

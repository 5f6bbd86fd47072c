from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.detect.server_info import (
    FIGURES_RULE,
    INFO_RULE,
    facts_of_figures,
    facts_of_info,
    facts_of_model,
    figures_of,
    server_signals,
)
from agent.model import ContainerRef, Role

BODIES = Path(__file__).parent.parent / "data" / "sglang" / "http"
INFO = (BODIES / "server_info.real.json").read_bytes()
MODEL = (BODIES / "model_info.real.json").read_bytes()
METRICS = (BODIES / "metrics.real.txt").read_text()
POD = ContainerRef(namespace="llm", pod="chat-0", uid="u", container="sglang")


def info(**changed: object) -> bytes:
    """The real body with some fields changed; `overrides` goes where the server has it."""
    body = json.loads(INFO)
    overrides = changed.pop("overrides", None)
    body |= changed
    if overrides is not None:
        body["internal_states"][0]["_resolved_overrides"] = overrides
    return json.dumps(body).encode()


def test_the_real_body_gives_what_runs() -> None:
    facts = facts_of_info(INFO)
    assert facts is not None
    assert facts["sglang_version"] == "0.5.15.post1"
    assert (facts["attention_backend"], facts["page_size"], facts["ready"]) == ("torch_native", "1", "yes")
    assert facts["page_size_override"] == "_page_size_default"
    assert "attention_backend_chosen_by" not in facts, "this one was named by a person"
    assert facts["api_key"] == "yes", "that there is one is told, not which"


def test_who_chose_the_backend_is_told_by_the_server() -> None:
    chosen = [["_qwen3_5_hybrid_overrides", {"attention_backend": "triton", "page_size": 1}]]
    facts = facts_of_info(info(attention_backend="triton", overrides=chosen))
    assert facts is not None
    assert facts["attention_backend_chosen_by"] == "sglang"
    assert facts["attention_backend_override"] == "_qwen3_5_hybrid_overrides"


def test_a_version_without_the_list_of_overrides_says_nothing_of_who_chose() -> None:
    body = json.loads(INFO)
    del body["internal_states"]
    facts = facts_of_info(json.dumps(body).encode())
    assert facts is not None and "attention_backend_chosen_by" not in facts


def test_no_secret_is_among_the_facts() -> None:
    facts = facts_of_info(info(api_key="s3cret-a", admin_api_key="s3cret-b", model_path="https://u:s3cret-c@host/m"))
    assert facts is not None and "s3cret" not in str(facts)


def test_another_programs_json_is_not_taken_for_sglangs() -> None:
    assert facts_of_info(b'{"object": "list", "data": [], "version": "0.31.0"}') is None


def test_the_model_page_names_the_architecture() -> None:
    assert facts_of_model(MODEL) == {"architecture": "LlamaForCausalLM"}
    assert facts_of_model(b'{"architectures": ["a b; c"]}') == {}


def test_the_real_metrics_give_the_figures() -> None:
    figures = figures_of(METRICS)
    assert round(figures["ttft_mean_seconds"], 4) == 0.1017
    assert (figures["ttft_count"], figures["page_size"], figures["gen_throughput"]) == (1, 1, 0)
    assert facts_of_figures(figures)["ttft_mean_seconds"] == "0.1017"


def test_several_schedulers_are_added_up_and_their_largest_taken() -> None:
    figures = figures_of(
        'sglang:gen_throughput{dp_rank="0"} 40\nsglang:gen_throughput{dp_rank="1"} 30.5\n'
        'sglang:page_size{dp_rank="0"} 1\nsglang:page_size{dp_rank="1"} 64\n'
        'sglang:cache_hit_rate{dp_rank="0"} 0.1\nsglang:cache_hit_rate{dp_rank="1"} 0.3\n'
    )
    assert figures == {"gen_throughput": 70.5, "page_size": 64}


def test_a_server_that_served_nothing_has_no_mean() -> None:
    assert figures_of("sglang:time_to_first_token_seconds_sum 0\nsglang:time_to_first_token_seconds_count 0\n") == {}


def test_one_bad_line_spoils_no_other() -> None:
    figures = figures_of(
        'sglang:gen_throughput{a="b 3\nsglang:page_size nan\nsglang:token_usage 0.5\nsglang:page_size\n'
    )
    assert figures == {"token_usage": 0.5}


def test_what_was_learned_comes_as_context_of_the_container() -> None:
    signals = server_signals(
        POD, source="http://10.0.0.9:30000", time=5.0, info=INFO, model=MODEL, metrics=METRICS.encode()
    )
    assert [(s.rule, s.role, s.container) for s in signals] == [
        (INFO_RULE, Role.CONTEXT, POD),
        (FIGURES_RULE, Role.CONTEXT, POD),
    ]
    assert signals[0].evidence.source == "http://10.0.0.9:30000/server_info"
    assert "attention_backend=torch_native" in signals[0].evidence.text
    assert signals[0].fields["architecture"] == "LlamaForCausalLM"
    assert "time to first token 0.102 s, the mean of 1 requests" in signals[1].evidence.text


def test_nothing_learned_is_no_signal() -> None:
    assert server_signals(POD, source="x", time=1.0, info=b"{}", metrics=b"# nothing\n") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=60)
@given(st.binary() | st.dictionaries(
    st.sampled_from(["internal_states", "version", "status", "attention_backend", "model_path", "tp_size"]), JSON
).map(lambda body: json.dumps(body).encode()))  # fmt: skip
def test_any_body_is_taken(body: bytes) -> None:
    facts_of_info(body)
    facts_of_model(body)


@settings(max_examples=60)
@given(JSON, JSON)
def test_any_list_of_overrides_is_taken(overrides: object, states: object) -> None:
    facts_of_info(info(overrides=overrides))
    facts_of_info(info(internal_states=states))


@settings(max_examples=100)
@given(st.text() | st.text().map(lambda t: "sglang:gen_throughput" + t))
def test_any_text_is_taken_for_metrics(text: str) -> None:
    figures_of(text)


def test_deep_nesting_is_no_crash() -> None:
    assert facts_of_info(b"[" * 100_000) is None

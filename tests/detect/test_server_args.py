"""The arguments line of real logs, of cut and hostile ones; and that no secret leaves the parser."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.redact import REDACTED
from agent.detect.server_args import SIZE_LIMIT, TRUNCATED, facts_of, parse_server_args, without_secrets

DATA = Path(__file__).parent.parent / "data" / "sglang"
REPR = "10-qwen35-default-triton-on-sm100.patched.log"
DICT = "16-v0523-server-args-dict-line.patched.log"


def line_of(name: str) -> str:
    text = (DATA / name).read_text()
    return next(line for line in text.splitlines() if "server_args=" in line)


def test_the_repr_of_0_5_15_is_read_whole() -> None:
    line = line_of(REPR)
    assert 13_000 < len(line) < 14_000
    args = parse_server_args(line)
    assert args is not None and TRUNCATED not in args
    assert len(args) == 422
    assert args["attention_backend"] == "triton"
    assert args["page_size"] == 1
    assert args["mamba_radix_cache_strategy"] == "extra_buffer"
    assert args["speculative_algorithm"] is None
    assert args["disable_radix_cache"] is False
    assert isinstance(args["mem_fraction_static"], float)
    assert str(args["cuda_graph_config"]).startswith("CudaGraphConfig(decode=PhaseConfig(backend='full'")


def test_the_dict_of_0_5_23_is_read_whole() -> None:
    line = line_of(DICT)
    assert len(line) > 19_000
    args = parse_server_args(line)
    assert args is not None and TRUNCATED not in args
    assert len(args) > 500
    assert args["attention_backend"] == "triton"
    assert args["page_size"] == 1
    graphs = args["cuda_graph_config"]
    assert isinstance(graphs, dict) and graphs["decode"]["backend"] == "full"
    assert graphs["decode"]["bs"][:4] == [1, 2, 4, 8]


def test_both_forms_give_the_same_facts() -> None:
    old, new = (facts_of(parse_server_args(line_of(name)) or {}) for name in (REPR, DICT))
    for name in (
        "attention_backend",
        "page_size",
        "linear_attn_backend",
        "speculative_algorithm",
        "cuda_graph",
        "tp_size",
    ):
        assert old[name] == new[name], name
    assert old["attention_backend"] == "triton"
    assert old["page_size"] == "1"
    assert old["speculative_algorithm"] == "none"
    assert old["disable_radix_cache"] == "no"
    assert old["cuda_graph"] == "full"
    assert old["api_key"] == "no" and new["api_key"] == "yes"
    assert all(isinstance(value, str) and value for value in old.values())


@pytest.mark.parametrize("name", [REPR, DICT])
def test_a_cut_line_gives_its_complete_fields_only(name: str) -> None:
    line = line_of(name)
    whole = parse_server_args(line)
    assert whole is not None
    start = line.index("server_args=") + 30
    for end in range(start, len(line), 97):
        args = parse_server_args(line[:end])
        if args is None:
            continue
        assert args.pop(TRUNCATED) is True
        assert args == {key: whole[key] for key in args}


@pytest.mark.parametrize("name", [REPR, DICT])
def test_a_real_line_takes_a_few_milliseconds(name: str) -> None:
    line = line_of(name)
    best = 1.0
    for _ in range(10):
        started = time.process_time()
        parse_server_args(line)
        best = min(best, time.process_time() - started)
    assert best < 0.02


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a, b=c'", "a, b=c"),
        (r"'it\'s'", "it's"),
        ('"it\'s"', "it's"),
        (r"'a\nb\x41\u00e9'", "a\nbAé"),
        ("-12", -12),
        ("1e-05", 1e-05),
        ("[1, 2]", [1, 2]),
        ("(1, 'a')", [1, "a"]),
        ("{1, 2}", [1, 2]),
        ("{'a': {'b': None}}", {"a": {"b": None}}),
        ("[]", []),
        ("inf", "inf"),
        ("<object object at 0x7f00>", "<object object at 0x7f00>"),
        ("<Backend.FULL: 'full, x'>", "<Backend.FULL: 'full, x'>"),
        ("<function f at 0x1>", "<function f at 0x1>"),
        ("Foo(x=1, y=[2, 3])", "Foo(x=1, y=[2, 3])"),
        ("datetime.timedelta(seconds=5)", "datetime.timedelta(seconds=5)"),
        ("torch.bfloat16", "torch.bfloat16"),
        ("9" * 60, "9" * 60),
    ],
)
def test_a_value_that_is_no_literal_comes_as_text(text: str, value: object) -> None:
    assert parse_server_args(f"ServerArgs(before=1, it={text}, after='z')") == {"before": 1, "it": value, "after": "z"}
    assert parse_server_args(f"{{'before': 1, 'it': {text}, 'after': 'z'}}") == {"before": 1, "it": value, "after": "z"}


@pytest.mark.parametrize("text", ["", "hello", "{}", "{hello}", "server_args=", "EngineArgs(a=1)", "x ServerArgs(a=1)"])
def test_another_text_is_refused(text: str) -> None:
    assert parse_server_args(text) is None


def test_the_line_may_have_a_head() -> None:
    assert parse_server_args("[2026-07-20 09:14:11] server_args=ServerArgs(a=1)") == {"a": 1}


def test_a_line_beyond_the_limit_is_cut() -> None:
    args = parse_server_args("ServerArgs(a=1, b='" + "x" * SIZE_LIMIT + "', c=2)")
    assert args == {"a": 1, TRUNCATED: True}


SECRET = "Zq7-hunter2xY"
HOLDERS = [
    "api_key='{s}'", "admin_api_key='{s}'", "hf_token='{s}'", "some_token=['{s}', 'x']", "ssl_keyfile_password='{s}'",
    "client_secret='{s}'", "watermark_key='{s}'", "watermark_key_b=b'{s}'", "store_config={{'password': '{s}'}}",
    "store={{'a': [{{'access_key': '{s}'}}]}}", "extra='{{\"api_key\": \"{s}\"}}'", "url='redis://u:{s}@h:1/0'",
    "nested=Inner(api_key='{s}', b=1)", "credentials=('{s}',)", "note='Authorization: Bearer {s}'",
    "cmd='serve --api-key {s}'",
    "api_key={{'{s}': 1, 'k': '{s}'}}",
]  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("cut", [0, 1, 3, 6])
def test_no_secret_leaves_the_parser(holder: str, cut: int) -> None:
    body = holder.format(s=SECRET)
    if holder.startswith("api_key={{"):
        body = body.replace(f"'{SECRET}': 1, ", "")
    text = f"ServerArgs(model_path='/m', {body}, port=1)"
    args = parse_server_args(text[: len(text) - cut] if cut else text)
    assert args is not None
    name, _, value = body.partition("=")
    as_dict = f"{{'model_path': '/m', '{name}': {value}, 'port': 1}}"
    for got in (args, parse_server_args(as_dict)):
        shown = json.dumps(got) + json.dumps(facts_of(got or {}))
        assert "hunter2" not in shown
        assert REDACTED in shown


def test_the_fixtures_hold_no_key_after_parsing() -> None:
    for name in (REPR, DICT, "03-startup-and-serving.real.log"):
        args = parse_server_args(line_of(name))
        assert "REDACTED-BY-FIXTURE" not in json.dumps(args)


def test_the_fields_of_server_info_are_cleaned_alike() -> None:
    info: dict[str, object] = {
        "api_key": SECRET,
        "internal_states": [{"admin_api_key": SECRET}],
        "port": 1,
        "hf_token": None,
    }
    assert without_secrets(info) == {
        "api_key": REDACTED, "internal_states": [{"admin_api_key": REDACTED}], "port": 1, "hf_token": None,
    }  # fmt: skip


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=12)
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("abcdefgh", min_size=1, max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=5), LITERALS, min_size=1, max_size=6))
def test_what_python_writes_is_read_back(args: dict[str, object]) -> None:
    wanted = without_secrets(args)
    assert parse_server_args("server_args=" + repr(args)) == wanted
    assert parse_server_args("ServerArgs(" + ", ".join(f"{k}={v!r}" for k, v in args.items()) + ")") == wanted


PIECES = st.sampled_from(
    ["ServerArgs(", "{", "}", "(", ")", "[", "]", "<", ">", "'", '"', "\\", ",", "=", ":", " ", "a", "a=", "'a': ", "1",
     ".5", "e", "None", "True", "b'", "-", "api_key=", "\n", "é", "\x00"]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)), st.sampled_from(["", "ServerArgs(", "{'a': "]))
def test_any_text_is_taken(text: str, start: str) -> None:
    args = parse_server_args(start + text)
    if args is not None:
        json.dumps(args)
        facts_of(args)


@pytest.mark.parametrize(
    "text",
    [
        "{'a': '" + "\\'" * 50_000,
        "ServerArgs(a=" + "1" * 100_000,
        "ServerArgs(a=" + "[" * 100_000,
        "{'a': " * 5000,
        "{" * 15 + "1}" * 15 + "{" * 20_000,
        "ServerArgs(a=" + "<" * 50_000,
        "ServerArgs(" + "a=1 2, " * 5000,
        "ServerArgs(" + "it's, " * 5000,
        "ServerArgs(a=a<(x])",
        "{'a': [a<ServerArgs(b']a=\x00\na=",
        "ServerArgs(" + 'a="' * 5000,
    ],
)
def test_a_hostile_line_costs_no_time(text: str) -> None:
    started = time.process_time()
    parse_server_args(text)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize("escape", [r"\ud800", r"\uDFFF", r"\U0000dabc", r"\U00110000", r"\Uffffffff"])
def test_an_escape_that_is_no_character_reads_as_the_replacement_character(escape: str) -> None:
    assert parse_server_args(f"ServerArgs(model_path='/m{escape}x')") == {"model_path": "/m\ufffdx"}

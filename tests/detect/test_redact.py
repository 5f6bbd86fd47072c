"""What must be hidden in a line, and what must stay readable."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.redact import REDACTED, redact

SECRET = "Zq7-hunter2xY"

HIDDEN = [
    "server_args=ServerArgs(api_key='Zq7-hunter2xY', port=1)",
    "server_args={'api_key': 'Zq7-hunter2xY', 'port': 1}",
    "admin_api_key='Zq7-hunter2xY'",
    'ssl_keyfile_password="Zq7-hunter2xY"',
    '{"api_key": "Zq7-hunter2xY"}',
    r'{"extra": "{\"api_key\": \"Zq7-hunter2xY\"}"}',
    "Authorization: Bearer Zq7-hunter2xY",
    "'authorization': 'Bearer Zq7-hunter2xY'",
    "-H 'Authorization: Basic Zq7-hunter2xY'",
    "got Bearer Zq7-hunter2xY in the header",
    "HF_TOKEN=Zq7-hunter2xY python -m sglang.launch_server",
    "export HUGGING_FACE_HUB_TOKEN=Zq7-hunter2xY",
    "AWS_SECRET_ACCESS_KEY=Zq7-hunter2xY",
    "aws_session_token = 'Zq7-hunter2xY'",
    "sglang serve --api-key Zq7-hunter2xY --port 30000",
    "sglang serve --admin-api-key=Zq7-hunter2xY",
    "['--api-key', 'Zq7-hunter2xY', '--port', '30000']",
    "redis://user:Zq7-hunter2xY@redis.svc:6379/0",
    "https://Zq7-hunter2xY@example.org/model",
    "postgres://:Zq7-hunter2xY@db/x",
    "password: Zq7-hunter2xY",
    "watermark_key_b='Zq7-hunter2xY'",
    "GET /x?access_token=Zq7-hunter2xY&n=1",
    "https://s3/x?X-Amz-Signature=Zq7-hunter2xY&a=1",
    "api_key='Zq7-hunter2xY",
]


@pytest.mark.parametrize("line", HIDDEN)
def test_a_secret_in_its_usual_places_is_hidden(line: str) -> None:
    hidden = redact(line)
    assert SECRET not in hidden and "hunter2" not in hidden
    assert REDACTED in hidden
    assert redact(hidden) == hidden


@pytest.mark.parametrize(
    "secret",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
        "sk-proj-4f3e2d1c0b9a8877",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_0123456789abcdefABCDEF0123456789abcd",
        "nvapi-0123456789abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    ],
)
def test_a_token_of_a_known_form_is_hidden_wherever_it_stands(secret: str) -> None:
    assert redact(f"could not fetch with {secret}: 401") == f"could not fetch with {REDACTED}: 401"


@pytest.mark.parametrize(
    "line",
    [
        "Prefill batch, #new-seq: 1, #new-token: 4, #cached-token: 0, token usage: 0.00, #running-req: 0",
        "Decode batch, #running-req: 1, #full token: 200131, full token usage: 0.25, mamba num: 3",
        "max_total_num_tokens=812345, max_prefill_tokens=16384",
        "eos_token=<|im_end|> pad_token=None",
        "ServerArgs(api_key=None, admin_api_key=None, ssl_keyfile_password=None, skip_tokenizer_init=True)",
        "'bucket_time_to_first_token': None, 'kt_max_deferred_experts_per_token': 2",
        "sglang serve --skip-tokenizer-init --max-total-tokens 4096 --kt-max-deferred-experts-per-token 2",
        "error: argument --api-key: expected one argument",
        "hf_config and hf_text_config and hf_transfer",
        "KeyError: 'model.layers.0.weight'",
        "connecting to http://10.0.0.1:30000/health and nfs://server/path",
        "couldn't find key HF_TOKEN in Secret default/hf-secret",
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "task-scheduler-0123456789 is a name",
    ],
)
def test_a_line_without_a_secret_stays_as_it_is(line: str) -> None:
    assert redact(line) == line


PIECES = st.sampled_from(
    ["api_key", "token", "password", "secret", "Bearer ", "Authorization: ", "hf_", "sk-", "://", "@", "=", ": ", "'",
     '"', "\\", " ", "--", "--api-key ", "None", "a", "Z9", "?key=", "&", "[redacted]", "[", "]", "{", "}", ",", "\n",
     "é", "eyJ", "."]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(PIECES, max_size=14).map("".join)))
def test_any_text_is_taken_and_a_second_pass_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize(
    "text",
    ["api_key='" * 3000, "key " * 8000, "a" * 100_000, "://" * 9000, "--" + "a-" * 9000, "api_key=" + "\\" * 30_000],
)
def test_a_hostile_line_costs_no_time(text: str) -> None:
    started = time.process_time()
    redact(text)
    assert time.process_time() - started < 1.0

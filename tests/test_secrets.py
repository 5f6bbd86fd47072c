"""Whatever holds a secret goes in at every entrance, and every exit is searched for it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from agent.cli.explain import command as explain
from agent.detect.redact import REDACTED
from agent.log import setup_logging
from agent.report.events import Report

from .sources.test_sglang_client import INFO, METRICS, pages, serving
from .test_asking import SLOW, driver, ready, running, settings_for, write
from .test_story import until

SECRETS = (
    "Zq1apikey00aa", "Zq2adminkey0bb", "hf_Zq3TokenAbCdEf0123456789", "Zq4bearer.0cc", "Zq5urlpass0dd", "Zq6flagkey0ee",
    "Zq7password0ff", "sk-Zq8shapeAbCdEf012345", "Zq9dictkey0gg", "Zq0infokey0hh", "ZqAinfoadmin0ii", "ZqBlaunch0jj",
    "ZqCurlinfo0kk", "ZqDrefused0ll", "ZqEheader0mm",
)  # fmt: skip
KEY, ADMIN, HF, BEARER, URL, FLAG, PASSWORD, SHAPE, DICT, INFO_KEY, INFO_ADMIN, LAUNCH, INFO_URL, REFUSED, HEADER = (
    SECRETS
)

HEAD = "[2026-07-20 09:14:02]"
LINES = (
    f"{HEAD} server_args=ServerArgs(model_path='https://u:{URL}@models/m', tp_size=1, api_key='{KEY}', "
    f"admin_api_key='{ADMIN}', attention_backend='triton', port=30000, host='0.0.0.0')",
    f"{HEAD} server_args={{'model_path': '/m', 'tp_size': 1, 'api_key': '{DICT}', 'admin_api_key': '{ADMIN}'}}",
    f"{HEAD} Attention backend not specified. Use triton backend by default.",
    f"sglang serve: error: unrecognized arguments: --api-key {FLAG} --hf-token {HF}",
    f"sglang serve: error: argument --attention-backend: invalid choice: 'api_key={KEY}' (choose from 'triton', 'fa3')",
    f"OSError: Cannot find any model weights with `https://user:{URL}@host/m?token={HF}`",
    f"RuntimeError: Cannot find any model weights with `https://user:{URL}@host/m?token={HF}`",
    f"requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://user:{URL}@huggingface.co/api/models/x",
    f"RuntimeError: nvidia-smi failed (exit code 9: HF_TOKEN={HF} password={PASSWORD} "
    f"Authorization: Bearer {BEARER}). x",
    f"RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable HF_TOKEN={HF} {SHAPE} "
    f"{{'Authorization': 'Bearer {BEARER}'}}",
    f"{HEAD} Scheduler hit an exception: Traceback (most recent call last): api_key='{KEY}', password: \"{PASSWORD}\"",
)
"""Lines that rules know, so that they are quoted, with secrets in all the places where they are met."""


def leaks(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    return [secret for secret in SECRETS if secret.encode() in data]


@pytest.fixture
def own_log() -> Iterator[io.StringIO]:
    """The agent's own log, as chatty as it can be."""
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    setup_logging(format="json", level="debug", stream=stream)
    yield stream
    root.handlers[:], level = before
    root.setLevel(level)


def secret_info() -> bytes:
    body = json.loads(INFO) | SLOW
    body |= {
        "api_key": INFO_KEY,
        "admin_api_key": INFO_ADMIN,
        "launch_command": f"sglang serve --api-key {LAUNCH}",
        "model_path": f"https://u:{INFO_URL}@models/m",
        "served_model_name": f"Bearer {BEARER}",
        "kv_events_config": {"topic_token": HF},
    }
    overrides = [[f"api_key={INFO_KEY}", {"attention_backend": "triton"}]]
    body["internal_states"][0] |= {"api_key": INFO_KEY, "_resolved_overrides": overrides}
    return json.dumps(body).encode()


@pytest.mark.parametrize("form", ["text", "json"])
def test_explain_prints_none(tmp_path: Path, form: str) -> None:
    shown = ""
    for n, line in enumerate(LINES):
        log = tmp_path / f"{n}.log"
        log.write_text(line + "\n")
        shown += CliRunner().invoke(explain, ["--format", form, str(log)]).output
    everything = tmp_path / "all.log"
    everything.write_text("\n".join(LINES) + "\n")
    shown += CliRunner().invoke(explain, ["--format", form, str(everything)]).output
    assert leaks(shown) == []
    assert shown.count(REDACTED) > 3, "the lines were quoted, without their secrets"


async def test_the_agent_stores_serves_and_logs_none(tmp_path: Path, own_log: io.StringIO) -> None:
    told: list[Report] = []
    driver(tmp_path)
    async with (
        serving(pages(server_info=secret_info(), model_info=b"{}", metrics=METRICS)) as (server, asked),
        running(settings_for(tmp_path)) as app,
    ):
        app.reporter._sink = told.append
        write(tmp_path, *LINES[:3], *ready(server.port))
        await until(lambda: len(asked) == 3, what="the server was asked")
        await until(lambda: "ttft_count" in app.pipeline.diagnostician.log.facts(_container(app)), what="and told")
        for n, line in enumerate(LINES[3:]):
            _write_pod(tmp_path, n, line)
        write(tmp_path, LINES[-2])  # a failure of the asked server takes the facts with it, to store and pages
        await until(lambda: any("ttft_count" in f.facts for f in app.pipeline.diagnostician.failures), what="its facts")
        await until(lambda: len(app.failures()) >= 7, what="failures")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{app.port}") as web_session:
            served = b""
            for path in ("/", "/metrics", "/readyz", "/healthz", *(f"/api/v1/{kind}" for kind in API)):
                async with web_session.get(path) as answer:
                    assert answer.status == 200, path
                    served += await answer.read()
        held = repr((app.failures(), app.verdicts(), app.events(), app.faults(), app.samples(), app._servers._servers))
        app.pipeline.flush()
        held += repr(app.pipeline.diagnostician.log._instances)
    files = b"".join(f.read_bytes() for f in (tmp_path / "state").iterdir() if f.is_file())
    assert len(files) > 4096 and told
    for exit, text in (("store", files), ("pages", served), ("memory", held), ("events", repr(told))):
        assert leaks(text) == [], exit
    assert leaks(own_log.getvalue()) == []
    assert own_log.getvalue()


async def test_a_refusal_that_holds_secrets_is_told_without_them(tmp_path: Path, own_log: io.StringIO) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text=f"api_key={REFUSED}", headers={"WWW-Authenticate": HEADER})

    async with serving(refuse) as (server, _), running(settings_for(tmp_path)) as app:
        write(tmp_path, *ready(server.port))
        await until(lambda: "wants an API key" in own_log.getvalue(), what="said in the agent's log")
        held = repr((app.failures(), app.samples()))
    assert leaks(own_log.getvalue() + held) == []


API = ("faults", "verdicts", "failures", "events", "plans", "sources", "rules")


def _container(app):  # type: ignore[no-untyped-def]
    return next(iter(app.pipeline.diagnostician.log._instances.values())).container


def _write_pod(root: Path, n: int, line: str) -> None:
    folder = root / "pods" / f"llm_other-{n}_00000000-0000-0000-0000-1000000000{n:02d}" / "sglang"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text(f"2026-07-20T09:14:02.000000000Z stderr F {line}\n")

"""The running agent, a container that gets ready, and a real HTTP server that answers with real bodies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.app import App
from agent.config import (
    CorrelationSettings,
    GpusSettings,
    HttpSettings,
    KernelSettings,
    KubeletSettings,
    LogsSettings,
    Settings,
    SglangSettings,
)
from agent.model import ContainerRef

from .sources.test_sglang_client import INFO, METRICS, pages, serving
from .test_story import until

HYBRID = "Qwen3_5ForConditionalGeneration"
SLOW = {
    "attention_backend": "triton",
    "page_size": 1,
    "speculative_algorithm": None,
    "linear_attn_backend": "triton",
    "model_path": "/models/m",
}


def slow_info() -> bytes:
    """The real body as a Qwen3.5 hybrid on Blackwell gives it."""
    body = json.loads(INFO) | SLOW
    chosen = {"attention_backend": "triton", "page_size": 1}
    body["internal_states"][0] |= {"_resolved_overrides": [["_qwen3_5_hybrid_overrides", chosen]]}
    return json.dumps(body).encode()


def settings_for(root: Path, *, ask: bool = True, interval: float = 0) -> Settings:
    (root / "pods").mkdir(exist_ok=True)
    (root / "kmsg").touch()
    return Settings(
        node_name="gpu-node",
        state_dir=str(root / "state"),
        http=HttpSettings(address="127.0.0.1", port=0),
        kernel=KernelSettings(path=str(root / "kmsg")),
        logs=LogsSettings(root=str(root / "pods")),
        kubelet=KubeletSettings(checkpoint=""),
        gpus=GpusSettings(proc=str(root / "proc")),
        sglang=SglangSettings(ask=ask, metrics_seconds=interval),
        correlation=CorrelationSettings(settle_seconds=0.0),
    )


def driver(root: Path, version: str = "580.178.04", model: str = "NVIDIA B200") -> None:
    folder = root / "proc" / "gpus" / "0000:1b:00.0"
    folder.mkdir(parents=True)
    (root / "proc" / "version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release\n"
    )
    (folder / "information").write_text(f"Model: \t\t {model}\n")


def write(root: Path, *lines: str) -> None:
    folder = root / "pods" / "llm_chat-0_00000000-0000-0000-0000-000000000001" / "sglang"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())
    with (folder / "0.log").open("a") as log:
        log.writelines(f"{stamp} stderr F {line}\n" for line in lines)


@asynccontextmanager
async def running(
    settings: Settings, address: str | None = "127.0.0.1", *, guarded: bool = False
) -> AsyncIterator[App]:
    asked: list[ContainerRef] = []

    def address_of(container: ContainerRef) -> str | None:
        asked.append(container)
        return address

    app = App(settings, sink=lambda _: None, boot_id="test", address_of=address_of)
    app.asked_for = asked  # type: ignore[attr-defined]
    if not guarded:
        app._servers._allowed = lambda _: True
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    await until(app.started.is_set, what="started")
    try:
        yield app
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


def ready(port: int) -> tuple[str, ...]:
    head = "[2026-07-20 09:14:02]"
    return (
        f"{head} INFO:     Uvicorn running on http://0.0.0.0:{port} (Press CTRL+C to quit)",
        f"{head} The server is fired up and ready to roll!",
    )


async def test_a_slow_default_that_only_the_server_tells_is_noticed_with_its_figures(tmp_path: Path) -> None:
    model = json.dumps({"architectures": [HYBRID]}).encode()
    driver(tmp_path)
    bodies = pages(server_info=slow_info(), model_info=model, metrics=METRICS)
    async with serving(bodies) as (server, asked), running(settings_for(tmp_path)) as app:
        write(tmp_path, *ready(server.port))
        await until(lambda: bool(app.verdicts()), what="a verdict")
    (verdict,) = app.verdicts()
    assert verdict.rule == "sglang/slow-hybrid-triton-sm100"
    evidence = [e.text for e in verdict.evidence]
    assert any("chosen by _qwen3_5_hybrid_overrides" in text for text in evidence)
    assert any("time to first token 0.102 s" in text for text in evidence)
    assert [r.path for r in asked] == ["/server_info", "/model_info", "/metrics"]
    assert app.pipeline.diagnostician.failures[0].facts["driver"] == "580.178.04"


async def test_nothing_is_asked_where_the_setting_says_so(tmp_path: Path) -> None:
    async with serving(pages()) as (server, asked), running(settings_for(tmp_path, ask=False)) as app:
        write(tmp_path, *ready(server.port))
        await until(lambda: app.telemetry.hits["sglang/ready"] == 1, what="the line was read")
        assert asked == [] and app.asked_for == []  # type: ignore[attr-defined]


async def test_without_an_address_nothing_is_asked_not_even_this_machine(tmp_path: Path) -> None:
    for address in (None, "127.0.0.1", "localhost"):
        root = tmp_path / str(address)
        root.mkdir()
        async with (
            serving(pages(server_info=INFO)) as (server, asked),
            running(settings_for(root), address, guarded=True) as app,
        ):
            write(root, *ready(server.port))
            await until(lambda app=app: bool(app.asked_for), what="the address was asked for")  # type: ignore[misc]
            assert asked == []


async def test_a_mismatch_of_image_and_driver_is_told_before_the_first_crash(tmp_path: Path) -> None:
    driver(tmp_path, "570.86.15")
    async with running(settings_for(tmp_path)) as app:
        write(tmp_path, "CUDA Version 13.0.1")
        await until(lambda: bool(app.verdicts()), what="a verdict")
        assert app.verdicts()[0].rule == "image/driver-too-old"
        assert [r.reason for r in app.events() if r.regarding.kind == "Pod"] == ["DriverTooOldForImage"]
        write(tmp_path, "[2026-07-20 09:14:02] The server is fired up and ready to roll!")
        await until(lambda: not app.verdicts(), what="taken back")

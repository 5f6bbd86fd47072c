"""Restarts, slow starts and hangs of one server, told through the pipeline and `explain` from real-shaped logs."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.detect.recognise import recognise
from agent.explain import as_json, explain
from agent.model import Action, Component, ContainerRef
from agent.pipeline import NullListener, Pipeline
from agent.report.store import Store
from agent.rulebook import Rulebook, load_rulebook
from agent.sources.handed import open_handed
from agent.sources.logs.follow import Chunk, LogStream, Position

DATA = Path(__file__).parents[1] / "data" / "sglang"
REFUSED = (DATA / "no-buffer-needs-no-overlap.log").read_bytes()

SLOW_START = b"""\
[2026-07-20 09:14:02 TP0] Init torch distributed begin.
[2026-07-20 09:14:09 TP0] Init torch distributed ends. elapsed=7.01 s, mem usage=1.22 GB
[2026-07-20 09:14:09 TP0] Load weight begin. avail mem=177.40 GB
\rLoading safetensors checkpoint shards:   0% Completed | 0/41 [00:00<?, ?it/s]\
\rLoading safetensors checkpoint shards:  51% Completed | 21/41 [09:12<08:45, 26.30s/it]
[2026-07-20 09:33:11 TP0] Load weight end. elapsed=1142.40 s, type=Qwen3ForCausalLM, avail mem=140.10 GB, mem usage=37.30 GB.
[2026-07-20 09:33:12 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 812345, K size: 49.60 GB, V size: 49.60 GB
[2026-07-20 09:33:14 TP0] Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins) if you have not run `sglang.compile_deep_gemm`. It is recommended to run `sglang.compile_deep_gemm` with same args as `sglang.launch_server` for pre-compilation to reduce the overhead if you have not run it before.
\rDeepGEMM warmup:  12%|#2        | 4096/32768 [02:10<15:11, 31.4it/s]
[2026-07-20 09:52:01 TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2, 4, 8], avail mem=38.20 GB
\rCapturing batches (bs=8 avail_mem=38.01 GB):   0%|          | 0/4 [00:00<?, ?it/s]
[2026-07-20 09:55:40 TP0] Capture target decode CUDA graph end. elapsed=219.03 s, mem usage=0.61 GB, avail mem=37.40 GB.
"""  # noqa: E501

HANG = (DATA / "23-watchdog-and-health.reconstructed.log").read_bytes()
CRASH = (DATA / "04-scheduler-killed-while-serving.real.log").read_bytes()


@cache
def book() -> Rulebook:
    return load_rulebook()


def pipeline() -> Pipeline:
    return Pipeline(
        book(), store=Store.open(None), listener=NullListener(), clock=lambda: 1000.0, boot_id="b1", window=120,
        by_content=lambda _: False,
    )  # fmt: skip


def chunk(data: bytes, *, restart: int = 0) -> Chunk:
    where = ContainerRef(namespace="ns", pod="p", uid="u", container="main", restart=restart)
    position = Position(dev=1, ino=restart, fingerprint=f"f{restart}", offset=len(data))
    return Chunk(stream=LogStream(container=where, path="x"), data=data, offset=0, position=position, torn=False)


def told(tmp_path: Path, text: bytes) -> dict[str, Any]:
    (tmp_path / "pod.log").write_bytes(text)
    inputs = open_handed([str(tmp_path / "pod.log")], stdin=io.BytesIO(), recognise=recognise)
    answer: dict[str, Any] = json.loads(as_json(explain(inputs, book())))
    return answer


def rules_of(answer: dict[str, Any]) -> list[str]:
    return [verdict["rule"] for verdict in answer["verdicts"]]


def test_a_crash_loop_is_one_failure_with_a_count() -> None:
    p = pipeline()
    for restart in range(5):
        p.chunk(chunk(REFUSED, restart=restart))
    [failure] = p.diagnostician.failures
    [verdict] = p.diagnostician.verdicts
    assert failure.primary.rule == "sglang/mamba-no-buffer-overlap"
    assert failure.count == 5
    assert verdict.component is Component.CONFIG and verdict.action is Action.ADVISE


def test_a_crash_loop_with_another_reason_after_a_change_is_two_failures() -> None:
    p = pipeline()
    p.chunk(chunk(REFUSED, restart=0))
    p.chunk(chunk((DATA / "trtllm-mha-on-hopper.log").read_bytes(), restart=1))
    assert {f.primary.rule for f in p.diagnostician.failures} == {
        "sglang/mamba-no-buffer-overlap",
        "sglang/trtllm-mha-prefill-arch",
    }


def test_the_first_refused_argument_is_the_cause_and_the_noise_after_it_is_not(tmp_path: Path) -> None:
    noise = (
        b"[2026-07-20 09:14:09] Received sigquit from a child process. It usually means the child failed.\n"
        b"[2026-07-20 09:14:09] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n"
        b"RuntimeError: Initialization failed. Please see the error messages above.\n"
    )
    answer = told(tmp_path, REFUSED + noise)
    assert rules_of(answer) == ["sglang/mamba-no-buffer-overlap"]
    assert "--disable-overlap-schedule" in " ".join(answer["verdicts"][0]["fix"])


def test_a_slow_start_is_no_failure(tmp_path: Path) -> None:
    answer = told(tmp_path, SLOW_START)
    assert answer["verdicts"] == [] and answer["faults"] == [] and answer["action"] == "none"


@pytest.mark.parametrize("lines", [4, 6, 8, 10])
def test_a_slow_start_that_is_still_under_way_is_no_failure(tmp_path: Path, lines: int) -> None:
    answer = told(tmp_path, b"\n".join(SLOW_START.split(b"\n")[:lines]))
    assert answer["verdicts"] == [] and answer["action"] == "none"


def test_a_hang_is_told_from_a_crash(tmp_path: Path) -> None:
    assert rules_of(told(tmp_path, HANG)) == ["sglang/watchdog-timeout"]
    assert rules_of(told(tmp_path, CRASH)) == ["sglang/subprocess-killed"]


def test_a_hang_and_a_crash_of_the_same_container_are_two_failures() -> None:
    p = pipeline()
    p.chunk(chunk(HANG, restart=0))
    p.chunk(chunk(CRASH, restart=1))
    assert {f.primary.rule for f in p.diagnostician.failures} == {"sglang/watchdog-timeout", "sglang/subprocess-killed"}


def test_a_server_that_came_up_after_its_crashes_keeps_the_failure_and_adds_none() -> None:
    p = pipeline()
    p.chunk(chunk(REFUSED, restart=0))
    p.chunk(chunk(REFUSED, restart=1))
    p.chunk(chunk((DATA / "03-startup-and-serving.real.log").read_bytes(), restart=2))
    [failure] = p.diagnostician.failures
    assert failure.count == 2


def test_two_pods_with_the_same_fault_are_two_failures() -> None:
    p = pipeline()
    for uid in ("u1", "u2"):
        where = ContainerRef(namespace="ns", pod=uid, uid=uid, container="main")
        position = Position(dev=1, ino=2, fingerprint=uid, offset=len(REFUSED))
        stream = LogStream(container=where, path=uid)
        p.chunk(Chunk(stream=stream, data=REFUSED, offset=0, position=position, torn=False))
    assert len(p.diagnostician.failures) == 2

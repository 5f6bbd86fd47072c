"""What NVML says is judged, shown by `faultline gpus`, counted by the agent, and waited for by a recovery."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.app import App
from agent.config import GpusSettings
from agent.diagnose.gpu_health import RECOVERY_ACTIONS, against, findings
from agent.doctor_gpus import gpu_checks
from agent.gpus import GpuState
from agent.model import PciAddress
from agent.sources.gpus.nvml import NvmlSource
from tests.nvml import StandIn
from tests.test_app import running, settings
from tests.test_story import until

PCI = PciAddress("0000:00:06")


@pytest.mark.parametrize(
    ("changes", "says", "wrong"),
    [
        ({"lost": "GPU is lost"}, "it does not answer: GPU is lost", True),
        *(({"recovery_action": action}, says, True) for action, says in RECOVERY_ACTIONS.items()),
        ({"recovery_action": 9}, "the driver asks for recovery action 9", True),
        ({"reset_required": True}, "the driver asks for a GPU reset", True),
        ({"drain_and_reset": True}, "the driver asks to drain the GPU and reset it", True),
        ({"remap_failed": True}, "a memory row could not be remapped: the card is to be replaced", True),
        ({"remap_pending": True}, "a memory row waits to be remapped by a reset", True),
        ({"retired_pending": True}, "a memory page waits to be retired by a reboot", True),
        ({"channel_repair_pending": True}, "a memory channel waits to be repaired by a reset", True),
        ({"tpc_repair_pending": True}, "a TPC waits to be repaired by a reset", True),
        ({"unrepairable_memory": True}, "memory that cannot be repaired: the card is to be replaced", True),
        ({"sram_threshold_exceeded": True}, "too many SRAM errors: the card is to be replaced", True),
        ({"fabric": "not_started"}, "the NVLink fabric is not set up", True),
        ({"fabric": "in_progress"}, "the NVLink fabric is not set up", True),
        ({"fabric": "completed", "fabric_status": 999}, "the NVLink fabric's set-up failed", True),
        ({"compute_mode": "prohibited"}, "compute mode Prohibited: no program may use it", False),
        ({"compute_mode": "exclusive_process"}, "compute mode Exclusive: one process at a time", False),
        ({"mig": True, "mig_instances": ()}, "MIG is on, and there is no instance", False),
        ({"vgpu_licensed": False}, "a virtual GPU without a licence", False),
        ({"clocks_event_reasons": ("hw_thermal_slowdown",)}, "slowed down: hw_thermal_slowdown", False),
    ],
)
def test_what_speaks_against_a_gpu(changes: dict[str, Any], says: str, wrong: bool) -> None:
    gpu = GpuState(pci=PCI, **changes)
    assert [(f.says, f.wrong) for f in findings(gpu)] == [(says, wrong)]
    assert against(gpu) == (says if wrong else "")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recovery_action": 0, "reset_required": True},  # the newer field is the driver's word
        {"fabric": "completed", "fabric_status": 0},
        {"fabric": "not_supported"},
        {"mig": True, "mig_instances": None},
        {"clocks_event_reasons": ("gpu_idle", "sw_power_cap")},
        {"ecc_aggregate": 12, "remapped_uncorrectable": 2},  # history, repaired
    ],
)
def test_what_does_not(changes: dict[str, Any]) -> None:
    assert findings(GpuState(pci=PCI, **changes)) == ()


def gpus(standin: StandIn, proc: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent", "gpus", "--proc", str(proc), *more]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | standin.environ, check=False)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc" / "gpus" / "0000:00:06.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(
        "Model: \t NVIDIA H200\nGPU UUID: \t GPU-11111111-2222-3333-4444-555555555555\n"
    )
    return tmp_path / "proc"


def test_the_command(standin: StandIn, proc: Path) -> None:
    standin.change({"0.compute": f"{os.getpid()}:1048576", "0.memory": f"{143771 << 20} {1 << 20}"})
    done = gpus(standin, proc)
    assert (done.returncode, done.stderr) == (0, "")
    assert "driver 580.159.04, CUDA 13.0" in done.stdout
    assert "ok     0000:00:06  GPU-11111111" in done.stdout and "1 of 143771 MiB" in done.stdout
    assert str(os.getpid()) in done.stdout


def test_what_is_wrong_is_said_and_is_the_exit_status(standin: StandIn, proc: Path) -> None:
    standin.change({"0.field.230": "1", "0.compute_mode": "3"})
    done = gpus(standin, proc, "--format", "json")
    assert (done.returncode, done.stderr) == (1, "")
    (one,) = json.loads(done.stdout)["gpus"]
    assert one["wrong"] == ["the driver asks for a GPU reset"] and one["notes"][0].startswith("compute mode Exclusive")
    assert one["state"]["recovery_action"] == 1 and one["listed"] is True


def test_a_gpu_that_only_the_driver_lists(standin: StandIn, proc: Path) -> None:
    lost = proc / "gpus" / "0000:5d:00.0"
    lost.mkdir()
    (lost / "information").write_text("GPU UUID: \t GPU-44444444-aaaa-bbbb-cccc-000000000005\n")
    done = gpus(standin, proc)
    assert done.returncode == 1 and "0000:5d:00  GPU-44444444-aaaa-bbbb-cccc-000000000005" in done.stdout
    assert "NVML does not know it" in done.stdout


def test_the_drivers_list_has_to_do_where_nvml_cannot(standin: StandIn, proc: Path) -> None:
    standin.change({"init": "!18"})
    done = gpus(standin, proc)
    assert done.returncode == 0 and "mismatch" in done.stdout
    assert "?      0000:00:06  GPU-11111111" in done.stdout, "unknown, not ok"


def test_no_gpu(standin: StandIn, tmp_path: Path) -> None:
    standin.change({"count": "0"})
    done = gpus(standin, tmp_path / "nothing")
    assert done.returncode == 2 and "no GPU" in done.stderr and "Traceback" not in done.stderr


def agent_on(standin: StandIn, root: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    for name, value in standin.environ.items():
        monkeypatch.setenv(name, value)
    return App(settings(root, gpus=GpusSettings(proc="")), sink=lambda _: None)


async def test_the_agent_counts_what_nvml_says(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.change({"count": "3", "1.pci": "00000000:5d:00.0", "1.field.230": "1", "2.handle": "!15"})
    app = agent_on(standin, tmp_path, monkeypatch)
    async with running(app):
        await until(lambda: app.nvml is not None and app.nvml.last is not None, what="NVML was asked")
        figures = app.samples()
    states = {state: figures[f'faultline_gpus{{state="{state}"}}'] for state in ("ok", "unwell", "lost")}
    assert states == {"ok": 1, "unwell": 1, "lost": 1}
    assert figures['faultline_source_blind{source="nvml"}'] == 0
    assert figures["faultline_nvml_hangs_total"] == 0
    assert app.nvml is not None and app.nvml.pid is None, "the child is gone with the agent"


async def test_a_driver_that_hangs_blinds_this_source_and_delays_nothing(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.change({"hang": "nvmlInit"})
    app = agent_on(standin, tmp_path, monkeypatch)
    async with running(app):
        await until(lambda: app.nvml is not None and app.nvml.pid is not None, what="NVML is asked")
        (tmp_path / "kmsg").write_text(
            "4,1,1,-;NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: bool(app.faults()), what="a fault is known")
        assert loop.time() - began < 2, "not after the deadline of NVML"
        await until(lambda: app.samples()['faultline_source_blind{source="nvml"}'] == 1, what="blind, and said so")
        assert app.samples()["faultline_nvml_hangs_total"] == 1
        assert any("NVML did not answer within 5 s" in report.note for report in app.events())


async def test_where_the_library_is_not_nothing_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    app = App(settings(tmp_path, gpus=GpusSettings(proc="")), sink=lambda _: None)
    assert app.nvml is not None
    async with running(app):
        await until(lambda: app.nvml is None, what="given up")
        assert app.samples()['faultline_source_blind{source="nvml"}'] == 0 and app.events() == ()


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({}, "ok", "driver 580.159.04; 1 GPU"),
        ({"0.field.230": "2"}, "warn", "0000:00:06: the driver asks for a reboot of the node"),
        ({"init": "!9"}, "warn", "NVML: Driver Not Loaded"),
    ],
)
async def test_the_doctor(standin: StandIn, tmp_path: Path, changes: dict[str, str], status: str, says: str) -> None:
    standin.change(changes)
    (check,) = await gpu_checks(settings(tmp_path), source=NvmlSource(environ=standin.environ))
    assert (check.name, check.status) == ("nvml", status) and says in check.seen
    assert await gpu_checks(settings(tmp_path, gpus=GpusSettings(nvml=False))) == []

"""The real child with the real pynvml, on the stand-in: what NVML says becomes values, what it does not is unknown."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.gpus import GpuProcess, GpuState, MigInstance, NodeGpus
from agent.kube.backoff import Backoff
from agent.model import PciAddress
from agent.sources.gpus.nvml import ABANDONED, NvmlSource
from tests.nvml import StandIn

PCI = PciAddress("0000:00:06")
PROOF = Path(__file__).parents[2] / "docs" / "proof" / "h200-nvml.txt"
UUID = "GPU-11111111-2222-3333-4444-555555555555"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def source(standin: StandIn, clock: Clock) -> AsyncIterator[NvmlSource]:
    found = NvmlSource(
        environ=standin.environ, backoff=Backoff(first=60.0, limit=300.0, chance=lambda: 0.0), monotonic=clock
    )
    yield found
    await found.close()


async def looked(source: NvmlSource) -> NodeGpus:
    found = await source.read()
    assert found is not None, source.error
    return found


async def gpu(source: NvmlSource) -> GpuState:
    (one,) = (await looked(source)).gpus
    return one


async def test_a_healthy_card(source: NvmlSource) -> None:
    found = await looked(source)
    assert (found.driver, found.cuda, found.error, source.error) == ("580.159.04", "13.0", "", "")
    assert found.gpus == (
        GpuState(
            pci=PCI, uuid=UUID, minor=0, model="NVIDIA H200", compute_capability="9.0", recovery_action=0,
            reset_required=False, drain_and_reset=False, remap_pending=False, remap_failed=False,
            remapped_correctable=0, remapped_uncorrectable=0, ecc=True, ecc_volatile=0, ecc_aggregate=0,
            sram_threshold_exceeded=False, channel_repair_pending=False, tpc_repair_pending=False,
            unrepairable_memory=False, compute_mode="default", mig=False, persistence=True, processes=(),
            memory_total=143771 << 20, memory_used=0, nvlinks={}, fabric="not_supported",
            clocks_event_reasons=("gpu_idle",),
            unknown={"retired_pages": "Not Supported", "retired_pending": "Not Supported"},
        ),
    )  # fmt: skip
    assert source.last == found and source.last_read == found.at


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"0.field.230": "1"}, "recovery_action", 1),
        ({"0.field.226": "1"}, "reset_required", True),
        ({"0.field.227": "1"}, "drain_and_reset", True),
        ({"0.rows": "3 2 1 0"}, "remap_pending", True),
        ({"0.rows": "3 2 1 0"}, "remapped_uncorrectable", 2),
        ({"0.rows": "3 2 0 1"}, "remap_failed", True),
        ({"0.retired_pending": "1"}, "retired_pending", True),
        ({"0.retired": "2"}, "retired_pages", 4),
        ({"0.ecc": "0"}, "ecc", False),
        ({"0.ecc_volatile": "5000000000"}, "ecc_volatile", 5_000_000_000),
        ({"0.ecc_aggregate": "7"}, "ecc_aggregate", 7),
        ({"0.sram_threshold_exceeded": "1"}, "sram_threshold_exceeded", True),
        ({"0.repair": "1 0"}, "channel_repair_pending", True),
        ({"0.repair": "0 1"}, "tpc_repair_pending", True),
        ({"0.unrepairable": "1"}, "unrepairable_memory", True),
        ({"0.compute_mode": "2"}, "compute_mode", "prohibited"),
        ({"0.compute_mode": "3"}, "compute_mode", "exclusive_process"),
        ({"0.compute_mode": "9"}, "compute_mode", None),
        ({"0.persistence": "0"}, "persistence", False),
        ({"0.links": "1,1,0"}, "nvlinks", {0: True, 1: True, 2: False}),
        ({"0.fabric": "1 0 0"}, "fabric", "not_started"),
        ({"0.fabric": "2 0 0"}, "fabric", "in_progress"),
        ({"0.fabric": "3 0 0"}, "fabric_status", 0),
        ({"0.fabric": "3 999 2"}, "fabric_status", 999),
        ({"0.fabric": "3 0 2"}, "fabric_health", 2),
        ({"0.clocks_event_reasons": "0x48"}, "clocks_event_reasons", ("hw_slowdown", "hw_thermal_slowdown")),
        ({"0.virtualization": "2", "0.licensed": "0"}, "vgpu_licensed", False),
        ({"0.virtualization": "2", "0.licensed": "1"}, "vgpu_licensed", True),
        ({"0.mig": "1", "0.mig_max": "7"}, "mig_instances", ()),
        (
            {"0.mig": "1", "0.mig_max": "7", "0.mig_devices": "MIG-a:5:0,MIG-b:6:1"},
            "mig_instances",
            (MigInstance(uuid="MIG-a", gi=5, ci=0), MigInstance(uuid="MIG-b", gi=6, ci=1)),
        ),
        ({"0.memory": "100 99"}, "memory_used", 99),
    ],
)
async def test_what_nvml_says(
    source: NvmlSource, standin: StandIn, changes: dict[str, str], field: str, value: Any
) -> None:
    standin.change(changes)
    assert getattr(await gpu(source), field) == value


async def test_processes_are_told_with_the_kernels_name_for_them(source: NvmlSource, standin: StandIn) -> None:
    me = os.getpid()
    standin.change({"0.compute": f"{me}:1024,999999999:18446744073709551615", "0.mps": f"{me}:5"})
    name = Path(f"/proc/{me}/comm").read_text().strip()
    assert (await gpu(source)).processes == (
        GpuProcess(pid=me, name=name, memory=1024),
        GpuProcess(pid=999999999),
        GpuProcess(pid=me, name=name, kind="mps", memory=5),
    )


ANSWERS = {
    "0.uuid": "uuid", "0.rows": "remap_pending", "0.ecc": "ecc", "0.compute_mode": "compute_mode", "0.mig": "mig",
    "0.compute": "processes", "0.memory": "memory_total", "0.repair": "channel_repair_pending",
    "0.unrepairable": "unrepairable_memory", "0.sram_threshold_exceeded": "sram_threshold_exceeded",
    "0.ecc_volatile": "ecc_volatile", "0.persistence": "persistence", "0.field.230": "recovery_action",
}  # fmt: skip


@pytest.mark.parametrize("key", ANSWERS)
@pytest.mark.parametrize(("code", "said"), [("!999", "Unknown Error"), ("!3", "Not Supported"), ("!4", "Permissions")])
async def test_what_nvml_refuses_is_unknown_and_never_well(
    source: NvmlSource, standin: StandIn, key: str, code: str, said: str
) -> None:
    standin.change({key: code})
    one = await gpu(source)
    assert not getattr(one, ANSWERS[key]) and getattr(one, ANSWERS[key]) is not False
    assert said in one.unknown[ANSWERS[key]]
    assert one.lost == "" and one.model == "NVIDIA H200", "the rest is told"


async def test_a_field_that_an_older_driver_does_not_know(source: NvmlSource, standin: StandIn) -> None:
    standin.change({}, without=("0.field.230",))
    one = await gpu(source)
    assert one.recovery_action is None and one.unknown["recovery_action"] == "Invalid Argument"
    assert one.reset_required is False


async def test_a_lost_gpu_stays_known_by_its_address(source: NvmlSource, standin: StandIn) -> None:
    await looked(source)
    standin.change({"0.lost": "15"})
    one = await gpu(source)
    assert (one.pci, one.uuid, one.lost) == (PCI, UUID, "GPU is lost")
    assert one.recovery_action is None and one.remap_pending is None


async def test_a_gpu_that_was_lost_before_we_came_is_counted(source: NvmlSource, standin: StandIn) -> None:
    standin.change({"count": "2", "1.handle": "!15"})
    found = await looked(source)
    assert [g.pci for g in found.gpus] == [PCI] and found.unnamed == ("GPU is lost",)


async def test_a_gpu_that_needs_a_reset_answers_some_questions_only(source: NvmlSource, standin: StandIn) -> None:
    standin.change({"0.rows": "!16", "0.memory": "!16", "0.field.230": "1"})
    one = await gpu(source)
    assert one.lost == "GPU requires restart" and one.recovery_action == 1


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [({"init": "!9"}, 9, "Driver Not Loaded"), ({"init": "!18"}, 18, "mismatch"), ({"count": "!999"}, 999, "Unknown")],
)
async def test_no_driver(source: NvmlSource, standin: StandIn, state: dict[str, str], code: int, said: str) -> None:
    standin.change(state)
    found = await looked(source)
    assert found.code == code and said in found.error and found.gpus == ()
    assert said in source.error and source.last is None
    standin.change({})
    assert (await looked(source)).error == "", "a driver that is loaded later is seen by the same child"
    assert source.error == "" and source.errors == 0


async def test_no_library(tmp_path: Path) -> None:
    source = NvmlSource(environ={"LD_LIBRARY_PATH": str(tmp_path)})
    try:
        assert (await looked(source)).error == "NVML Shared Library Not Found"
    finally:
        await source.close()


async def test_a_hang_is_bounded_and_asked_again_ever_more_rarely(standin: StandIn, clock: Clock) -> None:
    source = NvmlSource(
        environ=standin.environ,
        deadline=1.0,
        backoff=Backoff(first=60.0, limit=300.0, chance=lambda: 0.0),
        monotonic=clock,
    )
    try:
        standin.change({"hang": "nvmlDeviceGetComputeMode"})
        pids, waits = set(), []
        for _ in range(4):
            began = asyncio.get_running_loop().time()
            task = asyncio.create_task(source.read())
            while source.pid is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            pids.add(source.pid)
            assert await task is None
            assert asyncio.get_running_loop().time() - began < 5
            found = re.search(r"asked again in (\d+) s", source.error)
            assert found is not None and "within 1 s" in source.error
            assert await source.read() is None and source.pid is None, "not before its time"
            waits.append(int(found[1]))
            clock.now += waits[-1] + 1
        assert source.hangs == 4 and len(pids) == 4 and waits == [30, 60, 120, 150]
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "each one was killed"
        standin.change({})
        assert (await looked(source)).gpus and source.error == ""
    finally:
        await source.close()


async def test_a_crash_in_the_library(source: NvmlSource, standin: StandIn, clock: Clock) -> None:
    standin.change({"crash": "nvmlDeviceGetComputeMode"})
    assert await source.read() is None
    assert f"signal {signal.SIGSEGV.value}" in source.error and source.hangs == 0 and source.errors == 1
    standin.change({})
    clock.now += 31
    assert (await looked(source)).gpus


async def test_a_child_that_is_killed_from_outside(source: NvmlSource, clock: Clock) -> None:
    await looked(source)
    assert source.pid is not None
    os.kill(source.pid, signal.SIGKILL)
    assert await source.read() is None and "ended (signal 9)" in source.error
    clock.now += 31
    assert (await looked(source)).gpus


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.stdin.readline(); print('what')", "no answer that is understood"),
        ('import sys; sys.stdin.readline(); print(\'{"id":2,"gpus":{"at":1}}\')', "no answer that is understood"),
        ('import sys; sys.stdin.readline(); print(\'{"id":1,"gpus":{"at":"x"}}\')', "no answer that is understood"),
        ("import sys; sys.stdin.readline(); print('x' * (2 << 20))", "no answer that is understood"),
        ("import sys; sys.stdin.readline(); print('{\"id\":1', end='')", "ended (exit status 0)"),
        ("import sys; sys.exit(3)", "ended (exit status 3)"),
    ],
)
async def test_nonsense(program: str, said: str) -> None:
    source = NvmlSource(command=[sys.executable, "-c", program])
    assert await source.read() is None and said in source.error, source.error
    assert source.pid is None and source.errors == 1


async def test_a_program_that_is_not_there() -> None:
    source = NvmlSource(command=["/nonexistent/python"])
    assert await source.read() is None and "cannot be started: No such file" in source.error


class Immortal:
    """A process in uninterruptible sleep, which no test can have: a signal does not end it."""

    returncode: int | None = None
    stdin = None
    pid = 1

    def kill(self) -> None:
        pass

    async def wait(self) -> None:
        await asyncio.Event().wait()


async def test_what_cannot_be_killed_is_abandoned_and_no_endless_row_of_them_started(
    standin: StandIn, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = NvmlSource(environ=standin.environ, monotonic=clock)
    stuck = [Immortal() for _ in range(ABANDONED)]
    with monkeypatch.context() as patched:
        patched.setattr("agent.sources.gpus.nvml.GRACE_SECONDS", 0.0)
        for one in stuck:
            source._child = one  # type: ignore[assignment]
            await source._kill()
    assert (source.abandoned, source.stuck) == (ABANDONED, ABANDONED)
    assert await source.read() is None and "stuck in the driver" in source.error and source.pid is None
    stuck[0].returncode = -9  # the driver let it go
    assert (await looked(source)).gpus and source.stuck == ABANDONED - 1
    await source.close()


async def test_a_question_that_was_given_up_is_not_answered_to_the_next(source: NvmlSource, standin: StandIn) -> None:
    await looked(source)
    task = asyncio.create_task(source.read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await looked(source)).gpus


async def test_the_child_is_small_and_ends_with_the_agent(standin: StandIn) -> None:
    program = (
        "import asyncio, sys\n"
        "from agent.sources.gpus.nvml import NvmlSource\n"
        "async def main():\n"
        "    source = NvmlSource()\n"
        "    assert (await source.read()).gpus, source.error\n"
        "    print(source.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=os.environ | standin.environ
    )
    assert agent.stdout is not None
    child = int(await agent.stdout.readline())
    status = Path(f"/proc/{child}/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
    assert found is not None and int(found[1]) <= 24 * 1024
    agent.kill()
    await agent.wait()
    async with asyncio.timeout(5):
        while status.exists() and "State:\tZ" not in status.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_healthy_card_of_the_stand_in_is_the_real_one(source: NvmlSource) -> None:
    """`docs/proof` has what the same child read from a real H200 (`make test-gpu`)."""
    (line,) = (text for text in PROOF.read_text().splitlines() if text.startswith("idle: "))
    real = msgspec.json.decode(line.removeprefix("idle: "), type=NodeGpus)
    assert await looked(source) == dataclasses.replace(real, at=source.last_read or 0.0)

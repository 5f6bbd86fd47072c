"""The real probe's child on a stand-in for CUDA's library: what works, what fails and where, what hangs."""

from __future__ import annotations

import asyncio
import sys

import pytest

from agent.sources.gpus.probe import Probe, Probed
from tests.nvml import StandIn

UUID = "GPU-11111111-2222-3333-4444-555555555555"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def probe(standin: StandIn, clock: Clock) -> Probe:
    return Probe(environ=standin.environ, deadline=2.0, monotonic=clock)


async def test_a_context_that_works(probe: Probe) -> None:
    found = await probe.run(UUID)
    assert found.ok is True and found.ms > 0 and "memory written and read" in found.says


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"cuInit": "100"}, "cuInit: CUDA_ERROR_NO_DEVICE (100)"),
        ({"cuCtxCreate": "46"}, "cuCtxCreate: CUDA_ERROR_DEVICE_UNAVAILABLE (46)"),
        ({"cuMemAlloc": "999"}, "cuMemAlloc: CUDA_ERROR_UNKNOWN (999)"),
        ({"cuMemcpyDtoH": "999"}, "cuMemcpyDtoH: CUDA_ERROR_UNKNOWN (999)"),
        ({"cuda_wrong": "1"}, "the page that was read is not the one that was written"),
        ({"cuda_hang": "cuCtxCreate"}, "not done within 2 s"),
        ({"cuda_crash": "cuCtxCreate"}, "ended with -11 and said nothing"),
    ],
)
async def test_a_context_that_does_not(probe: Probe, standin: StandIn, state: dict[str, str], says: str) -> None:
    standin.change(state)
    found = await probe.run(UUID)
    assert found.ok is False and says in found.says


async def test_where_cuda_is_not_nothing_is_said(tmp_path: object) -> None:
    found = await Probe(environ={"LD_LIBRARY_PATH": str(tmp_path)}).run(UUID)
    assert found.ok is None and "libcuda.so.1" in found.says
    assert (await Probe(command=["/nonexistent"]).run(UUID)).ok is None


async def test_one_gpu_is_not_probed_again_at_once(probe: Probe, standin: StandIn, clock: Clock) -> None:
    first = await probe.run(UUID)
    standin.change({"cuCtxCreate": "46"})
    clock.now = 299.0
    assert await probe.run(UUID) == first and probe.runs == 1
    assert (await probe.run(UUID.replace("1", "2"))).ok is False, "another GPU is another matter"
    clock.now = 301.0
    assert (await probe.run(UUID)).ok is False and probe.runs == 3


async def test_never_two_at_once(clock: Clock) -> None:
    slow = Probe(command=[sys.executable, "-c", "import time; time.sleep(60)"], deadline=5.0, monotonic=clock)
    first = asyncio.create_task(slow.run(UUID))
    while slow._child is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert await slow.run("GPU-other") == Probed(ok=None, name="another probe has not ended")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert slow._child.returncode == -9, "and it is not left behind"

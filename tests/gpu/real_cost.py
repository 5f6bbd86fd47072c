"""On a machine with an NVIDIA GPU: what the agent costs a program that keeps the GPU busy.

Run by hand, as root: `python -m tests.gpu.real_cost`. Needs PyTorch. A bf16 matrix product runs without a pause; spells
with the agent (NVML asked every 5 s, the least that can be set) and without it follow one another, so that a drift of
the card's clocks meets both.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SPELLS, SECONDS = 8, 12.0
"""Pairs of spells, and how long each one is."""

JOB = """
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    began = time.monotonic()
    for _ in range(100):
        a @ b
    torch.cuda.synchronize()
    print(time.time(), 100 / (time.monotonic() - began), flush=True)
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "pods").mkdir()
        with open(root / "job", "w") as told:
            job = subprocess.Popen([sys.executable, "-c", JOB], stdout=told)
        try:
            time.sleep(30)  # warm: its clocks have settled
            spells = [(with_agent, _spell(root, with_agent)) for _ in range(SPELLS) for with_agent in (False, True)]
        finally:
            job.kill()
            job.wait()
        rates = [tuple(map(float, line.split())) for line in (root / "job").read_text().splitlines() if line.count(" ")]
    means: dict[bool, list[float]] = {False: [], True: []}
    for with_agent, (began, ended) in spells:
        means[with_agent].append(statistics.fmean(rate for at, rate in rates if began + 1 <= at <= ended))
    without, beside = statistics.fmean(means[False]), statistics.fmean(means[True])
    noise = statistics.stdev(means[False]) / without
    print(f"products a second: {without:.2f} without the agent, {beside:.2f} with it; spells: {means}")
    print(f"cost {100 * (1 - beside / without):+.3f} %, between spells without it {100 * noise:.3f} % (one deviation)")
    return 0


def _spell(root: Path, with_agent: bool) -> tuple[float, float]:
    agent = None
    if with_agent:
        command = [
            sys.executable, "-m", "agent", "run", "--node-name", "gpu-test", "--kubelet-checkpoint", "",
            "--state-dir", root / "state", "--logs-root", root / "pods", "--http-address", "127.0.0.1",
            "--gpus-nvml-seconds", "5",
        ]  # fmt: skip
        agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(3)  # its start is not what is measured
    began = time.time()
    time.sleep(SECONDS)
    ended = time.time()
    if agent is not None:
        if agent.poll() is not None:
            raise SystemExit(f"the agent ended with {agent.returncode}")
        agent.terminate()
        agent.wait()
    return began, ended


if __name__ == "__main__":
    sys.exit(main())

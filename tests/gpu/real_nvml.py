"""On a machine with an NVIDIA GPU: what the children that ask NVML and CUDA say of a real card.

Run by hand: `python -m tests.gpu.real_nvml`. Needs pynvml, and PyTorch for the process that holds memory. Changes no
setting of the card. Prints what was read, how it differs from the stand-in of the tests, and how long it took.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.nvml import HEALTHY_H200

HOLDER = """
import sys, torch
held = torch.ones(1 << 28, device="cuda")
torch.cuda.synchronize()
print(torch.cuda.get_device_name(), flush=True)
sys.stdin.readline()
"""
PROBE = (sys.executable, "-m", "agent.sources.gpus.probe_child")


class Child:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "agent.sources.gpus.nvml_child"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.asked = 0

    def read(self) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.asked += 1
        self.process.stdin.write(json.dumps({"id": self.asked}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        found: dict[str, Any] = answer["gpus"]
        return found

    def memory(self) -> str:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        kinds = {name: int(kb) / 1024 for name, kb in re.findall(r"(VmRSS|RssAnon|RssFile):\s+(\d+)", status)}
        return ", ".join(f"{name} {mib:.1f} MiB" for name, mib in kinds.items())


def spread(milliseconds: list[float]) -> str:
    ordered = sorted(milliseconds)
    return f"p50 {ordered[len(ordered) // 2]:.1f} ms, p99 {ordered[int(len(ordered) * 0.99)]:.1f} ms"


def timed(work: Any, times: int) -> list[float]:
    took = []
    for _ in range(times):
        began = time.monotonic()
        work()
        took.append((time.monotonic() - began) * 1000)
    return took


def probed(uuid: str) -> dict[str, Any]:
    done = subprocess.run([*PROBE, uuid], capture_output=True, text=True, check=False, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    child = Child()
    idle = child.read()
    print("idle:", json.dumps(idle))
    print("reads:", spread(timed(child.read, 200)), child.memory())
    print("stand-in:", json.dumps(HEALTHY_H200))
    uuid = idle["gpus"][0]["uuid"]
    print("probe:", probed(uuid), spread(timed(lambda: probed(uuid), 10)))
    print("probe of a GPU that is not there:", probed("GPU-00000000-0000-0000-0000-000000000000"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    print("holder:", holder.pid, holder.stdout.readline().strip())
    held = child.read()
    print("held:", json.dumps({k: held["gpus"][0][k] for k in ("processes", "memory_used", "unknown")}))
    print("probe beside a holder:", probed(uuid))
    print("reads beside a holder:", spread(timed(child.read, 100)))
    holder.kill()
    holder.wait()
    print("after it was killed:", json.dumps(child.read()["gpus"][0]["processes"]))
    print(
        subprocess.run(
            ["nvidia-smi", "-q", "-d", "ECC,ROW_REMAPPER,COMPUTE"], capture_output=True, text=True, check=False
        ).stdout
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

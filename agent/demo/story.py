"""A true story on a made-up 8-GPU node: writes pods' logs, kernel records and the kubelet's checkpoint.

GPU 0000:5d:00 falls off the bus while the device plugin goes on offering it. The pod that held it crashes with "busy or
unavailable"; it is deleted, and so does the next pod that is given the same GPU. Beside them one pod on a sound GPU is
refused by SGLang for its flags, and one runs the slow default. Writes files; knows nothing of the agent.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

GPUS = tuple(
    (f"0000:{bus}:00", f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}-b200-4a1c-8d2e-00000000000{n}")
    for n, bus in enumerate(("1a", "2a", "3b", "4c", "5d", "9b", "ab", "bb"))
)
FAULTED = 4
_STAMP = re.compile(r"(?m)^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")

Pause = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the story, with the GPU it was given."""

    name: str
    uid: str
    gpu: int
    namespace: str = "serving"
    container: str = "sglang"


FIRST = Pod("llama-8b-7d9f6c5b4-x2k8p", "0c6f1a52-4d1b-4a57-9c1e-000000000001", FAULTED)
NEXT = Pod("mistral-24b-5f8b7c9d6-m4v7q", "0c6f1a52-4d1b-4a57-9c1e-000000000002", FAULTED)
REFUSED = Pod("qwen-27b-fp8-6b7c8d9f5-h9w3z", "0c6f1a52-4d1b-4a57-9c1e-000000000003", 1)
SLOW = Pod("qwen-27b-long-84c5d6f7b-r6t2n", "0c6f1a52-4d1b-4a57-9c1e-000000000004", 2)


class Story:
    """The node's files under `root`, and what happens to them. `pause(seconds)` lets time pass between two steps."""

    def __init__(self, root: Path, *, pause: Pause, clock: Callable[[], float] = time.time) -> None:
        self.pods = root / "pods"
        self.kmsg = root / "kmsg"
        self.checkpoint = root / "kubelet_internal_checkpoint"
        self._pause, self._clock = pause, clock
        self._seq = 4000
        self._held: dict[Pod, None] = {}
        self.rotations = 0
        self.pods.mkdir(parents=True, exist_ok=True)
        self.kmsg.touch()
        self._hold()
        self._boot()

    async def tell(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Lives the story through; `say` is told what happens, as it happens."""
        say(f"{SLOW.name} starts on a sound GPU, with SGLang's defaults for a Qwen3.5 hybrid")
        self._start(SLOW)
        self._print(SLOW, 0, _text("slow-default.log"))
        await self._pause(2)
        say(f"{REFUSED.name} starts, is refused by SGLang for its flags, and starts again")
        self._start(REFUSED)
        for restart in (0, 1):
            self._print(REFUSED, restart, _text("flag-refused.log"))
            await self._pause(1)
        say(f"the log of {SLOW.name} is rotated by the kubelet")
        await self._serve(SLOW, requests=300)
        self._rotate(SLOW, 0)
        await self._serve(SLOW, requests=50)
        await self._pause(1)
        say("a program prints, and writes to the kernel log, what looks like an Xid; neither is the kernel's word")
        self._record(f"NVRM: Xid (PCI:{GPUS[2][0]}): 79, pid=1, name=fake, GPU has fallen off the bus.", facility=1)
        self._print(SLOW, 0, f"NVRM: Xid (PCI:{GPUS[2][0]}): 79, pid=1, name=fake, GPU has fallen off the bus.\n")
        await self._pause(1)
        say(f"{FIRST.name} is given GPU {GPUS[FAULTED][0]}; the GPU falls off the bus")
        self._start(FIRST)
        self._fall_off(pid=48211)
        await self._pause(1)
        say(f"{FIRST.name} crashes: CUDA error: CUDA-capable device(s) is/are busy or unavailable")
        self._print(FIRST, 0, _text("busy.log"))
        await self._pause(3)
        say(f"{FIRST.name} is deleted; the scheduler gives the same GPU to {NEXT.name}")
        self._delete(FIRST)
        self._start(NEXT)
        await self._pause(1)
        self._print(NEXT, 0, _text("busy.log").replace("llama-3.1-8b", "mistral-small-24b"))
        await self._pause(4)

    # -- the kernel

    def _boot(self) -> None:
        self._record("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.178.04  Release Build")
        for n in (6, 5):
            self._record(f"usb usb{n}: New USB device found, idVendor=1d6b, idProduct=0002")

    def _fall_off(self, *, pid: int) -> None:
        pci, uuid = GPUS[FAULTED]
        self._record(f"NVRM: GPU at PCI:{pci}: {uuid}")
        self._record("NVRM: GPU Board Serial Number: 1650000000004")
        self._record(f"NVRM: Xid (PCI:{pci}): 79, GPU has fallen off the bus.")
        self._record(f"NVRM: GPU {pci}.0: GPU has fallen off the bus.")
        for channel in range(8, 14):
            self._record(
                f"NVRM: Xid (PCI:{pci}): 45, pid={pid}, name=sglang::schedul, channel 0x{channel:08x} "
                "caused by previous Xid 79"
            )
        self._record(
            f"NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
        )

    def _record(self, text: str, *, facility: int = 0) -> None:
        self._seq += 1
        usec = int(time.monotonic() * 1e6)
        with self.kmsg.open("a") as feed:
            feed.write(f"{facility * 8 + 4},{self._seq},{usec},-;{text}\n")

    # -- the kubelet

    def _start(self, pod: Pod) -> None:
        self._held[pod] = None
        self._hold()

    def _delete(self, pod: Pod) -> None:
        del self._held[pod]
        self._hold()

    def _hold(self) -> None:
        entries = [
            {"PodUID": p.uid, "ContainerName": p.container, "ResourceName": "nvidia.com/gpu",
             "DeviceIDs": {"0": [GPUS[p.gpu][1]]}, "AllocResp": ""}
            for p in self._held
        ]  # fmt: skip
        data = {
            "Data": {"PodDeviceEntries": entries, "RegisteredDevices": {"nvidia.com/gpu": [u for _, u in GPUS]}},
            "Checksum": 0,
        }
        fresh = self.checkpoint.with_suffix(".tmp")
        fresh.write_text(json.dumps(data))
        fresh.replace(self.checkpoint)

    def _path(self, pod: Pod, restart: int) -> Path:
        folder = self.pods / f"{pod.namespace}_{pod.name}_{pod.uid}" / pod.container
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{restart}.log"

    def _print(self, pod: Pod, restart: int, text: str) -> None:
        """As containerd writes it: a stamp, the stream, and a line above 16 KiB in parts."""
        now = self._clock()
        text = _STAMP.sub("[" + datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S"), text)
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"
        with self._path(pod, restart).open("ab") as log:
            for line in text.encode().splitlines():
                while len(line) > 16384:
                    log.write(f"{stamp} stderr P ".encode() + line[:16384] + b"\n")
                    line = line[16384:]
                log.write(f"{stamp} stderr F ".encode() + line + b"\n")

    async def _serve(self, pod: Pod, *, requests: int) -> None:
        for n in range(requests):
            self._print(
                pod,
                0,
                f"[2026-01-01 00:00:00] Decode batch, #running-req: 1, #full token: {2000 + n}, full token usage: "
                "0.25, mamba num: 3, mamba usage: 0.01, cuda graph: True, gen throughput (token/s): 71.93, "
                "#queue-req: 0\n",
            )
            if n % 100 == 0:
                await self._pause(0.01)

    def _rotate(self, pod: Pod, restart: int) -> None:
        path = self._path(pod, restart)
        os.rename(path, f"{path}.{datetime.fromtimestamp(self._clock(), UTC).strftime('%Y%m%d-%H%M%S')}")
        path.touch()
        self.rotations += 1


def _text(name: str) -> str:
    return (files("agent.demo") / "logs" / name).read_text(encoding="utf-8")

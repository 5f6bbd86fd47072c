"""Makes SGLang log text of any size: serving lines, with one failure a mebibyte."""

from __future__ import annotations

import random
from pathlib import Path

MIB = 1 << 20
HITS = (
    "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 23.52 GiB",
    "ValueError: --linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16, got None",
)


def block(*, seed: int = 1) -> bytes:
    """One mebibyte of serving, with one failing line at its end."""
    dice = random.Random(seed)
    lines: list[str] = []
    size = 0
    hit = HITS[seed % len(HITS)] + "\n"
    while size < MIB - 400:
        second = f"2026-07-20 09:{dice.randrange(60):02d}:{dice.randrange(60):02d} TP{dice.randrange(8)}"
        kind = dice.randrange(10)
        if kind < 6:
            line = (
                f"[{second}] Decode batch, #running-req: {dice.randrange(64)}, #token: {dice.randrange(99999)}, token "
                f"usage: 0.{dice.randrange(99):02d}, cuda graph: True, gen throughput (token/s): "
                f"{dice.random() * 5000:.2f}, #queue-req: 0\n"
            )
        elif kind < 8:
            line = (
                f"[{second}] Prefill batch, #new-seq: 1, #new-token: {dice.randrange(16384)}, #cached-token: 0, token "
                f"usage: 0.02, #running-req: 3, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput "
                f"(token/s): {dice.random() * 9000:.2f}\n"
            )
        else:
            client = f"10.0.0.{dice.randrange(255)}:{dice.randrange(65535)}"
            line = f'[{second}] INFO:     {client} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        lines.append(line)
        size += len(line)
    text = "".join(lines).encode()
    return text + b"#" * (MIB - len(text) - len(hit) - 1) + b"\n" + hit.encode()


def write(path: Path, *, mib: int) -> None:
    """A file of that many mebibytes; eight different blocks in turn."""
    blocks = [block(seed=n) for n in range(8)]
    with path.open("wb") as log:
        for n in range(mib):
            log.write(blocks[n % len(blocks)])

"""The running agent measured from outside: latency, rest, flood. Each with the real sources on real files."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.app import App
from agent.config import (
    CorrelationSettings,
    HttpSettings,
    KernelSettings,
    KubeletSettings,
    LogsSettings,
    SelectSettings,
    Settings,
)
from agent.model import Signal

Rows = list[tuple[str, str, str, bool]]
BUSY = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"


def _settings(root: Path) -> Settings:
    (root / "pods").mkdir(parents=True, exist_ok=True)
    (root / "kmsg").touch()
    return Settings(
        node_name="bench",
        state_dir=str(root / "state"),
        http=HttpSettings(address="127.0.0.1", port=0),
        kernel=KernelSettings(path=str(root / "kmsg")),
        logs=LogsSettings(root=str(root / "pods")),
        kubelet=KubeletSettings(checkpoint=""),
        select=SelectSettings(all=True),
        correlation=CorrelationSettings(settle_seconds=3600.0),
    )


def _log(root: Path, n: int) -> Path:
    folder = root / "pods" / f"bench_pod-{n}_00000000-0000-0000-0000-{n:012d}" / "sglang"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "0.log"


def _line(text: str) -> bytes:
    now = time.time()
    return (
        f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e9):09d}Z stderr F {text}\n".encode()
    )


class _Running:
    """The agent in this process; `heard` is called with each batch of signals in the turn in which they are known."""

    def __init__(self, root: Path, heard: Callable[[Sequence[Signal]], None]) -> None:
        self.app = App(_settings(root), sink=lambda _: None, boot_id="bench")
        inner = self.app.telemetry.signals

        def hooked(signals: Sequence[Signal], *, read: float) -> None:
            inner(signals, read=read)
            heard(signals)

        self.app.telemetry.signals = hooked  # type: ignore[method-assign]
        self.stop = asyncio.Event()

    async def __aenter__(self) -> _Running:
        self.task = asyncio.create_task(self.app.run(self.stop))
        await self.app.started.wait()
        await asyncio.sleep(1.5)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await self.task


async def latency(root: Path, *, runs: int = 500) -> Rows:
    """From the write of a line or a record until its signal is known."""
    logs = [_log(root, n) for n in range(20)]
    for path in logs:
        path.write_bytes(_line("begin"))
    rows: Rows = []
    known: asyncio.Queue[float] = asyncio.Queue()
    async with _Running(root, lambda _: known.put_nowait(time.perf_counter())):
        for name, write in (
            ("a line of a followed log", lambda n: logs[n % 20].open("ab").write(_line(BUSY))),
            ("a kernel record", lambda n: (root / "kmsg").open("a").write(
                f"4,{n + 1},{n},-;NVRM: Xid (PCI:0000:{n % 8:02x}:00): 31, pid={n}, name=x, MMU Fault\n")),
        ):  # fmt: skip
            times = []
            for n in range(runs):
                began = time.perf_counter()
                write(n)
                times.append((await asyncio.wait_for(known.get(), 5) - began) * 1000)
                await asyncio.sleep(0.002)
            times.sort()
            p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
            rows.append(
                (f"{name} until its signal is known", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms", "p99 <= 10 ms", p99 <= 10)
            )
    return rows


async def rest(root: Path, *, seconds: float = 20.0) -> Rows:
    """The agent as its own process, with 20 followed logs and nothing to do."""
    settings = _settings(root)
    for n in range(20):
        _log(root, n).write_bytes(_line("[2026-11-30 20:00:00] The server is fired up and ready to roll!"))
    env = {
        **os.environ,
        "FAULTLINE_NODE_NAME": "bench",
        "FAULTLINE_STATE_DIR": settings.state_dir,
        "FAULTLINE_HTTP_ADDRESS": "127.0.0.1",
        "FAULTLINE_HTTP_PORT": "0",
        "FAULTLINE_KERNEL_PATH": settings.kernel.path,
        "FAULTLINE_LOGS_ROOT": settings.logs.root,
    }
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "agent", "run", env=env)
    try:
        await asyncio.sleep(8)
        before = _cpu(child.pid)
        await asyncio.sleep(seconds)
        share = (_cpu(child.pid) - before) / seconds * 100
        rss = _rss(child.pid)
    finally:
        child.terminate()
        began = time.perf_counter()
        await child.wait()
        stopped = time.perf_counter() - began
    return [
        ("at rest, 20 followed logs: CPU", f"{share:.3f} % of a core over {seconds:.0f} s", "< 0.3 %", share < 0.3),
        ("at rest, 20 followed logs: RSS", f"{rss:.1f} MiB", "<= 64 MiB", rss <= 64),
        ("SIGTERM until gone", f"{stopped * 1000:.0f} ms", "< 2 s", stopped < 2),
    ]


async def flood(root: Path, *, rate: int = 100 << 20, seconds: int = 10) -> Rows:
    """Hostile container text at 100 MB/s, every line an error, while kernel records come."""
    path = _log(root, 0)
    path.write_bytes(_line("begin"))
    other = "ValueError: --linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16, got "
    block = b"".join(_line(BUSY if n % 2 else other + str(n)) for n in range(6000))[: 1 << 20]
    block = block[: block.rfind(b"\n") + 1]
    records: dict[int, float] = {}

    def heard(signals: Sequence[Signal]) -> None:
        now = time.time()
        for signal in signals:
            if signal.xid == 31 and signal.pid is not None:
                records[signal.pid] = now - float(signal.evidence.text.rsplit("@", 1)[1])

    async with _Running(root, heard) as agent:
        start_rss = peak = _rss(os.getpid())
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _WRITER, str(path), str(root / "kmsg"), str(rate // len(block)), str(seconds),
            stdin=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert writer.stdin is not None
        writer.stdin.write(block)
        writer.stdin.close()
        began = time.perf_counter()
        done: float | None = None
        behind = float("inf")
        while time.perf_counter() - began < seconds * 6:
            await asyncio.sleep(0.1)
            peak = max(peak, _rss(os.getpid()))
            if writer.returncode is not None and done is None:
                done = time.perf_counter()
            if done is not None and agent.app.pipeline.log_bytes >= path.stat().st_size:
                behind = time.perf_counter() - done
                break
        lost = agent.app.sources()[0].lost
        size = path.stat().st_size
        sampled = agent.app.pipeline.sampled_blocks
    path.unlink()
    expected = seconds * 100
    late = sorted(records.values())
    worst = f"p99 {late[int(len(late) * 0.99)] * 1000:.0f} ms" if late else "none"
    written = f"{size / 1e6 / seconds:.0f} MB/s for {seconds} s, {sampled} blocks sampled"
    whole = len(records) == expected and lost == 0
    return [
        ("flood: written", written, "100 MB/s", size >= rate * seconds * 0.9),
        (
            "flood: kernel records seen",
            f"{len(records)} of {expected}, lost {lost}, {worst} after the write",
            "all",
            whole,
        ),
        ("flood: memory", f"{start_rss:.0f} -> {peak:.0f} MiB", "bounded", peak < start_rss + 64),
        ("flood: caught up after the end", f"{behind:.1f} s", "catches up", behind < seconds * 3),
    ]


_WRITER = r"""
import sys, time
path, kmsg, blocks, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
block = sys.stdin.buffer.read()
log, kernel = open(path, "ab", buffering=0), open(kmsg, "a")
began, seq = time.monotonic(), 0
for step in range(seconds * 100):
    for _ in range(blocks * (step + 1) // 100 - blocks * step // 100):
        log.write(block)
    seq += 1
    kernel.write(f"4,{seq},{seq},-;NVRM: Xid (PCI:0000:01:00): 31, pid={seq}, name=x, MMU Fault @{time.time():.6f}\n")
    kernel.flush()
    rest = began + (step + 1) / 100 - time.monotonic()
    if rest > 0:
        time.sleep(rest)
"""


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


MIB = 1 << 20

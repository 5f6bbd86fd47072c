"""On a machine with an NVIDIA GPU and a readable kernel log: the real agent sees real Xids and marks nothing.

Run by hand, as root: `python -m tests.gpu.real_xids`. Needs nvcc and a GPU that nothing else uses. Provokes four faults
of a program (unmapped write, trap, misaligned write, shared memory out of range), several times over, and prints what
the agent made of them. The card's settings are not touched and it is never reset.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

KINDS = {"u": (31, 700), "t": (43, 719), "m": (13, 716), "s": (13, 715)}
ROUNDS = int(os.environ.get("ROUNDS", "5"))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder))


def _measure(root: Path) -> int:
    here = Path(__file__).parent
    subprocess.run(["nvcc", "-O1", "-arch=native", "-o", root / "faults", here / "faults.cu"], check=True)
    (root / "pods").mkdir()
    agent = subprocess.Popen(
        [sys.executable, "-m", "agent", "run", "--node-name", "gpu-test", "--mode", "cordon",
         "--kubelet-checkpoint", "", "--state-dir", root / "state", "--logs-root", root / "pods",
         "--http-address", "127.0.0.1"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _until(lambda: _get("/healthz") is not None, "the agent answers")
        errors = []
        for _ in range(ROUNDS):
            for kind in KINDS:
                done = subprocess.run([root / "faults", kind], capture_output=True, text=True, check=False)
                errors.append((kind, done.stdout.strip()))
                time.sleep(0.3)
        _until(lambda: sum(f["signals"] for f in _items("faults")) >= len(KINDS) * ROUNDS, "every fault is known")
        time.sleep(1)
        metrics = (_get("/metrics") or b"").decode()
        faults, plans, verdicts = _items("faults"), _items("plans"), _items("verdicts")
        usage = _usage(agent.pid)
    finally:
        agent.terminate()
        _, log = agent.communicate(timeout=10)
    print(json.dumps({
        "driver": Path("/proc/driver/nvidia/version").read_text().splitlines()[0],
        "cuda_errors": sorted(set(errors)),
        "faults": [{k: f[k] for k in ("gpu", "severity", "xids", "signals", "action", "title", "why")} for f in faults],
        "verdicts": [{k: v[k] for k in ("rule", "component", "action", "gpu", "xids")} for v in verdicts],
        "plans": [{k: p[k] for k in ("action", "target", "withheld")} for p in plans],
        "kernel": [line for line in metrics.splitlines() if "source=\"kernel\"" in line and "bucket" not in line],
        "nvml": [line for line in metrics.splitlines() if line.startswith(("faultline_gpus", "faultline_nvml"))],
        "latency_ms": _latency(metrics),
        "agent": usage,
        "agent_log": log.splitlines()[-6:],
    }, indent=1))  # fmt: skip
    seen = {x for f in faults for x in f["xids"]}
    marks = [p for p in plans if p["action"] in ("taint", "cordon")]
    wrong = ([f"Xids not seen: {missing}"] if (missing := {x for x, _ in KINDS.values()} - seen) else []) + [
        f"would mark: {p}" for p in marks
    ]
    print("\n".join(wrong) or "as it should be: every Xid seen, nothing marked")
    return 1 if wrong else 0


def _latency(metrics: str) -> dict[str, float]:
    """Mean and upper bounds of p50 and p99 from the histogram of kernel stamp to signal known."""
    buckets, total, count = [], 0.0, 0.0
    for line in metrics.splitlines():
        if line.startswith("faultline_detection_seconds_bucket{") and 'source="kernel"' in line:
            bound = line.split('le="')[1].split('"')[0]
            buckets.append((float("inf") if bound == "+Inf" else float(bound), float(line.rsplit(" ", 1)[1])))
        elif line.startswith('faultline_detection_seconds_sum{source="kernel"}'):
            total = float(line.rsplit(" ", 1)[1])
        elif line.startswith('faultline_detection_seconds_count{source="kernel"}'):
            count = float(line.rsplit(" ", 1)[1])
    at = {q: next((b for b, n in sorted(buckets) if count and n >= q * count), 0.0) * 1000 for q in (0.5, 0.99)}
    return {
        "records": count,
        "mean": 1000 * total / count if count else 0.0,
        "p50_at_most": at[0.5],
        "p99_at_most": at[0.99],
    }


def _usage(pid: int) -> dict[str, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "rss_mib": pages * 4096 / 2**20,
    }


def _get(path: str) -> bytes | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:9753{path}", timeout=2) as answer:
            body: bytes = answer.read()
            return body
    except OSError:
        return None


def _items(kind: str) -> list[dict]:  # type: ignore[type-arg]
    items: list[dict] = json.loads(_get(f"/api/v1/{kind}") or b'{"items": []}')["items"]  # type: ignore[type-arg]
    return items


def _until(condition, what: str, *, seconds: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())

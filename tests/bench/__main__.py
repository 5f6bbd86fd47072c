"""`make bench`: the figures of the README, measured here, peers beside us in the same run.

Ratios are what counts: absolute times are this machine's. Peers (mtail, ripgrep) come from the distribution's packages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import acting, live, peers, text

PARTS = ["explain", "rules", "latency", "rest", "flood", "acting"]
FAULTLINE = str(Path(sys.executable).parent / "faultline")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--size", type=int, default=1000, metavar="MiB", help="size of the generated log (1000)")
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median counts (5)")
    parser.add_argument("--only", choices=PARTS, action="append")
    args = parser.parse_args()
    wanted = args.only or PARTS
    rows: list[tuple[str, str, str, bool]] = []
    with tempfile.TemporaryDirectory(prefix="faultline-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        root = Path(folder)
        if "explain" in wanted:
            rows += _explain(root, args.size, args.runs)
        if "rules" in wanted:
            rows += _rules(root, args.runs)
        parts = {"latency": live.latency, "rest": live.rest, "flood": live.flood, "acting": acting.acting}
        for name, measure in parts.items():
            if name in wanted:
                _say(f"{name} ...")
                rows += asyncio.run(measure(root / name))
    width = max(len(r[0]) for r in rows)
    print(f"\n{'what':<{width}}  {'measured':<44}  goal")
    for what, measured, goal, reached in rows:
        print(f"{what:<{width}}  {measured:<44}  {goal}{'' if reached else '   NOT REACHED'}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def timed(command: list[str], *, runs: int, ok: tuple[int, ...] = (0,)) -> float:
    """Median wall seconds of the whole process, after one warm-up."""
    times = []
    for n in range(runs + 1):
        began = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode not in ok:
            raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
        if n:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _explain(root: Path, mib: int, runs: int) -> list[tuple[str, str, str, bool]]:
    log = root / "sglang.log"
    _say(f"writing a log of {mib} MiB ...")
    text.write(log, mib=mib)
    _say("faultline explain ...")
    ours = timed([FAULTLINE, "explain", "--format", "json", str(log)], runs=runs, ok=(1,))
    rows = []
    start = timed([FAULTLINE, "explain", "--format", "json", os.devnull], runs=runs)
    rows.append(("explain, nothing to read (start)", f"{start * 1000:.0f} ms", "< 200 ms", start < 0.2))
    size = log.stat().st_size / 1e9
    rows.append((f"explain, {mib} MiB", f"{ours:.2f} s ({size / ours:.1f} GB/s)", "", True))
    if shutil.which("mtail"):
        _say("mtail, 4 patterns ...")
        program = root / "four.mtail"
        program.write_text(peers.MTAIL)
        theirs = timed(["mtail", "--one_shot", "--progs", str(program), "--logs", str(log)], runs=1)
        ratio = theirs / ours
        rows.append(
            ("  against mtail with 4 patterns", f"{ratio:.0f} x faster ({theirs:.1f} s)", ">= 80 x", ratio >= 80)
        )
    else:
        rows.append(("  against mtail with 4 patterns", "mtail is not installed", ">= 80 x", False))
    if shutil.which("rg"):
        _say("ripgrep, all literals ...")
        literals = root / "literals.txt"
        literals.write_text("\n".join(peers.literals()) + "\n")
        theirs = timed(["rg", "-c", "-F", "-f", str(literals), str(log)], runs=runs)
        ratio = ours / theirs
        rows.append(
            (f"  against rg -c -F -f ({len(peers.literals())} literals)", f"{ratio:.2f} x its time ({theirs:.2f} s)",
             "<= 4 x", ratio <= 4)
        )  # fmt: skip
    else:
        rows.append(("  against rg -c -F -f", "ripgrep is not installed", "<= 4 x", False))
    log.unlink()
    return rows


def _rules(root: Path, runs: int) -> list[tuple[str, str, str, bool]]:
    _say("detection with 50 and with 500 rules ...")
    block = text.block()
    few, many = peers.detector(50), peers.detector(500)
    ratios = []
    for _ in range(max(runs, 5) * 4):
        ratios.append(_rate(few, block) / _rate(many, block))
    cost = statistics.median(ratios)
    return [("detection, 500 rules against 50", f"{cost:.2f} x the time", "<= 1.20 x", cost <= 1.2)]


def _rate(scan: Callable[[bytes], object], block: bytes, *, blocks: int = 40) -> float:
    began = time.process_time()
    for _ in range(blocks):
        scan(block)
    return blocks * len(block) / (time.process_time() - began)


def peak_rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())

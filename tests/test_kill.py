"""kill -9 at random points of a running feed: every signal is counted exactly once over all runs."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from agent.model import Failure, Fault
from agent.report.store import Store, decode_all

KILLS = 200
POD = "serving_chat-0_0c6f1a52-0000-0000-0000-000000000001"


class Feed(threading.Thread):
    """Writes kernel records and container lines for as long as it is let; each can be told from all others."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.records = self.lines = 0
        self.done = threading.Event()
        self._kmsg = (root / "kmsg").open("ab", buffering=0)
        folder = root / "pods" / POD / "sglang"
        folder.mkdir(parents=True)
        self._log = (folder / "0.log").open("ab", buffering=0)

    def run(self) -> None:
        while not self.done.wait(0.05):
            n = self.records
            text = f"NVRM: Xid (PCI:{n >> 8:04x}:{n & 0xFF:02x}:00): 31, pid={n}, name=python3, MMU Fault"
            noise = f"6,{2 * n + 2},{n * 1000},-;usb 1-1: noise\n"
            self._kmsg.write(f"4,{2 * n + 1},{n * 1000},-;{text}\n{noise}".encode())
            self.records += 1
            for _ in range(2):
                stamp = f"2026-11-30T20:00:{self.lines % 60:02d}.{self.lines:09d}Z"
                noise = f"{stamp} stderr F [2026-11-30 20:00:00] Decode batch, #running-req: {self.lines}\n"
                line = f"{stamp} stderr F RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
                self._log.write((noise + line).encode())
                self.lines += 1


def test_two_hundred_kills_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    feed = Feed(tmp_path)
    dice = random.Random(7)
    feed.start()
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-m", "tests.kill_runner", str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        feed.done.wait(dice.random() * 0.12)
        child.kill()
        child.wait()
        child.stdout.close()
    feed.done.set()
    feed.join()
    faults, failures = _finish(tmp_path, feed)
    assert len(faults) == feed.records
    assert {f.signals for f in faults.values()} == {1}
    assert [f.signals for f in failures.values()] == [feed.lines]


def _finish(root: Path, feed: Feed) -> tuple[dict[str, Fault], dict[str, Failure]]:
    """Lets a last run read to the end, then looks at what is stored."""
    child = subprocess.Popen([sys.executable, "-m", "tests.kill_runner", str(root)], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 60
    faults: dict[str, Fault] = {}
    failures: dict[str, Failure] = {}
    while time.monotonic() < deadline:
        faults, failures = _stored(root)
        if len(faults) >= feed.records and sum(f.signals for f in failures.values()) >= feed.lines:
            break
        threading.Event().wait(0.05)
    child.kill()
    child.wait()
    child.stdout.close()
    return _stored(root)


def _stored(root: Path) -> tuple[dict[str, Fault], dict[str, Failure]]:
    import sqlite3

    with sqlite3.connect(f"file:{root / 'state' / 'state.db'}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT kind, id, body FROM objects").fetchall()
    bodies: dict[str, dict[str, bytes]] = {"fault": {}, "failure": {}}
    for kind, name, body in rows:
        if kind in bodies:
            bodies[kind][name] = body
    faults, bad = decode_all(bodies["fault"], Fault)
    failures, bad_too = decode_all(bodies["failure"], Failure)
    assert not bad and not bad_too
    return faults, failures


def test_the_state_of_a_killed_agent_is_not_in_use(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    Store.open(tmp_path).close()

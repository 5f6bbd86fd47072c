"""The state file: what was committed is there, whatever happened to the process or the disk."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model import (
    Action,
    Component,
    Confidence,
    ContainerRef,
    Evidence,
    Fault,
    FaultHint,
    GpuRef,
    Scope,
    Severity,
    Signal,
    Verdict,
    parse_pci,
)
from agent.report.store import FAULT, Snapshot, Store, StoreInUseError, UndecodableError, decode, decode_all, encode

GPU = GpuRef(pci=parse_pci("0000:5D:00.0"), index=2)
FAULT_79 = Fault(
    id="f1", scope=Scope.GPU, gpu=GPU, cause="xid/79", title="fallen off the bus", severity=Severity.FATAL,
    recovery="reboot_node", component=Component.GPU, action=Action.CORDON, xids=(79,), first_seen=1.5,
)  # fmt: skip
VERDICT = Verdict(
    id="v1", rule="cuda/device-busy", title="t", component=Component.GPU, cause="c", confidence=Confidence.LIKELY,
    action=Action.CORDON, why="w", gpu=GPU, container=ContainerRef(namespace="n", pod="p", uid="u", container="c"),
)  # fmt: skip
SIGNAL = Signal(
    rule="xid/79", evidence=Evidence(source="kernel", text="NVRM: Xid", time=2.0), fields={"pid": "7"}, gpu=GPU,
    fault=FaultHint(severity=Severity.FATAL),
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("word", [FAULT_79, VERDICT, SIGNAL, GPU])
def test_every_word_survives_encoding(word: object) -> None:
    assert decode(encode(word), type(word)) == word


def test_a_body_of_another_version_is_read_as_far_as_it_is_known() -> None:
    assert decode(encode(FAULT_79)[:-1] + b',"new_field":1}', Fault) == FAULT_79
    with pytest.raises(UndecodableError, match="not a Fault"):
        decode(b'{"id": 3}', Fault)
    values, bad = decode_all({"a": encode(FAULT_79), "b": b"\xff"}, Fault)
    assert values == {"a": FAULT_79}
    assert bad == ("b",)


def test_positions_and_objects_come_back_after_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state") as store:
        assert store.load() == Snapshot()
        assert store.commit(
            positions={"kernel": b"17"}, put=[(FAULT, "f1", encode(FAULT_79)), ("verdict", "v1", encode(VERDICT))],
            outbox=[b"one", b"two"], meta={"boot": b"x"},
        )  # fmt: skip
        assert store.durable
    with Store.open(tmp_path / "state") as store:
        found = store.load()
        assert found.positions == {"kernel": b"17"}
        assert decode(found.faults["f1"], Fault) == FAULT_79
        assert list(found.verdicts) == ["v1"]
        assert found.failures == {}
        assert [body for _, body in found.outbox] == [b"one", b"two"]
        assert found.meta == {"boot": b"x"}


def test_the_last_change_of_an_object_wins_and_a_drop_removes_it(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.commit(put=[(FAULT, "a", b"1"), (FAULT, "a", b"2"), (FAULT, "b", b"1")])
        store.commit(put=[(FAULT, "c", b"1")], drop=[(FAULT, "b"), (FAULT, "never")])
        assert store.load().faults == {"a": b"2", "c": b"1"}


def test_an_outbox_entry_stays_until_it_is_done(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.commit(outbox=[b"one", b"two"])
        (first, _), (second, _) = store.queue()
        assert first < second
        store.commit(done=[first])
    with Store.open(tmp_path) as store:
        assert store.queue() == ((second, b"two"),)
        store.commit(outbox=[b"three"])
        assert [body for _, body in store.queue()] == [b"two", b"three"]


CHILD = """
import os, signal, sys
from pathlib import Path
from agent.report.store import Store
die_after = int(sys.argv[2])
store = Store.open(Path(sys.argv[1]))
n = int(store.load().positions.get("log", b"0"))
sys.stdout.write("up\\n"); sys.stdout.flush()
steps = 0
def tick():
    global steps
    steps += 1
    if steps >= die_after:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0
if die_after:
    store._db.set_progress_handler(tick, 1)
while True:
    n += 1
    store.commit(positions={"log": b"%d" % n}, put=[("fault", "f%d" % n, b"x" * 200)], outbox=[b"%d" % n])
"""


def test_after_kill_9_at_any_point_positions_and_objects_agree(tmp_path: Path) -> None:
    seed = random.Random(79)
    before = commits = 0
    for run in range(50):
        # Every second child kills itself in the middle of a statement, the others are killed from outside.
        die_after = seed.randrange(1, 4000) if run % 2 else 0
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), str(die_after)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        if not die_after:
            wal, size = tmp_path / "state.db-wal", seed.randrange(0, 200_000)
            while wal.stat().st_size < size:
                os.sched_yield()
            child.send_signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
        child.stdout.close()
        with Store.open(tmp_path) as store:
            assert store.durable and not store.notices
            found = store.load()
        n = int(found.positions.get("log", b"0"))
        assert n >= before
        assert set(found.faults) == {f"f{i}" for i in range(1, n + 1)}
        assert [int(body) for _, body in found.outbox] == list(range(1, n + 1))
        commits += n - before
        before = n
        if n > 1500:  # keep the check of all objects cheap
            (tmp_path / "state.db").unlink()
            before = 0
    assert commits > 50


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "state.db").write_bytes(damage)
    with Store.open(tmp_path, clock=lambda: 5.0) as store:
        assert store.durable
        assert store.commit(put=[(FAULT, "a", b"1")])
        assert "moved to state.db.damaged-5" in store.notices[0]
    assert (tmp_path / "state.db.damaged-5").read_bytes() == damage


def test_a_file_with_a_damaged_page_is_moved_aside(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.commit(put=[(FAULT, str(i), b"x" * 500) for i in range(500)])
    file = tmp_path / "state.db"
    body = bytearray(file.read_bytes())
    body[40_000:60_000] = b"\xa5" * 20_000
    file.write_bytes(body)
    with Store.open(tmp_path) as store:
        assert store.notices and store.load() == Snapshot()


def test_a_file_of_a_newer_version_is_kept_aside(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.commit(put=[(FAULT, "a", b"1")])
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute("PRAGMA user_version=9")
    db.close()
    with Store.open(tmp_path) as store:
        assert "written by a newer version (schema 9, known: 2)" in store.notices[0]
        assert store.load() == Snapshot()


def test_a_database_of_another_program_is_kept_aside(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute("CREATE TABLE objects (a)")
    db.close()
    with Store.open(tmp_path) as store:
        assert "does not hold our tables" in store.notices[0]
        assert store.durable


def test_only_the_newest_files_moved_aside_are_kept(tmp_path: Path) -> None:
    for second in range(5):
        (tmp_path / "state.db").write_bytes(b"rubbish" * 400)
        os.utime(tmp_path / "state.db", (second, second))
        Store.open(tmp_path, clock=lambda at=second: float(at)).close()  # type: ignore[misc]
    assert sorted(p.name for p in tmp_path.glob("state.db.*")) == ["state.db.damaged-3", "state.db.damaged-4"]


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_as_a_state_file_never_raise(body: bytes, header: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "state.db").write_bytes((b"SQLite format 3\0" if header else b"") + body)
        with Store.open(Path(directory)) as store:
            assert store.commit(put=[(FAULT, "a", b"1")])
            assert store.load().faults == {"a": b"1"}


def test_a_full_store_keeps_changes_in_memory_and_writes_them_when_there_is_room(tmp_path: Path) -> None:
    clock = Clock()
    with Store.open(tmp_path, max_bytes=64 * 4096, retry_seconds=0, clock=clock) as store:
        n = 0
        while store.commit(positions={"log": b"%d" % n}, put=[(FAULT, f"f{n}", b"x" * 3000)]):
            n += 1
            assert n < 200
        assert not store.durable
        assert "full" in store.error and "raise limits.store_bytes" in store.error
        assert store.errors == 1
        on_disk = store.load()
        assert int(on_disk.positions["log"]) == n - 1, "a refused transaction left nothing behind"
        assert f"f{n}" not in on_disk.faults
        store.commit(drop=[(FAULT, f"f{i}") for i in range(n)])
        assert store.durable, store.error
        assert store.load().faults == {f"f{n}": b"x" * 3000}
        assert store.load().positions == {"log": b"%d" % n}
        assert store.pending == 0


def test_a_full_store_can_be_pruned(tmp_path: Path) -> None:
    with Store.open(tmp_path, max_bytes=64 * 4096, retry_seconds=0, clock=Clock()) as store:
        n = 0
        while store.commit(put=[(FAULT, f"f{n}", b"x" * 3000)]):
            n += 1
        assert store.prune(FAULT, older_than=2000.0) == n
        assert store.commit() and store.durable
        assert list(store.load().faults) == [f"f{n}"]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from agent.report.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store.open(Path(sys.argv[1]), retry_seconds=0)
store.commit(positions={"log": b"0"})
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
n = 0
while store.commit(positions={"log": b"%d" % (n + 1)}, put=[("fault", str(n), b"y" * 2000)]):
    n += 1
assert 0 < n < 100 and not store.durable and store.error, (n, store.error)
for i in range(3):
    assert not store.commit(positions={"log": b"%d" % (n + 1)})
assert int(store.load().positions["log"]) == n
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert store.commit() and store.durable and store.errors == 4
found = store.load()
assert int(found.positions["log"]) == n + 1 == len(found.faults)
print("recovered")
"""


def test_a_disk_that_refuses_writes_for_a_while_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "recovered\n", done.stderr


def test_a_directory_that_cannot_be_used_is_tried_again(tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("a file where the directory should be")
    clock = Clock()
    with Store.open(blocked, monotonic=clock, retry_seconds=5) as store:
        assert not store.durable
        assert "state.db: " in store.error and "kept in memory" in store.error
        assert not store.commit(positions={"log": b"1"}, put=[(FAULT, "a", b"1")], outbox=[b"e"])
        assert store.queue()[0][1] == b"e"
        blocked.unlink()
        clock.now += 1
        assert not store.commit(positions={"log": b"2"}), "a refused disk is not asked at every commit"
        clock.now += 5
        assert store.commit()
        assert store.durable and store.error == ""
        found = store.load()
        assert (found.positions, found.faults) == ({"log": b"2"}, {"a": b"1"})


def test_a_directory_in_the_place_of_the_file_is_an_error_text(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with Store.open(tmp_path) as store:
        assert "unable to open database file; mount a writable directory" in store.error


def test_what_waits_in_memory_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with Store.open(tmp_path / "state", max_pending=10) as store:
        for i in range(100):
            store.commit(put=[(FAULT, str(i), b"1")], outbox=[b"%d" % i], positions={"one": b"%d" % i})
        assert store.pending == 20
        assert store.dropped == 180
        assert [int(body) for _, body in store.queue()] == list(range(90, 100))


def test_no_position_outlives_a_finding_that_was_forgotten_in_a_long_outage(tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("")
    with Store.open(blocked, max_pending=3, retry_seconds=0) as store:
        for i in range(4):
            store.commit(put=[(FAULT, str(i), b"1")], positions={"log": b"%d" % i})
        store.commit(positions={"log": b"5"})
        blocked.unlink()
        assert store.commit(positions={"log": b"6"})
        assert list(store.load().faults) == ["1", "2", "3"]
        assert store.load().positions == {}, "so that what was forgotten is read again"
        assert store.commit(positions={"log": b"7"})
        assert store.load().positions == {"log": b"7"}


V1 = """
CREATE TABLE positions (source TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (
    kind TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, changed REAL NOT NULL, PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE outbox (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO positions VALUES ('log', x'31');
PRAGMA user_version=1;
"""


def test_a_file_of_the_first_version_is_taken_up_with_its_positions(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.executescript(V1)
    db.close()
    clock = Clock()
    for _ in range(2):
        with Store.open(tmp_path, clock=clock) as store:
            assert not store.notices and store.load().positions == {"log": b"1"}
            assert store.prune_positions(older_than=clock.now) == 0, "their age counts from now on"
            assert store.commit(positions={"other": b"2"})
            assert store.prune_positions(older_than=clock.now + 1, keep={"log"}) == 1


def test_positions_not_stored_for_long_are_pruned_and_so_is_meta_by_its_prefix(tmp_path: Path) -> None:
    clock = Clock()
    with Store.open(tmp_path, clock=clock) as store:
        for i in range(5):
            clock.now = 1000.0 + i
            store.commit(positions={f"log:{i}": b"1"}, meta={f"detector/{i}": b"1", f"other/{i}": b"1"})
        store.commit(positions={"log:1": b"2"})
        assert store.prune_positions(older_than=1003.0, keep={"log:0"}) == 1
        assert set(store.load().positions) == {"log:0", "log:1", "log:3", "log:4"}
        assert store.prune_meta("detector/", keep={"detector/3"}) == 4
        assert set(store.load().meta) == {"detector/3", *(f"other/{i}" for i in range(5))}


def test_without_a_directory_nothing_is_kept_but_the_outbox_of_this_process() -> None:
    with Store.open(None) as store:
        assert not store.durable and store.error == ""
        assert not store.commit(positions={"a": b"1"}, put=[(FAULT, "a", b"1")], outbox=[b"e"])
        assert store.load() == Snapshot()
        ((seq, body),) = store.queue()
        assert body == b"e"
        store.commit(done=[seq])
        assert store.queue() == ()
        assert store.pending == 0


def test_a_second_agent_on_the_same_state_is_refused(tmp_path: Path) -> None:
    first = Store.open(tmp_path)
    with pytest.raises(StoreInUseError, match=rf"another agent \(pid {os.getpid()}\) works on this state"):
        Store.open(tmp_path)
    first.close()
    first.close()
    Store.open(tmp_path).close()


def test_a_file_locked_by_hand_delays_a_commit_and_does_not_lose_it(tmp_path: Path) -> None:
    with Store.open(tmp_path, retry_seconds=0) as store:
        by_hand = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
        by_hand.execute("BEGIN IMMEDIATE")
        assert not store.commit(put=[(FAULT, "a", b"1")])
        assert "locked" in store.error
        by_hand.execute("ROLLBACK")
        by_hand.close()
        assert store.commit()
        assert store.load().faults == {"a": b"1"}


def test_pruning_removes_what_is_old_or_too_much_and_keeps_what_is_named(tmp_path: Path) -> None:
    clock = Clock()
    with Store.open(tmp_path, clock=clock) as store:
        for i in range(10):
            clock.now = 1000.0 + i
            store.commit(put=[(FAULT, f"f{i}", b"1"), ("verdict", f"v{i}", b"1")])
        assert store.prune(FAULT, older_than=1005.0, keep={"f0"}) == 4
        assert list(store.load().faults) == ["f0", "f5", "f6", "f7", "f8", "f9"]
        assert store.prune(FAULT, older_than=0, at_most=2) == 4
        assert list(store.load().faults) == ["f8", "f9"]
        assert len(store.load().verdicts) == 10


def test_commits_from_several_threads_are_all_there(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:

        def work(name: str) -> None:
            for i in range(50):
                store.commit(put=[(FAULT, f"{name}{i}", b"1")], outbox=[b"x"])

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.load().faults) == len(store.queue()) == 200

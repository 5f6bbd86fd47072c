"""The pipeline between sources and store: what is committed when, what a restart takes up, who is of interest."""

from dataclasses import replace
from pathlib import Path

from agent.detect.rules import Examples, Rule
from agent.diagnose.diagnostician import Changes
from agent.model import Allocation, Component, ContainerRef, Role
from agent.pipeline import NullListener, Pipeline
from agent.report.store import Store
from agent.rulebook import load_rulebook
from agent.sources.kernel import Cursor, KernelRecord
from agent.sources.logs.follow import Chunk, LogStream, Position

BOOK = load_rulebook()
BUSY = b"RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
WHERE = ContainerRef(namespace="ns", pod="p", uid="u", container="main")


def pipeline(folder: Path | None, *, by_content: bool = False, boot: str = "b1") -> Pipeline:
    return Pipeline(
        BOOK, store=Store.open(folder), listener=NullListener(), clock=lambda: 1000.0, boot_id=boot, window=120,
        by_content=lambda _: by_content,
    )  # fmt: skip


def record(seq: int, text: str) -> KernelRecord:
    return KernelRecord(seq=seq, usec=seq, facility=0, level=4, text=text, boot_id="b1", time=1000.0)


def chunk(data: bytes, *, offset: int = 0, restart: int = 0) -> Chunk:
    where = ContainerRef(namespace="ns", pod="p", uid="u", container="main", restart=restart)
    position = Position(dev=1, ino=2, fingerprint="f", offset=offset + len(data))
    return Chunk(stream=LogStream(container=where, path="x"), data=data, offset=offset, position=position, torn=False)


def fall_off(p: Pipeline, seq: int = 1) -> None:
    text = "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."
    p.kernel([record(seq, text)], Cursor(kind="kmsg", boot_id="b1", seq=seq))


def test_a_finding_and_the_position_after_it_are_stored_together(tmp_path: Path) -> None:
    first = pipeline(tmp_path)
    fall_off(first, 7)
    first.chunk(chunk(BUSY))
    first._store.close()
    second = pipeline(tmp_path)
    cursor, positions = second.restore()
    assert cursor == Cursor(kind="kmsg", boot_id="b1", seq=7)
    assert positions[WHERE.key].offset == len(BUSY)
    assert [f.signals for f in second.diagnostician.faults] == [1]
    assert [f.primary.rule for f in second.diagnostician.failures] == ["cuda/device-busy"]


def test_a_batch_without_findings_moves_its_position_with_the_next_commit_or_flush(tmp_path: Path) -> None:
    p = pipeline(tmp_path)
    p.chunk(chunk(b"nothing here\n"))
    assert p._store.load().positions == {}
    p.flush()
    assert list(p._store.load().positions) == [f"log:{WHERE.key}"]


def test_silence_of_a_kernel_log_that_is_not_read_means_nothing(tmp_path: Path) -> None:
    p = pipeline(None)
    p.held([Allocation(container=ContainerRef(uid="u", container="main"), devices=("GPU-1",), since=0.0)])
    p.chunk(chunk(BUSY))
    assert Component.GPU in {v.component for v in p.diagnostician.verdicts}
    p.kernel_readable(True)
    assert Component.GPU not in {v.component for v in p.diagnostician.verdicts}


def test_a_container_known_only_by_its_text_must_speak_like_sglang_or_of_a_gpu() -> None:
    p = pipeline(None, by_content=True)
    p.chunk(chunk(b"OSError: [Errno 28] No space left on device\n"))
    assert p.diagnostician.failures == ()
    p.chunk(chunk(BUSY, offset=100))
    assert len(p.diagnostician.failures) == 1


def test_once_it_spoke_like_sglang_all_its_words_count() -> None:
    p = pipeline(None, by_content=True)
    head = b"[2026-11-30 20:00:00] server_args=ServerArgs(model_path='/m', attention_backend='fa3', page_size=1)\n"
    p.chunk(chunk(head))
    p.chunk(chunk(b"OSError: [Errno 28] No space left on device\n", offset=len(head)))
    assert len(p.diagnostician.failures) == 1


def test_rules_that_were_reloaded_explain_what_is_known_already() -> None:
    p = pipeline(None)
    p.chunk(chunk(BUSY))
    mine = Rule(
        id="cuda/device-busy", title="My own words for it", literals=("busy or unavailable",), source="mine",
        examples=Examples(match=("x",)), role=Role.CAUSE, component=Component.SHARING, cause="The flux is off.",
        capture="CUDA error", check=("Look at the flux.",),
    )  # fmt: skip
    rules = tuple(mine if r.id == mine.id else r for r in BOOK.rules)
    p.learn(replace(BOOK, rules=rules))
    assert "My own words for it" in {v.title for v in p.diagnostician.verdicts}


def test_the_uuid_of_a_gpu_is_remembered_for_its_boot_and_no_longer(tmp_path: Path) -> None:
    first = pipeline(tmp_path)
    first.kernel([record(1, "NVRM: GPU at PCI:0000:5d:00: GPU-4a1c0000-0000-0000-0000-000000000000")], None)
    fall_off(first, 2)
    first._store.close()
    same = pipeline(tmp_path)
    same.restore()
    assert dict(same.uuids()) == {"0000:5d:00": "GPU-4a1c0000-0000-0000-0000-000000000000"}
    same._store.close()
    other = pipeline(tmp_path, boot="b2")
    other.restore()
    assert dict(other.uuids()) == {}


def test_a_uuid_that_was_told_long_before_its_fault_survives_a_restart_between(tmp_path: Path) -> None:
    first = pipeline(tmp_path)
    told = [record(1, "NVRM: GPU at PCI:0000:5d:00: GPU-4a1c0000-0000-0000-0000-000000000000")]
    first.kernel(told, Cursor(kind="kmsg", boot_id="b1", seq=1))
    first.flush()
    first._store.close()
    second = pipeline(tmp_path)
    second.restore()
    fall_off(second, 2)
    assert second.diagnostician.faults[0].gpu.uuid == "GPU-4a1c0000-0000-0000-0000-000000000000"


def test_the_null_listener_asks_for_nothing_to_be_stored() -> None:
    assert NullListener().changed(Changes()) == []

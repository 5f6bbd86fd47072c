from pathlib import Path

import pytest

from agent.detect.literals import LiteralIndex
from agent.sources.handed import sweep as module
from agent.sources.handed.sweep import View, sweep

TEXTS = (b"needle in a haystack", b"pin")
INDEX = LiteralIndex(TEXTS)


def scan(block: memoryview) -> tuple[list[tuple[int, int]], bool]:
    return INDEX.scan(block, limit=10**6)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_find_comes_once_whatever_border_it_lies_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(module, "BLOCK", 64)
    for shift in range(0, 70, 3):
        text = b"." * shift + (b"needle in a haystack" + b"-" * 37 + b"pin") * 40
        path = tmp_path / f"{shift}.log"
        path.write_bytes(text)
        swept = sweep(str(path), scan=scan, longest=INDEX.longest, workers=workers)
        assert swept.hits == INDEX.scan(text, limit=10**6)[0]


def test_a_start_behind_a_mark_is_kept_to(tmp_path: Path) -> None:
    path = tmp_path / "bom.log"
    path.write_bytes(b"\xef\xbb\xbfpin")
    assert sweep(str(path), scan=scan, longest=20, start=3, workers=2).hits == [(1, 3)]


def test_an_empty_file_has_no_finds(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert sweep(str(path), scan=scan, longest=20).hits == []


def test_a_worker_that_dies_is_done_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(module, "BLOCK", 64)
    path = tmp_path / "x.log"
    path.write_bytes((b"pin" + b"-" * 61) * 8)
    parent = os.getpid()

    def dying(block: memoryview) -> tuple[list[tuple[int, int]], bool]:
        if os.getpid() != parent:
            raise RuntimeError("killed by the kernel for its memory, say")
        return scan(block)

    assert len(sweep(str(path), scan=dying, longest=20, workers=2).hits) == 8


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"-" * 5_000_000)
    told: list[int] = []
    sweep(str(path), scan=scan, longest=20, workers=1, on_progress=lambda done, size: told.append(done * 100 // size))
    assert told == sorted(told) and told[-1] == 100


def test_a_view_reads_what_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"0123456789")
    view = View(str(path), start=2)
    assert (len(view), view[0:3], view[5:100], view[4:2]) == (8, b"234", b"789", b"")
    view.close()

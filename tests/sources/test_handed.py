"""What people hand in, whole, broken, packed and in odd encodings: the text comes out, or one clear message."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import stat
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.sources.handed import Handed, UnusableInput, open_handed
from agent.sources.handed.text import encoding_of, is_binary
from agent.sources.handed.unpack import STEP, packing_of, unpack

LOG = b"".join(b"[2026-07-20 09:14:%02d] Decode batch, #running-req: %d\n" % (i % 60, i) for i in range(5000))
EMPTY = io.BytesIO()


def kind_of(sample: bytes, name: str) -> str:
    return f"{sample[:3].decode('latin-1')}/{Path(name).name}"


def handed(
    *paths: Path | str,
    stdin: BinaryIO = EMPTY,
    on_progress: Callable[[int, int | None], None] | None = None,
    **more: Any,
) -> Iterator[Handed]:
    return open_handed([str(p) for p in paths], stdin=stdin, recognise=kind_of, on_progress=on_progress, **more)


def one(path: Path | str, **more: Any) -> Handed:
    (found,) = handed(path, **more)
    return found


def text_of(found: Handed, size: int = 1 << 20) -> bytes:
    """The whole text, and what every block must keep."""
    out, offset = [], 0
    for at, block in found.blocks(size):
        data = bytes(block)
        assert at == offset
        assert 0 < len(data) <= size
        offset += len(data)
        out.append(data)
    assert all(b.endswith(b"\n") or len(b) == size or b is out[-1] for b in out)
    return b"".join(out)


def write(tmp_path: Path, data: bytes, name: str = "0.log") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("size", [1 << 20, 4096, 100])
def test_a_plain_file_comes_in_blocks_of_whole_lines(tmp_path: Path, size: int) -> None:
    found = one(write(tmp_path, LOG))
    assert text_of(found, size) == LOG
    assert (found.encoding, found.packing, found.size, found.damaged) == ("utf-8", "", len(LOG), "")
    assert found.kind == "[20/0.log"
    assert text_of(found) == LOG, "a file can be read again"


@pytest.mark.parametrize("data", [b"", b"x", b"\n", b"no newline at the end", b"a\n\n\nb\r\n", b"x" * 10_000 + b"\ny"])
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_odd_ends_of_lines_are_kept(tmp_path: Path, data: bytes, size: int) -> None:
    assert text_of(one(write(tmp_path, data)), size) == data
    assert text_of(one("-", stdin=io.BytesIO(data)), size) == data


@pytest.mark.parametrize("packing", PACKERS)
def test_packed_files_are_known_by_their_first_bytes(tmp_path: Path, packing: str) -> None:
    found = one(write(tmp_path, PACKERS[packing](LOG), "misleading.txt"))
    assert found.packing == packing
    assert text_of(found, 1000) == LOG
    assert found.damaged == ""
    assert found.kind == "[20/misleading.txt"
    assert text_of(found) == LOG, "a packed file can be read again"


@pytest.mark.parametrize("packing", ["gzip", "bzip2", "xz"])
def test_members_that_follow_each_other_are_one_text(tmp_path: Path, packing: str) -> None:
    pack = PACKERS[packing]
    found = one(write(tmp_path, pack(LOG) + pack(b"more\n") + b"\0" * 512 + pack(b"end\n") + b"\0" * 512))
    assert text_of(found) == LOG + b"more\nend\n"
    assert found.damaged == ""


def noise_of(lines: int) -> bytes:
    """Text that does not compress well: a cut packed file of it still holds most of it."""
    return b"".join(b"%d %s\n" % (i, os.urandom(30).hex().encode()) for i in range(lines))


@pytest.mark.parametrize("packing", PACKERS)
def test_a_packed_file_that_ends_early_gives_what_it_has_and_says_so(tmp_path: Path, packing: str) -> None:
    noise = noise_of(40_000)
    packed = PACKERS[packing](noise)
    found = one(write(tmp_path, packed[: len(packed) * 2 // 3]))
    got = text_of(found)
    assert noise.startswith(got)
    assert len(got) > len(noise) // 4
    assert "ends early" in found.damaged


@pytest.mark.parametrize("packing", ["gzip", "bzip2", "xz"])
def test_a_packed_file_broken_in_its_middle_gives_what_stands_before(tmp_path: Path, packing: str) -> None:
    noise = noise_of(40_000)
    packed = bytearray(PACKERS[packing](noise))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    found = one(write(tmp_path, bytes(packed)))
    got = text_of(found)
    assert noise[: len(noise) // 4] == got[: len(noise) // 4]
    assert "broken" in found.damaged


def test_what_follows_a_packed_file_is_named_not_read(tmp_path: Path) -> None:
    found = one(write(tmp_path, gzip.compress(LOG) + b"trailing words"))
    assert text_of(found) == LOG
    assert "followed by something else" in found.damaged


def test_a_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    bomb = gzip.compress(b"0123456789abcde\n" * (1 << 18))
    assert len(bomb) < 20_000
    found = one(write(tmp_path, bomb), max_unpacked=1 << 20)
    assert len(text_of(found)) == 1 << 20
    assert "unpacks to more than 1048576 bytes" in found.damaged


def test_a_bomb_is_never_in_memory_at_once() -> None:
    notes: list[str] = []
    pieces = unpack([gzip.compress(b"\n" * (64 << 20))], "gzip", limit=1 << 40, damaged=notes.append)
    assert max(map(len, pieces)) <= STEP
    assert notes == []


def test_text_that_begins_like_a_zlib_stream_stays_text(tmp_path: Path) -> None:
    for start in (b"x^2 + y^2\n", b"x\x9c", b"BZh? said the log\n", b"x\xda and more\n"):
        assert packing_of(start) == ""
    assert text_of(one(write(tmp_path, b"x^2 + y^2\n" + LOG))) == b"x^2 + y^2\n" + LOG


UTF16 = "[2026-07-20 09:14:02] Weights of Müller → 重み 😀\r\n" * 300


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (codecs.BOM_UTF8 + UTF16.encode(), "utf-8"),
        (codecs.BOM_UTF16_LE + UTF16.encode("utf-16-le"), "utf-16-le"),
        (codecs.BOM_UTF16_BE + UTF16.encode("utf-16-be"), "utf-16-be"),
        (UTF16.encode("utf-16-le"), "utf-16-le"),
        (UTF16.encode("utf-16-be"), "utf-16-be"),
        (codecs.BOM_UTF32_LE + UTF16.encode("utf-32-le"), "utf-32-le"),
        (UTF16.encode(), "utf-8"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_usual_encoding_becomes_utf8_without_a_mark(
    tmp_path: Path, data: bytes, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    found = one(write(tmp_path, pack(data)))
    assert found.encoding == encoding
    assert text_of(found, 777).decode() == UTF16
    assert found.kind.startswith("[20")
    lines = [found.line_number(at + len(bytes(block)) - 1) for at, block in found.blocks(777)]
    assert lines[-1] == 300


def test_utf16_cut_in_the_middle_of_a_character_is_survived(tmp_path: Path) -> None:
    found = one(write(tmp_path, codecs.BOM_UTF16_LE + "abc\nd".encode("utf-16-le")[:-1]))
    assert text_of(found) == "abc\n\ufffd".encode()


def test_bytes_that_are_no_utf8_come_through_as_they_are(tmp_path: Path) -> None:
    data = "Größe überschritten\n".encode("latin-1") * 50
    assert text_of(one(write(tmp_path, data))) == data


def test_zero_bytes_and_rubbish_between_the_lines_are_survived(tmp_path: Path) -> None:
    data = LOG + b"\0" * 500 + b"\x01\x02\xff\xfe garbage \x80\x81\n" * 20 + LOG
    assert text_of(one(write(tmp_path, data))) == data


def test_a_log_that_begins_with_a_hole_is_known_by_the_text_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "holed.log"
    with path.open("wb") as file:
        file.seek(3 << 20)
        file.write(LOG)
    found = one(path)
    assert found.sample.startswith(b"[2026")
    assert text_of(found) == b"\0" * (3 << 20) + LOG
    assert text_of(one("-", stdin=path.open("rb"))) == LOG


def tar_of(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("a.log")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "why", "cure"),
    [
        (b"\x28\xb5\x2f\xfd" + b"x" * 100, "zstd-compressed", "zstd -d"),
        (tar_of(LOG), "a tar archive", "tar xf"),
        (gzip.compress(tar_of(LOG)), "a tar archive", "tar xf"),
        (gzip.compress(gzip.compress(LOG)), "gzip-compressed", "gzip -d"),
        (b"\x7fELF\x02\x01\x01" + b"\0" * 100, "ELF", "log"),
        (b"PK\x03\x04" + b"x" * 100, "zip", "unzip"),
        (b"LPKSHHRH" + b"\0" * 100, "binary journal", "journalctl --file"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, "picture", "text"),
        (bytes(range(256)) * 100, "not text", "log"),
        (os.urandom(10_000), "not text", "log"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 100, "not a readable gzip", "copy it again"),
    ],
)
def test_data_that_is_no_text_is_named_with_its_cure(tmp_path: Path, data: bytes, why: str, cure: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(UnusableInput) as told:
        one(path)
    assert told.value.name == str(path)
    assert why in told.value.why
    assert cure in told.value.cure
    assert str(told.value).startswith(f"{path}: ")
    assert "\n" not in str(told.value)


def test_paths_that_cannot_be_read_are_told_before_anything_is_read(tmp_path: Path) -> None:
    good = write(tmp_path, LOG)
    for bad, why in ((tmp_path / "missing.log", "no such file"), (tmp_path, "is a folder"), ("a\0b", "cannot be read")):
        with pytest.raises(UnusableInput, match=why):
            handed(good, bad)
    with pytest.raises(UnusableInput, match="device"):
        handed("/dev/zero")
    with pytest.raises(UnusableInput, match="read only once"):
        handed("-", "-")


def test_a_file_that_may_not_be_read_is_told_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, LOG)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UnusableInput) as told:
        handed(path)
    assert (told.value.why, bool(told.value.cure)) == ("may not be read", True)


def test_a_file_that_vanishes_before_its_turn_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, LOG)
    inputs = handed(path)
    path.unlink()
    with pytest.raises(UnusableInput, match="no such file"):
        next(inputs)


def test_a_file_truncated_while_it_is_read_ends_early(tmp_path: Path) -> None:
    path = write(tmp_path, LOG)
    blocks = one(path).blocks(4096)
    next(blocks)
    os.truncate(path, 0)
    assert len(list(blocks)) <= 1


def test_a_pipe_is_read_as_it_comes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(gzip.compress(LOG)))
    writer.start()
    found = one(pipe)
    assert (text_of(found), found.packing, found.size) == (LOG, "gzip", None)
    writer.join()


def test_standard_input_may_be_packed_and_stays_open() -> None:
    stdin = io.BytesIO(lzma.compress(LOG))
    with one("-", stdin=stdin) as found:
        assert text_of(found) == LOG
        assert (found.name, found.kind, found.packing) == ("-", "[20/", "xz")
    assert not stdin.closed


def test_several_inputs_come_in_their_order(tmp_path: Path) -> None:
    a, b = write(tmp_path, b"a\n", "a"), write(tmp_path, b"b\n", "b")
    assert [f.name for f in handed(b, "-", a, stdin=io.BytesIO(b"c\n"))] == [str(b), "-", str(a)]
    assert [text_of(f) for f in list(handed(b, a))] == [b"b\n", b"a\n"], "all may be opened before any is read"


def test_progress_counts_the_bytes_of_all_inputs(tmp_path: Path) -> None:
    packed = gzip.compress(LOG)
    a, b = write(tmp_path, LOG, "a"), write(tmp_path, packed, "b")
    seen: list[tuple[int, int | None]] = []
    for found in handed(a, b, on_progress=lambda done, total: seen.append((done, total))):
        text_of(found, 65536)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(LOG) + len(packed), len(LOG) + len(packed))
    streamed: list[tuple[int, int | None]] = []
    for found in handed(a, "-", stdin=io.BytesIO(LOG), on_progress=lambda done, total: streamed.append((done, total))):
        text_of(found)
    assert streamed[-1] == (2 * len(LOG), None)


def true_lines(data: bytes, offsets: Sequence[int]) -> list[int]:
    return [data.count(b"\n", 0, at) + 1 for at in offsets]


def test_line_numbers_of_a_file_can_be_asked_in_any_order(tmp_path: Path) -> None:
    found = one(write(tmp_path, codecs.BOM_UTF8 + LOG))
    offsets = [0, 10, 54, 55, 5000, 4000, len(LOG) - 1, 0]
    assert [found.line_number(at) for at in offsets] == true_lines(LOG, offsets)
    assert found.line_number(len(LOG) + 10) is None
    assert found.line_number(-1) is None


def test_line_numbers_of_a_stream_are_known_for_its_last_two_blocks() -> None:
    found = one("-", stdin=io.BytesIO(LOG))
    starts: list[int] = []
    for at, block in found.blocks(1000):
        starts.append(at)
        asked = [at, at + 100, at + 50, at + len(block) - 1, *starts[-2:]]
        assert [found.line_number(o) for o in asked] == true_lines(LOG, asked)
        if len(starts) > 2:
            assert found.line_number(starts[-3]) is None


def test_reading_stops_with_a_note_when_the_disk_fails(tmp_path: Path) -> None:
    class Failing(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read1(300_000)

    found = one("-", stdin=Failing(LOG * 3))
    assert text_of(found) == (LOG * 3)[:300_000]
    assert found.damaged == "reading failed: Input/output error"


def test_a_special_file_of_proc_is_read_although_it_has_no_size() -> None:
    assert b"Name:" in text_of(one("/proc/self/status"))


def test_memory_stays_at_the_buffer_for_a_plain_file(tmp_path: Path) -> None:
    found = one(write(tmp_path, LOG * 10))
    blocks = {id(block.obj) for _, block in found.blocks(65536) if isinstance(block, memoryview)}
    assert len(blocks) == 1, "every block is a view into the same buffer"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(data=st.binary(max_size=300), size=st.integers(1, 64))
def test_any_bytes_are_text_or_an_unusable_input(tmp_path: Path, data: bytes, size: int) -> None:
    path = write(tmp_path, data)
    try:
        found = one(path)
    except UnusableInput:
        return
    text_of(found, size)
    stream = one("-", stdin=io.BytesIO(data))
    text_of(stream, size)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(lines=st.lists(st.text(st.characters(min_codepoint=32, codec="utf-8")), min_size=1), size=st.integers(1, 50))
def test_text_comes_out_as_it_went_in_however_it_is_packed(tmp_path: Path, lines: list[str], size: int) -> None:
    data = b"log\n" * 20 + "\n".join(lines).encode()
    for pack in (bytes, gzip.compress, bz2.compress):
        assert text_of(one(write(tmp_path, pack(data))), size) == data


@given(st.binary(max_size=200), st.sampled_from(sorted(PACKERS)))
def test_any_bytes_behind_a_magic_are_unpacked_without_an_exception(data: bytes, packing: str) -> None:
    notes: list[str] = []
    good = PACKERS[packing](b"good\n")
    pieces = unpack([good[:7], good[7:] + data], packing, limit=1000, damaged=notes.append)
    assert b"".join(pieces).startswith(b"good\n")
    list(unpack([data], packing, limit=1000, damaged=notes.append))


@given(st.binary(max_size=100))
def test_sniffing_takes_any_bytes(head: bytes) -> None:
    packing_of(head)
    encoding_of(head)
    is_binary(head)


def test_the_standard_input_of_a_shell_s_process_substitution_is_a_pipe() -> None:
    read, write_end = os.pipe()
    os.write(write_end, LOG[:4096])
    os.close(write_end)
    assert stat.S_ISFIFO(os.fstat(read).st_mode)
    assert text_of(one(f"/dev/fd/{read}")) == LOG[:4096]
    os.close(read)

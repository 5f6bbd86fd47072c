"""Bytes of the kernel log, in both spellings, to records."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.sources.kernel.lines import LineCutter
from agent.sources.kernel.record import KernelRecord, decode_text, parse_record, parse_syslog_line
from agent.sources.kernel.snapshot import Numbering, tail_of, whats_new

REAL = Path(__file__).parent.parent / "data" / "h200-xid.kmsg"


def parse(raw: bytes) -> KernelRecord | None:
    return parse_record(raw, boot_id="b", offset=1000.0)


def escaped(text: bytes) -> bytes:
    return b"".join(b"\\x%02x" % c if c < 32 or c >= 127 or c == 0x5C else bytes((c,)) for c in text)


def test_every_record_of_a_real_card_is_parsed():
    records = [parse(line) for line in REAL.read_bytes().splitlines(keepends=True)]
    assert all(records)
    assert [record.seq for record in records] == list(range(358, 369))
    assert {(record.facility, record.level) for record in records} == {(0, 4)}
    assert all(record.text.startswith("NVRM: ") for record in records)


def test_a_real_record_gives_all_its_fields():
    assert parse(REAL.read_bytes().splitlines(keepends=True)[3]) == KernelRecord(
        seq=361,
        usec=30992623,
        facility=0,
        level=4,
        text="NVRM: Xid (PCI:0000:00:06): 43, pid=465, name=oob, channel 0x0000000a",
        boot_id="b",
        time=1030.992623,
    )


def test_lines_of_keys_behind_the_text_are_left_out():
    record = parse(b"6,12,77,-;pci 0000:3b:00.0: enabling\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
    assert record.text == "pci 0000:3b:00.0: enabling"


def test_fields_that_a_later_kernel_adds_are_ignored():
    assert parse(b"4,1,2,c,caller=T1946,what=ever;a;b\n").text == "a;b"


def test_priority_is_split_into_facility_and_level():
    record = parse(b"12,1,2,-;x\n")
    assert (record.facility, record.level) == (1, 4)


def test_escaped_bytes_come_back_newline_backslash_and_utf8():
    assert parse(b"4,1,2,-;a\\x0ab \\x5cx41 \\xc3\\xa9 \\xff \\xzz\n").text == "a\nb \\x41 é � \\xzz"


def test_what_is_no_record_gives_none():
    for raw in (
        b"",
        b"\n",
        b"4,1,2,-",
        b"4,1;x",
        b"x,1,2,-;x",
        b"-4,1,2,-;x",
        b" 4,1,2,-;x",
        b"4,99999999999999999999,2,-;x",
    ):
        assert parse(raw) is None, raw


@given(st.binary(max_size=300))
def test_any_bytes_give_a_record_or_none(raw):
    parse(raw)
    parse(b"4,1,2,-;" + raw)
    parse_syslog_line(raw)
    parse_syslog_line(b"<4>[    1.000000] " + raw)


@given(st.integers(0, 2047), st.integers(0, 2**64 - 1), st.integers(0, 2**50), st.text())
def test_what_a_kernel_would_write_comes_back_whole(prio, seq, usec, text):
    text = text.encode("utf-8", "replace").decode()
    record = parse(b"%d,%d,%d,-;%s\n" % (prio, seq, usec, escaped(text.encode())))
    assert (record.facility * 8 + record.level, record.seq, record.usec, record.text) == (prio, seq, usec, text)


@given(st.binary())
def test_undoing_escapes_is_exact_for_all_bytes(raw):
    assert decode_text(escaped(raw)) == raw.decode("utf-8", "replace")


def test_a_syslog_line_is_split_with_and_without_a_caller_tag():
    assert parse_syslog_line(b"<4>[   12.345678] NVRM: x") == (4, 12345678, "NVRM: x")
    assert parse_syslog_line(b"<12>[123456.000001][ T1946] NVRM: x") == (12, 123456000001, "NVRM: x")
    assert parse_syslog_line(b"<6>[    0.000000] [drm] up") == (6, 0, "[drm] up")


def test_a_syslog_line_without_a_stamp_is_none():
    assert parse_syslog_line(b"<4>NVRM: x") is None
    assert parse_syslog_line(b"[    1.000000] NVRM: x") is None


@given(st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b)), st.lists(st.integers(1, 30), min_size=1))
def test_a_stream_cut_anywhere_gives_the_same_lines(lines, sizes):
    data = b"".join(line + b"\n" for line in lines)
    cutter, got, at = LineCutter(), [], 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        got += cutter.cut(data[at : at + size])
        at += size
    assert got == [line for line in lines if line and not line.startswith(b" ")]


def test_a_line_without_end_is_bounded_and_the_next_one_survives():
    cutter = LineCutter(longest=10)
    got = cutter.cut(b"x" * 8) + cutter.cut(b"x" * 8) + cutter.cut(b"x" * 50) + cutter.cut(b"x\n4,1,2,-;y\n")
    assert got == [b"x" * 10, b"4,1,2,-;y"]


def stamped(first: int, last: int) -> bytes:
    return b"".join(b"<6>[    1.%06d] line %d\n" % (n, n) for n in range(first, last))


def test_the_news_of_a_snapshot_are_the_lines_behind_the_last_ones_seen():
    tail = tail_of(stamped(0, 200))
    assert tail == stamped(136, 200)
    assert whats_new(stamped(50, 205), tail) == stamped(200, 205)
    assert whats_new(stamped(150, 205), tail) == stamped(200, 205)
    assert whats_new(stamped(199, 205), tail) == stamped(200, 205)
    assert whats_new(stamped(0, 200), tail) == b""


def test_a_snapshot_that_does_not_reach_back_says_so():
    assert whats_new(stamped(200, 205), tail_of(stamped(0, 200))) is None
    assert whats_new(b"", tail_of(stamped(0, 200))) is None


def test_a_tail_quoted_inside_a_line_is_not_the_tail():
    tail = b"<6>[    1.000000] a\n"
    assert whats_new(tail + b"<6>[    1.000001] q " + tail, tail) == b"<6>[    1.000001] q " + tail


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_news_are_complete_or_the_gap_is_told(oldest, seen, newest):
    seen, newest = sorted((seen, newest))
    tail = tail_of(stamped(0, seen))
    news = whats_new(stamped(min(oldest, newest), newest), tail)
    if news is None:
        assert oldest >= seen > 0
    elif seen:
        assert news == stamped(seen, newest)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_two_snapshots_give_news_or_none(one, other):
    news = whats_new(other, tail_of(one))
    assert news is None or other.endswith(news)


def test_lines_of_one_microsecond_get_numbers_of_their_own_and_the_same_in_the_next_run():
    stamps = [5, 5, 7, 5, 9]
    numbers = [[numbering.number(usec) for usec in stamps] for numbering in (Numbering(), Numbering())]
    assert numbers[0] == numbers[1]
    assert len(set(numbers[0])) == len(stamps)

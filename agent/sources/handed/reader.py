"""Opens what a person hands in (files, standard input) and gives it as UTF-8 text in blocks of whole lines.

It must never hold a whole file in memory, never read what would block for ever or consume another's data, and never
judge what the text says.

Plain files are read into one buffer that is used again for each block, not mapped: it costs the same, and a log that
its writer truncates meanwhile ends early instead of killing the process with SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from io import BytesIO, FileIO
from itertools import chain
from typing import BinaryIO

from agent.model import ContainerRef
from agent.sources.handed.text import Encoding, encoding_of, foreign_format, is_binary, to_utf8
from agent.sources.handed.unpack import packing_of, unpack

BLOCK = 1 << 20
"""Bytes of a block unless told otherwise."""

SAMPLE = 256 * 1024
"""Bytes of text by which a file is recognised."""

MAX_UNPACKED = 8 << 30
"""The most bytes that one compressed file may unpack to."""

MAX_HOLE = 1 << 30
"""Zero bytes at the start of a file that are skipped in search of its text."""

Progress = Callable[[int, int | None], None]
"""Told the bytes read so far of all inputs, and how many there are in all (None: not known)."""


class UnusableInput(Exception):  # noqa: N818 - it is the input that is wrong, not the program
    """An input that cannot be read; `cure` is what the person can do."""

    def __init__(self, name: str, why: str, cure: str = "") -> None:
        self.name, self.why, self.cure = name, why, cure
        super().__init__(f"{name}: {why}" + (f" ({cure})" if cure else ""))


class _Meter:
    """Adds up what was read of all inputs."""

    def __init__(self, total: int | None, report: Progress | None) -> None:
        self._done, self._total, self._report = 0, total, report

    def add(self, count: int) -> None:
        self._done += count
        if self._report is not None:
            self._report(self._done, self._total)


class Handed:
    """One input. Read it once with :meth:`blocks`; a plain or compressed file can be read again, a stream cannot.

    Use it as a context manager, or call :meth:`close`; the end of :meth:`blocks` closes the file too.
    """

    def __init__(
        self,
        *,
        name: str,
        kind: str,
        encoding: str,
        packing: str,
        size: int | None,
        sample: bytes,
        damaged: list[str],
        reader: _Reader,
        container: ContainerRef | None = None,
    ) -> None:
        self.container = container
        """Whose log it is, where that is known; a file by itself is a container of its own."""
        self.name = name
        """The path as given; ``-`` for standard input."""
        self.kind = kind
        """What `recognise` said."""
        self.encoding = encoding
        self.packing = packing
        """``gzip``, ``zlib``, ``bzip2``, ``xz``, or empty."""
        self.size = size
        """Bytes of the file as it is on disk; None for a stream."""
        self.sample = sample
        """The first bytes of the text, as UTF-8."""
        self._damaged = damaged
        self._reader = reader
        self._counter: _FileCounter | _StreamCounter = (
            _FileCounter(reader.path, reader.encoding.mark) if reader.plain else _StreamCounter()
        )

    def __enter__(self) -> Handed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seekable(self) -> bool:
        """True for a file whose bytes are the text: it can be read at any place, and again."""
        return self._reader.plain

    @property
    def start(self) -> int:
        """Bytes before the text in a seekable file: its byte-order mark."""
        return self._reader.encoding.mark

    @property
    def damaged(self) -> str:
        """Why some of the text is missing; empty while nothing is known to be. Complete after :meth:`blocks`."""
        return "; ".join(dict.fromkeys(self._damaged))

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, memoryview | bytes]]:
        """The text as (offset, block): UTF-8, each block at most `size` bytes and cut behind a line's end.

        Only a line longer than `size` is cut inside. Offsets are of the text given here, not of the file's bytes: they
        go without gaps from 0. A block is valid until the next is asked for. Raises UnusableInput where the first read
        fails; later failures end the text and are told in `damaged`.
        """
        if size < 1:
            raise ValueError("a block has at least one byte")
        if isinstance(self._counter, _StreamCounter):
            self._counter = counter = _StreamCounter()
            for offset, block in _whole_lines(self._reader.pieces(), size):
                counter.pass_on(offset, block)
                yield offset, block
            self._reader.close()
        else:
            yield from self._reader.buffered(size)

    def line_number(self, offset: int) -> int | None:
        """The 1-based number of the line that holds the byte at `offset` of the text.

        Newlines are counted when asked, and only from the last offset asked for: ask in rising order, and only for
        what is shown. Of a stream or a compressed file only the block that was given last, or the one before it, can
        be asked for; None for anything else, and where the file has vanished.
        """
        return self._counter.line_number(offset)

    def close(self) -> None:
        """Closes what was opened here. Standard input stays open: it is the caller's."""
        self._reader.close()


class _FileCounter:
    """Counts the lines of a plain file that can be read again at any place."""

    def __init__(self, path: str, start: int) -> None:
        self._path, self._start = path, start
        self._at, self._lines = 0, 0

    def line_number(self, offset: int) -> int | None:
        if offset < 0:
            return None
        if offset < self._at:
            self._at = self._lines = 0
        try:
            with open(self._path, "rb", buffering=0) as file:
                file.seek(self._start + self._at)
                while self._at < offset:
                    data = file.read(min(BLOCK, offset - self._at))
                    if not data:
                        return None
                    self._at, self._lines = self._at + len(data), self._lines + data.count(b"\n")
        except OSError:
            return None
        return self._lines + 1


class _StreamCounter:
    """Counts the lines of a stream as its blocks pass; keeps the last two."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, bytes, int]] = []
        self._last = (0, 0)

    def pass_on(self, offset: int, block: bytes) -> None:
        before = 0
        if self._kept:
            _, previous, lines = self._kept[-1]
            before = lines + previous.count(b"\n")
        self._kept = [*self._kept[-1:], (offset, block, before)]

    def line_number(self, offset: int) -> int | None:
        for start, block, before in self._kept:
            if start <= offset <= start + len(block):
                at, lines = self._last if start <= self._last[0] <= offset else (start, before)
                lines += block.count(b"\n", at - start, offset - start)
                self._last = (offset, lines)
                return lines + 1
        return None


def _whole_lines(pieces: Iterator[bytes], size: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of any length as blocks of at most `size` that end behind a newline where they can."""
    offset, length = 0, 0
    held: list[bytes] = []
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length < size:
            continue
        data, start = b"".join(held), 0
        while len(data) - start >= size:
            cut = data.rfind(b"\n", start, start + size) + 1 or start + size
            yield offset, data[start:cut]
            offset, start = offset + cut - start, cut
        held, length = [data[start:]], len(data) - start
    if length:
        yield offset, b"".join(held)


class _Reader:
    """The bytes of one input, from its file or its stream to UTF-8 text."""

    def __init__(
        self,
        *,
        name: str,
        path: str,
        stream: BinaryIO | None,
        meter: _Meter,
        limit: int,
        damaged: list[str],
    ) -> None:
        self.name, self.path = name, path
        self._stream = stream  # set where it can be read only once
        self._owned = stream is not None and path != "-"
        self._meter, self._limit, self._damaged = meter, limit, damaged
        self._head = b""
        self.packing = ""
        self.encoding = Encoding("utf-8", 0)

    @property
    def plain(self) -> bool:
        """True for a file whose bytes are the text: it can be read at any place."""
        return self._stream is None and not self.packing and self.encoding.name == "utf-8"

    def look(self) -> bytes:
        """Finds out how the input is packed and encoded, and gives the first SAMPLE bytes of its text."""
        raw = self._raw(metered=False)
        head = b""
        hole = 0
        for piece in raw:
            if not head and hole + len(piece) <= MAX_HOLE:
                # A log truncated under its writer starts with a hole: its text is behind it.
                filled = piece.lstrip(b"\0") if not piece[0] and not piece[:64].strip(b"\0") else piece
                hole += len(piece) - len(filled)
                piece = filled
            head += piece
            if len(head) >= SAMPLE:
                break
        raw.close()
        if self._stream is not None:
            self._head = head
        self.packing = packing_of(head)
        if not self.packing:
            self._refuse(head)
            self.encoding = encoding_of(head)
            if hole and self._stream is None:
                self.encoding = self.encoding._replace(mark=0)  # it does not stand where the file begins
            text = b"".join(to_utf8([head], self.encoding))[:SAMPLE]
        else:
            notes: list[str] = []
            start = b""
            for piece in unpack([head], self.packing, limit=SAMPLE, damaged=notes.append):
                start += piece
            if not start and notes and len(head) >= 18 and "broken" in notes[0]:
                raise UnusableInput(self.name, f"not a readable {self.packing} file", "copy it again from its source")
            self._refuse(start)
            self.encoding = encoding_of(start)
            text = b"".join(to_utf8([start], self.encoding))
        if is_binary(text):
            raise UnusableInput(self.name, "is not text", "hand in a log: text, plain or compressed")
        return text

    def _refuse(self, head: bytes) -> None:
        if found := foreign_format(head):
            what, cure = found
            raise UnusableInput(self.name, f"is {what}, not a log", cure.replace("FILE", self.name))

    def pieces(self) -> Iterator[bytes]:
        """The text in UTF-8, in pieces of any length."""
        raw: Iterator[bytes] = self._raw(metered=True)
        if self.packing:
            raw = unpack(raw, self.packing, limit=self._limit, damaged=self._damaged.append)
        return to_utf8(raw, self.encoding)

    def buffered(self, size: int) -> Iterator[tuple[int, memoryview]]:
        """A plain file's text through one buffer of `size` bytes."""
        buffer = bytearray(size)
        view = memoryview(buffer)
        held, offset = 0, 0
        with self._open() as file:
            if self.encoding.mark:
                file.seek(self.encoding.mark)
            while True:
                got = self._read_into(file, view[held:])
                end = held + got
                if not end:
                    return
                cut = end
                if got:
                    cut = buffer.rfind(b"\n", 0, end) + 1
                    if not cut and end < size:
                        held = end
                        continue
                    cut = cut or end
                yield offset, view[:cut]
                offset, held = offset + cut, end - cut
                buffer[:held] = buffer[cut:end]

    def _read_into(self, file: FileIO, view: memoryview) -> int:
        try:
            got = file.readinto(view)
        except OSError as error:
            self._damaged.append(f"reading failed: {error.strerror or error}")
            return 0
        self._meter.add(got or 0)
        return got or 0

    def _raw(self, *, metered: bool) -> Generator[bytes, None, None]:
        """The input's own bytes. What :meth:`look` took off a stream comes first."""
        file: BinaryIO | FileIO = self._open() if self._stream is None else self._stream
        try:
            head, self._head = self._head, b""
            for piece in chain([head] if head else [], iter(lambda: _read(file), b"")):
                if metered:
                    self._meter.add(len(piece))
                yield piece
        except OSError as error:
            self._damaged.append(f"reading failed: {error.strerror or error}")
        finally:
            if self._stream is None:
                file.close()

    def _open(self) -> FileIO:
        try:
            return open(self.path, "rb", buffering=0)
        except OSError as error:
            raise _unopened(self.name, error) from None

    def close(self) -> None:
        if self._owned and self._stream is not None:
            self._stream.close()


def _read(file: BinaryIO | FileIO) -> bytes:
    """What is there, up to a block: a pipe's writer may be slow, and its first lines are wanted now."""
    read1 = getattr(file, "read1", None)
    data = read1(BLOCK) if read1 is not None else file.read(BLOCK)
    return data or b""


def _unopened(name: str, error: OSError) -> UnusableInput:
    if isinstance(error, FileNotFoundError):
        return UnusableInput(name, "there is no such file", "check the path")
    if isinstance(error, PermissionError):
        return UnusableInput(name, "may not be read", "run as a user who may, or copy the file")
    return UnusableInput(name, f"cannot be read: {error.strerror or error}")


_DEVICE_CURE = "hand in its text: dmesg > FILE, or journalctl -k > FILE"


def _check(path: str) -> int | None:
    """The size of a regular file, None for a pipe. Raises UnusableInput for what cannot be read as a file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise _unopened(path, error if isinstance(error, OSError) else OSError(str(error))) from None
    if stat.S_ISDIR(found.st_mode):
        raise UnusableInput(path, "is a folder", "name the files in it")
    if stat.S_ISREG(found.st_mode):
        if os.path.realpath(path) == "/proc/kmsg":
            raise UnusableInput(path, "reading it would take the records from everyone else", _DEVICE_CURE)
        if not os.access(path, os.R_OK):
            raise _unopened(path, PermissionError())
        return found.st_size
    if stat.S_ISFIFO(found.st_mode) or (stat.S_ISCHR(found.st_mode) and os.path.realpath(path).startswith("/dev/pts/")):
        return None
    if os.path.realpath(path) == "/dev/null":
        return 0
    raise UnusableInput(path, "is a device or a socket", _DEVICE_CURE)


def handed_text(name: str, text: bytes, *, kind: str = "other", container: ContainerRef | None = None) -> Handed:
    """A text that was not read from a file, as if it had been handed in. Raises UnusableInput where it is no text."""
    damaged: list[str] = []
    reader = _Reader(
        name=name, path=name, stream=BytesIO(text), meter=_Meter(None, None), limit=MAX_UNPACKED, damaged=damaged
    )
    sample = reader.look()
    return Handed(
        name=name,
        kind=kind,
        encoding=reader.encoding.name,
        packing=reader.packing,
        size=None,
        sample=sample,
        damaged=damaged,
        reader=reader,
        container=container,
    )


def open_handed(
    paths: Sequence[str],
    *,
    stdin: BinaryIO,
    recognise: Callable[[bytes, str], str],
    on_progress: Progress | None = None,
    max_unpacked: int = MAX_UNPACKED,
) -> Iterator[Handed]:
    """The inputs in the order given; ``-`` is standard input. Each is opened when it is asked for.

    `recognise` is given the first bytes of the text (UTF-8) and the name, and says of what kind it is. `on_progress`
    is told of bytes read, in the inputs' own length (compressed ones too). Raises UnusableInput: for missing,
    unreadable and unsuitable paths at once, for data that is no text when its turn comes.
    """
    if list(paths).count("-") > 1:
        raise UnusableInput("-", "standard input can be read only once", "name it once")
    sizes = [None if path == "-" else _check(path) for path in paths]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    meter = _Meter(total, on_progress)
    return _each(list(zip(paths, sizes, strict=True)), stdin, recognise, meter, max_unpacked)


def _each(
    inputs: Sequence[tuple[str, int | None]],
    stdin: BinaryIO,
    recognise: Callable[[bytes, str], str],
    meter: _Meter,
    limit: int,
) -> Iterator[Handed]:
    for path, size in inputs:
        stream: BinaryIO | None = None
        if path == "-":
            stream = stdin
        elif size is None:
            try:
                stream = open(path, "rb", buffering=0)
            except OSError as error:
                raise _unopened(path, error) from None
        damaged: list[str] = []
        reader = _Reader(name=path, path=path, stream=stream, meter=meter, limit=limit, damaged=damaged)
        sample = reader.look()
        yield Handed(
            name=path,
            kind=recognise(sample, "" if path == "-" else path),
            encoding=reader.encoding.name,
            packing=reader.packing,
            size=size,
            sample=sample,
            damaged=damaged,
            reader=reader,
        )

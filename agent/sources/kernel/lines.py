"""Cuts a byte stream of raw kernel records into whole ones; knows nothing of what is in them."""

from __future__ import annotations

LONGEST_LINE = 1 << 16


class LineCutter:
    """Holds back the line that is not complete yet, of at most ``longest`` bytes.

    A longer line comes out in one shortened piece: kernel records are far shorter, so it is rubbish, and the parser
    counts it.
    """

    __slots__ = ("_longest", "_overlong", "_part")

    def __init__(self, *, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._part = b""
        self._overlong = False

    def cut(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their newlines.

        Empty lines and the ``KEY=value`` lines of a record (they begin with a blank) are left out.
        """
        *whole, rest = data.split(b"\n")
        lines: list[bytes] = []
        if whole:
            first = self._part + whole[0]
            self._part = b""
            if not self._overlong:
                lines.append(first)
            self._overlong = False
            lines += whole[1:]
        if not self._overlong:
            self._part += rest
            if len(self._part) > self._longest:
                lines.append(self._part[: self._longest])
                self._part = b""
                self._overlong = True
        return [line for line in lines if line and not line.startswith(b" ")]

    def reset(self) -> None:
        """Forget the incomplete line: its rest will not come."""
        self._part = b""
        self._overlong = False

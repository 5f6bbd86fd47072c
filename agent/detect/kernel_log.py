"""Turns blocks of kernel-log text, in any form people hand in, into signals. Only to explain: text can be forged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.detect.catalogue import Catalogue
from agent.detect.kernel import KernelDetector
from agent.detect.kernel_text import kernel_line
from agent.detect.literals import LiteralIndex
from agent.detect.recognise import WINDOW, stands_apart
from agent.detect.rules import Rule
from agent.model import Signal

_DRIVER_WORDS = (b"NVRM: ", b"SXid (", b"Xid (PCI:")
LINE_CAP = 64 * 1024


class KernelLogDetector:
    """Finds the lines that could matter in a block, takes them out of their form and gives them to the grammar."""

    def __init__(self, catalogue: Catalogue, rules: Sequence[Rule]) -> None:
        kernel_rules = [r for r in rules if r.reads in ("kernel", "any")]
        self._detector = KernelDetector(catalogue, kernel_rules)
        literals = dict.fromkeys((*_DRIVER_WORDS, *(t.encode() for r in kernel_rules for t in r.literals)))
        self._index = LiteralIndex(tuple(literals))

    def signals(
        self,
        block: bytes | memoryview,
        *,
        offset: int,
        source: str,
        line_number: Callable[[int], int | None],
        kind: str = "kernel",
    ) -> list[Signal]:
        """The signals of the lines that have a kernel log's form; forged shapes are passed over.

        In a text of `kind` mixed (kernel and container lines) or prose only lines that stand apart count: a line among
        a program's output may be the program's.
        """
        found: list[Signal] = []
        text = bytes(block)
        hits, sampled = self._index.scan(text)
        ends = (end for _, end in hits) if not sampled else _all_lines(text)
        stop = -1
        for end in ends:
            if end <= stop:
                continue
            start = text.rfind(b"\n", 0, end) + 1
            stop = text.find(b"\n", end)
            if stop < 0:
                stop = len(text)
            line = kernel_line(text[start : min(stop, start + LINE_CAP)].decode("utf-8", "replace"))
            if line is None or not line.trusted_shape:
                continue
            if kind != "kernel" and not _stands_apart(text, start, among_program=kind == "mixed"):
                continue
            found += [
                replace(s, evidence=replace(s.evidence, offset=offset + start))
                for s in self._detector.signals(
                    line.message, time=line.time, source=source, line=line_number(offset + start)
                )
            ]
        return found


def _stands_apart(text: bytes, start: int, *, among_program: bool) -> bool:
    low = start
    for _ in range(WINDOW):
        if low == 0:
            break
        low = text.rfind(b"\n", 0, low - 1) + 1
    before = text[low:start].decode("utf-8", "replace").splitlines()
    after = text[start : start + WINDOW * 400].decode("utf-8", "replace").splitlines()[: WINDOW + 1]
    return stands_apart([*before, *after], len(before), among_program=among_program)


def _all_lines(text: bytes) -> list[int]:
    """An offset in every line: a kernel log that is all driver messages is read whole, none is dropped."""
    ends, at = [], 0
    while 0 <= at < len(text):
        ends.append(at + 1)
        at = text.find(b"\n", at) + 1 or len(text)
    return ends

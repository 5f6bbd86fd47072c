"""`faultline explain`: handed-in files through the same detection and diagnosis as the agent's. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from agent.detect.container import ContainerDetector, StreamState
from agent.detect.kernel_log import KernelLogDetector
from agent.detect.literals import LiteralIndex
from agent.diagnose.diagnostician import Diagnostician
from agent.diagnose.knowledge import Knowledge
from agent.model import Action, ContainerRef, Fault, Role, Signal, Verdict, strongest
from agent.rulebook import Rulebook
from agent.sources.handed import Handed

FACTS = ("sglang_version", "gpu_arch", "cuda", "driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNote:
    """How one input was taken, and what was wrong with it."""

    name: str
    kind: str
    bytes: int
    damaged: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a set of logs says: the answer of `faultline explain`."""

    faults: tuple[Fault, ...]
    verdicts: tuple[Verdict, ...]
    facts: dict[str, str]
    files: tuple[FileNote, ...]

    @property
    def action(self) -> Action:
        """The strongest that the input alone warrants."""
        faults = (f.action for f in self.faults if f.open)
        return strongest(*faults, *(v.action for v in self.verdicts if v.fault is None))

    @property
    def found(self) -> bool:
        return bool(self.faults or self.verdicts)


def explain(inputs: Iterable[Handed], book: Rulebook) -> Explanation:
    """Reads every input once, kernel logs with the Xid grammar, all others with the rules, and judges them together.

    Each input is one container; the order of the inputs does not matter.
    """
    knowledge = Knowledge.of(book.rules, lambda: book.catalogue, book.alternatives)
    container = ContainerDetector(book.rules)
    hints = _Hints(book)
    kernel: KernelLogDetector | None = None
    kernel_signals: list[Signal] = []
    container_signals: list[Signal] = []
    facts: dict[str, str] = {}
    notes: list[FileNote] = []
    kernel_read = False
    for handed in inputs:
        state = StreamState()
        ref = ContainerRef(file=handed.name)
        size = 0
        for offset, block in handed.blocks():
            size += len(block)
            hints.look(block)
            if handed.kind in ("kernel", "mixed"):
                kernel_read = True
                if kernel is None:
                    kernel = KernelLogDetector(book.catalogue, book.rules)
                kernel_signals += kernel.signals(
                    block, offset=offset, source=handed.name, line_number=handed.line_number
                )
            if handed.kind != "kernel":
                container_signals += container.signals(
                    block, state=state, container=ref, source=handed.name, line_number=handed.line_number
                )
        notes.append(FileNote(name=handed.name, kind=handed.kind, bytes=size, damaged=handed.damaged))
        handed.close()
    for signal in container_signals:
        if signal.role is Role.CONTEXT:
            facts |= signal.fields
    diagnostician = Diagnostician(knowledge, kernel_read=kernel_read)
    diagnostician.hinted = hints.found
    diagnostician.apply(kernel_signals)
    diagnostician.apply(container_signals)
    return Explanation(
        faults=diagnostician.faults,
        verdicts=tuple(sorted(diagnostician.verdicts, key=_order)),
        facts=facts,
        files=tuple(notes),
    )


def _order(verdict: Verdict) -> tuple[int, int]:
    """The gravest first, then the surest."""
    return (
        -list(Action).index(verdict.action),
        ["certain", "likely", "undecided", "possible"].index(verdict.confidence),
    )


class _Hints:
    """Which alternatives' hints occur anywhere in what was handed in."""

    def __init__(self, book: Rulebook) -> None:
        self._owners = [(hint.encode(), a.id) for a in book.alternatives for hint in a.hints]
        self._index = LiteralIndex([hint for hint, _ in self._owners])
        self._seen: set[int] = set()

    def look(self, block: bytes | memoryview) -> None:
        if len(self._seen) < len(self._owners):
            hits, _ = self._index.scan(block)
            self._seen.update(i for i, _ in hits)

    @property
    def found(self) -> frozenset[str]:
        return frozenset(self._owners[i][1] for i in self._seen)


def as_json(explanation: Explanation) -> bytes:
    """The contract for machines: `kind: Explanation` of `faultline.dev/v1`."""
    return msgspec.json.encode({
        "apiVersion": "faultline.dev/v1",
        "kind": "Explanation",
        "faults": [_fault(f) for f in explanation.faults],
        "verdicts": [_verdict(v) for v in explanation.verdicts],
        "context": {
            **{name: explanation.facts.get(name) for name in FACTS},
            "server_args": {k: v for k, v in explanation.facts.items() if k not in FACTS},
        },
        "inputs": explanation.files,
        "action": explanation.action,
    })  # fmt: skip


def _fault(fault: Fault) -> dict[str, object]:
    return {
        "gpu": {"pci": fault.gpu.pci, "uuid": fault.gpu.uuid, "index": fault.gpu.index},
        "scope": fault.scope, "title": fault.title, "xids": fault.xids, "severity": fault.severity,
        "recovery": fault.recovery, "signals": fault.signals, "open": fault.open, "action": fault.action,
        "why": fault.why, "fix": fault.fix, "evidence": fault.evidence,
    }  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "rule": verdict.rule, "title": verdict.title, "component": verdict.component, "cause": verdict.cause,
        "confidence": verdict.confidence, "gpu": verdict.gpu, "xids": verdict.xids, "action": verdict.action,
        "why": verdict.why, "fix": verdict.fix, "checked": verdict.checked, "evidence": verdict.evidence,
        "container": None if verdict.container is None else str(verdict.container), "count": verdict.count,
    }  # fmt: skip

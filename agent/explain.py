"""`faultline explain`: handed-in files through the same detection and diagnosis as the agent's. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from agent.detect.container import EVIDENCE_CAP, ContainerDetector, StreamState
from agent.detect.described import may_be_described, read_described
from agent.detect.objects import FAULT_KEY, JSON_LIMIT, Objects, ReportedFault, may_be_objects, read_objects
from agent.detect.recognise import named_as_container
from agent.diagnose.diagnostician import Diagnostician
from agent.diagnose.knowledge import Knowledge
from agent.model import Action, Allocation, ContainerRef, Evidence, Fault, Role, Signal, Verdict, strongest
from agent.rulebook import Rulebook
from agent.sources.handed import Handed
from agent.sources.handed.sweep import View, sweep

RECOVERY_WORDS = {
    "reset-required": "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    "reboot-required": "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
}
"""What Xid 154 said, by the value under which an agent reported it."""

LARGE = 32 << 20
"""Bytes from which on a file is worth all processors."""

if TYPE_CHECKING:
    from agent.detect.kernel_log import KernelLogDetector
    from agent.respond.remedy import Dressing

FACTS = ("sglang_version", "gpu_arch", "cuda", "driver")
NOT_ARGUMENTS = ("visible_gpus",)
"""Facts that a log tells beside its server's arguments, for the diagnosis only."""


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

    def with_checked(self, more: Sequence[str]) -> Explanation:
        """The same, each verdict with what else was looked at, or could not be."""
        return replace(self, verdicts=tuple(replace(v, checked=(*v.checked, *more)) for v in self.verdicts))


def explain(
    inputs: Iterable[Handed],
    book: Rulebook,
    *,
    held: Iterable[Allocation] = (),
    on_progress: Callable[[int, int | None], None] | None = None,
) -> Explanation:
    """Reads every input once, kernel logs with the Xid grammar, all others with the rules, and judges them together.

    Each input is one container, unless it says whose it is; the order of the inputs does not matter. `held` is what
    containers are known to have held.
    """
    allocations = list(held)
    # Words that only a fault settles (an Xid) are no hint where a program may have printed them.
    hints = [(hint.encode(), a.id, a.settled_by is not None) for a in book.alternatives for hint in a.hints]
    hinted: set[str] = set()
    container = ContainerDetector(book.rules, extras=[text for text, _, _ in hints], anchors=book.anchors)
    kernel: KernelLogDetector | None = None
    signals: list[Signal] = []
    notes: list[FileNote] = []
    numbered: dict[str, Handed] = {}
    for handed in inputs:
        container.met = set()
        # A line's number costs counting all lines before it: where the file can be read again, only what is shown pays.
        later = handed.seekable
        if later:
            numbered[handed.name] = handed
        number = _later if later else handed.line_number
        size, kind = 0, handed.kind
        objects: Objects | None = None
        if handed.kind != "kernel" and later and (handed.size or 0) >= LARGE and not container.is_docker(handed.sample):
            size = handed.size or 0
            signals += _large(handed, container, on_progress=on_progress)
        else:
            state = StreamState()
            objects, blocks = _objects(handed)
            if objects is not None:
                kind = "other"
                signals += _of_objects(objects, container, book, source=handed.name)
                allocations += objects.held
            for offset, block in blocks:
                size += len(block)
                if kind in ("kernel", "mixed", "prose"):
                    kernel = kernel or _kernel_detector(book)
                    signals += kernel.signals(block, offset=offset, source=handed.name, line_number=number, kind=kind)
                if kind != "kernel":
                    ref = handed.container or ContainerRef(file=handed.name, document=kind == "other")
                    signals += container.signals(
                        block, state=state, container=ref, source=handed.name, line_number=number
                    )
        printed = kind in ("container", "mixed") or objects is not None
        hinted |= {hints[i][1] for i in container.met if not (hints[i][2] and printed)}
        size = max(size, 0 if objects is None else objects.bytes)
        notes.append(FileNote(name=handed.name, kind=kind, bytes=size, damaged=handed.damaged))
        handed.close()
    knowledge = Knowledge.of(book.rules, lambda: book.catalogue, book.alternatives)
    diagnostician = Diagnostician(knowledge, kernel_read=kernel is not None, images=lambda: book.images)
    diagnostician.hinted = frozenset(hinted)
    diagnostician.held(allocations)
    # Faults first: what a container says is then judged once, whatever the order of the files.
    diagnostician.apply(s for s in signals if s.container is None)
    diagnostician.apply(s for s in signals if s.container is not None)
    diagnostician.close()
    faults, verdicts = _with_numbers(diagnostician.faults, diagnostician.verdicts, numbered)
    facts = {k: v for s in signals if s.role is Role.CONTEXT and s.container is not None for k, v in s.fields.items()}
    facts = diagnostician.complete(facts)
    return Explanation(faults=faults, verdicts=tuple(sorted(verdicts, key=_order)), facts=facts, files=tuple(notes))


def _kernel_detector(book: Rulebook) -> KernelLogDetector:
    from agent.detect.kernel_log import KernelLogDetector  # most inputs are containers' logs: they start faster

    return KernelLogDetector(book.catalogue, book.rules)


def _objects(handed: Handed) -> tuple[Objects | None, Iterator[tuple[int, memoryview | bytes]]]:
    """The Kubernetes objects that an input is, if it is any; and its blocks, from the first, that are to be read still.

    What a runtime or a person named a container's log is none: a tenant can print an object too.
    """
    blocks = handed.blocks()
    described = may_be_described(handed.sample)
    if not described and not may_be_objects(handed.sample):
        return None, blocks
    if handed.container is not None or named_as_container(handed.name):
        return None, blocks
    kept, size = [], 0
    for offset, block in blocks:
        kept.append((offset, bytes(block)))
        size += len(block)
        if size > JSON_LIMIT:
            return None, chain(kept, blocks)
    text = b"".join(block for _, block in kept)
    if described:
        read = read_described(text)
        if read is None:
            return None, iter(kept)
        objects, rest = read  # as long as the text: the blocks keep their places
        return objects, iter([(at, rest[at : at + len(block)]) for at, block in kept])
    found = read_objects(text)
    return found, iter(kept if found is None else ())


def _of_objects(objects: Objects, container: ContainerDetector, book: Rulebook, *, source: str) -> list[Signal]:
    """What the objects' texts say, each as its own container's, and the faults that nodes' agents reported."""
    signals: list[Signal] = []
    for part in objects.parts:
        ref = part.container or ContainerRef(file=source, document=True)
        text = part.text.encode("utf-8", "replace") + b"\n"
        found = container.signals(text, state=StreamState(docker=False), container=ref, source=source)
        # The text was put together here: a place in it is none in the file.
        signals += [replace(s, evidence=replace(s.evidence, line=None, offset=None)) for s in found]
    for fault in objects.faults:
        signals += _reported(fault, book, source=source)
    return signals


def _reported(fault: ReportedFault, book: Rulebook, *, source: str) -> Iterator[Signal]:
    """The signals of a fault that a node's agent wrote on its node: judged by the catalogue as the Xids it names."""
    if fault.pci is None:
        return  # nothing names the GPU to the catalogue: it is shown by what was checked, not judged
    from agent.detect.kernel import KernelDetector

    detector = KernelDetector(book.catalogue, ())
    text = f"{FAULT_KEY} on node {fault.node}: {fault.value}" + (f" ({fault.why})" if fault.why else "")
    for xid in dict.fromkeys(fault.xids):
        said = RECOVERY_WORDS.get(fault.value, "") if xid == 154 else ""
        message = f"NVRM: Xid (PCI:{fault.pci}): {xid}, {said or 'as reported'}"
        for signal in detector.signals(message, time=fault.since, source=source):
            evidence = replace(signal.evidence, text=" ".join(text.split())[:EVIDENCE_CAP], line=None)
            yield replace(signal, gpu=replace(signal.gpu, uuid=fault.uuid or signal.gpu.uuid), evidence=evidence)


def _later(_offset: int) -> None:
    return None


def _large(
    handed: Handed, container: ContainerDetector, *, on_progress: Callable[[int, int | None], None] | None
) -> list[Signal]:
    """A large log, searched by all processors; only the lines around finds are read once more."""
    swept = sweep(
        handed.name, scan=container.scan, longest=container.longest, start=handed.start, on_progress=on_progress
    )
    view = View(handed.name, start=handed.start)
    try:
        return container.signals(
            view,
            state=StreamState(docker=False),
            container=ContainerRef(file=handed.name),
            source=handed.name,
            hits=(swept.hits, swept.sampled),
        )
    finally:
        view.close()


def _with_numbers(
    faults: Iterable[Fault], verdicts: Iterable[Verdict], numbered: Mapping[str, Handed]
) -> tuple[tuple[Fault, ...], tuple[Verdict, ...]]:
    """The same with the line numbers of the evidence that is quoted, counted file by file from the top."""
    faults, verdicts = tuple(faults), tuple(verdicts)
    quoted = [e for f in faults for e in f.evidence] + [e for v in verdicts for e in v.evidence]
    wanted = {(e.source, e.offset) for e in quoted if e.line is None and e.offset is not None and e.source in numbered}
    lines = {(name, at): numbered[name].line_number(at) for name, at in sorted(wanted)}

    def told(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        return tuple(replace(e, line=e.line or lines.get((e.source, e.offset or 0)), offset=None) for e in evidence)

    return (
        tuple(replace(f, evidence=told(f.evidence)) for f in faults),
        tuple(replace(v, evidence=told(v.evidence)) for v in verdicts),
    )


def _order(verdict: Verdict) -> tuple[int, int]:
    """The gravest first, then the surest."""
    return (
        -list(Action).index(verdict.action),
        ["certain", "likely", "undecided", "possible"].index(verdict.confidence),
    )


def as_json(explanation: Explanation, *, dressed: Mapping[str, Dressing] | None = None) -> bytes:
    """The contract for machines: `kind: Explanation` of `faultline.dev/v1`. `dressed` are remedies by verdict id."""
    dressed = dressed or {}
    return msgspec.json.encode({
        "apiVersion": "faultline.dev/v1",
        "kind": "Explanation",
        "faults": [_fault(f) for f in explanation.faults],
        "verdicts": [_verdict(v) | _remedies(v, dressed.get(v.id)) for v in explanation.verdicts],
        "context": {
            **{name: explanation.facts.get(name) for name in FACTS},
            "server_args": {k: v for k, v in explanation.facts.items() if k not in FACTS and k not in NOT_ARGUMENTS},
        },
        "inputs": explanation.files,
        "action": explanation.action,
    })  # fmt: skip


def _fault(fault: Fault) -> dict[str, object]:
    return {
        "gpu": {"pci": fault.gpu.pci, "uuid": fault.gpu.uuid, "index": fault.gpu.index},
        "scope": fault.scope, "title": fault.title, "xids": fault.xids, "severity": fault.severity,
        "recovery": fault.recovery, "signals": fault.signals, "open": fault.open, "action": fault.action,
        "why": fault.why, "fix": fault.fix, "evidence": [_quoted(e) for e in fault.evidence],
    }  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "rule": verdict.rule, "title": verdict.title, "component": verdict.component, "cause": verdict.cause,
        "confidence": verdict.confidence, "gpu": verdict.gpu, "xids": verdict.xids, "action": verdict.action,
        "why": verdict.why, "fix": verdict.fix, "checked": verdict.checked,
        "evidence": [_quoted(e) for e in verdict.evidence],
        "container": None if verdict.container is None else str(verdict.container), "count": verdict.count,
    }  # fmt: skip


def _remedies(verdict: Verdict, dressing: Dressing | None) -> dict[str, object]:
    """`way` is the place, from 1, of the remedy that `flags` and `patch` hold."""
    shown: dict[str, object] = {"remedies": verdict.remedies}
    if dressing is None:
        return shown
    shown |= {"way": dressing.way + 1, "flags": dressing.flags}
    patch = dressing.patch
    if patch is not None:
        shown["patch"] = {
            "name": patch.name, "namespace": patch.namespace, "merge": patch.document, "json": patch.operations,
            "command": patch.command, "notes": patch.notes, "choices": patch.choices, "diff": dressing.diff,
        }  # fmt: skip
    return shown


def _quoted(evidence: Evidence) -> dict[str, object]:
    return {"source": evidence.source, "line": evidence.line, "text": evidence.text}

"""Words a verdict: what happened, whose it is, what to do, on what evidence. For a person at 3 a.m."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agent.detect.rules import Rule, render
from agent.diagnose.correlate import Blame
from agent.diagnose.knowledge import About, Knowledge, remedies_of
from agent.model import (
    NO_GPU,
    Action,
    Component,
    Confidence,
    Evidence,
    Failure,
    Fault,
    GpuRef,
    Role,
    Scope,
    Severity,
    Verdict,
    strongest,
)

EVIDENCE_LIMIT = 12


def name_of(gpu: GpuRef) -> str:
    """How a GPU is called in a sentence; only what is known."""
    if gpu.pci is not None:
        return f"GPU {gpu.pci}" + (f" ({gpu.uuid})" if gpu.uuid else "")
    if gpu.uuid is not None:
        return f"GPU {gpu.uuid}"
    if gpu.index is not None:
        return f"the GPU with index {gpu.index} inside the container"
    return f"the GPU of rank TP{gpu.tp_rank}" if gpu.tp_rank is not None else "a GPU of this node"


def subject_of(fault: Fault) -> str:
    """What a fault is about, as the beginning of a sentence."""
    if fault.scope is Scope.NODE:
        return "this node"
    if fault.scope is Scope.FABRIC:
        return "the NVLink fabric of this node"
    return name_of(fault.gpu) if fault.gpu.known else "one GPU of this node (the record carries no address)"


def of_fault(fault: Fault) -> Verdict:
    """The verdict on a fault that no failure has been joined to."""
    return Verdict(
        id="verdict-" + fault.id,
        rule=fault.cause,
        title=fault.title,
        component=fault.component,
        cause=fault.why,
        confidence=Confidence.CERTAIN,
        action=fault.action if fault.open else Action.NONE,
        why=_fault_sentence(fault),
        gpu=fault.gpu,
        xids=fault.xids,
        fix=fault.fix,
        checked=("kernel log",),
        evidence=fault.evidence[:EVIDENCE_LIMIT],
        count=fault.signals,
        first_seen=fault.first_seen,
        last_seen=fault.last_seen,
        fault=fault.id,
    )


def of_failure(
    failure: Failure, rule: Rule | None, blame: Blame, knowledge: Knowledge, *, hinted: frozenset[str] = frozenset()
) -> tuple[Verdict, ...]:
    """The verdict on a failure, first; after an undecided one the causes that remain possible, each as its own.

    `hinted` are ids of alternatives that something else which was read points to.
    """
    about = knowledge.about(failure.primary, failure.facts)
    if failure.primary.role is Role.ADVICE:
        return _advised(failure, blame, knowledge)
    if blame.faults:
        return (_blaming(failure, about, blame),)
    if rule is None or rule.role is not Role.SYMPTOM:
        return (_said(failure, about, blame),)
    return _undecided(failure, rule, about, blame, knowledge, hinted)


def _advised(failure: Failure, blame: Blame, knowledge: Knowledge) -> tuple[Verdict, ...]:
    """One verdict for each thing that runs badly, each with the line that proves it; the first keeps the id."""
    more = [s for s in failure.others if s.role is Role.ADVICE]
    others = tuple(s for s in failure.others if s.role is not Role.ADVICE)
    verdicts = []
    for signal in (failure.primary, *more):
        one = replace(failure, primary=signal, others=others if signal is failure.primary else ())
        verdict = _said(one, knowledge.about(signal, failure.facts), blame)
        tail = "" if signal is failure.primary else "-" + signal.rule.rsplit("/", 1)[-1]
        verdicts.append(replace(verdict, id=verdict.id + tail))
    return tuple(verdicts)


def _base(failure: Failure, about: About, blame: Blame) -> Verdict:
    quoted = (failure.primary.evidence, *(s.evidence for s in failure.others))
    return Verdict(
        id="verdict-" + failure.id,
        rule=failure.primary.rule,
        title=about.title,
        component=about.component,
        cause=about.cause,
        confidence=Confidence.CERTAIN,
        action=about.action,
        why="",
        gpu=replace(_text_gpu(failure), pci=None, uuid=None),
        xids=() if failure.primary.xid is None else (failure.primary.xid,),
        fix=about.fix,
        remedies=about.remedies,
        checked=blame.checked,
        evidence=_distinct(quoted)[:EVIDENCE_LIMIT],
        container=failure.container,
        count=failure.count,
        first_seen=failure.first_seen,
        last_seen=failure.last_seen,
    )


def _said(failure: Failure, about: About, blame: Blame) -> Verdict:
    """The container's own text settles it (or tells an echo); tenant text warrants no more than advice.

    A report about the node that a person handed in (nvidia-smi) may say more: it is theirs, and only an explanation.
    """
    echo = failure.primary.role is Role.ECHO
    unclaimed = failure.primary.role is Role.UNCLAIMED
    document = failure.container.document
    times = f" It has failed this way {failure.count} times." if failure.count > 1 else ""
    return replace(
        _base(failure, about, blame),
        gpu=_text_gpu(failure),
        confidence=Confidence.UNDECIDED if unclaimed else Confidence.POSSIBLE if echo else Confidence.CERTAIN,
        action=about.action if document or about.action is Action.NONE else Action.ADVISE,
        why=(
            "Only the consequence of another failure was found in this log; look for the first error of another "
            "process or rank." + times
            if echo
            else "No rule knows this error; its own words are all that is known." + times
            if unclaimed
            else "The report that was handed in says so."
            if document
            else "The container's own log says so; no GPU is accused." + times
        ),
        fix=(*about.fix, *about.check),
        checked=() if document else blame.checked,
    )


def _blaming(failure: Failure, about: About, blame: Blame) -> Verdict:
    faults = blame.faults
    first = faults[0]
    base = _base(failure, about, blame)
    text = _text_gpu(failure)
    gpu = (
        replace(blame.gpu, index=text.index, tp_rank=text.tp_rank)
        if blame.gpu.known
        else replace(NO_GPU, index=text.index, tp_rank=text.tp_rank)
    )
    xids = tuple(dict.fromkeys(x for f in faults for x in f.xids))
    evidence = _distinct((*base.evidence[:4], *(e for f in faults for e in f.evidence)))[:EVIDENCE_LIMIT]
    if blame.application:
        return replace(
            base,
            component=Component.APPLICATION,
            confidence=blame.confidence,
            action=Action.ADVISE,
            gpu=gpu,
            xids=xids,
            why="The driver recorded the program's own error at that time; the GPU is sound and needs no action.",
            fix=(*about.fix, *(s for s in first.fix if s not in about.fix)),
            evidence=evidence,
            fault=first.id,
        )
    open_faults = [f for f in faults if f.open]
    which = (
        subject_of(first)
        if len(faults) == 1
        else f"one of {len(faults)} faulted GPUs of this node (" + ", ".join(name_of(f.gpu) for f in faults[:8]) + ")"
    )
    return replace(
        base,
        title=f"{about.title}: {first.title}",
        component=first.component,
        cause=f"{which[0].upper()}{which[1:]} {'is' if open_faults else 'was'} faulted: {first.why}",
        confidence=blame.confidence,
        action=strongest(*(f.action for f in open_faults)) if open_faults else Action.ADVISE,
        gpu=gpu,
        xids=xids,
        why=_blame_sentence(blame)
        + (" This is not a fault of the backend or of its flags." if blame.confidence is Confidence.CERTAIN else ""),
        fix=first.fix,
        remedies=(),
        evidence=evidence,
        fault=first.id,
    )


def _undecided(
    failure: Failure, rule: Rule, about: About, blame: Blame, knowledge: Knowledge, hinted: frozenset[str]
) -> tuple[Verdict, ...]:
    base = _base(failure, about, blame)
    open_causes = [knowledge.alternatives[a] for a in rule.alternatives if a in knowledge.alternatives]
    shown = [a for a in open_causes if a.id in hinted]
    if not rule.suspects:
        return (replace(base, gpu=_text_gpu(failure), why="The log does not say why.", fix=(*about.fix, *about.check)),)
    if about.component is not Component.UNDECIDED and not open_causes:
        # The rule says whose it mostly is, and nothing on record speaks against it.
        return (
            replace(
                base,
                gpu=_text_gpu(failure),
                confidence=Confidence.LIKELY if blame.sound else Confidence.POSSIBLE,
                action=Action.ADVISE,
                why="What the text mostly means; nothing on record accuses a GPU.",
                fix=(*about.fix, *about.check),
            ),
        )
    settled = replace(
        base,
        component=Component.UNDECIDED,
        confidence=Confidence.UNDECIDED,
        action=Action.ADVISE,
        why=(
            "Nothing on record accuses the GPUs that this container held, and the text alone does not tell the "
            "possible causes apart."
            if blame.sound
            else "The same text comes from a faulted GPU and from causes that are no fault; nothing seen decides."
        ),
        fix=(*about.check, *about.fix),
    )
    ways = {a.id: remedies_of(a.fix, failure.primary.fields, known=failure.facts) for a in (shown or open_causes)}
    possible = tuple(
        replace(
            base,
            id=f"{base.id}-{a.id.rsplit('/', 1)[-1]}",
            rule=a.id,
            title=a.title,
            component=a.component,
            cause=render(a.cause, failure.primary.fields),
            confidence=Confidence.LIKELY if a in shown else Confidence.POSSIBLE,
            action=Action.ADVISE,
            why="One of the causes of this text; "
            + ("what was handed in points to it." if a in shown else "not shown."),
            fix=(*a.check, *(remedy.say for remedy in ways[a.id])),
            remedies=ways[a.id],
            checked=(),
            evidence=base.evidence[:1],
        )
        for a in (shown or open_causes)
        if a.component is not Component.GPU or not blame.sound
    )
    return possible if shown else (settled, *possible)


def _text_gpu(failure: Failure) -> GpuRef:
    """What the container's text says of its GPU: an index or a rank, from the primary line or its context."""
    gpu = failure.primary.gpu
    if not gpu.known:
        named = {(s.gpu.pci, s.gpu.uuid) for s in failure.others if s.gpu.known and s.role is not Role.ECHO}
        if len(named) == 1:
            pci, uuid = named.pop()
            gpu = replace(gpu, pci=pci, uuid=uuid)
    index = gpu.index
    if index is None:
        told = {s.gpu.index for s in failure.others if s.gpu.index is not None and s.gpu.tp_rank in (None, gpu.tp_rank)}
        index = told.pop() if len(told) == 1 else None
    return replace(gpu, index=index)


def _fault_sentence(fault: Fault) -> str:
    where = subject_of(fault)
    many = f" ({fault.signals} kernel records)" if fault.signals > 1 else ""
    if not fault.open:
        return f"The kernel log accused {where}{many}; the driver has said since that nothing is needed any more."
    if fault.severity is Severity.FATAL:
        return f"The kernel log accuses {where}{many}: new work there can be expected to fail."
    if fault.severity is Severity.APP:
        return f"A program failed on {where}{many}; the GPU itself is sound, whose program it was must mend it."
    return f"The kernel log speaks of {where}{many}; nothing must be taken out of service for it."


def _blame_sentence(blame: Blame) -> str:
    if blame.by == "held" and len(blame.faults) == 1:
        return "The container held this GPU, and the kernel log shows its fault."
    if blame.by == "held":
        return "The container held several GPUs that are faulted."
    if blame.by == "named":
        return "The container's text names this GPU, and the kernel log shows its fault."
    if len(blame.faults) > 1:
        return "Several GPUs of this node are faulted and which one this container held is not known."
    return "It is the only fault on this node that explains the text; that the container held this GPU is not shown."


def _distinct(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    seen: dict[tuple[str, int | None, str], Evidence] = {}
    for item in evidence:
        if item.text:
            seen.setdefault((item.source, item.line, item.text), item)
    return tuple(seen.values())

"""An explanation as text for a person. Builds strings; colour only when told."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from agent.diagnose.verdicts import name_of, subject_of
from agent.explain import Explanation
from agent.model import Action, Evidence, Fault, Verdict

if TYPE_CHECKING:
    from agent.respond.remedy import Dressing

_COLOUR = {Action.NONE: "green", Action.ADVISE: "yellow", Action.TAINT: "red", Action.CORDON: "red"}
_MEANING = {
    Action.NONE: "nothing to do",
    Action.ADVISE: "tell the owner of the workload; no GPU or node is taken out of service",
    Action.TAINT: "keep new pods off the GPU until it is proved healthy",
    Action.CORDON: "keep new pods off the node: it must be rebooted",
}
NONE: Mapping[str, Dressing] = {}


def as_text(explanation: Explanation, *, dressed: Mapping[str, Dressing] = NONE, width: int = 100) -> str:
    """The whole answer; `dressed` are the remedies to show, by verdict id.

    `click.style` codes are in it and dropped by `click.echo` where there is no terminal.
    """
    return "\n".join(_lines(explanation, dressed, min(max(width, 60), 120)))


def _lines(explanation: Explanation, dressed: Mapping[str, Dressing], width: int) -> Iterator[str]:
    if not explanation.found:
        read = ", ".join(f"{n.name} ({n.kind}, {n.bytes:,} bytes)" for n in explanation.files)
        yield f"Nothing found in {read or 'the input'}: no failure that a rule knows, no fault in a kernel log."
        yield from _damaged(explanation)
        return
    main = [v for v in explanation.verdicts if not v.rule.startswith("causes/")]
    rest = [v for v in explanation.verdicts if v not in main]
    covered = {v.fault for v in explanation.verdicts}
    for verdict in main or rest:
        yield from _verdict(verdict, dressed.get(verdict.id), width)
    for fault in explanation.faults:
        if fault.id not in covered:
            yield from _fault(fault, width)
    if rest and main:
        yield click.style("Still possible (the same text comes from these; check in this order)", bold=True)
        for verdict in rest:
            yield from _wrap(f"- {verdict.title}. {verdict.cause}", width, "  ", "    ")
            for step in verdict.fix[:2]:
                yield from _wrap(step, width, "      ", "      ")
        yield ""
    action = explanation.action
    yield click.style(f"Action: {action.value}", fg=_COLOUR[action], bold=True) + f" ({_MEANING[action]})"
    yield from _damaged(explanation)


def _damaged(explanation: Explanation) -> Iterator[str]:
    for note in explanation.files:
        if note.damaged:
            yield click.style(f"Note: {note.name}: {note.damaged}", fg="yellow")


def _verdict(verdict: Verdict, dressing: Dressing | None, width: int) -> Iterator[str]:
    yield click.style(verdict.title, bold=True, fg=_COLOUR[verdict.action])
    yield from _row("What", verdict.cause, width)
    yield from _row("Whose", f"{_owner(verdict)} ({verdict.confidence.value})", width)
    yield from _row("Why", verdict.why, width)
    if verdict.gpu.known or verdict.gpu.index is not None or verdict.gpu.tp_rank is not None:
        yield from _row("GPU", name_of(verdict.gpu), width)
    if verdict.xids:
        yield from _row("Xid", ", ".join(map(str, verdict.xids)), width)
    yield from _listed("Do", verdict.fix, width)
    if dressing is not None:
        yield from _remedy(verdict, dressing, width)
    yield from _listed("Checked", verdict.checked, width, bullet="- ")
    yield from _evidence(verdict.evidence, width)
    yield ""


def _remedy(verdict: Verdict, dressing: Dressing, width: int) -> Iterator[str]:
    remedy = verdict.remedies[dressing.way]
    way = f"way {verdict.fix.index(remedy.say) + 1}, {remedy.standing}"
    yield from _row("Flags", f"{dressing.flags} ({way})", width)
    patch = dressing.patch
    if patch is None:
        return
    for choice in patch.choices:
        yield from _row("Yours", choice, width)
    if not patch.command:
        yield from _row("Patch", "nothing in the manifest changes." if not patch.choices else "", width)
        return
    # To be copied: neither wrapped nor indented unevenly.
    name = f"{patch.namespace}/{patch.name}" if patch.namespace else patch.name
    yield f"  {'Patch':<9}InferenceService {name}, {way}"
    yield from (" " * 11 + line for line in patch.as_yaml().splitlines())
    if not patch.document:
        yield from _row("", "(single operations: the list holds a secret, which is not repeated here)", width)
    yield f"  {'Apply':<9}{patch.command}"
    for i, line in enumerate(dressing.diff[2:]):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        yield f"  {'Diff' if i == 0 else '':<9}" + click.style(line, fg=colour)
    for note in patch.notes:
        yield from _row("Note", note, width)


def _fault(fault: Fault, width: int) -> Iterator[str]:
    yield click.style(f"{fault.title} on {subject_of(fault)}", bold=True, fg=_COLOUR[fault.action])
    yield from _row("What", fault.why, width)
    yield from _listed("Do", fault.fix, width)
    yield from _evidence(fault.evidence, width)
    yield ""


def _owner(verdict: Verdict) -> str:
    return {
        "config": "the service's owner: its flags, arguments or environment",
        "image": "the service's owner: the image",
        "model": "the service's owner: the model's files",
        "application": "the program's owner",
        "gpu": "the node's owner: a GPU",
        "fabric": "the node's owner: NVLink, NVSwitch or Fabric Manager",
        "driver": "the node's owner: the NVIDIA driver",
        "sharing": "whoever shares this GPU: compute mode, MPS, MIG, vGPU or another process",
        "node": "the node's owner: memory, shared memory or disk",
        "placement": "what the scheduler, the device plugin or the pod's spec gave",
        "remote": "another rank or the network",
        "kubernetes": "the cluster's owner: probes, device plugin or operator",
        "undecided": "undecided",
    }[verdict.component.value]


def _row(name: str, text: str, width: int) -> Iterator[str]:
    if text:
        yield from _wrap(text, width, f"  {name:<9}", " " * 11)


def _listed(name: str, items: Iterable[str], width: int, *, bullet: str = "") -> Iterator[str]:
    for i, item in enumerate(items, 1):
        head = bullet or f"{i}. "
        yield from _wrap(item, width, f"  {name if i == 1 else '':<9}{head}", " " * (11 + len(head)))


def _evidence(evidence: Iterable[Evidence], width: int) -> Iterator[str]:
    for i, item in enumerate(evidence):
        where = item.source + (f":{item.line}" if item.line else "")
        text = item.text if len(item.text) <= 240 else item.text[:239] + "…"
        yield f"  {'Evidence' if i == 0 else '':<9}" + click.style(where, fg="cyan") + f"  {text}"


def _wrap(text: str, width: int, first: str, then: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    ) or [first]

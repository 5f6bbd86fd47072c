"""Turns one kernel message after the other into signals. Never asks who wrote one (its caller does); plans nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.detect.catalogue import Catalogue, Judgement
from agent.detect.literals import LiteralIndex
from agent.detect.rules import NO_BUS, Rule, render
from agent.detect.xid import SxidLine, XidLine, parse_gpu_at, parse_sxid, parse_xid
from agent.model import (
    NO_GPU,
    Action,
    Evidence,
    FaultHint,
    GpuRef,
    PciAddress,
    Role,
    Severity,
    Signal,
    parse_pci,
)

EVIDENCE_LIMIT = 500
"""The most characters of a message that an evidence quotes."""

MESSAGE_LIMIT = 8192
"""The most characters of a message that are looked at: a /dev/kmsg record is never longer."""

SPREAD_LIMIT = 8
"""How many further driver messages may pass before a message that was begun is given up: others can come between."""

_DRIVER = "NVRM: "
_SPREAD_HEAD = "NVRM: The NVIDIA GPU "
"""How a message begins that old kernels print as several records: what is wrong stands in its last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A message of several lines of which not all have come."""

    text: str
    line: int | None
    time: float | None
    left: int = SPREAD_LIMIT


class KernelDetector:
    """Kernel messages in, signals out, in the order in which the kernel wrote them.

    Remembers little: the UUID of each bus address, the driver's branch, the beginning of a message that comes in
    several records. `timeouts` counts rules that took too long on a message and were passed over.
    """

    def __init__(self, catalogue: Catalogue, rules: Sequence[Rule]) -> None:
        self._catalogue = catalogue
        self._rules = {rule.id: rule for rule in rules if rule.reads in ("kernel", "any")}
        by_literal: dict[str, list[Rule]] = {}
        for rule in self._rules.values():
            for literal in rule.literals:
                by_literal.setdefault(literal, []).append(rule)
        self._by_literal = tuple(by_literal.items())
        self._index: LiteralIndex | None = None
        self._uuids: dict[PciAddress, str] = {}
        self._branch: int | None = None
        self._begun: _Begun | None = None
        self.timeouts = 0

    @property
    def uuids(self) -> Mapping[PciAddress, str]:
        """The UUIDs that the driver named, by bus address."""
        return self._uuids

    @property
    def branch(self) -> int | None:
        """The branch of the driver that was loaded last (580), None where its line was not seen."""
        return self._branch

    def signals(
        self, message: str, *, time: float | None = None, source: str = "kernel", line: int | None = None
    ) -> list[Signal]:
        """What one kernel message tells; empty for nearly every message.

        `message` is the text of one record, without stamp or level; it may hold newlines. `time` is in wall seconds,
        `line` the 1-based line of a file. Total: any text is accepted.
        """
        message = message[:MESSAGE_LIMIT]
        if message.startswith("NVRM: Xid ("):
            if (xid := parse_xid(message)) is not None:
                return [self._xid_signal(xid, _evidence(message, time=time, source=source, line=line))]
        elif message.startswith("nvidia-nvswitch"):
            if (sxid := parse_sxid(message)) is not None:
                return [self._sxid_signal(sxid, _evidence(message, time=time, source=source, line=line))]
        elif message.startswith("NVRM: GPU at "):
            if (named := parse_gpu_at(message)) is not None:
                self._uuids[named[0]] = named[1]
                return []
        text = _one_line(message) if "\n" in message else message
        if self._begun is not None or text.startswith(_SPREAD_HEAD):
            found = self._spread(text, time=time, source=source, line=line)
            if found is not None:
                return found
        return self._rule_signals(text, time=time, source=source, line=line)

    def explain(self, signal: Signal) -> Judgement:
        """What a signal of this detector means and what to do, in words; needs the signal alone, not the state.

        A signal that no catalogue row and no rule of today accounts for is explained by its hint.
        """
        hint = signal.fault or FaultHint(severity=Severity.INFO)
        if signal.rule.startswith("xid/") and signal.xid is not None:
            return self._catalogue.explain(signal.xid, hint, signal.fields, pci=signal.gpu.pci)
        if signal.rule.startswith("sxid/"):
            return self._catalogue.explain_switch(signal.fields)
        rule = self._rules.get(signal.rule)
        own = tuple(render(step.say, {"pci": NO_BUS, **signal.fields}) for step in rule.fix) if rule else ()
        return Judgement(
            hint=hint,
            title=rule.title if rule else signal.rule,
            why=render(rule.cause, {"pci": "(not named)", **signal.fields})
            if rule and rule.cause
            else signal.evidence.text,
            fix=own or (rule.check if rule else ()),
            action=self._action(rule, signal.fault),
            fields=signal.fields,
        )

    def state(self) -> dict[str, Any]:
        """What must survive a restart, as plain data (JSON). Valid for one boot of one machine."""
        begun = self._begun
        return {
            "uuids": {str(pci): uuid for pci, uuid in self._uuids.items()},
            "branch": self._branch,
            "begun": None
            if begun is None
            else {"text": begun.text, "line": begun.line, "time": begun.time, "left": begun.left},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what :meth:`state` gave. Passes over whatever is not of its form."""
        uuids = state.get("uuids")
        if isinstance(uuids, Mapping):
            for text, uuid in uuids.items():
                pci = parse_pci(text) if isinstance(text, str) else None
                if pci is not None and isinstance(uuid, str):
                    self._uuids[pci] = uuid
        branch = state.get("branch")
        if isinstance(branch, int) and not isinstance(branch, bool):
            self._branch = branch
        begun = state.get("begun")
        if isinstance(begun, Mapping) and isinstance(begun.get("text"), str):
            line, time, left = begun.get("line"), begun.get("time"), begun.get("left")
            self._begun = _Begun(
                text=begun["text"],
                line=line if isinstance(line, int) else None,
                time=float(time) if isinstance(time, (int, float)) else None,
                left=left if isinstance(left, int) else SPREAD_LIMIT,
            )

    def _spread(self, text: str, *, time: float | None, source: str, line: int | None) -> list[Signal] | None:
        """The signals of a message that comes in several records; None where this record is not part of one."""
        if text.startswith(_SPREAD_HEAD):
            signals = self._rule_signals(text, time=time, source=source, line=line)
            self._begun = None if signals else _Begun(text=text, line=line, time=time)
            return signals
        begun = self._begun
        text = text.lstrip()
        if begun is None or not text.startswith(_DRIVER):
            return None
        whole = f"{begun.text} {text.removeprefix(_DRIVER)}"
        signals = self._rule_signals(whole, time=begun.time, source=source, line=begun.line)
        if signals:
            self._begun = None
            return signals
        # Only the middle of a sentence belongs to it; a whole message that came between has a start of its own.
        middle = not text[len(_DRIVER) :][:1].isupper()
        self._begun = (
            None
            if begun.left <= 1
            else _Begun(text=whole if middle else begun.text, line=begun.line, time=begun.time, left=begun.left - 1)
        )
        return None

    def _rule_signals(self, text: str, *, time: float | None, source: str, line: int | None) -> list[Signal]:
        index = self._index
        if index is None:
            # Compiled when the first message needs it: a detector that only explains pays nothing.
            index = self._index = LiteralIndex([literal.encode() for literal, _ in self._by_literal])
        hits, _ = index.scan(text.encode(errors="replace"))
        if not hits:
            return []
        evidence = _evidence(text, time=time, source=source, line=line)
        signals: list[Signal] = []
        for rule in dict.fromkeys(rule.id for hit in sorted({i for i, _ in hits}) for rule in self._by_literal[hit][1]):
            try:
                fields = self._rules[rule].capture_fields(text)
            except TimeoutError:
                self.timeouts += 1
                continue
            if fields is not None:
                signals.append(self._rule_signal(self._rules[rule], fields, evidence))
        return signals

    def _rule_signal(self, rule: Rule, captured: dict[str, str], evidence: Evidence) -> Signal:
        spec = rule.fault
        fields = {**rule.facts, **captured}
        if spec is not None and spec.taint:
            fields["taint"] = spec.taint
        if branch := _number(captured.get("driver", "").partition(".")[0]):
            self._branch = branch
        named = _number(captured.get("xid", ""))
        return Signal(
            rule=rule.id,
            evidence=evidence,
            role=rule.role,
            time=evidence.time,
            fields=fields,
            gpu=self._gpu(parse_pci(captured.get("pci", ""))),
            pid=_number(captured.get("pid", "")),
            xid=named if spec is None or spec.xid is None else spec.xid,
            fault=None
            if spec is None
            else FaultHint(
                scope=spec.scope,
                severity=spec.severity,
                recovery=spec.recovery,
                component=rule.component,
                caused_by=named if spec.severity is Severity.CONTEXT else None,
            ),
        )

    def _xid_signal(self, xid: XidLine, evidence: Evidence) -> Signal:
        judged = self._catalogue.judge(xid, branch=self._branch)
        return Signal(
            rule=f"xid/{xid.code}",
            evidence=evidence,
            role=_ROLES.get(judged.hint.severity, Role.CAUSE),
            time=evidence.time,
            fields=judged.fields,
            gpu=self._gpu(xid.pci),
            pid=xid.pid,
            xid=xid.code,
            fault=judged.hint,
        )

    def _sxid_signal(self, sxid: SxidLine, evidence: Evidence) -> Signal:
        judged = self._catalogue.judge_switch(sxid)
        return Signal(
            rule=f"sxid/{sxid.code}",
            evidence=evidence,
            role=_ROLES.get(judged.hint.severity, Role.CAUSE),
            time=evidence.time,
            fields=judged.fields,
            fault=judged.hint,
        )

    def _gpu(self, pci: PciAddress | None) -> GpuRef:
        return NO_GPU if pci is None else GpuRef(pci=pci, uuid=self._uuids.get(pci))

    def _action(self, rule: Rule | None, hint: FaultHint | None) -> Action:
        if rule is not None and rule.action is not None:
            return rule.action
        if hint is not None:
            return self._catalogue.action(hint.severity, hint.recovery)
        return rule.warrants if rule is not None else Action.NONE


_ROLES = {Severity.INFO: Role.CONTEXT, Severity.CONTEXT: Role.ECHO}


def _evidence(text: str, *, time: float | None, source: str, line: int | None) -> Evidence:
    short = text if len(text) <= EVIDENCE_LIMIT else text[: EVIDENCE_LIMIT - 1] + "…"
    return Evidence(source=source, text=short, line=line, time=time)


def _one_line(message: str) -> str:
    """A message of several lines as one: each further line without its indentation and the driver's prefix."""
    first, *rest = message.split("\n")
    return " ".join([first.rstrip(), *(piece for line in rest if (piece := line.strip().removeprefix(_DRIVER)))])


def _number(text: str) -> int | None:
    return int(text) if 0 < len(text) <= 10 and text.isascii() and text.isdigit() else None

"""What a numbered line of the driver means: the Xid catalogue as data, and the judgement of one line by it.

Reads no file (the bytes are handed in) and no line of a container; remembers nothing between two lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import msgspec

from agent.detect.rules import NO_BUS, RuleError, load_document, render
from agent.detect.xid import NvlinkEvent, SxidLine, XidLine, parse_nvlink5, parse_recovery_action
from agent.model import Action, Component, Confidence, FaultHint, PciAddress, Scope, Severity

FILES = ("xid/catalogue.yaml", "xid/nvlink5.yaml")
"""The two documents, as messages name them where the caller gives no path."""

V2_BRANCH = 575
"""The first driver branch whose NVLink 5 words follow the table's second pattern."""

Until = Literal["none", "process_exit", "reset", "reboot", "vm_restart", "service", "depends"]
Reaches = Literal["none", "nvlink_peers", "node", "depends"]
Origin = Literal[
    "application", "driver", "firmware", "gpu_hardware", "gpu_memory", "nvlink", "pcie_system", "power_thermal",
    "display", "informational", "unknown",
]  # fmt: skip


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all parts of the two documents have in common: a key that is not known is a mistake."""


class SeverityWord(_Form, frozen=True):
    """What a severity warrants, and what to say of it."""

    explain: Action
    component: Component | None = None
    fix: tuple[str, ...] = ()


Proof = Literal["none", "reset", "reboot", "service"]
"""What must have happened before a fault can be over: nothing, a reset of the GPU, a reboot of the node, or other
hardware."""


class RecoveryWord(_Form, frozen=True):
    """What a person does for one kind of recovery, and the action that a fatal fault of this kind warrants."""

    plan: Action
    proof: Proof = "none"
    fix: tuple[str, ...] = ()


class OriginWord(_Form, frozen=True):
    component: Component
    fatal: Component | None = None


class VerdictValue(_Form, frozen=True):
    """One value of the driver's recovery action (Xid 154)."""

    value: int
    recovery: str
    severity: Severity
    component: Component
    says: str
    since: int
    labels: tuple[str, ...] = ()


class Outcome(_Form, frozen=True):
    """What follows from a line whose own fields decide."""

    severity: Severity
    recovery: str
    says: str
    title: str = ""
    confidence: Confidence = Confidence.CERTAIN
    fix: tuple[str, ...] = ()


class Variant(_Form, frozen=True):
    """A text of a code that means something else than the code does. `ends` is compared with the end of the line."""

    ends: str
    severity: Severity
    recovery: str
    says: str


class _Row(_Form, frozen=True, kw_only=True, omit_defaults=True):
    """A row as it is written; None where the family's value holds."""

    title: str | None = None
    origin: Origin | None = None
    severity: Severity | None = None
    recovery: str | None = None
    until: Until | None = None
    reaches: Reaches | None = None
    cuda: tuple[int, ...] | None = None
    nvidia: tuple[str, ...] | None = None
    inferred: bool | None = None
    measured: bool | None = None
    recovered: str | None = None
    notes: str | None = None
    fix: tuple[str, ...] | None = None
    variants: tuple[Variant, ...] | None = None
    decided_by: Literal["nvlink5", "recovery_action"] | None = None
    plan: Action | None = None


class _CodeRow(_Row, frozen=True, kw_only=True):
    code: int
    mnemonic: str = ""
    family: str | None = None


class XidEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of one code: its row on top of its family. The keys are explained in the data file's head."""

    code: int
    mnemonic: str = ""
    family: str | None = None
    listed: bool = True
    """False for the stand-in of a code that the catalogue does not know."""
    title: str
    origin: Origin
    severity: Severity
    recovery: str
    until: Until
    reaches: Reaches
    cuda: tuple[int, ...] = ()
    nvidia: tuple[str, ...] = ()
    inferred: bool = False
    measured: bool = False
    recovered: str = ""
    notes: str = ""
    fix: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    decided_by: Literal["nvlink5", "recovery_action"] | None = None
    plan: Action | None = None


class _CatalogueFile(_Form, frozen=True):
    schema: Literal[1]
    source: str
    severities: dict[Severity, SeverityWord]
    recoveries: dict[str, RecoveryWord]
    origins: dict[Origin, OriginWord]
    verdicts: tuple[VerdictValue, ...]
    switch_errors: dict[Literal["fatal", "non-fatal", "correctable", "unspecified", "detail"], Outcome]
    device_plugin_ignores: tuple[int, ...]
    unlisted: _Row
    families: dict[str, _Row]
    xids: tuple[_CodeRow, ...]


class NvlinkRow(_Form, frozen=True):
    """One row of the NVLink 5 table; `v1` and `v2` are (mask, value) of the low 20 bits of intrinfo."""

    xid: int
    units: tuple[str, ...]
    v1: tuple[int, int]
    v2: tuple[int, int]
    status: tuple[int, ...]
    recovery: str
    subcodes: tuple[int, ...] = (0,)
    word: Literal["fatal", "nonfatal"] | None = None


class _NvlinkFile(_Form, frozen=True):
    schema: Literal[1]
    source: str
    outcomes: dict[Literal["nonfatal", "reset", "harmless", "follow", "fatal_unlisted", "unreadable"], Outcome]
    rows: tuple[NvlinkRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one line means, in data (`hint`, `action`) and in words for a person (`title`, `why`, `fix`).

    `why` quotes what decided. `fields` are the line's own facts, strings only: enough, with the hint, to say the same
    again later without the line.
    """

    hint: FaultHint
    title: str
    why: str
    fix: tuple[str, ...]
    action: Action
    confidence: Confidence = Confidence.CERTAIN
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One code for a person who asks what it is; `rows` are (name, value) in the order in which to show them."""

    code: int
    mnemonic: str
    title: str
    severity: Severity
    recovery: str
    component: Component
    action: Action
    rows: tuple[tuple[str, str], ...]
    fix: tuple[str, ...]


class Catalogue:
    """The meaning of every code. Parses its documents when they are first needed, each once."""

    def __init__(self, catalogue: bytes, nvlink5: bytes, *, files: Sequence[str] = FILES) -> None:
        self._bytes, self._nvlink5_bytes = catalogue, nvlink5
        self.file, self.nvlink5_file = files
        self._entries: dict[int, XidEntry] = {}

    @classmethod
    def from_yaml(cls, catalogue: bytes, nvlink5: bytes, *, files: Sequence[str] = FILES) -> Self:
        """A catalogue over the text of its two documents, whose names are only for messages.

        Nothing is read or checked yet, so that who never asks pays nothing: call :meth:`check` where a mistake must
        show at once. Every other method raises RuleError for a document that cannot be used.
        """
        return cls(catalogue, nvlink5, files=files)

    def check(self) -> None:
        """Reads both documents and every cross reference in them. Raises RuleError with the first mistake."""
        form, links = self._form, self._links
        for severity in Severity:
            if severity not in form.severities:
                raise RuleError(self.file, f"no row for severity {severity.value}", key="severities")
        codes = [row.code for row in form.xids]
        if twice := sorted({code for code in codes if codes.count(code) > 1}):
            raise RuleError(self.file, f"Xid {twice[0]} has two rows", key="xids")
        for code in codes:
            self.entry(code)
        self._unlisted(0)
        used = [(f"verdicts.{v.value}", v.recovery) for v in form.verdicts]
        used += [(f"switch_errors.{name}", o.recovery) for name, o in form.switch_errors.items()]
        used += [(f"xids.{e.code}", w) for e in self for w in (e.recovery, *(v.recovery for v in e.variants))]
        for key, word in used:
            self._known(word, file=self.file, key=key)
        for key, word in [(f"outcomes.{n}", o.recovery) for n, o in links.outcomes.items()] + [
            (f"rows.{i}", row.recovery) for i, row in enumerate(links.rows)
        ]:
            self._known(word, file=self.nvlink5_file, key=key)

    def __iter__(self) -> Iterator[XidEntry]:
        """Every entry, by ascending code."""
        for code in sorted(self._rows):
            entry = self.entry(code)
            if entry is not None:
                yield entry

    @property
    def recoveries(self) -> Mapping[str, RecoveryWord]:
        return self._form.recoveries

    @property
    def severities(self) -> Mapping[Severity, SeverityWord]:
        return self._form.severities

    @property
    def verdicts(self) -> Sequence[VerdictValue]:
        return self._form.verdicts

    @property
    def nvlink_rows(self) -> Sequence[NvlinkRow]:
        return self._links.rows

    @property
    def sources(self) -> tuple[str, str]:
        """Where the facts of the two documents were read."""
        return self._form.source, self._links.source

    def entry(self, code: int) -> XidEntry | None:
        """Everything known of a code, None for a code without a row. Raises RuleError where its row is incomplete."""
        if (known := self._entries.get(code)) is not None:
            return known
        row = self._rows.get(code)
        if row is None:
            return None
        family = self._form.families.get(row.family) if row.family else None
        if row.family and family is None:
            raise RuleError(self.file, f"Xid {code}: no family of the name {row.family}", key="xids")
        return self._entries.setdefault(code, self._merge(code, family, row))

    def device_plugin_withdraws(self, code: int) -> bool:
        """True where NVIDIA's device plugin marks the GPU unhealthy for this code, and so stops offering it."""
        return code not in self._form.device_plugin_ignores

    def describe(self, code: int) -> Description:
        """Everything known of a code, for a person. Also for a code without a row."""
        entry = self.entry(code) or self._unlisted(code)
        judged = self.judge_code(code)
        rows = {
            "driver's name": entry.mnemonic,
            **(self._decided_rows(entry.decided_by) if entry.decided_by else _plain_rows(entry, judged.action)),
            "comes from": entry.origin.replace("_", " "),
            "unusable until": entry.until.replace("_", " "),
            "other GPUs": entry.reaches.replace("_", " "),
            "CUDA errors": ", ".join(str(error) for error in entry.cuda),
            "NVIDIA says": ", then ".join(entry.nvidia),
            "device plugin": "withdraws the GPU" if self.device_plugin_withdraws(code) else "ignores it",
            "over when": entry.recovered,
            "notes": entry.notes,
            "milder texts": "; ".join(f"{v.severity.value} where {v.says}" for v in entry.variants),
            "known from": "seen on a real H200" if entry.measured else _READING[entry.inferred],
        }
        return Description(
            code=code,
            mnemonic=entry.mnemonic,
            title=entry.title,
            severity=entry.severity,
            recovery=entry.recovery,
            component=judged.hint.component,
            action=judged.action,
            rows=tuple((name, value) for name, value in rows.items() if value),
            fix=judged.fix,
        )

    def _decided_rows(self, by: Literal["nvlink5", "recovery_action"]) -> dict[str, str]:
        rows = {"decided by": _DECIDED_BY[by]}
        if by == "nvlink5":
            for name, outcome in self._links.outcomes.items():
                action = self.action(outcome.severity, outcome.recovery)
                rows[f"  {name.replace('_', ' ')}"] = f"{outcome.severity.value}: {action.value}"
        else:
            for verdict in self._form.verdicts:
                action = self.action(verdict.severity, verdict.recovery)
                rows[f"  {verdict.value:#x}"] = f"{verdict.says}: {action.value}"
        return rows

    def action_of_recovery(self, recovery: str) -> Action:
        """The action that a fatal fault warrants which ends by this recovery; one without a row counts as a taint."""
        known = self._form.recoveries.get(recovery)
        return known.plan if known else self._form.severities[Severity.FATAL].explain

    def action(self, severity: Severity, recovery: str) -> Action:
        """The action that a severity and a recovery warrant together."""
        if severity is Severity.FATAL:
            return self.action_of_recovery(recovery)
        return self._form.severities[severity].explain

    def fix(
        self, severity: Severity, recovery: str, own: Sequence[str], *, fields: Mapping[str, str]
    ) -> tuple[str, ...]:
        """The advice for one fault: severity's, then recovery's, then its own, each sentence once."""
        word = self._form.recoveries.get(recovery)
        said = (*self._form.severities[severity].fix, *(word.fix if word else ()), *own)
        return tuple(dict.fromkeys(render(sentence, fields) for sentence in said))

    def judge(self, line: XidLine, *, branch: int | None = None) -> Judgement:
        """What an Xid line means. `branch` is the driver's branch (580) where it is known; total for any line."""
        entry = self.entry(line.code) or self._unlisted(line.code)
        own = _own_fields(line)
        bus = f"{line.pci}.0"
        if entry.decided_by == "recovery_action":
            return self._judge_verdict(entry, parse_recovery_action(line.text), own, bus=bus)
        if entry.decided_by == "nvlink5":
            return self._judge_nvlink5(entry, parse_nvlink5(line.text), own, bus=bus, branch=branch)
        for variant in entry.variants:
            if line.text.endswith(variant.ends):
                return self._judgement(
                    entry, variant.severity, variant.recovery, why=variant.says, own=own, bus=bus,
                    caused_by=line.caused_by,
                )  # fmt: skip
        why = _because(entry)
        if line.caused_by is not None:
            why = f"the line itself names Xid {line.caused_by} as its cause; {why}"
            own["caused_by"] = str(line.caused_by)
        return self._judgement(
            entry, entry.severity, entry.recovery, why=why, own=own, bus=bus, plan=entry.plan,
            caused_by=line.caused_by,
        )  # fmt: skip

    def judge_code(self, code: int) -> Judgement:
        """What a bare number means (an NVML event, a root cause that another line names); its line may say more."""
        entry = self.entry(code) or self._unlisted(code)
        why = "only the number is known, and the line's own fields decide" if entry.decided_by else _because(entry)
        return self._judgement(entry, entry.severity, entry.recovery, why=why, own={}, plan=entry.plan)

    def judge_switch(self, line: SxidLine) -> Judgement:
        """What a switch error means. It blames the fabric and names no GPU."""
        kind = "detail" if line.detail else line.severity or "unspecified"
        outcome = self._form.switch_errors[kind]  # type: ignore[index]
        fields = {"sxid": str(line.code), "switch": str(line.pci), "instance": str(line.instance)}
        if line.severity:
            fields["word"] = line.severity
        if line.link is not None:
            fields["link"] = str(line.link)
        return self._say_switch(outcome, kind, fields)

    def explain(
        self, code: int, hint: FaultHint, fields: Mapping[str, str], *, pci: PciAddress | None = None
    ) -> Judgement:
        """The judgement of an earlier line, said again from what was kept of it (`Signal.xid`, `.fault`, `.fields`)."""
        entry = self.entry(code) or self._unlisted(code)
        outcome = self._outcome(fields.get("outcome", ""))
        own = outcome.fix if outcome else () if entry.decided_by else entry.fix
        known = {"code": str(code), "title": entry.title, "bus": f"{pci}.0" if pci else NO_BUS, **fields}
        plain = (hint.severity, hint.recovery) == (entry.severity, entry.recovery)
        return Judgement(
            hint=hint,
            title=f"Xid {code}: {entry.title}",
            why=fields.get("why", ""),
            fix=self.fix(hint.severity, hint.recovery, own, fields=known),
            action=entry.plan if plain and entry.plan else self.action(hint.severity, hint.recovery),
            confidence=_confidence(fields),
            fields=fields,
        )

    def explain_switch(self, fields: Mapping[str, str]) -> Judgement:
        """The same for a switch error, from the fields of its signal."""
        kinds = self._form.switch_errors
        kind = next((name for name in kinds if name == fields.get("kind")), "unspecified")
        return self._say_switch(kinds[kind], kind, fields)  # type: ignore[index]

    def _say_switch(self, outcome: Outcome, kind: str, fields: Mapping[str, str]) -> Judgement:
        place = f"switch {fields.get('switch', 'unknown')}" + (f", link {fields['link']}" if "link" in fields else "")
        why = f"SXid {fields.get('sxid', 'unknown')}: {outcome.says}; {place}"
        hint = FaultHint(
            scope=Scope.FABRIC, severity=outcome.severity, recovery=outcome.recovery, component=Component.FABRIC
        )
        word = self._form.recoveries.get(outcome.recovery)
        fix = (*(word.fix if word else ()), *outcome.fix)
        return Judgement(
            hint=hint,
            title=f"SXid {fields.get('sxid', 'unknown')}: {outcome.title}",
            why=why,
            fix=tuple(render(sentence, fields) for sentence in fix),
            action=self.action(outcome.severity, outcome.recovery),
            fields={**fields, "kind": kind, "why": why},
        )

    def _judge_verdict(
        self, entry: XidEntry, change: tuple[int, int] | None, own: dict[str, str], *, bus: str
    ) -> Judgement:
        if change is None:
            why = "the line's recovery action could not be read"
            return self._judgement(entry, Severity.UNKNOWN, entry.recovery, why=why, own=own, bus=bus)
        own["action_from"], own["action_to"] = (f"{value:#x}" for value in change)
        row = next((v for v in self._form.verdicts if v.value == change[1]), None)
        if row is None:
            why = f"driver's recovery action {change[1]:#x}, a value that the catalogue does not know"
            # Not a verdict: what nobody can read must not take back what the catalogue said before.
            return self._judgement(entry, Severity.UNKNOWN, entry.recovery, why=why, own=own, bus=bus)
        why = f"driver's recovery action {change[1]:#x}: {row.says}"
        return self._judgement(
            entry, row.severity, row.recovery, why=why, own=own, bus=bus, component=row.component,
            verdict=True, clears=row.value == 0,
        )  # fmt: skip

    def _judge_nvlink5(
        self, entry: XidEntry, event: NvlinkEvent | None, own: dict[str, str], *, bus: str, branch: int | None
    ) -> Judgement:
        own |= _event_fields(event)
        own["outcome"] = name = self._nvlink_outcome(entry.code, event, branch=branch)
        outcome = self._links.outcomes[name]  # type: ignore[index]
        why = render(outcome.says, own)
        if event is not None and event.injected:
            why += "; the line marks it as injected by a test"
        return self._judgement(
            entry, outcome.severity, outcome.recovery, why=why, own=own, bus=bus, fix=outcome.fix,
            confidence=outcome.confidence,
        )  # fmt: skip

    def _nvlink_outcome(self, code: int, event: NvlinkEvent | None, *, branch: int | None) -> str:
        if event is None:
            return "unreadable"
        if not event.fatal:
            return "nonfatal"
        recoveries = {row.recovery for row in self._links.rows if row.xid == code and _fits(row, event, branch=branch)}
        if len(recoveries) != 1:
            return "fatal_unlisted"
        return {"reset_gpu": "reset", "none": "harmless"}.get(recoveries.pop(), "follow")

    def _judgement(
        self,
        entry: XidEntry,
        severity: Severity,
        recovery: str,
        *,
        why: str,
        own: dict[str, str],
        bus: str = NO_BUS,
        fix: Sequence[str] | None = None,
        plan: Action | None = None,
        component: Component | None = None,
        confidence: Confidence = Confidence.CERTAIN,
        verdict: bool = False,
        clears: bool = False,
        caused_by: int | None = None,
    ) -> Judgement:
        hint = FaultHint(
            severity=severity,
            recovery=recovery,
            component=component or self._component(entry.origin, severity),
            clears=clears,
            verdict=verdict,
            caused_by=caused_by,
        )
        own["why"] = why
        if confidence is not Confidence.CERTAIN:
            own["confidence"] = confidence.value
        known = {"code": str(entry.code), "title": entry.title, "bus": bus, **own}
        return Judgement(
            hint=hint,
            title=f"Xid {entry.code}: {entry.title}",
            why=why,
            fix=self.fix(severity, recovery, (() if verdict else entry.fix) if fix is None else fix, fields=known),
            action=plan or self.action(severity, recovery),
            confidence=confidence,
            fields=own,
        )

    def _component(self, origin: Origin, severity: Severity) -> Component:
        of_severity = self._form.severities[severity].component
        if of_severity is not None:
            return of_severity
        word = self._form.origins[origin]
        return word.fatal if severity is Severity.FATAL and word.fatal else word.component

    def _outcome(self, name: str) -> Outcome | None:
        return next((o for n, o in self._links.outcomes.items() if n == name), None) if name else None

    def _known(self, recovery: str, *, file: str, key: str) -> None:
        if recovery not in self._form.recoveries:
            raise RuleError(file, f"no recovery of the name {recovery}", key=key)

    def _unlisted(self, code: int) -> XidEntry:
        return self._merge(code, None, self._form.unlisted)

    def _merge(self, code: int, family: _Row | None, row: _Row) -> XidEntry:
        values: dict[str, Any] = {}
        for name in _Row.__struct_fields__:
            value = getattr(row, name)
            if value is None and family is not None:
                value = getattr(family, name)
            if value is not None:
                values[name] = value
        known = isinstance(row, _CodeRow)
        try:
            return XidEntry(
                code=code,
                mnemonic=row.mnemonic if isinstance(row, _CodeRow) else "",
                family=row.family if isinstance(row, _CodeRow) else None,
                listed=known,
                **values,
            )
        except TypeError as error:
            raise RuleError(self.file, f"Xid {code}: {error}", key="xids") from None

    @cached_property
    def _form(self) -> _CatalogueFile:
        return load_document(self._bytes, _CatalogueFile, file=self.file)

    @cached_property
    def _links(self) -> _NvlinkFile:
        return load_document(self._nvlink5_bytes, _NvlinkFile, file=self.nvlink5_file)

    @cached_property
    def _rows(self) -> dict[int, _CodeRow]:
        return {row.code: row for row in self._form.xids}


def _plain_rows(entry: XidEntry, action: Action) -> dict[str, str]:
    words = "" if entry.severity is Severity.FATAL else f" ({_SEVERITY_WORDS[entry.severity].strip(',')})"
    return {
        "severity": f"{entry.severity.value}{words}",
        "needs": entry.recovery.replace("_", " "),
        "warrants": action.value,
    }


def _because(entry: XidEntry) -> str:
    if not entry.listed:
        return f"Xid {entry.code} is not in the catalogue: its number marks nothing"
    return f"Xid {entry.code} is {_SEVERITY_WORDS[entry.severity]} by {_READING[entry.inferred]}"


_READING = {False: "NVIDIA's catalogue", True: "this project's reading"}

_DECIDED_BY = {
    "nvlink5": "the line's own words: unit, Fatal or Nonfatal, and its first two numbers",
    "recovery_action": "the new recovery action in the line, by its hexadecimal value",
}

_SEVERITY_WORDS = {
    Severity.INFO: "information",
    Severity.CONTEXT: "an accompaniment, never a cause,",
    Severity.APP: "a fault of the program, not of the GPU,",
    Severity.UNKNOWN: "without a known meaning",
    Severity.PENDING: "a repair that waits for the next reset",
    Severity.DEGRADED: "a loss that the GPU works with",
    Severity.FATAL: "fatal for the GPU",
}


def _fits(row: NvlinkRow, event: NvlinkEvent, *, branch: int | None) -> bool:
    if event.intrinfo is None or event.errorstatus not in row.status:
        return False
    if row.word is not None and (row.word == "fatal") is not event.fatal:
        return False
    if not set(row.units) & set(event.unit.split("/")):
        return False
    if (event.intrinfo >> 20) & 0x3F not in row.subcodes:
        return False
    patterns = (row.v1, row.v2) if branch is None else (row.v2,) if branch >= V2_BRANCH else (row.v1,)
    return any(event.intrinfo & mask == value for mask, value in patterns)


def _own_fields(line: XidLine) -> dict[str, str]:
    fields: dict[str, str] = {}
    if line.name is not None:
        fields["name"] = line.name
    if line.mig_gi is not None:
        fields["mig"] = str(line.mig_gi) if line.mig_ci is None else f"{line.mig_gi}/{line.mig_ci}"
    return fields


def _event_fields(event: NvlinkEvent | None) -> dict[str, str]:
    if event is None:
        return {}
    fields = {
        "unit": event.unit,
        "word": "Fatal" if event.fatal else "Nonfatal",
        "place": "no link named" if event.link is None else f"Link {event.link}",
    }
    if event.link is not None:
        fields["link"] = str(event.link)
    if event.intrinfo is not None:
        fields |= {"intrinfo": f"{event.intrinfo:#010x}", "subcode": f"{(event.intrinfo >> 20) & 0x3F:#x}"}
    if event.errorstatus is not None:
        fields["status"] = f"{event.errorstatus:#x}"
    return fields


def _confidence(fields: Mapping[str, str]) -> Confidence:
    said = fields.get("confidence", "")
    return next((c for c in Confidence if c.value == said), Confidence.CERTAIN)

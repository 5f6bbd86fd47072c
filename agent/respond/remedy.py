"""One remedy in three dresses: flags, an InferenceService patch, a `kubectl patch` line. Pure; sends nothing.

No dress ever holds a secret, and none holds text of a log that is not a plain value.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.diagnose.knowledge import holds_for, suits
from agent.model import Confidence, Remedy, Verdict
from agent.respond.edits import (
    Choice,
    ClearArg,
    ClearEnv,
    ClearField,
    Note,
    SetArg,
    SetEnv,
    SetField,
    edits_of,
    needs_driver,
    what_image,
)
from agent.respond.fields import FieldTable
from agent.respond.manifest import difference, dump, edited, json_patch, known_from, masked, merge_patch

NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The remedy as changes of a plain `sglang serve` command, its environment, its image and its node."""

    set_flags: tuple[str, ...] = ()
    """Each to be added, or put in the place of another value: ``--attention-backend flashinfer``."""
    remove_flags: tuple[str, ...] = ()
    set_env: tuple[str, ...] = ()
    remove_env: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Image, driver and pod, in words."""

    @property
    def line(self) -> str:
        """All of it as one line; empty when there is nothing to change."""
        parts = (
            ("set ", self.set_flags, " "),
            ("remove ", self.remove_flags, ", "),
            ("environment: set ", self.set_env, " "),
            ("environment: remove ", self.remove_env, ", "),
        )
        return "; ".join([head + between.join(items) for head, items, between in parts if items] + list(self.others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The remedy as a patch of one InferenceService, computed against its manifest."""

    name: str
    namespace: str
    document: Mapping[str, Any]
    """A JSON merge patch with whole lists; empty when nothing changes, or when a list that it needs holds a secret."""
    operations: tuple[Mapping[str, Any], ...]
    """The same as a JSON patch, which repeats no item that stays."""
    command: str
    """The `kubectl patch` line; empty when nothing changes."""
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    """What a person must decide or do besides; the patch is the whole remedy only where this is empty."""

    def as_yaml(self) -> str:
        """The patch as YAML: the merge patch, or the operations where those must be used."""
        if self.document:
            return dump(self.document)
        return dump(self.operations) if self.operations else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The remedy as changes of any InferenceService, no manifest being at hand.

    Lists cannot be patched blindly (a merge patch would wipe what else they hold): they come as what to add and remove.
    """

    document: Mapping[str, Any] = field(default_factory=dict)
    """A JSON merge patch of the fields that are no lists; null clears."""
    add_args: tuple[str, ...] = ()
    """Words to add to ``spec.extraArgs``."""
    remove_args: tuple[str, ...] = ()
    """Flags to take out of ``spec.extraArgs``, with their values, where they are there."""
    set_env: tuple[tuple[str, str], ...] = ()
    remove_env: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    command: str = ""
    """A `kubectl patch` line with NAME and NAMESPACE to fill in; empty where a list must change too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dressing:
    """What is shown of one verdict's remedies: the one to try first."""

    way: int
    """Its place among the verdict's remedies, from 0."""
    flags: str
    patch: Patch | None = None
    diff: tuple[str, ...] = ()


def command_line(remedy: Remedy, *, table: FieldTable, facts: Mapping[str, str] = NOTHING) -> CommandLine:
    """The remedy as plain flags. Flags of LLMKube's alone do not occur in it."""
    set_flags: list[str] = []
    removed: list[str] = []
    set_env: list[str] = []
    removed_env: list[str] = []
    others: list[str] = []
    for change in remedy.changes:
        value = None if change.value is None else shlex.quote(change.value)
        match change.verb:
            case "set_flag":
                valueless = value is None and table.is_switch(change.name)
                set_flags.append(change.name if valueless else f"{change.name} {value or '<value>'}")
            case "drop_flag":
                removed.append(change.name)
            case "lower" | "higher":
                now = facts.get(change.name.lstrip("-").replace("-", "_"), "none")
                told = "" if now == "none" else f" (now {now})"
                others.append(f"{change.verb} {change.name}{told}" + (f" to {value}" if value else ""))
            case "set_env":
                set_env.append(f"{change.name}={value or '<value>'}")
            case "drop_env":
                removed_env.append(change.name)
            case "image_tag":
                others.append(what_image(change.name))
            case "driver_branch":
                others.append(needs_driver(change.name, facts).rstrip("."))
            case _:
                others.append(f"{change.verb} {change.name}" + (f" = {value}" if value else ""))
    return CommandLine(
        set_flags=tuple(set_flags), remove_flags=tuple(removed), set_env=tuple(set_env),
        remove_env=tuple(removed_env), others=tuple(others),
    )  # fmt: skip


def apply(
    manifest: Mapping[str, Any], remedy: Remedy, *, table: FieldTable, facts: Mapping[str, str] = NOTHING
) -> dict[str, Any]:
    """The manifest with the remedy's changes, as a deep copy; what a person must choose is left as it is."""
    return edited(manifest, edits_of(remedy, table=table, spec=_spec(manifest), facts=facts))


def patch_for(
    manifest: Mapping[str, Any], remedy: Remedy, *, table: FieldTable, facts: Mapping[str, str] = NOTHING
) -> Patch:
    """The patch that makes of the manifest what `apply` makes of it."""
    edits = edits_of(remedy, table=table, spec=_spec(manifest), facts=facts)
    before = {"spec": dict(_spec(manifest))}
    after = {"spec": edited(manifest, edits)["spec"]}
    metadata = manifest.get("metadata")
    meta: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    name, namespace = str(meta.get("name") or ""), str(meta.get("namespace") or "")
    document: Mapping[str, Any] = merge_patch(before, after)
    operations = tuple(json_patch(before, after))
    kind, body = "merge", document
    if masked(document) != document:
        kind, document = "json", {}
    command = ""
    if operations:
        where = f" -n {shlex.quote(namespace)}" if namespace else ""
        head = f"kubectl patch {_resource(table)} {shlex.quote(name or 'NAME')}{where}"
        command = f"{head} --type {kind} -p {_quoted(body if kind == 'merge' else list(operations))}"
    return Patch(
        name=name, namespace=namespace, document=document, operations=operations, command=command,
        notes=tuple(e.text for e in edits if isinstance(e, Note)),
        choices=tuple(e.text for e in edits if isinstance(e, Choice)),
    )  # fmt: skip


def outline_for(remedy: Remedy, *, table: FieldTable, facts: Mapping[str, str] = NOTHING) -> Outline:
    """The remedy for a service whose manifest is not at hand."""
    edits = edits_of(remedy, table=table, spec=None, facts=facts)
    fields = edited({"spec": {}}, [e for e in edits if isinstance(e, SetField)])
    for edit in edits:
        if isinstance(edit, ClearField):
            at: dict[str, Any] = fields["spec"]
            for key in edit.path[:-1]:
                at = at.setdefault(key, {})
            at.setdefault(edit.path[-1], None)
    document = fields if fields["spec"] else {}
    blind = bool(document) and not any(isinstance(e, SetArg | SetEnv | Choice) for e in edits)
    head = f"kubectl patch {_resource(table)} NAME -n NAMESPACE --type merge -p "
    return Outline(
        document=document,
        command=head + _quoted(document) if blind else "",
        add_args=tuple(w for e in edits if isinstance(e, SetArg) for w in (e.names[0], *e.values)),
        remove_args=tuple(dict.fromkeys(n for e in edits if isinstance(e, ClearArg) for n in e.names)),
        set_env=tuple((e.name, e.value) for e in edits if isinstance(e, SetEnv)),
        remove_env=tuple(e.name for e in edits if isinstance(e, ClearEnv)),
        notes=tuple(e.text for e in edits if isinstance(e, Note)),
        choices=tuple(e.text for e in edits if isinstance(e, Choice)),
    )


def fitting(remedies: Sequence[Remedy], known: Mapping[str, str]) -> tuple[int, ...]:
    """Places of the remedies that may be tried, in order.

    Left out: what changes nothing, what another version or architecture needs, and, where the architecture is not
    known, what only one of them takes (unless nothing else is left).
    """
    arch = known.get("gpu_arch")
    able = [
        i
        for i, r in enumerate(remedies)
        if r.changes and holds_for(known.get("sglang_version"), r.versions) is not False and suits(arch, r.gpu_arch)
    ]
    sure = [i for i in able if arch is not None or not remedies[i].gpu_arch]
    return tuple(sure or able)


def dress(
    verdict: Verdict,
    *,
    table: FieldTable,
    facts: Mapping[str, str],
    manifest: Mapping[str, Any] | None = None,
    way: int | None = None,
) -> Dressing | None:
    """What to show beside a verdict: its first remedy that fits, or remedy `way` (from 0).

    None where nothing is to be changed: no remedy fits, or the verdict is only one of several possible causes.
    """
    if verdict.confidence not in (Confidence.CERTAIN, Confidence.LIKELY):
        return None
    known = dict(facts)
    if manifest is not None:
        known = known_from(manifest, table=table) | known
    order = fitting(verdict.remedies, known) if way is None else tuple(range(len(verdict.remedies)))[way : way + 1]
    for i in order:
        remedy = verdict.remedies[i]
        flags = command_line(remedy, table=table, facts=known).line
        if manifest is None:
            return Dressing(way=i, flags=flags)
        patch = patch_for(manifest, remedy, table=table, facts=known)
        # A remedy that the manifest holds already did not help: the next one.
        if patch.operations or patch.choices or way is not None:
            diff = difference(manifest, apply(manifest, remedy, table=table, facts=known))
            return Dressing(way=i, flags=flags, patch=patch, diff=diff)
    return None


def _spec(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = manifest.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _resource(table: FieldTable) -> str:
    """With its group: other operators have a kind of the same name."""
    return f"{table.kind.lower()}.{table.group}"


def _quoted(document: object) -> str:
    return shlex.quote(json.dumps(document, default=str))

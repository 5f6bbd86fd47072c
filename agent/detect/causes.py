"""Cause files: what may stand behind an error whose text does not settle it. Decides nothing and reads no file itself.

A rule names its possible causes (`alternatives`); a text hint found anywhere in what was handed in makes one the likely
one; a fault of its scope in the ledger settles it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.detect.rules import FixStep, RuleError, load_document
from agent.model import Component, Scope


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One possible cause of a symptom."""

    id: Annotated[str, Meta(pattern=r"^causes/[a-z0-9]+(?:-[a-z0-9]+)*$")]
    title: Annotated[str, Meta(min_length=4, max_length=100)]
    component: Component
    cause: Annotated[str, Meta(min_length=8)]
    """What would be wrong, in plain words."""
    standing: Literal["documented", "field", "inferred"]
    """How sure it is that this cause gives this error: the vendor or the driver's source, public reports, reasoning."""
    check: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Exact commands for a person, and what their answer means."""
    fix: Annotated[tuple[FixStep, ...], Meta(min_length=1)]
    source: Annotated[str, Meta(min_length=3)]
    hints: tuple[Annotated[str, Meta(min_length=4)], ...] = ()
    """Literals that make this cause likely when they stand in any text handed in (a log, nvidia-smi, a config file)."""
    settled_by: Scope | None = None
    """A fault of this scope in the ledger proves this cause; None: no kernel record can."""


class CauseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    alternatives: tuple[Alternative, ...]


def parse_causes(text: bytes, *, file: str) -> tuple[Alternative, ...]:
    """The alternatives of one cause file, in the order in which to offer them. Raises RuleError."""
    alternatives = load_document(text, CauseFile, file=file).alternatives
    seen: set[str] = set()
    for alternative in alternatives:
        if alternative.id in seen:
            raise RuleError(file, f"{alternative.id} is there twice", key="id")
        seen.add(alternative.id)
    return alternatives


def hinted(alternatives: Sequence[Alternative], text: str) -> tuple[tuple[Alternative, str], ...]:
    """The alternatives that the text makes likely, each with the hint that was found, in the order given."""
    found = ((a, next((hint for hint in a.hints if hint in text), None)) for a in alternatives)
    return tuple((a, hint) for a, hint in found if hint is not None)

"""The possible causes of an ambiguous error (46, 802, 100, 999), as data. Holds the form; decides nothing."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.detect.rules import load_document
from agent.model import Component


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that can be behind an error whose text does not say why."""

    id: Annotated[str, Meta(pattern=r"^causes/[a-z0-9-]+$")]
    title: Annotated[str, Meta(min_length=4, max_length=100)]
    component: Component
    cause: str
    check: tuple[str, ...]
    """What a person runs or looks at to settle it."""
    fix: tuple[str, ...]
    source: str
    hints: tuple[str, ...] = ()
    """Texts that make it the likely one when they stand in anything that was handed in."""


class _CauseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    alternatives: tuple[Alternative, ...]


def parse_causes(text: bytes, *, file: str) -> tuple[Alternative, ...]:
    """The alternatives of one file. Raises RuleError with line and key."""
    return load_document(text, _CauseFile, file=file).alternatives

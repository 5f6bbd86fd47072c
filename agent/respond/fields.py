"""The table of InferenceService fields: YAML text in, checked values out. Reads no file, patches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from agent.detect.rules import RuleError, load_document

FieldType = Literal["string", "int", "float", "bool", "words", "pairs"]


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One typed field of the service and the flag that the operator makes of it."""

    field: str
    """The path under ``spec``, dotted."""
    flags: tuple[str, ...]
    """All names of the flag, the usual one first."""
    type: FieldType = "string"
    min: float | None = None
    max: float | None = None
    values: tuple[str, ...] = ()
    """What the field takes; empty: anything."""
    free_field: str = ""
    """A field beside it that takes any value and wins."""
    older_values: tuple[str, ...] = ()
    """What releases named by `older` take."""
    older: str = ""
    switched_by: str = ""
    """A boolean field without which this one does nothing."""
    switches: bool = False
    """True where setting this field is what turns `switched_by` on, and removing it turns all of it off."""
    note: str = ""

    def value_of(self, text: str | None) -> object:
        """The field's value for a flag's text (None: a switch); None where the field does not take it."""
        if self.type == "bool":
            return True if text in (None, "", "true", "True") else None
        if text is None or (self.values and text not in self.values):
            return None
        try:
            return self._parsed(text)
        except ValueError:
            return None

    def _parsed(self, text: str) -> object:
        if self.type in ("int", "float"):
            number = int(text) if self.type == "int" else float(text)
            # Written so that `nan` falls outside too.
            inside = (self.min is None or number >= self.min) and (self.max is None or number <= self.max)
            return number if inside else None
        if self.type == "words":
            return text.split() or None
        if self.type == "pairs":
            pairs = [word.partition("=") for word in text.split()]
            whole = bool(pairs) and all(name and path for name, _, path in pairs)
            return [{"name": name, "path": path} for name, _, path in pairs] if whole else None
        return text

    def words_of(self, value: object) -> list[str]:
        """The command-line words that the operator makes of the field's value."""
        if self.type == "bool":
            return [self.flags[0]] if value is True else []
        if isinstance(value, Sequence) and not isinstance(value, str):
            words = [f"{v['name']}={v['path']}" if isinstance(v, Mapping) else str(v) for v in value]
            return [self.flags[0], *words]
        return [self.flags[0], str(value)]


class SecretField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An environment variable that the service takes from a Secret."""

    name: str
    field: str


class PodField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of the pod (as fixes spell it) and where the service holds it."""

    path: str
    field: str
    type: Literal["string", "int", "object"] = "string"
    """`object`: its inside is more than one value, so that a person must write it."""


class FieldTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """All that the patches know of the custom resource."""

    schema: Literal[1]
    source: str
    group: str
    kind: str
    runtime: str
    default_image: str
    typed: tuple[Field, ...]
    secrets: tuple[SecretField, ...] = ()
    pod: tuple[PodField, ...] = ()
    switches: tuple[str, ...] = ()
    switch_prefixes: tuple[str, ...] = ()
    same: tuple[tuple[str, ...], ...] = ()
    gpu_products: Mapping[str, str] = {}

    @classmethod
    def from_yaml(cls, text: bytes, *, file: str) -> FieldTable:
        """Raises RuleError: not readable, an unknown key, or one flag in two rows."""
        table = load_document(text, cls, file=file)
        seen: set[str] = set()
        for flag in (flag for field in table.typed for flag in field.flags):
            if flag in seen:
                raise RuleError(file, f"{flag} is there twice", key="flags")
            seen.add(flag)
        return table

    @cached_property
    def _by_flag(self) -> dict[str, Field]:
        return {flag: field for field in self.typed for flag in field.flags}

    def field_of(self, flag: str) -> Field | None:
        return self._by_flag.get(flag)

    def names_of(self, flag: str) -> tuple[str, ...]:
        """All names of a flag, itself included."""
        field = self.field_of(flag)
        if field is not None:
            return field.flags
        return next((names for names in self.same if flag in names), (flag,))

    def is_switch(self, flag: str) -> bool:
        """True for a flag that takes no value."""
        field = self.field_of(flag)
        if field is not None:
            return field.type == "bool"
        return flag in self.switches or flag.startswith(self.switch_prefixes)

    def pod_field(self, path: str) -> PodField | None:
        return next((field for field in self.pod if field.path == path), None)

    def arch_of(self, product: str) -> str | None:
        """The architecture of a GPU by its product label (``NVIDIA-B200``); None where the table does not know it."""
        words = product.upper().replace("_", "-").split("-")
        return next((arch for name, arch in self.gpu_products.items() if name in words), None)

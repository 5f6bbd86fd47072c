"""Turns the changes of a remedy into edits of an InferenceService. Pure; edits nothing itself, writes no secret.

A flag goes to the typed field that the operator makes it from; what has none, or has a value that the field refuses,
goes to ``extraArgs``. What only a person can decide becomes a :class:`Choice`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.detect.redact import redact
from agent.model import Change, Remedy
from agent.respond.arguments import value_of
from agent.respond.fields import Field, FieldTable

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetField:
    """A field under ``spec`` and its value."""

    path: Path
    value: object


@dataclass(frozen=True, slots=True)
class ClearField:
    path: Path


@dataclass(frozen=True, slots=True)
class SetArg:
    """A flag in ``extraArgs``: its names, the one to write first, and its values; none for a switch."""

    names: tuple[str, ...]
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClearArg:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetEnv:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ClearEnv:
    name: str


@dataclass(frozen=True, slots=True)
class Note:
    """What to know beside the patch; it is complete without."""

    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What the patch cannot hold: a person must decide or do it."""

    text: str


Edit = SetField | ClearField | SetArg | ClearArg | SetEnv | ClearEnv | Note | Choice


def edits_of(
    remedy: Remedy, *, table: FieldTable, spec: Mapping[str, object] | None, facts: Mapping[str, str]
) -> tuple[Edit, ...]:
    """The edits in the order of the remedy's changes.

    `spec` is that of the service, None where no manifest is at hand; `facts` are those of the run.
    """
    maker = _Maker(table, spec, facts)
    return tuple(edit for change in remedy.changes for edit in maker.edits(change))


def field_at(spec: Mapping[str, object] | None, path: Sequence[str]) -> object:
    """The value under a path; None where it is not there."""
    at: object = spec
    for key in path:
        at = at.get(key) if isinstance(at, Mapping) else None
    return at


def words_at(spec: Mapping[str, object] | None, key: str) -> list[str]:
    """A list of command-line words of the service; numbers that YAML made of them read as words again."""
    value = field_at(spec, (key,))
    return [str(word) for word in value] if isinstance(value, Sequence) and not isinstance(value, str) else []


def is_secret(name: str, value: str) -> bool:
    """True when a named value must not be shown or written."""
    return bool(_SECRET_NAME.search(name)) or redact(f"{name}={value}") != f"{name}={value}" or redact(value) != value


_SECRET_NAME = re.compile(r"TOKEN\Z|KEY\Z|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_RELEASE = re.compile(r"v?\d+(?:\.\d+)+(?:\.?(?:post|rc|dev)\d+)?\Z")
_CUDA_TAG = re.compile(r"-cu\d{2,3}(?![\w.])")


def retagged(image: str, suffix: str) -> str | None:
    """The image with another CUDA build of the same release; None where its tag does not tell the release."""
    head, slash, last = image.rpartition("/")
    name, colon, tag = last.partition(":")
    if not colon or "@" in image:
        return None
    if _CUDA_TAG.search(tag):
        tag = _CUDA_TAG.sub(suffix, tag, count=1)
    elif _RELEASE.match(tag):
        tag += suffix
    else:
        return None
    return f"{head}{slash}{name}:{tag}"


class _Maker:
    def __init__(self, table: FieldTable, spec: Mapping[str, object] | None, facts: Mapping[str, str]) -> None:
        self._table, self._spec, self._facts = table, spec, facts
        runtime = field_at(spec, ("runtime",))
        self._typed = spec is None or runtime == table.runtime
        """False for a service of another runtime: the operator does not read its sglangConfig then."""

    def edits(self, change: Change) -> Iterator[Edit]:
        match change.verb:
            case "set_flag":
                yield from self._set_flag(change.name, change.value)
            case "drop_flag":
                yield from self._drop_flag(change.name)
            case "lower" | "higher":
                yield from self._move(change)
            case "set_env":
                yield from self._set_env(change.name, change.value)
            case "drop_env":
                yield ClearEnv(change.name)
                for secret in self._table.secrets:
                    if secret.name == change.name:
                        yield ClearField(_path(secret.field))
            case "image_tag":
                yield from self._image(change.name)
            case "driver_branch":
                yield Note(needs_driver(change.name, self._facts))
            case "pod":
                yield from self._pod(change.name, change.value)
            case _:
                yield Choice(f"{change.verb} {change.name}")

    def _set_flag(self, flag: str, value: str | None) -> Iterator[Edit]:
        names = self._table.names_of(flag)
        if value is None and not self._table.is_switch(flag):
            yield Choice(f"{flag}: the value is yours to choose.")
            return
        if value is not None and (is_secret(flag.lstrip("-"), value) or redact(f"{flag} {value}") != f"{flag} {value}"):
            yield Choice(f"{flag}: a secret is not written into a patch; take it from a Secret.")
            return
        yield from self._in_shell(names)
        field = self._field(flag)
        typed = None if field is None or not self._works(field) else field.value_of(value)
        if field is not None and typed is not None:
            yield SetField(_path(field.field), typed)
            if field.switches:
                yield SetField(_path(field.switched_by), True)
            if field.free_field:
                yield ClearField(_path(field.free_field))
            yield ClearArg(names)
            if field.older_values and typed not in field.older_values:
                yield Note(
                    f"{field.older} take only {', '.join(field.older_values)} in spec.{field.field}; "
                    f"where the API server refuses {value}, put `{flag} {value}` into spec.extraArgs."
                )
            if field.note:
                yield Note(field.note)
        elif field is not None and field.free_field and value is not None:
            yield SetField(_path(field.free_field), value)
            yield ClearArg(names)
        else:
            if field is not None:
                yield ClearField(_path(field.field))
            yield SetArg((flag, *(n for n in names if n != flag)), _words(field, value))

    def _drop_flag(self, flag: str) -> Iterator[Edit]:
        names = self._table.names_of(flag)
        yield from self._in_shell(names)
        if (field := self._field(flag)) is not None:
            if field.note and field_at(self._spec, _path(field.field)) is not None:
                yield Note(field.note)
            yield ClearField(_path(field.switched_by)[:-1] if field.switches else _path(field.field))
            if field.free_field:
                yield ClearField(_path(field.free_field))
        yield ClearArg(names)

    def _move(self, change: Change) -> Iterator[Edit]:
        now = self._now(change.name)
        if change.value is None:
            told = f" (now {now})" if now else ""
            yield Choice(f"{change.verb} {change.name}{told}: the value is yours to choose.")
        elif now is not None and _beyond(now, change.value, change.verb):
            yield Note(f"{change.name} is {now} already.")
        else:
            yield from self._set_flag(change.name, change.value)

    def _now(self, flag: str) -> str | None:
        """A flag's value in the manifest, else as the run resolved it."""
        given = value_of(words_at(self._spec, "extraArgs"), self._table.names_of(flag))
        if given is not None:
            return given
        field = self._field(flag)
        held = field_at(self._spec, _path(field.field)) if field is not None else None
        if held is not None:
            return str(held)
        told = self._facts.get(flag.lstrip("-").replace("-", "_"))
        return None if told == "none" else told

    def _set_env(self, name: str, value: str | None) -> Iterator[Edit]:
        for secret in self._table.secrets:
            if secret.name == name:
                yield Choice(f"{name}: put it into a Secret and name its key in spec.{secret.field}.")
                return
        if value is None or is_secret(name, value):
            yield Choice(f"the environment variable {name}: the value is yours to choose.")
            return
        yield SetEnv(name, value)

    def _image(self, wanted: str) -> Iterator[Edit]:
        if not wanted.startswith("-"):
            yield Choice(f"spec.image: {what_image(wanted)}.")
            return
        held = field_at(self._spec, ("image",))
        image = str(held) if held else self._default_image()
        fresh = retagged(image, wanted)
        if fresh is None:
            yield Choice(f"spec.image: {what_image(wanted)}, of the same release as now.")
            return
        if fresh == held:
            return
        if not held:
            yield Note(
                f"No image is named: {image} is taken as what runs now (the chart value "
                f"runtimeImages.{self._table.runtime} may name another)."
            )
        yield SetField(("image",), fresh)

    def _default_image(self) -> str:
        version = self._facts.get("sglang_version", "")
        repository, _, tag = self._table.default_image.partition(":")
        build = _CUDA_TAG.search(tag)
        return (
            f"{repository}:v{version}{build[0] if build else ''}"
            if _RELEASE.match(version)
            else self._table.default_image
        )

    def _pod(self, path: str, value: str | None) -> Iterator[Edit]:
        field = self._table.pod_field(path)
        if field is None:
            yield Choice(f"{path}: {self._table.kind} has no field for it.")
        elif value is None or field.type == "object" or (field.type == "int" and not value.isdecimal()):
            yield Choice(f"spec.{field.field} (for {path}): the value is yours to choose.")
        else:
            yield SetField(_path(field.field), int(value) if field.type == "int" else value)

    def _field(self, flag: str) -> Field | None:
        field = self._table.field_of(flag)
        return field if field is not None and (self._typed or not field.field.startswith("sglangConfig.")) else None

    def _works(self, field: Field) -> bool:
        """False for a field that the operator would not look at, its switch being off."""
        return not field.switched_by or field.switches or field_at(self._spec, _path(field.switched_by)) is True

    def _in_shell(self, names: Sequence[str]) -> Iterator[Edit]:
        for word in words_at(self._spec, "command"):
            if not word.startswith("--") and any(re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", word) for n in names):
                yield Choice(f"spec.command holds {names[0]} inside a shell line: change it there.")
                return


def _path(dotted: str) -> Path:
    return tuple(dotted.split("."))


def _words(field: Field | None, value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(value.split()) if field is not None and field.type in ("words", "pairs") else (value,)


def _beyond(now: str, wanted: str, verb: str) -> bool:
    """True when the present value is already at least as low (high) as the one wanted."""
    try:
        return float(now) <= float(wanted) if verb == "lower" else float(now) >= float(wanted)
    except ValueError:
        return False


def what_image(wanted: str) -> str:
    """An `image_tag` change in words."""
    if wanted.startswith("-"):
        return f"an image whose tag has {wanted}"
    if wanted == "newer":
        return "an image of a newer release"
    return f"an image of SGLang {wanted}" if wanted[:1] in "<>=!~" else f"the image {wanted}"


def needs_driver(branch: str, facts: Mapping[str, str]) -> str:
    """A `driver_branch` change in words, held against the driver where it is known."""
    text = f"The node needs an NVIDIA driver of branch {branch} or newer"
    now = facts.get("driver", "").partition(".")[0]
    if not (now.isdecimal() and branch.isdecimal()):
        return f"{text} (cat /proc/driver/nvidia/version)."
    return f"{text}; it has {facts['driver']}" + (", which is too old." if int(now) < int(branch) else ".")

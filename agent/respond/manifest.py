"""Finds an InferenceService among documents, edits a copy of it and tells the difference. Pure; sends nothing.

A difference comes as a JSON merge patch (RFC 7396), in which a list is always whole, and as a JSON patch (RFC 6902),
which names single items: the one to use where a list holds a secret that must not be repeated.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import yaml

from agent.detect.redact import REDACTED, redact
from agent.respond.arguments import with_flag, without
from agent.respond.edits import (
    ClearArg,
    ClearEnv,
    ClearField,
    Edit,
    SetArg,
    SetEnv,
    SetField,
    field_at,
    is_secret,
    words_at,
)
from agent.respond.fields import FieldTable

SIZE_LIMIT = 1 << 20
"""Bytes of a manifest that are read; the API server takes no more either."""

DEPTH_LIMIT = 64
ITEM_LIMIT = 200_000


class ManifestError(ValueError):
    """A manifest that cannot be patched; the text says why."""


def service_in(text: bytes, *, table: FieldTable) -> Mapping[str, Any]:
    """The one InferenceService of a YAML text (several documents, a List). Raises ManifestError."""
    if len(text) > SIZE_LIMIT:
        raise ManifestError(f"larger than {SIZE_LIMIT >> 20} MiB")
    try:
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(f"not valid YAML: {str(error).splitlines()[0]}") from None
    if not _bounded(documents):
        raise ManifestError("nested too deeply, or more than a manifest holds")
    found = [item for document in documents for item in _objects(document)]
    mine = [item for item in found if _is_service(item, table)]
    if len(mine) == 1:
        if not isinstance(mine[0].get("spec"), Mapping):
            raise ManifestError("the InferenceService has no spec")
        return mine[0]
    wanted = f"{table.kind} of {table.group}"
    if mine:
        raise ManifestError(f"holds {len(mine)} objects of the kind {wanted}; hand in one")
    kinds = sorted({f"{item.get('kind')} ({item.get('apiVersion')})" for item in found})
    raise ManifestError(f"holds no {wanted}" + (f", but {', '.join(kinds)[:200]}" if kinds else ""))


def _bounded(value: object) -> bool:
    """False for what aliases blow up or tie to itself."""
    level, seen = [value], 0
    for _ in range(DEPTH_LIMIT):
        if not level:
            return True
        seen += len(level)
        if seen > ITEM_LIMIT:
            return False
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return not level


def _objects(document: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, Mapping):
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            for item in items:
                yield from _objects(item)
        else:
            yield document


def _is_service(item: Mapping[str, Any], table: FieldTable) -> bool:
    return item.get("kind") == table.kind and str(item.get("apiVersion", "")).partition("/")[0] == table.group


_IMAGE = re.compile(r":v?(\d+(?:\.\d+){1,2}(?:\.?post\d+)?)(?:-cu(\d{2})(\d))?(?![\w.])")


def known_from(manifest: Mapping[str, Any], *, table: FieldTable) -> dict[str, str]:
    """What the manifest tells of the run: `sglang_version`, `cuda`, `gpu_arch`; only what it tells."""
    facts: dict[str, str] = {}
    spec = manifest.get("spec")
    image = field_at(spec, ("image",))
    if isinstance(image, str) and (found := _IMAGE.search(image)) and "sglang" in image:
        facts["sglang_version"] = found[1]
        if found[2]:
            facts["cuda"] = f"{found[2]}.{found[3]}"
    product = field_at(spec, ("nodeSelector", "nvidia.com/gpu.product"))
    if isinstance(product, str) and (arch := table.arch_of(product)):
        facts["gpu_arch"] = arch
    return facts


def edited(manifest: Mapping[str, Any], edits: Iterable[Edit]) -> dict[str, Any]:
    """A deep copy with the edits carried out; everything else stays as it is."""
    fresh: dict[str, Any] = copy.deepcopy(dict(manifest))
    spec = fresh.get("spec")
    if not isinstance(spec, dict):
        spec = fresh["spec"] = {}
    for edit in edits:
        match edit:
            case SetField(path, value):
                _set(spec, path, copy.deepcopy(value))
            case ClearField(path):
                _clear(spec, path)
            case SetArg(names, values):
                spec["extraArgs"] = with_flag(words_at(spec, "extraArgs"), names, *values)
            case ClearArg(names):
                for key in ("extraArgs", "command"):
                    before = words_at(spec, key)
                    after = without(before, names)
                    if after:
                        spec[key] = after if len(after) != len(before) else spec[key]
                    elif before:
                        del spec[key]
            case SetEnv(name, value):
                _set_env(spec, name, value)
            case ClearEnv(name):
                _clear_env(spec, name)
            case _:
                pass
    return fresh


def _set(spec: dict[str, Any], path: Sequence[str], value: object) -> None:
    at = spec
    for key in path[:-1]:
        if not isinstance(at.get(key), dict):
            at[key] = {}
        at = at[key]
    at[path[-1]] = value


def _clear(spec: dict[str, Any], path: Sequence[str]) -> None:
    at: Any = spec
    for key in path[:-1]:
        at = at.get(key) if isinstance(at, dict) else None
    if isinstance(at, dict):
        at.pop(path[-1], None)


def _set_env(spec: dict[str, Any], name: str, value: str) -> None:
    env = spec.get("env")
    entries = list(env) if isinstance(env, list) else []
    at = [i for i, e in enumerate(entries) if isinstance(e, Mapping) and e.get("name") == name]
    fresh = {"name": name, "value": value}
    if at:
        entries[at[0]] = fresh
        spec["env"] = [e for i, e in enumerate(entries) if i not in at[1:]]
    else:
        spec["env"] = [*entries, fresh]


def _clear_env(spec: dict[str, Any], name: str) -> None:
    env = spec.get("env")
    if isinstance(env, list):
        left = [e for e in env if not (isinstance(e, Mapping) and e.get("name") == name)]
        if left:
            spec["env"] = left
        elif env:
            del spec["env"]


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What makes `after` of `before` when merged in; empty where they are equal."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        held = before.get(key)
        if key in before and _same(held, value):
            continue
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            patch[key] = merge_patch(held, value)
        else:
            patch[key] = copy.deepcopy(value)
    return patch


def json_patch(before: object, after: object, *, at: str = "") -> list[dict[str, Any]]:
    """The same as single operations: first the `test` of each old value that is no secret, then the changes.

    List items are changed from the back, so that the numbers of the others stay right.
    """
    changes = list(_operations(before, after, at))
    tests: list[dict[str, Any]] = []
    for change in changes:
        if change["op"] in ("replace", "remove") and "old" in change:
            old = change.pop("old")
            if _same(masked(old), old):
                tests.append({"op": "test", "path": change["path"], "value": old})
    return [*tests, *changes]


def _operations(before: object, after: object, at: str) -> Iterator[dict[str, Any]]:
    if _same(before, after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key, value in before.items():
            where = f"{at}/{_pointer(key)}"
            if key not in after:
                yield {"op": "remove", "path": where, "old": value}
            else:
                yield from _operations(value, after[key], where)
        for key, value in after.items():
            if key not in before:
                yield {"op": "add", "path": f"{at}/{_pointer(key)}", "value": value}
    elif isinstance(before, list) and isinstance(after, list):
        hidden = _secret_items(before)
        for i1, i2, j1, j2 in reversed(_moved(before, after)):
            for i in reversed(range(i1, i2)):
                change: dict[str, Any] = {"op": "remove", "path": f"{at}/{i}"}
                yield change if i in hidden else {**change, "old": before[i]}
            for j in reversed(range(j1, j2)):
                yield {"op": "add", "path": f"{at}/{i1}", "value": after[j]}
    else:
        yield {"op": "replace", "path": at, "old": before, "value": after}


def _moved(before: list[Any], after: list[Any]) -> list[tuple[int, int, int, int]]:
    """The stretches that differ, as ranges of both lists, in order.

    Secrets that stay are matched first: an alignment that takes one out and puts it back would show it.
    """
    old, new = ([json.dumps(item, sort_keys=True, default=str) for item in side] for side in (before, after))
    kept_old, kept_new = sorted(_secret_items(before)), sorted(_secret_items(after))
    matcher = difflib.SequenceMatcher(a=[old[i] for i in kept_old], b=[new[j] for j in kept_new], autojunk=False)
    pairs = [
        (kept_old[block.a + n], kept_new[block.b + n])
        for block in matcher.get_matching_blocks()
        for n in range(block.size)
    ]
    stretches: list[tuple[int, int, int, int]] = []
    i = j = 0
    for next_i, next_j in [*pairs, (len(old), len(new))]:
        inner = difflib.SequenceMatcher(a=old[i:next_i], b=new[j:next_j], autojunk=False)
        stretches += [(i + i1, i + i2, j + j1, j + j2) for tag, i1, i2, j1, j2 in inner.get_opcodes() if tag != "equal"]
        i, j = next_i + 1, next_j + 1
    return stretches


def _secret_items(items: list[Any]) -> frozenset[int]:
    return frozenset(i for i, (item, shown) in enumerate(zip(items, masked(items), strict=True)) if item != shown)


def _pointer(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _same(one: object, other: object) -> bool:
    """Equal as JSON: 1, 1.0 and true are three values."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def masked(value: Any) -> Any:
    """The value with every secret covered: in text, behind a secret's flag, in the environment. Total."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        name, text = value.get("name"), value.get("value")
        if isinstance(name, str) and isinstance(text, str) and is_secret(name, text):
            return {**value, "value": REDACTED}
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, list):
        fresh = [masked(item) for item in value]
        for i, (flag, item) in enumerate(pairwise(value), 1):
            if isinstance(flag, str) and isinstance(item, str) and flag.startswith("--") and not item.startswith("--"):
                if redact(f"{flag} {item}") != f"{flag} {item}":
                    fresh[i] = REDACTED
        return fresh
    return value


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """The two specs as a unified diff of YAML, secrets covered; empty where nothing differs."""
    old, new = (dump({"spec": masked(side.get("spec"))}).splitlines() for side in (before, after))
    return tuple(difflib.unified_diff(old, new, "before", "after", lineterm=""))


class _Dumper(yaml.SafeDumper):
    """Writes a value that is there twice in full each time: an alias in a patch would puzzle its reader."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(value: object) -> str:
    """YAML in the order of the keys, nothing wrapped."""
    return yaml.dump(_plain(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

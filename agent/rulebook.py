"""Reads rule folders from disk: the packaged rules, then the user's. Judges nothing: `detect.rules` does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agent.detect.catalogue import Catalogue
from agent.detect.causes import Alternative, parse_causes
from agent.detect.rules import Rule, RuleError, parse_rules

XID_FILES = ("xid/catalogue.yaml", "xid/nvlink5.yaml")


def packaged_rules() -> Path:
    """The folder of the rules that come with Faultline: beside the package in a checkout, inside it when installed."""
    inside = Path(__file__).parent / "_rules"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "rules"


@dataclass(frozen=True)
class Rulebook:
    """All rules in force. A rule of a later folder takes the place of one with the same id."""

    rules: tuple[Rule, ...]
    alternatives: tuple[Alternative, ...]
    origins: dict[str, str]
    """Rule id -> file it was read from."""
    digest: str
    """Changes whenever any of the files does."""
    xid_files: tuple[Path, Path]

    @cached_property
    def catalogue(self) -> Catalogue:
        """The Xid catalogue; read at first use."""
        texts = [path.read_bytes() for path in self.xid_files]
        return Catalogue.from_yaml(*texts, files=tuple(str(p) for p in self.xid_files))


def load_rulebook(folders: Sequence[Path] = (), *, thorough: bool = False) -> Rulebook:
    """The packaged rules and those of `folders`, in this order.

    The user's files are always checked thoroughly (expressions, examples), the packaged ones where `thorough` is set.
    Raises RuleError: a file that cannot be read or used, or an id twice in one folder.
    """
    rules: dict[str, Rule] = {}
    alternatives: dict[str, Alternative] = {}
    origins: dict[str, str] = {}
    digest = hashlib.blake2b(digest_size=8)
    base = packaged_rules()
    xids = tuple(base / name for name in XID_FILES)
    for folder in (base, *folders):
        here: set[str] = set()
        for path in _files(folder):
            name = str(path.relative_to(folder))
            text = _read(path)
            digest.update(name.encode() + b"\0" + text)
            if name in XID_FILES:
                xids = tuple(path if known.name == path.name else known for known in xids)
                continue
            found: Iterable[Rule | Alternative]
            if name.startswith("causes/"):
                found = parse_causes(text, file=str(path))
            else:
                found = parse_rules(text, file=str(path), thorough=thorough or folder is not base)
            for item in found:
                if item.id in here:
                    raise RuleError(str(path), f"the id {item.id} is there twice in {folder}", key="id")
                here.add(item.id)
                origins[item.id] = str(path)
                if isinstance(item, Rule):
                    rules[item.id] = item
                else:
                    alternatives[item.id] = item
    return Rulebook(
        rules=tuple(rules.values()),
        alternatives=tuple(alternatives.values()),
        origins=origins,
        digest=digest.hexdigest(),
        xid_files=(xids[0], xids[1]),
    )


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise RuleError(str(folder), "no such folder of rules")
    return sorted(p for p in folder.rglob("*.yaml") if not any(part.startswith(".") for part in p.parts))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RuleError(str(path), f"cannot be read: {error.strerror}") from None

"""Reads rule folders from disk: the packaged rules, then the user's. Judges nothing: `detect.rules` does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from agent.detect.causes import Alternative, parse_causes
from agent.detect.literals import choose_anchors
from agent.detect.rules import Rule, RuleError, parse_rules
from agent.diagnose.image import ImageTable, parse_table
from agent.rulecache import ParsedRules, cached_rules, keep_rules

if TYPE_CHECKING:
    from agent.detect.catalogue import Catalogue
    from agent.respond.fields import FieldTable

ORDINARY = "ordinary/serving.log"
"""What healthy servers print: no anchor may be a fragment of it."""

XID_FILES = ("xid/catalogue.yaml", "xid/nvlink5.yaml")
FIELD_FILE = "llmkube/fields.yaml"
IMAGE_FILE = "image/cuda-driver.yaml"
NO_RULES = (*XID_FILES, FIELD_FILE, IMAGE_FILE)
"""Files in a rule folder that hold something else, each read by whoever needs it. A user's replaces ours as a whole."""


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
    field_file: Path
    image_file: Path
    anchors: tuple[bytes, ...] = ()
    """Fragments that the literals share (`detect.literals`)."""

    @cached_property
    def catalogue(self) -> Catalogue:
        """The Xid catalogue; read at first use."""
        from agent.detect.catalogue import Catalogue

        texts = [_read(path) for path in self.xid_files]
        return Catalogue.from_yaml(*texts, files=tuple(str(p) for p in self.xid_files))

    @cached_property
    def images(self) -> ImageTable:
        """Which CUDA needs which driver; read at first use. Raises RuleError."""
        return parse_table(_read(self.image_file), file=str(self.image_file))

    def check_tables(self) -> None:
        """Reads and checks now what judging needs beside the rules, so that no later change of a file breaks it.

        Raises RuleError. What was read stays with this book; the table of fields is no part of judging.
        """
        self.catalogue.check()
        _ = self.images

    @cached_property
    def field_table(self) -> FieldTable:
        """The fields of the InferenceService; read at first use. Raises RuleError."""
        from agent.respond.fields import FieldTable

        return FieldTable.from_yaml(_read(self.field_file), file=str(self.field_file))


def load_rulebook(folders: Sequence[Path] = (), *, thorough: bool = False) -> Rulebook:
    """The packaged rules and those of `folders`, in this order.

    The user's files are always checked thoroughly (expressions, examples), the packaged ones where `thorough` is set.
    Raises RuleError: a file that cannot be read or used, or an id twice in one folder.
    """
    base = packaged_rules()
    files = [(folder, path, _read(path)) for folder in (base, *folders) for path in _files(folder)]
    ordinary = _read(base / ORDINARY)
    digest = hashlib.blake2b(ordinary, digest_size=12)
    for _, path, text in files:
        digest.update(f"{path}\0{len(text)}\0".encode() + text)
    latest = {name: base / name for name in NO_RULES}
    for folder, path, text in files:
        if (name := str(path.relative_to(folder))) in latest:
            latest[name] = path
            if name == IMAGE_FILE and (thorough or folder is not base):
                parse_table(text, file=str(path))
    read = None if thorough else cached_rules(digest.hexdigest())
    if read is None:
        read = _parsed(base, files, ordinary=ordinary, thorough=thorough)
        if not thorough:
            keep_rules(digest.hexdigest(), read)
    return Rulebook(
        rules=read.rules,
        alternatives=read.alternatives,
        origins=read.origins,
        digest=digest.hexdigest(),
        xid_files=(latest[XID_FILES[0]], latest[XID_FILES[1]]),
        field_file=latest[FIELD_FILE],
        image_file=latest[IMAGE_FILE],
        anchors=read.anchors,
    )


def _parsed(base: Path, files: Iterable[tuple[Path, Path, bytes]], *, ordinary: bytes, thorough: bool) -> ParsedRules:
    rules: dict[str, Rule] = {}
    alternatives: dict[str, Alternative] = {}
    origins: dict[str, str] = {}
    for folder, group in groupby(files, key=lambda f: f[0]):
        here: set[str] = set()
        for _, path, text in group:
            name = str(path.relative_to(folder))
            if name in NO_RULES:
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
    texts = [t for r in rules.values() for t in r.literals] + [h for a in alternatives.values() for h in a.hints]
    anchors = choose_anchors((t.encode() for t in texts), ordinary=ordinary)
    return ParsedRules(tuple(rules.values()), tuple(alternatives.values()), origins, anchors)


def _files(folder: Path) -> list[Path]:
    try:
        if not folder.is_dir():
            raise RuleError(str(folder), "no such folder of rules")
        return sorted(
            p for p in folder.rglob("*.yaml") if not any(part.startswith(".") for part in p.relative_to(folder).parts)
        )
    except OSError as error:  # a folder on the way that may not be entered
        raise RuleError(str(folder), f"cannot be read: {error.strerror}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RuleError(str(path), f"cannot be read: {error.strerror}") from None

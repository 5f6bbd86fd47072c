"""Keeps parsed rules between two runs, so that `explain` starts fast. Only a cache: without it a start is slower."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from agent import __version__
from agent.detect.causes import Alternative
from agent.detect.rules import Rule

KEPT = 8
"""Files kept: versions and sets of rule folders in use side by side."""


class ParsedRules(msgspec.Struct, frozen=True):
    """What the rule files said, checked."""

    rules: tuple[Rule, ...]
    alternatives: tuple[Alternative, ...]
    origins: dict[str, str]
    anchors: tuple[bytes, ...] = ()


def cached_rules(digest: str) -> ParsedRules | None:
    """The rules parsed earlier from files of this digest; None where there are none that can be trusted."""
    path = _path(digest)
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.getuid() or about.st_mode & 0o022:
                return None  # another user could have put anything there
            return msgspec.msgpack.decode(file.read(), type=ParsedRules)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def keep_rules(digest: str, parsed: ParsedRules) -> None:
    """Writes the cache; a folder that cannot be written is no error."""
    path = _path(digest)
    fresh = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.write_bytes(msgspec.msgpack.encode(parsed))
        fresh.chmod(0o600)
        fresh.replace(path)
        for old in sorted(path.parent.glob("rules-*"), key=lambda p: p.stat().st_mtime)[:-KEPT]:
            old.unlink()


def _path(digest: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # The form of a rule is part of the key: a checkout in which it changed must not read yesterday's.
    form = hashlib.blake2b(
        repr([(k, f) for k in (Rule, Alternative, ParsedRules) for f in k.__struct_fields__]).encode()
    )
    return Path(base) / "faultline" / f"rules-{__version__}-{form.hexdigest()[:8]}-{digest}"

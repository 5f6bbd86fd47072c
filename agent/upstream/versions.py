"""Orders SGLang's version numbers and reads the bounds that rules give; an odd version sorts before all others."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

Version = tuple[tuple[int, ...], int]

_VERSION = re.compile(r"v?(?P<release>\d+(?:\.\d+)*)(?:\.?(?P<kind>rc|post|dev|a|b)(?P<n>\d*))?(?:\+.*)?\Z")
_BOUND = re.compile(r"(?P<op>>=|<=|==|!=|>|<)\s*(?P<version>[\w.+]+)\Z")


def version_of(text: str) -> Version:
    """`0.5.15.post1` sorts after `0.5.15`, `0.5.4rc1` before `0.5.4`."""
    found = _VERSION.match(text.strip())
    if found is None:
        return (), 0
    release = tuple(int(part) for part in found["release"].split("."))
    number = int(found["n"] or 0) + 1
    return release, {"post": number, None: 0}.get(found["kind"], -1_000_000 + number)


def within(version: str, bounds: str) -> bool:
    """True when `version` satisfies all of `bounds` (``>=0.5.4,<0.5.20``; empty: any). An odd bound holds for none."""
    ours = version_of(version)
    for part in filter(None, (p.strip() for p in bounds.split(","))):
        found = _BOUND.match(part)
        if found is None:
            return False
        theirs = version_of(found["version"])
        order = (ours > theirs) - (ours < theirs)
        allowed = {">=": (0, 1), "<=": (0, -1), "==": (0,), "!=": (1, -1), ">": (1,), "<": (-1,)}[found["op"]]
        if order not in allowed:
            return False
    return True


def bounds_of(alive: Collection[str], checked: Sequence[str]) -> str:
    """The narrowest bounds that hold every version of `alive`; those beyond the checked ones stay open.

    The oldest checked version is written as a lower bound (nothing is known below it), the newest never as an upper
    one. Empty when `alive` is: a text that was found nowhere has no bounds.
    """
    if not alive:
        return ""
    ordered = sorted(checked, key=version_of)
    first, last = min(alive, key=version_of), max(alive, key=version_of)
    return f">={first}" if last == ordered[-1] else f">={first},<={last}"

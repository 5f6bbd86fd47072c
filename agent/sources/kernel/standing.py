"""Reads from /proc what this process is allowed; decides nothing."""

from __future__ import annotations

import os
from pathlib import Path

from agent.sources.kernel.cure import Standing


def read_standing(proc: str = "/proc/self") -> Standing:
    """The standing of this process. What cannot be read counts as not granted."""
    capabilities = 0
    for line in _text(f"{proc}/status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            try:
                capabilities = int(value, 16)
            except ValueError:
                capabilities = 0
    uid_map = _text(f"{proc}/uid_map").split()
    return Standing(
        euid=os.geteuid(),
        capabilities=capabilities,
        user_namespace=bool(uid_map) and uid_map != ["0", "0", "4294967295"],
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

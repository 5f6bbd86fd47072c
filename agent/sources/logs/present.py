"""Which containers have a log directory now, by one look at the tree; it must never open a log."""

from __future__ import annotations

import os
from pathlib import Path

from agent.sources.logs.paths import container_ref, pod_dir


def present(root: Path) -> frozenset[str] | None:
    """`ContainerRef.key` of each container below `root`; None where not all of the tree can be looked at."""
    keys: set[str] = set()
    try:
        for name in os.listdir(root):
            if (pod := pod_dir(name)) is not None:
                found = (container_ref(pod, inner) for inner in os.listdir(root / name))
                keys |= {ref.key for ref in found if ref is not None}
    except OSError:
        return None
    return frozenset(keys)

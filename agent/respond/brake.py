"""How many nodes of the cluster may carry a mark at once. Pure: counts come in, a reason comes out."""

from __future__ import annotations

from collections.abc import Collection


def share_of(limit: str) -> int | None:
    """The percentage of a limit like ``10%``; None for a plain number."""
    return int(limit[:-1]) if limit.endswith("%") else None


def most(limit: str, *, gpu_nodes: int | None) -> int | None:
    """How many nodes may be marked by a limit (``3``, ``10%``); None where a share is asked of an unknown number.

    A share never forbids the first mark: one faulted GPU in a small cluster is what this agent is for.
    """
    share = share_of(limit)
    if share is None:
        return int(limit)
    return None if not gpu_nodes else max(1, gpu_nodes * share // 100)


def brake(limit: str, *, node: str, marked: Collection[str], gpu_nodes: int | None, selector: str) -> str:
    """Why this node may not carry a mark; empty where it may. `marked` are the names of all nodes that do.

    Asked before a mark is set, and once more after, of a list read since: of agents that act in the same moment the
    last one then sees all others, so that those who keep their marks are never more than the limit.
    """
    allowed = most(limit, gpu_nodes=gpu_nodes)
    if allowed is None:
        return f"brake: no node carries the label {selector}, so that {limit} of the GPU nodes is unknown"
    others = len(set(marked) - {node})
    if others < allowed:
        return ""
    of = f" ({limit} of {gpu_nodes} GPU nodes)" if share_of(limit) is not None else ""
    return f"brake: {others} other nodes are marked and {allowed} may be{of}"

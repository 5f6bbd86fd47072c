"""Follows the ResourceSlices of this node, so that a GPU's DRA device is known. Reads only.

``spec.nodeName`` is one of the two field selectors that the API has for slices (``spec.driver`` is the other).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent.kube.client import KubeClient
from agent.kube.watch import Changed, Listed, Watch
from agent.slices import KnownDevices

MAX_SLICES = 1024


class SliceSource:
    """Keeps ``known`` up to date while :meth:`run` runs. ``error`` says why it is blind now."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        known: KnownDevices,
        clock: Callable[[], float],
        version: str = "v1",
        on_change: Callable[[], None] = lambda: None,
        watch: Watch | None = None,
    ) -> None:
        self.known = known
        self._node, self._on_change = node, on_change
        self._watch = watch or Watch(
            client,
            f"/apis/resource.k8s.io/{version}/resourceslices",
            params={"fieldSelector": f"spec.nodeName={node}"},
            clock=clock,
        )
        self._slices: dict[str, dict[str, Any]] = {}

    @property
    def error(self) -> str:
        return self._watch.error

    async def run(self) -> None:
        async for change in self._watch.changes():
            self.take(change)

    def take(self, change: Listed | Changed) -> None:
        if isinstance(change, Listed):
            self._slices = {_name(s): s for s in change.items[:MAX_SLICES]}
        elif change.kind == "DELETED":
            self._slices.pop(_name(change.object), None)
        elif _name(change.object) in self._slices or len(self._slices) < MAX_SLICES:
            self._slices[_name(change.object)] = change.object
        self.known.update(self._slices.values(), node=self._node)
        self._on_change()


def _name(obj: dict[str, Any]) -> str:
    meta = obj.get("metadata")
    return str(meta.get("name") or "") if isinstance(meta, dict) else ""

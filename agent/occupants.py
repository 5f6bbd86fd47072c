"""Who runs on this node and holds which GPU: the pods' feed and the kubelet's PodResources, joined. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from agent.model import Allocation
from agent.sources.kubelet.pod_resources import PodResourcesSource
from agent.sources.podfeed import KnownPods, PodFeed

ASK_SECONDS = 30.0
"""How often the kubelet is asked who holds what while no pod changes: there is no watch for it."""

ASK_AGAIN_SECONDS = 2.0
"""The same while its answer is not believed: for a second after its start the kubelet names nobody."""


class Occupants:
    """The pods and the holders of one node. `run` returns only when it is cancelled."""

    def __init__(
        self,
        *,
        feed: PodFeed | None,
        socket: str,
        driver: str,
        held: Callable[[Iterable[Allocation]], None],
        resolve: Callable[[str], str],
        on_pods: Callable[[], None],
        on_look: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`socket` is PodResources'; empty: not asked. `resolve` names a DRA device's GPU, or gives its id back."""
        self.feed = feed
        self.pods = feed.known if feed is not None else KnownPods()
        self.holders = PodResourcesSource(path=socket, uid_of=self.pods.uid_of, driver=driver) if socket else None
        self._held, self._resolve, self._on_pods, self._clock = held, resolve, on_pods, clock
        self._on_look = on_look
        self._changed = asyncio.Event()
        self._told: tuple[Allocation, ...] = ()

    def allocatable(self) -> frozenset[str] | None:
        """Ids of the devices that the device plugin calls healthy; None where the kubelet does not tell."""
        return self.holders.allocatable() if self.holders is not None else None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self.feed is not None:
                group.create_task(self._follow_pods(self.feed), name="pods")
            if self.holders is not None:
                group.create_task(self._ask_holders(self.holders), name="holders")

    async def _follow_pods(self, feed: PodFeed) -> None:
        async for _ in feed.changes():
            self._changed.set()
            self._on_pods()

    async def _ask_holders(self, source: PodResourcesSource) -> None:
        while True:
            self._changed.clear()
            found = await source.read(self._clock())
            if found is not None:
                self._told = found
            # Told anew even when nothing changed there: which GPU a DRA device is may have become known.
            told = [replace(a, devices=tuple(self._resolve(d) for d in a.devices)) for a in self._told]
            if told:
                self._held(told)
            self._on_look()
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_SECONDS if source.ask_again else ASK_SECONDS):
                    await self._changed.wait()
                    await asyncio.sleep(ASK_AGAIN_SECONDS / 4)  # pods come in groups

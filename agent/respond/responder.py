"""Makes the cluster agree with the plans: reads the node, counts the fleet, sends the PATCH. Decides nothing.

One turn reads what is there, asks the pure parts what should be, and sends the difference. A turn that was cut short
anywhere is simply begun again: what stands in the cluster is the state, not what this process remembers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from agent.kube.backoff import Backoff
from agent.kube.client import KubeClient, KubeError, Patch, RefusedError
from agent.model import Fault, Plan
from agent.respond.brake import brake, share_of
from agent.respond.marks import (
    KEY,
    MANAGER,
    RELEASE,
    Json,
    Mark,
    NodeView,
    Record,
    condition_patch,
    mark_for,
    node_patch,
    record_of,
)

log = logging.getLogger("faultline")

CONFLICT_TRIES = 8
"""The kubelet and controllers rewrite nodes often: a 409 is ordinary, and another look settles it."""

FLEET_SECONDS = 3600.0
"""How long the number of GPU nodes of the cluster is taken for known."""

BRAKED_SECONDS = 60.0
"""How often a mark that the brake holds back is tried again, on average."""

STEPPED_BACK_SECONDS = 4.0

PAGE = 500


class Brain(Protocol):
    """Who knows what is wrong and what is planned for it. Every answer is about this moment."""

    def faults(self) -> Sequence[Fault]: ...
    def plans(self) -> Sequence[Plan]: ...
    def blind(self) -> str:
        """Why the kernel log cannot be read; empty when it can."""
        ...

    def settled(self) -> bool:
        """False until the kernel log was read to its end: until then no mark is taken back."""
        ...

    def braked(self, why: str) -> None:
        """Why no further node may be marked now; plans follow it at once."""
        ...

    def found(self, record: Record) -> None:
        """A mark that stands on the node; its faults are taken up when they are not known."""
        ...

    def release(self, asked: str) -> None:
        """A person says that these faults are over."""
        ...

    def marked(self, record: Record | None, mark: Mark) -> None:
        """What stands on the node now, after each turn."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings that a turn needs."""

    max_marked: str
    gpu_nodes: str
    heartbeat: float


class Responder:
    """One node's marks. `run` never returns; it waits to be woken, for a heartbeat, or to try again."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        boot: str,
        brain: Brain,
        limits: Callable[[], Limits],
        clock: Callable[[], float],
        devices: Callable[[Mark, NodeView], Awaitable[None]] | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """`devices` makes the devices' own taints agree with a mark, where there is a way to."""
        self.error = ""
        """Why the last turn could not be finished; empty when it was."""
        self.errors = 0
        self.writes = 0
        self.conflicts = 0
        self.braked = ""
        """Why this node is not marked although a plan asks for it."""
        self._client, self._node, self._boot, self._brain = client, node, boot, brain
        self._limits, self._clock, self._devices = limits, clock, devices
        self._backoff = backoff or Backoff(first=0.2, limit=30.0)
        self._wake = asyncio.Event()
        self._seen: NodeView | None = None
        self._fleet: tuple[float, str, int] | None = None
        self._adopted = False
        self._again = BRAKED_SECONDS
        self.turned = asyncio.Event()
        """Set after each finished turn; for who waits for one."""

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self._node}"

    @property
    def seen(self) -> NodeView | None:
        """The node as last read; None before, and after an error."""
        return self._seen

    def wake(self) -> None:
        """Something changed: a fault, a plan, a setting."""
        self._wake.set()

    def observed(self, node: Json) -> None:
        """The node as a watch shows it."""
        view = NodeView.of(node)
        before, self._seen = self._seen, view
        # The kubelet's status comes every few seconds; only what a mark is made of is worth a turn.
        if before is None or _marks_of(before) != _marks_of(view):
            self._wake.set()

    async def run(self) -> None:
        """Turns for ever."""
        while True:
            self._wake.clear()
            wait = await self.turn()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
                if self.error:
                    # Woken while the server is away: what woke us waits as well, but not for the whole of it.
                    await asyncio.sleep(min(wait, 1.0))

    async def turn(self) -> float:
        """One look and one set of changes; how many seconds until the next look at the latest."""
        try:
            await self._turn()
        except KubeError as error:
            if self.error != str(error):
                log.warning("the marks of this node cannot be seen to: %s", error)
            self.error = str(error)
            self.errors += 1
            self._seen = None
            return self._backoff.failed(retry_after=error.retry_after)
        if self.error:
            log.info("the marks of this node are seen to again")
        self.error = ""
        self._backoff.succeeded()
        self.turned.set()
        return self._again * (0.5 + self._backoff.chance()) if self.braked else self._limits().heartbeat / 2

    async def _turn(self) -> None:
        node = self._seen or await self._read()
        if (record := record_of(node.annotations)) is not None and not self._adopted:
            self._brain.found(record)
        self._adopted = self._brain.settled()
        asked = str(node.annotations.get(RELEASE) or "")
        if asked:
            self._brain.release(asked)
        self._brain.braked("")
        self.braked, self._again = "", BRAKED_SECONDS
        mark = self._mark()
        if mark.means and not node.marked:
            self.braked = await self._brake(fresh=False)
            self._brain.braked(self.braked)
            mark = self._mark()
        fresh = bool(mark.means) and not node.marked
        node, mark = await self._carry(node, mark, released=bool(asked))
        if fresh and mark.means and (why := await self._brake(fresh=True)):
            # Others acted in the same moment. Who stepped back tries again at a moment of its own.
            self.braked = why
            self._again = STEPPED_BACK_SECONDS
            self._brain.braked(why)
            node, mark = await self._carry(node, self._mark(), released=False)
        if self._devices is not None:
            await self._devices(mark, node)
        await self._tell_condition(node)
        self._brain.marked(record_of(node.annotations), mark)

    def _mark(self) -> Mark:
        return mark_for(self._brain.plans(), {f.id: f for f in self._brain.faults()})

    async def _carry(self, node: NodeView, mark: Mark, *, released: bool) -> tuple[NodeView, Mark]:
        """Makes the node carry the mark; the node as it is then, and the mark that it carries."""
        for attempt in range(CONFLICT_TRIES):
            if not mark.means and node.marked and not self._brain.settled():
                return node, mark  # the fault behind it may not have been read yet
            body = node_patch(node, mark, now=self._clock(), boot=self._boot, released=released)
            if body is None:
                return node, mark
            try:
                answer = await self._client.patch(
                    self.path, body, kind=Patch.STRATEGIC, params={"fieldManager": MANAGER}
                )
            except RefusedError as error:
                # 403: admission compares with the newest object; a list made from an older one looks like a theft.
                stale = error.status == 409 or (error.status == 403 and attempt == 0 and "spec" in body)
                if not stale or attempt == CONFLICT_TRIES - 1:
                    raise
                self.conflicts += 1
                if attempt > 1:
                    await asyncio.sleep(self._backoff.chance() * 0.05 * attempt)
                node = await self._read()
                mark = self._mark()
                continue
            self.writes += 1
            node = self._seen = NodeView.of(answer)
            return node, mark
        raise AssertionError("the last try returns or raises")

    async def _tell_condition(self, node: NodeView) -> None:
        body = condition_patch(
            node, self._brain.faults(), now=self._clock(), heartbeat=self._limits().heartbeat, blind=self._brain.blind()
        )
        if body is not None:
            answer = await self._client.patch(f"{self.path}/status", body, kind=Patch.STRATEGIC)
            self.writes += 1
            self._seen = NodeView.of(answer)

    async def _read(self) -> NodeView:
        self._seen = NodeView.of(await self._client.get(self.path))
        return self._seen

    async def _brake(self, *, fresh: bool) -> str:
        """Why this node may not be marked; a fleet that cannot be counted holds a mark back, too.

        A `fresh` count holds all that was written before it: up to 100 ms in which the server's cache catches up with
        writes of any kind. The count before a mark need not wait for that, since the one after it is fresh.
        """
        limits = self._limits()
        params = {"labelSelector": KEY} | ({} if fresh else {"resourceVersion": "0"})
        try:
            listed = await self._client.metadata("/api/v1/nodes", params=params)
            marked = [str((item.get("metadata") or {}).get("name")) for item in listed.get("items") or ()]
            gpus = await self._gpu_nodes(limits) if share_of(limits.max_marked) is not None else None
        except KubeError as error:
            return f"brake: the marked nodes cannot be counted ({error})"
        return brake(limits.max_marked, node=self._node, marked=marked, gpu_nodes=gpus, selector=limits.gpu_nodes)

    async def _gpu_nodes(self, limits: Limits) -> int:
        now = self._clock()
        if self._fleet is not None and self._fleet[1] == limits.gpu_nodes and 0 <= now - self._fleet[0] < FLEET_SECONDS:
            return self._fleet[2]
        count, after = 0, ""
        while True:
            params = {"labelSelector": limits.gpu_nodes, "limit": str(PAGE)} | ({"continue": after} if after else {})
            page = await self._client.metadata("/api/v1/nodes", params=params)
            count += len(page.get("items") or ())
            after = str((page.get("metadata") or {}).get("continue") or "")
            if not after:
                break
        self._fleet = (now, limits.gpu_nodes, count)
        return count


def _marks_of(node: NodeView) -> tuple[object, ...]:
    ours = {k: v for k, v in node.annotations.items() if k in (KEY, RELEASE)}
    return (
        node.taints,
        ours,
        node.labels.get(KEY),
        node.unschedulable,
        node.cordoners,
        node.uid,
        node.capacity,
        node.allocatable,
    )

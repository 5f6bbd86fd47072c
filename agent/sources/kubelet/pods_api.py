"""The pods of this node from the kubelet's Pods API (1.37 on): no right in the cluster is needed. Reads one socket.

The kubelet sends core/v1 Pods as protobuf. The table below gives the fields that :mod:`agent.pods` reads the names they
have in the API's JSON, so that both ways make the same pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agent.kube.backoff import Backoff
from agent.pods import Pod, pod_of
from agent.sources.kubelet.grpc import CallError, Stream, stream
from agent.sources.kubelet.wire import Field, Kind, Table, WireError, read
from agent.sources.podfeed import KnownPods, PodChange

WATCH = "/v1alpha1.Pods/WatchPods"

GRACE_SECONDS = 30.0
"""How long after a new start of the feed a pod that it did not name again is still believed in."""

UNSERVED_SECONDS = 300.0
"""Until a kubelet that has no Pods API is asked again: an upgrade may bring it."""

_CONTAINER: Table = {
    1: Field("name"),
    2: Field("image"),
    3: Field("command", many=True),
    4: Field("args", many=True),
    8: Field("resources", {1: Field("limits", Kind.QUANTITY_MAP), 3: Field("claims", {1: Field("name")}, many=True)}),
}
_TERMINATED: Table = {
    1: Field("exitCode", Kind.NUMBER),
    2: Field("signal", Kind.NUMBER),
    3: Field("reason"),
    4: Field("message"),
    6: Field("finishedAt", Kind.TIME),
}
_STATE: Table = {2: Field("running", {1: Field("startedAt", Kind.TIME)}), 3: Field("terminated", _TERMINATED)}
_HEALTH: Table = {1: Field("resourceID"), 2: Field("health"), 6: Field("message")}
_CONTAINER_STATUS: Table = {
    1: Field("name"),
    2: Field("state", _STATE),
    3: Field("lastState", _STATE),
    4: Field("ready", Kind.FLAG),
    5: Field("restartCount", Kind.NUMBER),
    6: Field("image"),
    8: Field("containerID"),
    14: Field("allocatedResourcesStatus", {1: Field("name"), 2: Field("resources", _HEALTH, many=True)}, many=True),
}
_OWNER: Table = {
    1: Field("kind"),
    3: Field("name"),
    4: Field("uid"),
    5: Field("apiVersion"),
    6: Field("controller", Kind.FLAG),
}
_META: Table = {
    1: Field("name"),
    3: Field("namespace"),
    5: Field("uid"),
    8: Field("creationTimestamp", Kind.TIME),
    9: Field("deletionTimestamp", Kind.TIME),
    11: Field("labels", Kind.TEXT_MAP),
    12: Field("annotations", Kind.TEXT_MAP),
    13: Field("ownerReferences", _OWNER, many=True),
}
_SPEC: Table = {
    2: Field("containers", _CONTAINER, many=True),
    10: Field("nodeName"),
    20: Field("initContainers", _CONTAINER, many=True),
    39: Field("resourceClaims", {1: Field("name"), 3: Field("resourceClaimName")}, many=True),
}
_STATUS: Table = {
    1: Field("phase"),
    3: Field("message"),
    4: Field("reason"),
    8: Field("containerStatuses", _CONTAINER_STATUS, many=True),
    10: Field("initContainerStatuses", _CONTAINER_STATUS, many=True),
    15: Field("resourceClaimStatuses", {1: Field("name"), 2: Field("resourceClaimName")}, many=True),
    18: Field("extendedResourceClaimStatus", {2: Field("resourceClaimName")}),
}
_POD: Table = {1: Field("metadata", _META), 2: Field("spec", _SPEC), 3: Field("status", _STATUS)}
_EVENT: Table = {1: Field("type", Kind.NUMBER), 2: Field("pod", Kind.BYTES)}

_ADDED, _MODIFIED, _DELETED, _SYNCED = 1, 2, 3, 4


def pod_of_wire(data: bytes) -> Pod | None:
    """The pod of a core/v1 Pod as protobuf, the same as of its JSON; None for anything that names no pod."""
    try:
        return pod_of(read(data, _POD))
    except WireError:
        return None


async def _next(answers: AsyncIterator[bytes]) -> bytes | None:
    return await anext(answers, None)


class PodsApi:
    """A feed of this node's pods. ``error`` says why it is blind now, ``unserved`` that the kubelet has no such API."""

    def __init__(
        self,
        path: str,
        *,
        connect: Stream = stream,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self.path = path
        self.error = ""
        self.cure = ""
        self.errors = 0
        self.synced = False
        self.unserved = False
        self.known = KnownPods()
        self._connect, self._sleep, self._grace = connect, sleep, grace
        self._backoff = backoff or Backoff(first=0.5, limit=30.0)

    async def changes(self) -> AsyncIterator[PodChange]:
        """How the node's pods change, for ever; waits and begins anew after each error."""
        while True:
            try:
                async for change in self._watch():
                    yield change
                raise CallError(f"{self.path}: the kubelet ended the watch")
            except (CallError, WireError) as error:
                if isinstance(error, WireError):
                    error = CallError(
                        f"{self.path}: an answer that is not understood: {error}",
                        cure="see that this is the kubelet's own socket",
                    )
                self.synced = False
                self.errors += 1
                self.error, self.cure, self.unserved = str(error), error.cure, error.unserved
                wait = self._backoff.failed(retry_after=UNSERVED_SECONDS if self.unserved else None)
                await self._sleep(wait)

    async def _watch(self) -> AsyncIterator[PodChange]:
        answers = self._connect(self.path, WATCH, b"")
        present: set[str] = set()
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        waiting = asyncio.ensure_future(_next(answers))
        try:
            while True:
                # The pending read is never cancelled by the grace's end, only looked away from.
                left = None if deadline is None else max(0.0, deadline - loop.time())
                done, _ = await asyncio.wait({waiting}, timeout=left)
                if deadline is not None and (not done or loop.time() >= deadline):
                    deadline = None
                    for pod in self.known.missing(present):
                        if change := self.known.gone(pod):
                            yield change
                if not done:
                    continue
                if (answer := waiting.result()) is None:
                    return
                waiting = asyncio.ensure_future(_next(answers))
                kind, found = self._event(answer)
                if kind == _SYNCED:
                    self.synced = True
                    deadline = loop.time() + self._grace
                if found is None:
                    continue
                if kind == _DELETED:
                    present.discard(found.uid)
                    change = self.known.gone(found)
                else:
                    if deadline is not None or not self.synced:
                        present.add(found.uid)
                    change = self.known.seen(found)
                if change:
                    yield change
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            close: Any = getattr(answers, "aclose", None)
            if close is not None:
                await close()

    def _event(self, answer: bytes) -> tuple[int, Pod | None]:
        event = read(answer, _EVENT)
        self.error = self.cure = ""
        self.unserved = False
        self._backoff.succeeded()
        kind = event.get("type", 0)
        if kind not in (_ADDED, _MODIFIED, _DELETED):
            return kind, None
        pod = pod_of_wire(event.get("pod", b""))
        if pod is None:
            self.errors += 1
            self.error = f"{self.path}: a pod that is not understood"
        return kind, pod

"""Follows a list of objects through the API server: one LIST, then a WATCH, begun anew where it breaks."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from agent.kube.backoff import Backoff
from agent.kube.client import Json, KubeClient, KubeError, RefusedError, UnreachableError

LINE_BYTES = 8 << 20
"""A watch event longer than this ends the watch; etcd holds objects of 1.5 MiB at most."""

LASTING_SECONDS = 1.0
"""A watch that ends sooner, without an event, has failed, whatever its status: it must not be begun anew at once."""

GIVE_UP_SECONDS = 30.0
"""Beyond what was asked for: the server ends a watch itself, a dead connection does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Every object there is; what was known before and is not in it is gone."""

    items: tuple[Json, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Json


class Watch:
    """One followed list. ``error`` says why it is blind now, empty while it is read."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        clock: Callable[[], float],
        backoff: Backoff | None = None,
        sleep: Callable[[float], object] = asyncio.sleep,
    ) -> None:
        self.path = path
        self.error = ""
        self.errors = 0
        self.last_read: float | None = None
        self._client, self._params, self._clock = client, dict(params or {}), clock
        self._backoff = backoff or Backoff(first=1.0)
        self._sleep = sleep
        self._version = ""

    async def changes(self) -> AsyncGenerator[Listed | Changed]:
        """What the list holds and how it changes, for ever; waits and begins anew after each error."""
        while True:
            try:
                if not self._version:
                    listed = await self._client.get(self.path, params=self._params | {"resourceVersion": "0"})
                    self._version = _version(listed)
                    items = listed.get("items")
                    self._heard()
                    yield Listed(
                        items=tuple(i for i in items if isinstance(i, dict)) if isinstance(items, list) else ()
                    )
                async for change in self._watch():
                    yield change
            except KubeError as error:
                if isinstance(error, RefusedError) and error.status == 410:
                    self._version = ""  # too old: what was missed cannot be had, only what there is now
                    if self._backoff.tries == 0:
                        self._backoff.tries = 1
                        continue
                self.error = str(error)
                self.errors += 1
                wait = self._sleep(self._backoff.failed(retry_after=error.retry_after))
                if asyncio.iscoroutine(wait):
                    await wait

    def _heard(self) -> None:
        self.error = ""
        self.last_read = self._clock()

    async def _watch(self) -> AsyncGenerator[Changed]:
        seconds = random.randint(300, 600)
        begun, heard = self._clock(), False
        params = self._params | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        try:
            async with self._client.stream(
                "GET", self.path, params=params, deadline=seconds + GIVE_UP_SECONDS
            ) as response:
                self._heard()
                rest = bytearray()
                async for data in response.content.iter_any():
                    rest += data
                    while (end := rest.find(b"\n")) >= 0:
                        line = bytes(rest[:end])
                        del rest[: end + 1]
                        change = self._event(line)
                        heard = True
                        self._heard()
                        if change is not None:
                            yield change
                    if len(rest) > LINE_BYTES:
                        raise UnreachableError(f"watch of {self.path}: an event of more than {LINE_BYTES >> 20} MiB")
        finally:
            # Not when it is opened: a server that opens each watch and then ends it would be asked without a pause.
            lasted = heard or self._clock() - begun >= LASTING_SECONDS
            if lasted:
                self._backoff.succeeded()
        if not lasted:
            raise UnreachableError(f"watch of {self.path}: ended as soon as it was opened")

    def _event(self, line: bytes) -> Changed | None:
        try:
            event = json.loads(line)
            kind, found = event["type"], event["object"]
            if not isinstance(found, dict):
                raise TypeError
            code = int(found.get("code") or 500) if kind == "ERROR" else 0
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise UnreachableError(f"watch of {self.path}: an event that is not understood") from None
        if kind == "ERROR":
            raise RefusedError(
                f"watch of {self.path}",
                status=code,
                reason=str(found.get("reason") or ""),
                message=str(found.get("message") or "")[:2000],
            )
        self._version = _version(found) or self._version
        return Changed(kind=kind, object=found) if kind in ("ADDED", "MODIFIED", "DELETED") else None


def _version(found: Json) -> str:
    meta = found.get("metadata")
    return str(meta.get("resourceVersion") or "") if isinstance(meta, dict) else ""

"""When which running server is asked, and where it is. Decides nothing about what it answers; guesses no address."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from agent.model import ContainerRef
from agent.sources.sglang.client import Answer, Server

SERVER_LIMIT = 256
"""Servers remembered; the one that got ready first goes first."""

ATTEMPTS = 3
"""How often a server that does not answer, or whose address is not known yet, is asked before it is let go."""

RETRY_SECONDS = 30.0

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})


class Client(Protocol):
    """What is needed of :class:`ServerClient`."""

    async def server_info(self, server: Server, *, deprecated: Literal["try", "leave"] = "try") -> Answer: ...
    async def model_info(self, server: Server) -> Answer: ...
    async def metrics(self, server: Server) -> Answer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one server answered at one time; `info` and `model` come once, `metrics` each time."""

    container: ContainerRef
    server: Server
    time: float
    info: Answer | None = None
    model: Answer | None = None
    metrics: Answer | None = None


@dataclass(slots=True)
class _Known:
    container: ContainerRef
    facts: Mapping[str, str]
    due: float
    attempts: int = 0
    informed: bool = False
    tried_deprecated: bool = False


def is_pod_address(host: str) -> bool:
    """True for an address that can be a pod's: never this machine itself, never the cloud's metadata service."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return not (mapped.is_loopback or mapped.is_unspecified or mapped.is_link_local or mapped.is_multicast)


class ServerSource:
    """Servers that said they are ready: each asked once what it runs, and now and then how fast it is."""

    def __init__(
        self,
        client: Client,
        *,
        address_of: Callable[[ContainerRef], str | None],
        port: int,
        interval: float,
        allowed: Callable[[str], bool] = is_pod_address,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`port` where the log named none; `interval` is seconds between two looks at the metrics, 0 for one look."""
        self._client, self._address_of, self._allowed = client, address_of, allowed
        self._port, self._interval = port, interval
        self._clock, self._monotonic = clock, monotonic
        self._servers: dict[str, _Known] = {}
        self._wake = asyncio.Event()
        self.last_read: float | None = None
        self.lost = 0
        self.errors = 0

    @property
    def followed(self) -> int:
        return len(self._servers)

    def ready(self, container: ContainerRef, facts: Mapping[str, str]) -> None:
        """This container's server answers from now on. `facts` are what its log told: port, scheme, host."""
        self._servers.pop(container.key, None)
        self._servers[container.key] = _Known(container, dict(facts), due=self._monotonic())
        while len(self._servers) > SERVER_LIMIT:
            del self._servers[next(iter(self._servers))]
            self.lost += 1
        self.wake()

    def wake(self) -> None:
        """Looks again at what is due."""
        self._wake.set()

    async def answers(self) -> AsyncGenerator[Answered, None]:
        """Without end. One server after the other: a slow one delays others by its deadline, and floods nobody."""
        while True:
            self._wake.clear()
            now = self._monotonic()
            for known in [k for k in self._servers.values() if k.due <= now]:
                answered = await self._ask(known)
                if answered is not None:
                    yield answered
            due = min((k.due for k in self._servers.values()), default=None)
            timeout = None if due is None else max(due - self._monotonic(), 0.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):  # wait_for may forget a cancellation in Python 3.11
                    await self._wake.wait()

    async def _ask(self, known: _Known) -> Answered | None:
        server = self._server(known)
        if server is None:
            self._later(known, failed=True)
            return None
        info = model = None
        if not known.informed:
            info = await self._client.server_info(server, deprecated="leave" if known.tried_deprecated else "try")
            known.tried_deprecated = known.tried_deprecated or info.path == "/get_server_info"
            known.informed = info.status != 0 and info.outcome not in ("too-slow", "broken")
            if info.ok:
                model = await self._client.model_info(server)
        metrics = None
        if known.facts.get("enable_metrics") != "no":
            metrics = await self._client.metrics(server)
        asked = [a for a in (info, metrics) if a is not None]
        heard = any(a.status for a in asked)
        self.errors += sum(not a.ok and a.outcome not in ("unauthorized", "missing") for a in asked)
        if heard:
            self.last_read = self._clock()
        if metrics is not None and metrics.outcome == "missing":
            known.facts = {**known.facts, "enable_metrics": "no"}
        self._later(known, failed=not heard or not known.informed)
        return Answered(
            container=known.container, server=server, time=self._clock(), info=info, model=model, metrics=metrics
        )

    def _later(self, known: _Known, *, failed: bool) -> None:
        """When it is asked again, if ever."""
        known.attempts = known.attempts + 1 if failed else 0
        over = known.attempts >= ATTEMPTS or (
            not failed and (not self._interval or known.facts.get("enable_metrics") == "no")
        )
        if not over:
            known.due = self._monotonic() + (RETRY_SECONDS if failed else self._interval)
        elif self._servers.get(known.container.key) is known:
            del self._servers[known.container.key]

    def _server(self, known: _Known) -> Server | None:
        facts = known.facts
        if facts.get("listen_host", facts.get("host", "")) in LOOPBACK_NAMES:
            return None  # it listens inside its pod only
        host = self._address_of(known.container)
        if not host or not self._allowed(host):
            return None
        return Server(
            host=host,
            port=_port(facts.get("listen_port")) or _port(facts.get("port")) or self._port,
            scheme="https" if facts.get("scheme") == "https" else "http",
        )


def _port(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 5:
        return None
    return int(text) if 0 < int(text) < 65536 else None

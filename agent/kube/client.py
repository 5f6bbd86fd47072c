"""One connection to the API server: raw JSON in and out, each request under a deadline. Retries nothing by itself.

Who calls knows whether a request may be sent again; :mod:`agent.kube.backoff` says when.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from agent import __version__
from agent.kube.login import Login

Json = dict[str, Any]

DEADLINE_SECONDS = 10.0
"""One request, from connection to last byte."""

ANSWER_BYTES = 64 << 20
"""An answer longer than this is refused; 5,000 whole nodes are 18 MiB."""

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"


class Patch(StrEnum):
    """How a PATCH body is merged."""

    STRATEGIC = "application/strategic-merge-patch+json"
    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class KubeError(Exception):
    """A request that brought no answer that can be used."""

    retry_after: float | None = None
    """Seconds that the server asked to wait."""

    @property
    def passing(self) -> bool:
        """True when the same request may succeed later."""
        return True


class UnreachableError(KubeError):
    """No answer: no connection, a cut one, a certificate that is not trusted, or the deadline passed."""


class RefusedError(KubeError):
    """The server's answer was an error. ``status`` is HTTP's, ``reason`` is Kubernetes' (``Conflict``)."""

    def __init__(self, what: str, *, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after
        super().__init__(f"{what}: {status} {reason}: {message}" if message else f"{what}: {status} {reason}")

    @property
    def passing(self) -> bool:
        return self.status in (401, 408, 409, 410, 429) or self.status >= 500


class KubeClient:
    """Requests to one API server. Use as an async context manager; any number of requests may run at once."""

    def __init__(self, login: Login, *, name: str = "", deadline: float = DEADLINE_SECONDS) -> None:
        """``name`` goes into the User-Agent (the node's); ``deadline`` is in seconds for each request."""
        self.how, self.namespace = login.how, login.namespace
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests by verb and outcome: an HTTP status, or ``unreachable``."""
        self._deadline = deadline
        self._login = login
        self._name = name
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        agent = f"faultline/{__version__}" + (f" ({self._name})" if self._name else "")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._login.tls or True),
            headers={"User-Agent": agent},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            read_bufsize=1 << 18,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, *, params: Mapping[str, str] | None = None, deadline: float | None = None) -> Json:
        return await self._call("GET", path, params=params, deadline=deadline)

    async def metadata(
        self, path: str, *, params: Mapping[str, str] | None = None, deadline: float | None = None
    ) -> Json:
        """A list of which only each object's metadata is sent."""
        return await self._call("GET", path, params=params, accept=METADATA_ONLY, deadline=deadline)

    async def text(self, path: str, *, params: Mapping[str, str] | None = None, limit: int = ANSWER_BYTES) -> bytes:
        """What is served as text (a pod's log), at most ``limit`` bytes of it."""
        async with self.stream("GET", path, params=params, deadline=self._deadline, accept="*/*") as response:
            return await _read(response, limit)

    async def create(
        self, path: str, body: Json, *, params: Mapping[str, str] | None = None, deadline: float | None = None
    ) -> Json:
        return await self._call("POST", path, params=params, body=body, deadline=deadline)

    async def patch(
        self,
        path: str,
        body: object,
        *,
        kind: Patch = Patch.STRATEGIC,
        params: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> Json:
        return await self._call("PATCH", path, params=params, body=body, content_type=kind.value, deadline=deadline)

    async def delete(self, path: str, *, body: Json | None = None, deadline: float | None = None) -> Json:
        return await self._call("DELETE", path, body=body, deadline=deadline)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        deadline: float,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The open answer of one request. Raises RefusedError for an error status, UnreachableError without any."""
        what = f"{method} {path}"
        outcome = "unreachable"
        try:
            async with asyncio.timeout(deadline) as limit:
                try:
                    response = await self._open(method, path, params, body, content_type, accept)
                except (OSError, ValueError) as error:  # what goes on below is the caller's: its errors stay its own
                    raise UnreachableError(f"{what}: {error or type(error).__name__}") from None
                try:
                    outcome = str(response.status)
                    if response.status >= 400:
                        raise await _refusal(what, response)
                    yield response
                finally:
                    response.release()
        except aiohttp.ClientError as error:
            raise UnreachableError(f"{what}: {error or type(error).__name__}") from None
        except TimeoutError:
            if not limit.expired():
                raise
            raise UnreachableError(f"{what}: no answer within {deadline:g} s") from None
        finally:
            self.requests[method, outcome] += 1

    async def _open(
        self, method: str, path: str, params: Mapping[str, str] | None, body: object, content_type: str, accept: str
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise UnreachableError(f"{method} {path}: the client is closed")
        headers = {"Accept": accept}
        if authorization := await self._login.authorization():
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = content_type
        return await self._session.request(
            method,
            self._login.server + path,
            params=params,
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
            proxy=self._login.proxy or _proxy_for(self._login.server),
            server_hostname=self._login.server_name or None,
        )

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        deadline: float | None = None,
    ) -> Json:
        async with self.stream(
            method,
            path,
            params=params,
            body=body,
            content_type=content_type,
            accept=accept,
            deadline=deadline or self._deadline,
        ) as response:
            text = await _read(response, ANSWER_BYTES)
        try:
            found = json.loads(text or b"{}")
        except (ValueError, RecursionError):
            raise UnreachableError(f"{method} {path}: the answer is not JSON") from None
        if not isinstance(found, dict):
            raise UnreachableError(f"{method} {path}: the answer is not an object")
        return found


def _proxy_for(server: str) -> str | None:
    """The environment's proxy. Not aiohttp's trust_env, which also takes passwords from ~/.netrc, at each request."""
    url = urlsplit(server)
    return None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme)


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part[: limit - size])
        size += len(part)
        if size >= limit:
            break
    return b"".join(parts)


async def _refusal(what: str, response: aiohttp.ClientResponse) -> RefusedError:
    """The error that an answer says; a proxy's HTML or an empty body has its status only."""
    text = await _read(response, 64 << 10)
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        status = None
    told = status if isinstance(status, dict) else {}
    details = told.get("details") if isinstance(told.get("details"), dict) else {}
    after = response.headers.get("Retry-After") or (details or {}).get("retryAfterSeconds")
    try:
        seconds = None if after is None or math.isnan(asked := float(after)) else min(max(asked, 0.0), 3600.0)
    except (TypeError, ValueError, OverflowError):  # an HTTP date, or a number of thousands of digits
        seconds = None
    return RefusedError(
        what,
        status=response.status,
        reason=str(told.get("reason") or response.reason or ""),
        message=str(told.get("message") or "")[:2000],
        retry_after=seconds,
    )

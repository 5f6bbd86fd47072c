"""GET requests to a running SGLang server, each bounded in time and size. Never sends a credential, never follows.

The server belongs to a tenant: whatever it sends, slow, endless, broken or none, becomes an answer, not an exception.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

import aiohttp
from yarl import URL

BODY_LIMIT = 2 << 20
"""The most bytes of a body that are read: `/server_info` has about 30 kB, `/metrics` about 60 kB."""

_CHUNK = 64 * 1024

Outcome = Literal["answered", "unauthorized", "missing", "refused", "unreachable", "too-slow", "too-large", "broken"]

_SAID: dict[Outcome, str] = {
    "unauthorized": "wants an API key, and none is sent",
    "missing": "has no such page",
    "refused": "answered with an error",
    "unreachable": "cannot be reached",
    "too-slow": "gave no whole answer in time",
    "too-large": "sent more than is read",
    "broken": "broke off the answer or speaks no HTTP",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where one server is asked. `host` is an IP address."""

    host: str
    port: int
    scheme: Literal["http", "https"] = "http"

    def url(self, path: str) -> URL:
        return URL.build(scheme=self.scheme, host=self.host, port=self.port, path=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request. `status` is 0 where no answer came; `body` is empty unless `outcome` is answered.

    The body may hold the server's keys in clear text: parse it, keep what was parsed, let it go.
    """

    path: str
    outcome: Outcome
    status: int = 0
    body: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        return self.outcome == "answered"

    @property
    def why(self) -> str:
        """Why there is no body, as the end of a sentence about the server; empty when there is one."""
        said = _SAID.get(self.outcome, "")
        return f"{said} (HTTP {self.status})" if said and self.status else said


class ServerClient:
    """One HTTP session for all servers; `close` it, or use it as a context manager."""

    def __init__(self, *, timeout: float = 3.0, limit: int = BODY_LIMIT) -> None:
        """`timeout` in seconds covers a whole request, from the connection to the last byte; `limit` in bytes."""
        self._timeout, self._limit = timeout, limit
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ServerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def server_info(self, server: Server, *, deprecated: Literal["try", "leave"] = "try") -> Answer:
        """`/server_info`, or the page that older servers have instead.

        The old page makes newer servers log a warning, so it is asked for only where the new one is missing, and never
        with `leave`.
        """
        answer = await self.get(server, "/server_info")
        if answer.outcome == "missing" and deprecated == "try":
            return await self.get(server, "/get_server_info")
        return answer

    async def model_info(self, server: Server) -> Answer:
        """`/model_info`; the page that older servers have instead does not name the architecture."""
        return await self.get(server, "/model_info")

    async def metrics(self, server: Server) -> Answer:
        """`/metrics`, which needs no key; missing unless the server runs with `--enable-metrics`."""
        return await self.get(server, "/metrics")

    async def get(self, server: Server, path: str) -> Answer:
        """One GET. Raises nothing but cancellation."""
        status = 0
        try:
            async with asyncio.timeout(self._timeout):
                async with self._open().get(server.url(path), allow_redirects=False) as response:
                    status = response.status
                    if status != 200:
                        return Answer(path=path, outcome=_outcome(status), status=status)
                    if response.headers.get("Content-Encoding", "identity") != "identity":
                        return Answer(path=path, outcome="broken", status=status)
                    body = await self._body(response)
        except TimeoutError:
            return Answer(path=path, outcome="too-slow", status=status)
        except aiohttp.ClientConnectorError:
            return Answer(path=path, outcome="unreachable")
        except (aiohttp.ClientError, OSError, ValueError):
            # ValueError: a header or address that the library refuses.
            return Answer(path=path, outcome="broken", status=status)
        if body is None:
            return Answer(path=path, outcome="too-large", status=status)
        return Answer(path=path, outcome="answered", status=status, body=body)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes | None:
        if (response.content_length or 0) > self._limit:
            return None
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > self._limit:
                return None
        return bytes(body)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # A pod's certificate never names the pod's address, and nothing secret is sent: not verified.
                connector=aiohttp.TCPConnector(limit=8, limit_per_host=2, force_close=True, ssl=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Neither proxies nor ~/.netrc: the one would send the request elsewhere, the other a password.
                trust_env=False,
                # An answer of a few bytes must not unpack to gigabytes.
                auto_decompress=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "faultline"},
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


def _outcome(status: int) -> Outcome:
    if status in (401, 403):
        return "unauthorized"
    return "missing" if status == 404 else "refused"

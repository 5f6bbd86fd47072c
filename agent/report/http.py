"""The agent's HTTP server: metrics, health, API and status page. Read-only; it never changes anything of the agent."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from agent import __version__
from agent.report.page import CONTENT_SECURITY_POLICY, status_page
from agent.report.status import State

API_VERSION = "faultline.dev/v1"
SERVER = f"faultline/{__version__}"
"""The Server header; by it `doctor` knows that the port is held by this program."""

_SHUTDOWN_SECONDS = 0.3
"""How long answers under way may go on at the stop; the whole agent has two seconds."""

_HEADERS = {
    "Server": SERVER,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
}

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ListenError(Exception):
    """The server cannot listen as it was told; the text holds the cure."""


class PortInUseError(ListenError):
    """Another program listens on the port."""


class StatusServer:
    """Serves one `State`. Started once, stopped once; `port` is the real one after the start.

    Use as `async with StatusServer(state, address="", port=9753):`, or call `start` and `stop`.
    """

    def __init__(self, state: State, *, address: str = "", port: int = 9753) -> None:
        self.port = port
        self._state, self._address = state, address
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen and serve. Raises ListenError (PortInUseError)."""
        if self._runner is not None:
            raise RuntimeError(f"the server on port {self.port} was started already")
        listening = listen(self._address, self.port)
        self.port = listening.getsockname()[1]
        self._runner = runner = web.AppRunner(
            self._application(), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS, handler_cancellation=True
        )
        try:
            await runner.setup()
            await web.SockSite(runner, listening).start()
        except BaseException:
            listening.close()
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the port and every connection, within a second. May be called twice."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def __aenter__(self) -> StatusServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _application(self) -> web.Application:
        state = self._state
        app = web.Application(middlewares=[_as_json], client_max_size=1024)
        app.router.add_get("/", self._page)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        for path, kind, items in (
            ("faults", "FaultList", state.faults),
            ("failures", "FailureList", state.failures),
            ("verdicts", "VerdictList", state.verdicts),
            ("plans", "PlanList", state.plans),
            ("events", "EventList", state.events),
            ("sources", "SourceList", state.sources),
            ("rules", "RuleList", state.rules),
            ("gpus", "GpuList", state.gpus),
        ):
            app.router.add_get(f"/api/v1/{path}", _list_handler(kind, items))
        return app

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text=status_page(self._state), content_type="text/html")

    async def _metrics(self, request: web.Request) -> web.Response:
        body, kind = self._state.metrics(request.headers.get("Accept", ""))
        response = web.Response(body=body, headers={"Content-Type": kind})
        response.enable_compression()
        return response

    async def _health(self, request: web.Request) -> web.Response:
        # That this is answered is the whole test: the event loop turns. It must hang on no source and no driver,
        # or a sick node would restart the agent that is to tell of it.
        return _json({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        readiness = self._state.readiness()
        body = {"ready": readiness.ready, "reasons": readiness.reasons, "sources": self._state.sources()}
        return _json(body, status=200 if readiness.ready else 503)


def _list_handler(kind: str, items: Callable[[], Sequence[object]]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = _json({"apiVersion": API_VERSION, "kind": kind, "items": list(items())})
        response.enable_compression()
        return response

    return handler


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


@web.middleware
async def _as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal as JSON, every answer with the headers that keep a browser from doing more than showing it."""
    response: web.StreamResponse
    try:
        response = await handler(request)
    except web.HTTPException as refused:
        response = _status(refused.status, refused.reason)
        if "Allow" in refused.headers:
            response.headers["Allow"] = refused.headers["Allow"]
    except Exception:
        _log.exception("the answer to %s failed", request.path)
        response = _status(500, "the agent failed to answer; its log says why")
    response.headers.update(_HEADERS)
    return response


def _status(code: int, message: str) -> web.Response:
    return _json({"apiVersion": API_VERSION, "kind": "Status", "code": code, "message": message}, status=code)


def listen(address: str, port: int) -> socket.socket:
    """A listening socket; an empty address is every address, IPv4 and IPv6. Raises ListenError (PortInUseError)."""
    try:
        if address:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, at = found[0]
            return socket.create_server(at[:2], family=family, backlog=64)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
        return socket.create_server(("", port), backlog=64)
    except socket.gaierror as error:
        raise ListenError(f"http.address {address!r}: {error.strerror}; give an address of this machine") from None
    except OSError as error:
        where = f"port {port}" + (f" of {address}" if address else "")
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"{where} is in use by another program (`ss -ltnp 'sport = :{port}'` names it); stop it, or "
                "choose another port with http.port, FAULTLINE_HTTP_PORT or --http-port"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ListenError(f"{where} needs a privilege; choose one of 1024 or higher with http.port") from None
        raise ListenError(
            f"cannot listen on {where}: {os.strerror(error.errno or 0)}; set http.address to one of this machine"
        ) from None

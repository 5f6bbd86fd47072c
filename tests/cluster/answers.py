"""A small HTTP server that answers what a test tells it to: what no healthy API server can be made to say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from agent.kube import KubeClient, Login

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def login_to(url: str) -> Login:
    """Without TLS, a token or a kubeconfig."""
    return Login(server=url, how="test")


@asynccontextmanager
async def answering(handler: Handler, *, deadline: float = 10.0) -> AsyncIterator[KubeClient]:
    """A client of a server where ``handler`` answers every request."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with KubeClient(login_to(f"http://127.0.0.1:{port}"), deadline=deadline) as client:
            yield client
    finally:
        await runner.cleanup()


async def lines(request: web.Request, *events: Any) -> web.StreamResponse:
    """A watch's answer: each event as one line (bytes as they are), then the end."""
    response = web.StreamResponse()
    await response.prepare(request)
    for event in events:
        await response.write(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")
    return response

"""A small API server in a thread of its own: paths with their answers, and what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

Answer = tuple[int, Any]


@dataclass
class ApiServer:
    """Answers by `path` or `path?key=value&...` (the keys that matter); 404 for the rest. Bytes are sent as text."""

    answers: dict[str, Any]
    asked: list[tuple[str, str, Mapping[str, str], Any]] = field(default_factory=list)
    port: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append((request.method, request.path, dict(request.query), json.loads(body) if body else None))
        answer = self._answer(request, json.loads(body) if body else None)
        if callable(answer):
            answer = answer(json.loads(body) if body else None)
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        if isinstance(value, bytes):
            return web.Response(status=status, body=value, content_type="text/plain")
        return web.json_response(value, status=status)

    def _answer(self, request: web.Request, body: Any) -> Any:
        for key, answer in self.answers.items():
            path, _, query = key.partition("?")
            wanted = dict(part.split("=", 1) for part in query.split("&") if part)
            if path == request.path and wanted.items() <= dict(request.query).items():
                return answer
        return refusal(404, "NotFound", f'"{request.path}" not found')


def refusal(status: int, reason: str, message: str) -> Answer:
    return status, {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": status,
    }


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[ApiServer]:
    server = ApiServer(answers)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", server.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def kubeconfig(folder: Path, server: ApiServer, *, namespace: str = "llm") -> str:
    """A kubeconfig file for the server; its path."""
    path = folder / "kubeconfig"
    url = f"http://127.0.0.1:{server.port}"
    path.write_text(
        yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        })
    )  # fmt: skip
    return str(path)

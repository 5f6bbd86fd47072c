"""A small API server that knows Events, Nodes' uids aside, and refuses what the real one refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.kube import KubeClient, Login
from tests.report.event_rules import problems, series_problems, undecodable

Json = dict[str, Any]

_REASONS = {400: "BadRequest", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists", 422: "Invalid", 429: "TooMany"}


def status(code: int, message: str = "", *, reason: str = "", retry_after: int | None = None) -> web.Response:
    reason = reason or _REASONS.get(code, "InternalError")
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return web.json_response(body, status=code, headers=headers)


class EventServer:
    """What it holds is in `events`, by (namespace, name), in the order in which they were made."""

    def __init__(self) -> None:
        self.namespaces = {"default", "llm"}
        self.events: dict[tuple[str, str], Json] = {}
        self.services: dict[tuple[str, str], Json] = {}
        self.log: list[tuple[str, int]] = []
        """Method and status of each answered request for events."""
        self.instead: Callable[[web.Request], web.Response | None] = lambda _: None
        """Answers in place of the server."""
        self.kill_at: int | None = None
        self.after = False
        """Hang at the n-th request, before or after it was carried out."""
        self.hung = asyncio.Event()
        self._requests = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[KubeClient]:
        app = web.Application()
        at = "/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        app.router.add_post(at, self._around)
        app.router.add_patch(at + "/{name}", self._around)
        app.router.add_get(
            "/apis/inference.llmkube.dev/v1alpha1/namespaces/{namespace}/inferenceservices/{name}", self._service
        )
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            async with KubeClient(Login(server=url, how="test")) as client:
                yield client

    def told(self, reason: str = "") -> list[tuple[str, str, int]]:
        """Object, reason and count of each Event."""
        return [
            (
                f"{e['regarding']['kind']}/{e['regarding']['name']}",
                e["reason"],
                (e.get("series") or {"count": 1})["count"],
            )
            for e in self.events.values()
            if reason in ("", e["reason"])
        ]

    async def _around(self, request: web.Request) -> web.Response:
        self._requests += 1
        kill = self._requests == self.kill_at
        if kill and not self.after:
            await self._hang()
        answer = self.instead(request)
        if answer is None:
            body = json.loads(await request.text())
            answer = self._create(request, body) if request.method == "POST" else self._patch(request, body)
        if kill and self.after:
            await self._hang()
        self.log.append((request.method, answer.status))
        return answer

    async def _hang(self) -> None:
        self.hung.set()
        await asyncio.Event().wait()

    def _create(self, request: web.Request, body: Json) -> web.Response:
        namespace, name = request.match_info["namespace"], body["metadata"]["name"]
        if found := undecodable(body):
            return status(400, found[0])
        if body["metadata"]["namespace"] != namespace:
            return status(400, "the namespace of the provided object does not match the namespace of the request")
        if namespace not in self.namespaces:
            return status(404, f'namespaces "{namespace}" not found')
        if found := problems(body):
            return status(422, "; ".join(found))
        if (namespace, name) in self.events:
            return status(409, f'events.events.k8s.io "{name}" already exists')
        self.events[namespace, name] = body
        return web.json_response(body, status=201)

    def _patch(self, request: web.Request, body: Json) -> web.Response:
        key = request.match_info["namespace"], request.match_info["name"]
        if request.content_type not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
            return status(415)
        if key not in self.events:
            return status(404, f'events.events.k8s.io "{key[1]}" not found')
        if found := undecodable(body):
            return status(400, found[0])
        changed = self.events[key] | body
        if other := [k for k in body if k != "series" and self.events[key].get(k) != body[k]]:
            return status(422, f"{other[0]}: Invalid value: field is immutable")
        if found := series_problems(changed):
            return status(422, "; ".join(found))
        self.events[key] = changed
        return web.json_response(changed)

    async def _service(self, request: web.Request) -> web.Response:
        key = request.match_info["namespace"], request.match_info["name"]
        self.log.append(("GET", 200 if key in self.services else 404))
        return web.json_response(self.services[key]) if key in self.services else status(404)

"""The client against a real HTTP server that serves real bodies, and misbehaves in every way a tenant's may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from agent.detect.server_info import facts_of_info
from agent.sources.sglang import Server, ServerClient

BODIES = Path(__file__).parent.parent / "data" / "sglang" / "http"
INFO = (BODIES / "server_info.real.json").read_bytes()
METRICS = (BODIES / "metrics.real.txt").read_bytes()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[Server, list[web.Request]]]:
    """A server that gives every request to `handler`, and the requests it got."""
    asked: list[web.Request] = []

    async def note(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", note)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield Server(host="127.0.0.1", port=runner.addresses[0][1]), asked
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw(answer: bytes) -> AsyncIterator[Server]:
    """A server that reads a request, sends these bytes and closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield Server(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    finally:
        server.close()


def pages(**bodies: bytes) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = bodies.get(request.path.strip("/"))
        return web.Response(status=404) if body is None else web.Response(body=body)

    return answer


async def test_the_real_pages_come_whole() -> None:
    async with serving(pages(server_info=INFO, metrics=METRICS)) as (server, asked), ServerClient() as client:
        info, metrics = await client.server_info(server), await client.metrics(server)
    assert (info.ok, info.body, info.why) == (True, INFO, "")
    assert metrics.body == METRICS
    assert [r.path for r in asked] == ["/server_info", "/metrics"]


async def test_only_get_is_used_and_no_credential_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password something\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    async def with_cookie(_: web.Request) -> web.StreamResponse:
        response = web.Response(body=INFO)
        response.set_cookie("session", "x")
        return response

    async with serving(with_cookie) as (server, asked), ServerClient() as client:
        for ask in (client.server_info, client.model_info, client.metrics):
            await ask(server)
    assert {r.method for r in asked} == {"GET"}
    assert not [h for r in asked for h in r.headers if h.lower() in ("authorization", "cookie", "proxy-authorization")]


async def test_an_old_server_is_asked_at_its_old_page_once() -> None:
    async with serving(pages(get_server_info=INFO)) as (server, asked), ServerClient() as client:
        answer = await client.server_info(server)
        again = await client.server_info(server, deprecated="leave")
    assert answer.ok and answer.path == "/get_server_info"
    assert again.outcome == "missing"
    assert [r.path for r in asked].count("/get_server_info") == 1


@pytest.mark.parametrize(
    ("status", "outcome", "words"),
    [
        (401, "unauthorized", "wants an API key, and none is sent (HTTP 401)"),
        (403, "unauthorized", "wants an API key, and none is sent (HTTP 403)"),
        (404, "missing", "has no such page (HTTP 404)"),
        (500, "refused", "answered with an error (HTTP 500)"),
        (503, "refused", "answered with an error (HTTP 503)"),
        (307, "refused", "answered with an error (HTTP 307)"),
    ],
)
async def test_a_refusal_is_an_answer(status: int, outcome: str, words: str) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=b"secret words", headers={"Location": "/elsewhere"})

    async with serving(refuse) as (server, asked), ServerClient() as client:
        answer = await client.metrics(server)
    assert (answer.outcome, answer.status, answer.why, answer.body) == (outcome, status, words, b"")
    assert len(asked) == 1, "no redirect is followed and nothing is tried twice"


async def test_a_key_that_is_wanted_makes_no_second_request() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=401)

    async with serving(refuse) as (server, asked), ServerClient() as client:
        await client.server_info(server)
    assert [r.path for r in asked] == ["/server_info"]


async def test_a_slow_server_costs_no_more_than_its_deadline() -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{")
        await asyncio.Event().wait()
        return response

    async with serving(never) as (server, _), ServerClient(timeout=0.05) as client:
        answer = await client.server_info(server)
    assert (answer.outcome, answer.body) == ("too-slow", b"")


@pytest.mark.parametrize("told", [True, False], ids=["with its length", "without end"])
async def test_a_huge_body_is_not_read_to_its_end(told: bool) -> None:
    sent = 0

    async def huge(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        if told:
            response.content_length = 1 << 40
        await response.prepare(request)
        while True:
            await response.write(bytes(1 << 16))
            sent += 1 << 16

    async with serving(huge) as (server, _), ServerClient(limit=1 << 18, timeout=10) as client:
        answer = await client.metrics(server)
    assert (answer.outcome, answer.body) == ("too-large", b"")


async def test_a_packed_body_is_not_unpacked() -> None:
    async def packed(_: web.Request) -> web.StreamResponse:
        return web.Response(body=bytes(100), headers={"Content-Encoding": "gzip"})

    async with serving(packed) as (server, _), ServerClient() as client:
        assert (await client.metrics(server)).outcome == "broken"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"model",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x50",
        b"",
    ],
    ids=["cut", "bad chunk", "long header", "ssh", "tls", "nothing"],
)  # fmt: skip
async def test_a_broken_answer_is_told_as_one(answer: bytes) -> None:
    async with raw(answer) as server, ServerClient(timeout=5) as client:
        assert (await client.server_info(server)).outcome == "broken"


async def test_nobody_listening_is_unreachable() -> None:
    async with raw(b"") as server:
        pass
    async with ServerClient() as client:
        answer = await client.server_info(server)
    assert (answer.outcome, answer.status, answer.why) == ("unreachable", 0, "cannot be reached")


async def test_a_body_of_another_kind_comes_through_and_means_nothing() -> None:
    for body in (b"<html>", b"[]", b'{"model":', b"{}", b'{"model_path": 3}', b"\xff\xfe"):
        async with serving(pages(server_info=body)) as (server, _), ServerClient() as client:
            answer = await client.server_info(server)
        assert answer.ok and facts_of_info(answer.body) is None


async def test_the_body_is_not_part_of_what_an_answer_prints() -> None:
    async with serving(pages(server_info=INFO)) as (server, _), ServerClient() as client:
        assert "api_key" not in repr(await client.server_info(server))


def test_an_address_of_either_family_makes_a_url() -> None:
    assert str(Server(host="10.1.2.3", port=30000).url("/metrics")) == "http://10.1.2.3:30000/metrics"
    assert str(Server(host="fd00::7", port=80, scheme="https").url("/x")) == "https://[fd00::7]:80/x"

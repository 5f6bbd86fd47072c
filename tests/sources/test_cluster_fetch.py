"""A pod, its logs and its node, fetched with a person's rights: what is asked for, kept, and said to be missing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from agent.kube import KubeClient, KubeError, RefusedError, UnreachableError
from agent.sources.cluster import fetch as fetching
from agent.sources.cluster.fetch import all_nodes, fetch, told
from tests.cluster.answers import answering

POD = "/api/v1/namespaces/llm/pods/chat-0"
LOG = POD + "/log"
NODE = "/api/v1/nodes/gpu-1"


@dataclass
class Server:
    """Answers by path; a log also by ``<container>`` and ``<container>/previous``. 404 for the rest."""

    answers: Mapping[str, Any]
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.asked.append((request.path, query))
        key = request.path
        if key == LOG:
            key = query["container"] + ("/previous" if "previous" in query else "")
        found = self.answers.get(key)
        if found is None:
            return web.json_response({"reason": "NotFound", "message": f"{key} not found", "code": 404}, status=404)
        return web.Response(body=found) if isinstance(found, bytes) else web.json_response(found)

    @property
    def logs(self) -> list[str]:
        """The logs that were asked for, in order."""
        return [q["container"] + ("/previous" if "previous" in q else "") for path, q in self.asked if path == LOG]


@asynccontextmanager
async def serving(answers: Mapping[str, Any]) -> AsyncIterator[tuple[KubeClient, Server]]:
    server = Server(answers)
    async with answering(server.handle) as client:
        yield client, server


def pod(*statuses: dict[str, Any], names: tuple[str, ...] = ("main",), node: str | None = "gpu-1") -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": n} for n in names], "initContainers": [{"name": "load"}]}
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": {"name": "chat-0"}, "spec": spec, "status": {"containerStatuses": list(statuses)}}


ENDED = {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("status", "logs"),
    [
        ({"name": "main", "restartCount": 0}, ["load", "main"]),
        ({"name": "main", "restartCount": 3}, ["load", "main/previous", "main"]),
        ({"name": "main", "restartCount": 0, "lastState": ENDED}, ["load", "main/previous", "main"]),
        ({"name": "main", "restartCount": 0, "state": ENDED}, ["load", "main"]),
        ({"name": "main", "restartCount": "3"}, ["load", "main"]),
        ({"name": "other", "restartCount": 3}, ["load", "main"]),
        ({"name": "main", "lastState": 5}, ["load", "main"]),
    ],
)
async def test_the_instance_before_is_asked_for_where_there_was_one(status: dict[str, Any], logs: list[str]) -> None:
    answers = {POD: pod(status), NODE: {"metadata": {"name": "gpu-1"}}} | {log: log.encode() for log in logs}
    async with serving(answers) as (client, server):
        found = await fetch(client, namespace="llm", name="chat-0")
    assert server.logs == logs
    assert [log.text.decode() for log in found.logs] == logs
    assert [(log.container + ("/previous" if log.previous else "")) for log in found.logs] == logs
    assert found.node == {"metadata": {"name": "gpu-1"}} and found.missing == ()


async def test_one_container_alone_or_none_of_that_name() -> None:
    answers = {POD: pod(names=("main", "side")), NODE: {}, "side": b"x"}
    async with serving(answers) as (client, server):
        found = await fetch(client, namespace="llm", name="chat-0", container="side")
        assert [log.container for log in found.logs] == ["side"]
        with pytest.raises(ValueError, match="no container 'none'"):
            await fetch(client, namespace="llm", name="chat-0", container="none")
    assert server.logs == ["side"]


async def test_what_cannot_be_had_is_said_and_the_rest_is_there() -> None:
    async with serving({POD: pod({"name": "main", "restartCount": 1}), "main": b"line\n"}) as (client, _):
        found = await fetch(client, namespace="llm", name="chat-0")
    assert [log.text for log in found.logs] == [b"line\n"] and found.node is None
    assert found.missing == (
        "log of container load: load not found (404)",
        "previous log of container main: main/previous not found (404)",
        "node gpu-1: /api/v1/nodes/gpu-1 not found (404)",
    )


@pytest.mark.parametrize("name", [None, "", 5])
async def test_a_pod_that_is_on_no_node_yet(name: Any) -> None:
    asked = pod(node=name)
    async with serving({POD: asked, "load": b"", "main": b""}) as (client, server):
        found = await fetch(client, namespace="llm", name="chat-0")
    assert found.missing == ("node: the pod is on none yet",)
    assert not [path for path, _ in server.asked if "nodes" in path]


async def test_without_the_pod_there_is_nothing() -> None:
    async with serving({}) as (client, _):
        with pytest.raises(RefusedError):
            await fetch(client, namespace="llm", name="chat-0")


@pytest.mark.parametrize(
    "asked",
    [{}, {"spec": 5, "status": []}, {"spec": {"containers": {}}}, {"spec": {"containers": [5, {}, {"name": 7}]}}],
)
async def test_a_pod_of_another_form_has_no_containers(asked: dict[str, Any]) -> None:
    async with serving({POD: asked}) as (client, server):
        found = await fetch(client, namespace="llm", name="chat-0")
    assert found.logs == () and server.logs == []


async def test_of_many_containers_some_are_fetched_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "CONTAINERS", 2)
    answers = {POD: pod(names=("a", "b", "c")), NODE: {}, "load": b"", "a": b""}
    async with serving(answers) as (client, server):
        found = await fetch(client, namespace="llm", name="chat-0")
    assert server.logs == ["load", "a"] and found.missing == ("logs of 2 further containers were not fetched",)


@pytest.mark.parametrize(
    ("text", "kept", "cut"),
    [
        (b"", b"", False),
        (b"0123456\n", b"0123456\n", False),
        (b"0123456789abcde\n", b"0123456789abcde\n", False),  # exactly the limit
        (
            b"one\n" + b"0123456789abcde\n",
            b"0123456789abcde\n",
            True,
        ),  # one line is all
        (b"first\n" * 100 + b"the last line\n", b"the last line\n", True),
        (b"x" * 100, b"x" * 16, True),  # one line: better a part of it than nothing
        (b"x" * (1 << 20) + b"\nend\n", b"end\n", True),
    ],
)
async def test_of_a_long_log_the_end_is_kept(
    text: bytes, kept: bytes, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LOG_BYTES", 16)
    async with serving({POD: pod(), NODE: {}, "main": text}) as (client, server):
        (log,) = (await fetch(client, namespace="llm", name="chat-0", container="main")).logs
    assert (log.text, log.cut) == (kept, cut)
    (asked,) = [query for path, query in server.asked if path == LOG]
    assert asked == {"container": "main", "timestamps": "false", "limitBytes": str(fetching.SENT_BYTES)}


async def test_a_log_without_end_is_left_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SENT_BYTES", 1 << 20)

    async def endless(request: web.Request) -> web.StreamResponse:
        if request.path != LOG:
            return web.json_response(pod())
        response = web.StreamResponse()
        await response.prepare(request)
        while True:  # until the client leaves
            await response.write(b"line\n" * 10_000)

    async with answering(endless) as client:
        (log,) = (await fetch(client, namespace="llm", name="chat-0", container="main")).logs
    assert (1 << 20) <= len(log.text) < (3 << 20)


@pytest.mark.parametrize("more", ["", None, 5])
async def test_every_node_comes_page_by_page(more: object) -> None:
    pages = [
        {"items": [{"metadata": {"name": "a"}}, 5], "metadata": {"continue": "two"}},
        {"items": None, "metadata": {"continue": "three"}},
        {"items": [{"metadata": {"name": "b"}}], "metadata": {"continue": more}},
    ]
    asked = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        return web.json_response(pages[len(asked) - 1])

    async with answering(answer) as client:
        names = [node["metadata"]["name"] async for node in all_nodes(client)]
    assert names == ["a", "b"]
    assert asked == [{"limit": "500"}, {"limit": "500", "continue": "two"}, {"limit": "500", "continue": "three"}]


async def test_a_list_of_nodes_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAGES", 3)
    asked = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response({"items": [{}], "metadata": {"continue": "again"}})

    async with answering(answer) as client:
        assert len([node async for node in all_nodes(client)]) == 3
    assert asked == ["/api/v1/nodes"] * 3


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RefusedError("GET /x", status=403, reason="Forbidden", message="pods is forbidden"),
            "pods is forbidden (403)",
        ),
        (RefusedError("GET /x", status=502, reason="BadGateway", message=""), "BadGateway (502)"),
        (UnreachableError("GET /x: no answer within 10 s"), "GET /x: no answer within 10 s"),
    ],
)
def test_errors_are_told_as_the_server_said(error: KubeError, words: str) -> None:
    assert told(error) == words

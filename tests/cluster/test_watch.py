"""A watch of a real API server, also through its restarts, and of one that misbehaves: nothing is missed, none is asked
without a pause."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kube import KubeClient, UnreachableError, login
from agent.kube.backoff import Backoff
from agent.kube.client import RefusedError
from agent.kube.watch import Changed, Listed, Watch
from tests.cluster.answers import answering, lines
from tests.cluster.server import ApiServer
from tests.conftest import make_node

PATIENCE = 30.0


def watch_of(client: KubeClient, name: str) -> Watch:
    """A watch of one node that tries again quickly."""
    return Watch(
        client,
        "/api/v1/nodes",
        params={"fieldSelector": f"metadata.name={name}"},
        clock=asyncio.get_running_loop().time,
        backoff=Backoff(first=0.05, limit=0.2),
    )


def note(found: Listed | Changed) -> tuple[str, str]:
    """What was heard: ``("MODIFIED", "2")`` where the annotation n is 2."""
    if isinstance(found, Listed):
        return "LISTED", ",".join(sorted(item["metadata"]["name"] for item in found.items))
    return found.kind, found.object["metadata"].get("annotations", {}).get("n", "")


async def heard(changes: AsyncGenerator[Listed | Changed]) -> tuple[str, str]:
    async with asyncio.timeout(PATIENCE):
        return note(await anext(changes))


async def annotate(client: KubeClient, name: str, n: int) -> None:
    await client.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"n": str(n)}}})


async def test_each_change_is_heard(client: KubeClient) -> None:
    name = "watched"
    async with aclosing(watch_of(client, name).changes()) as changes:
        assert await heard(changes) == ("LISTED", "")
        await make_node(client, name)
        assert await heard(changes) == ("ADDED", "")
        assert (await heard(changes))[0] == "MODIFIED"  # its status
        await annotate(client, name, 1)
        await annotate(client, name, 2)
        assert [await heard(changes), await heard(changes)] == [("MODIFIED", "1"), ("MODIFIED", "2")]
        await client.delete(f"/api/v1/nodes/{name}")
        assert await heard(changes) == ("DELETED", "2")


async def test_a_list_without_its_rights_is_said_and_tried_again(api_server: ApiServer, node: str) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            raise asyncio.CancelledError

    async with KubeClient(await login(kubeconfig=str(api_server.kubeconfig_for("nobody")))) as stranger:
        watch = Watch(stranger, "/api/v1/nodes", clock=lambda: 0.0, backoff=Backoff(chance=lambda: 1.0), sleep=sleep)
        with pytest.raises(asyncio.CancelledError):
            await anext(watch.changes())
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert "403 Forbidden" in watch.error and watch.errors == 5 and watch.last_read is None


async def test_a_restarted_server_loses_no_change(api_server: ApiServer) -> None:
    """A stop and a crash, each with a change before the watch is back. Its own server, which no other test shares."""
    name, known = "restarted", [""]

    async def follow(watch: Watch) -> None:
        async with aclosing(watch.changes()) as changes:
            async for found in changes:
                objects = found.items if isinstance(found, Listed) else (found.object,)
                known.extend(item["metadata"].get("annotations", {}).get("n", "") for item in objects)

    with ApiServer(version=api_server.version) as server:
        how = await login(kubeconfig=str(server.kubeconfig()))
        async with KubeClient(how) as writer, KubeClient(how) as reader:
            await make_node(writer, name)
            watch = watch_of(reader, name)
            following = asyncio.create_task(follow(watch))
            try:
                for n in range(3):
                    await annotate(writer, name, n)
                    await until(lambda n=n: known[-1] == str(n))
                    assert watch.error == ""
                    if n < 2:
                        errors = watch.errors
                        await asyncio.to_thread(server.stop_api, kill=n == 1)
                        with pytest.raises(UnreachableError):
                            await writer.get("/api/v1/nodes")
                        await until(lambda errors=errors: watch.errors > errors)
                        assert watch.error
                        server.start_api()
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
    assert list(dict.fromkeys(known)) == ["", "0", "1", "2"]  # each was seen, in order; a new list may repeat one


async def until(so: Callable[[], bool]) -> None:
    """Waits for what a real server does in its own time."""
    async with asyncio.timeout(PATIENCE):
        while not so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Script:
    """A list that is always the same, and a watch that says what the test tells it to, one answer after another."""

    def __init__(self, *answers: Any, then: Any = ()) -> None:
        self.answers = itertools.chain(answers, itertools.repeat(then))
        self.asked: list[str] = []
        self.pauses: list[float] = []
        self.said: list[str] = []
        """The watch's error at each pause."""
        self.now = 0.0
        self.watch: Watch

    async def handler(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.asked.append("list")
            items = [{"metadata": {"name": "a"}}]
            return web.json_response({"metadata": {"resourceVersion": "100"}, "items": items})
        self.asked.append(f"watch {request.query['resourceVersion']}")
        answer = next(self.answers)
        if isinstance(answer, web.Response):
            return answer
        return await lines(request, *answer)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.said.append(self.watch.error)
        self.now += seconds

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[tuple[Watch, AsyncGenerator[Listed | Changed]]]:
        async with answering(self.handler) as client:
            backoff = Backoff(first=1.0, chance=lambda: 1.0)
            self.watch = Watch(client, "/x", clock=lambda: self.now, backoff=backoff, sleep=self.sleep)
            async with aclosing(self.watch.changes()) as changes:
                yield self.watch, changes


def event(kind: str, version: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"resourceVersion": str(version), **more}}}


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
BROKEN = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "reason": "InternalError"}}


async def test_a_version_that_is_too_old_leads_to_a_new_list() -> None:
    script = Script([event("MODIFIED", 105), GONE], [event("DELETED", 106)])
    async with script.followed() as (watch, changes):
        got = [note(await anext(changes))[0] for _ in range(4)]
    assert got == ["LISTED", "MODIFIED", "LISTED", "DELETED"]
    assert script.asked == ["list", "watch 100", "list", "watch 100"]
    assert script.pauses == [] and watch.errors == 0  # usual after a pause; nothing to report


async def test_410_as_a_status_leads_to_a_new_list() -> None:
    script = Script(web.Response(status=410), [event("ADDED", 101)])
    async with script.followed() as (_, changes):
        assert [note(await anext(changes))[0] for _ in range(3)] == ["LISTED", "LISTED", "ADDED"]


async def test_a_server_that_always_says_too_old_is_asked_ever_more_rarely() -> None:
    script = Script(then=[GONE])
    async with script.followed() as (watch, changes):
        for _ in range(8):
            assert note(await anext(changes))[0] == "LISTED"
    assert script.pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert watch.errors == 6


@pytest.mark.parametrize("answer", [[], [BROKEN], [b"not JSON\n"], [b'{"type": "ADDED"'], [b"[" * 20000 + b"\n"]])
async def test_a_watch_that_fails_at_once_is_not_begun_anew_at_once(answer: list[Any]) -> None:
    script = Script(*[answer] * 5, [event("ADDED", 101)])
    async with script.followed() as (watch, changes):
        assert [note(await anext(changes))[0] for _ in range(2)] == ["LISTED", "ADDED"]
        assert watch.error == "" and watch.errors == 5 and watch.last_read == script.now
    assert script.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


async def test_a_watch_that_ends_after_an_event_goes_on_where_it_was() -> None:
    script = Script([event("ADDED", 101)], [event("BOOKMARK", 150)], [event("MODIFIED", 151)])
    async with script.followed() as (watch, changes):
        assert [note(await anext(changes))[0] for _ in range(3)] == ["LISTED", "ADDED", "MODIFIED"]
    assert script.asked == ["list", "watch 100", "watch 101", "watch 150"]
    assert script.pauses == [] and watch.errors == 0


async def test_the_server_says_how_long_to_wait() -> None:
    script = Script(web.Response(status=429, headers={"Retry-After": "17"}), [event("ADDED", 101)])
    async with script.followed() as (_, changes):
        await anext(changes)
        await anext(changes)
    assert script.pauses == [17.0]


async def test_an_event_in_many_pieces_and_one_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.kube.watch.LINE_BYTES", 1000)
    pieces = [
        b'{"type": "ADDED", "obj',
        b'ect": {"metadata": {"name": "b"}}}\n{"type": ',
        b'"BOOKMARK", "object": {}}\n',
    ]
    script = Script(pieces, [b"x" * 5000], [event("MODIFIED", 101)])
    async with script.followed() as (_, changes):
        assert [note(await anext(changes))[0] for _ in range(3)] == ["LISTED", "ADDED", "MODIFIED"]
    (error,) = script.said
    assert "an event of more than" in error


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.fixed_dictionaries(
    {"type": ANY_JSON | st.sampled_from(["ADDED", "ERROR", "BOOKMARK"])},
    optional={"object": ANY_JSON | st.fixed_dictionaries({}, optional={"code": ANY_JSON, "metadata": ANY_JSON})},
)


# The first draw of text builds a table, which a busy machine takes seconds for.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(line=st.binary(max_size=50) | EVENTS.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_an_event_or_an_error_of_ours(line: bytes) -> None:
    watch = Watch(None, "/x", clock=lambda: 0.0)  # type: ignore[arg-type]
    try:
        found = watch._event(line)
    except (UnreachableError, RefusedError):
        return
    assert found is None or isinstance(found.object, dict)
    assert isinstance(watch._version, str)


@unhurried
@given(listed=ANY_JSON)
async def test_any_list_is_read(listed: Any) -> None:
    class Client:
        async def get(self, *_: object, **__: object) -> Any:
            return {"metadata": listed, "items": listed}

    watch = Watch(Client(), "/x", clock=lambda: 0.0)  # type: ignore[arg-type]
    async with aclosing(watch.changes()) as changes:
        found = await anext(changes)
    assert isinstance(found, Listed) and all(isinstance(item, dict) for item in found.items)

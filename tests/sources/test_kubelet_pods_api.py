"""The kubelet's Pods API: real pods become what their JSON becomes, and the watch survives what a kubelet does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status

from agent.kube.backoff import Backoff
from agent.pods import Exit, pod_of
from agent.sources.kubelet.grpc import CallError
from agent.sources.kubelet.pods_api import GRACE_SECONDS, UNSERVED_SECONDS, WATCH, PodsApi, pod_of_wire
from agent.sources.podfeed import PodChange
from tests.sources.fake_kubelet import EVENTS, PODS, Behaviour, FakeKubelet, Hangs, event, message, pod_bytes, refuses
from tests.sources.loop_clock import LoopClock, idle

ADDED, MODIFIED, DELETED, SYNCED = 1, 2, 3, 4


@pytest.mark.parametrize(("json", "data"), PODS, ids=[p["metadata"]["name"] for p, _ in PODS])
def test_a_pod_of_the_kubelet_is_the_pod_of_the_api_server(json: dict[str, Any], data: bytes) -> None:
    found = pod_of_wire(data)
    assert found is not None and found == pod_of(json)


def test_the_tables_reach_all_that_is_kept_of_a_pod() -> None:
    """Both ways could lose the same field: what must be there is told apart from the JSON."""
    chat, rejected, bare = (pod_of_wire(data) for _, data in PODS)
    assert chat is not None and rejected is not None and bare is not None
    assert (chat.namespace, chat.name, chat.uid, chat.node) == (
        "llm", "chat-0", "11111111-2222-3333-4444-555555555555", "node-a",
    )  # fmt: skip
    assert chat.labels["inference.llmkube.dev/service"] == "chat" and chat.labels["empty"] == ""
    assert chat.annotations["größe"] == "7 µm"
    assert [(o.kind, o.name, o.api_version, o.uid, o.controller) for o in chat.owners] == [
        ("ReplicaSet", "chat-7d", "apps/v1", "rs-uid", True), ("ConfigMap", "other", "v1", "cm-uid", False),
    ]  # fmt: skip
    assert chat.claims == {"gpu": "chat-0-gpu-x7", "direct": "shared-claim", "": "chat-0-extended"}
    assert [(c.name, c.init) for c in chat.containers] == [("download", True), ("sglang", False), ("proxy", False)]
    sglang, proxy = chat.containers[1:]
    assert sglang.command == ("python3", "-m", "sglang.launch_server")
    assert sglang.args == ("--model-path", "/models/qwen", "", "--port", "30000")
    assert sglang.limits == {"nvidia.com/gpu": "2", "memory": "128Gi", "cpu": "1500m"}
    assert (sglang.claims, sglang.id, sglang.restarts, sglang.ready) == (("gpu", "direct"), "abcdef0123", 4, False)
    assert sglang.ended is not None and sglang.ended_before is not None
    assert (sglang.ended.code, sglang.ended.signal, sglang.ended.reason) == (137, 9, "Error")
    assert "CUDA error" in sglang.ended.message and sglang.ended_before == Exit(
        code=-1, reason="Error", time=1796072765.0
    )
    assert [(d.resource, d.id, d.health, d.message) for d in sglang.devices] == [
        ("nvidia.com/gpu", "GPU-aaaa", "Unhealthy", ""), ("nvidia.com/gpu", "GPU-bbbb", "Healthy", ""),
        ("claim:gpu", "gpu.nvidia.com/node-a/gpu-0", "Unknown", "xid 79"), ("claim:gpu", "x", "Unknown", ""),
    ]  # fmt: skip
    assert (proxy.ready, proxy.running_since, proxy.ended) == (True, 1796072720.0, None)
    assert (rejected.phase, rejected.reason, rejected.deleting) == ("Failed", "UnexpectedAdmissionError", True)
    assert "GPU is lost" in rejected.message and rejected.created == 1796076000.0
    assert (bare.created, bare.deleting, bare.containers[0].running_since) == (None, False, None)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", message((1, 5)), message((1, message((1, "name")))), message((1, message((5, "uid"))))],
)
def test_what_names_no_pod_is_none(data: bytes) -> None:
    assert pod_of_wire(data) is None


class Feed:
    """A PodsApi whose streams and waits are the test's: each connection plays one script."""

    def __init__(self, *scripts: Sequence[bytes | Exception | asyncio.Event], grace: float = GRACE_SECONDS) -> None:
        self.scripts, self.count = list(scripts), len(scripts)
        self.waits: list[float] = []
        self.unserved: list[bool] = []
        """Whether the feed said so, at each wait."""
        self.waited: asyncio.Queue[float] = asyncio.Queue()
        self.closed = 0
        self.told: list[tuple[str, str]] = []
        self.api = PodsApi(
            "/s", connect=self.connect, sleep=self.sleep, grace=grace,
            backoff=Backoff(first=1.0, limit=8.0, chance=lambda: 1.0),
        )  # fmt: skip

    async def connect(self, path: str, method: str, request: bytes) -> AsyncIterator[bytes]:
        assert (path, method, request) == ("/s", WATCH, b"")
        try:
            for step in self.scripts.pop(0):
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
        finally:
            self.closed += 1

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.unserved.append(self.api.unserved)
        self.waited.put_nowait(seconds)
        if not self.scripts:
            await asyncio.Event().wait()

    async def run(self) -> None:
        async with aclosing(self.api.changes()) as changes:  # type: ignore[type-var]
            async for change in changes:
                self.told.append((change.kind, change.pod.uid))

    async def to_the_end(self) -> None:
        """Until the last script was played and the feed waits to connect again."""
        running = asyncio.create_task(self.run())
        for _ in range(self.count):
            await self.waited.get()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def added(uid: str, *, phase: str = "Running", kind: int = ADDED) -> bytes:
    return event(kind, pod_bytes(uid, uid, phase=phase))


ALL = event(SYNCED)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ((*EVENTS,), "ADDED 11111111-2222-3333-4444-555555555555, ADDED u-2, ADDED u-3, "
                     "DELETED 11111111-2222-3333-4444-555555555555"),
        ((added("a"), ALL, added("b"), added("a", phase="Failed", kind=MODIFIED)), "ADDED a, ADDED b, MODIFIED a"),
        ((added("a"), added("a"), ALL, added("a", kind=MODIFIED)), "ADDED a"),
        ((added("a", kind=MODIFIED),), "ADDED a"),
        ((added("a", kind=DELETED), added("a"), added("a", kind=DELETED), added("a", kind=DELETED)),
         "ADDED a, DELETED a"),
        ((event(0, pod_bytes("a", "a")), event(9, pod_bytes("a", "a")), b""), ""),
        ((ALL, ALL), ""),
    ],
)  # fmt: skip
async def test_what_is_told_of_a_watch(script: tuple[bytes, ...], told: str) -> None:
    feed = Feed(script)
    await feed.to_the_end()
    assert ", ".join(f"{kind} {uid}" for kind, uid in feed.told) == told


async def test_a_deleted_pod_is_told_as_it_was_last_seen() -> None:
    api = Feed(EVENTS).api
    last: PodChange | None = None
    async with aclosing(api.changes()) as changes:  # type: ignore[type-var]
        async for last in changes:
            if last.kind == "DELETED":
                break
    assert last is not None and last.pod == pod_of(PODS[0][0]), "the kubelet sends its name and uid only"
    assert api.synced and {p.uid for p in api.known} == {"u-2", "u-3"}
    assert api.known.uid_of("default", "rejected") == "u-2"


async def test_a_pod_that_is_not_understood_is_counted_and_the_rest_is_told() -> None:
    feed = Feed((event(ADDED, b"\xff"), event(ADDED, message((2, b""))), event(ADDED), added("a")))
    await feed.to_the_end()
    assert feed.told == [("ADDED", "a")]
    assert feed.api.errors == 3 + 1, "each of them, and the watch's end"


@pytest.mark.parametrize(
    ("end", "words", "cure"),
    [
        ((), "/s: the kubelet ended the watch", ""),
        ((CallError("/s is not there", cure="mount it", missing=True),), "/s is not there", "mount it"),
        ((b"\xff",), "/s: an answer that is not understood: cut short", "own socket"),
        ((message((1, "x")),), "/s: an answer that is not understood: bytes where a number belongs", "own socket"),
    ],
)
async def test_a_watch_that_ends_is_told_and_begun_anew(
    end: tuple[bytes | Exception, ...], words: str, cure: str
) -> None:
    feed = Feed((added("a"), ALL, *end), (added("b"), ALL), end)
    await feed.to_the_end()
    assert feed.told == [("ADDED", "a"), ("ADDED", "b")], "a is still believed in"
    assert feed.api.error == words and cure in feed.api.cure and bool(cure) is bool(feed.api.cure)
    assert not feed.api.synced and feed.api.errors == 3 and feed.closed == 3


async def test_waits_grow_while_nothing_comes_and_begin_anew_after_news() -> None:
    away = (CallError("away"),)
    feed = Feed(away, away, away, away, away, (added("a"),), away)
    await feed.to_the_end()
    assert feed.waits == [1.0, 2.0, 4.0, 8.0, 8.0, 1.0, 2.0]


async def test_a_kubelet_without_this_api_is_asked_rarely() -> None:
    feed = Feed((CallError("not served", unserved=True),), (CallError("cut"),))
    await feed.to_the_end()
    assert feed.waits == [UNSERVED_SECONDS, 2.0]
    assert feed.unserved == [True, False]


async def test_pods_that_a_new_watch_does_not_name_are_gone_when_the_grace_is_over() -> None:
    """A kubelet that starts may tell that all is said before it knows its pods."""
    hold = asyncio.Event()
    feed = Feed((added("a"), added("b"), added("c"), ALL), (added("a"), ALL, hold, added("c"), asyncio.Event()))
    with LoopClock() as clock:
        running = asyncio.create_task(feed.run())
        await clock.forward(0.0)
        assert feed.closed == 1 and feed.api.synced
        await clock.forward(GRACE_SECONDS - 1.0)
        hold.set()  # c comes late, but in time
        await clock.forward(0.0)
        assert feed.told == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
        await clock.forward(2.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert feed.told[3:] == [("DELETED", "b")]
    assert {p.uid for p in feed.api.known} == {"a", "c"}


async def test_the_grace_ends_by_itself_while_nothing_is_sent_and_loses_no_answer() -> None:
    hold = asyncio.Event()
    feed = Feed((added("a"), ALL), (ALL, hold, added("b"), asyncio.Event()))
    with LoopClock() as clock:
        running = asyncio.create_task(feed.run())
        await clock.forward(GRACE_SECONDS - 1.0)
        assert feed.told == [("ADDED", "a")]
        await clock.forward(2.0)
        assert feed.told[1:] == [("DELETED", "a")]
        hold.set()
        await clock.forward(0.0)
        assert feed.told[2:] == [("ADDED", "b")], "the read that was pending then is still read"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_watch_that_never_says_that_all_is_told_takes_no_pod_away() -> None:
    feed = Feed((added("a"), ALL), (added("b"), asyncio.Event()))
    with LoopClock() as clock:
        running = asyncio.create_task(feed.run())
        await clock.forward(100 * GRACE_SECONDS)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert feed.told == [("ADDED", "a"), ("ADDED", "b")] and not feed.api.synced


async def test_an_abandoned_feed_closes_its_stream() -> None:
    feed = Feed((added("a"), asyncio.Event()))
    running = asyncio.create_task(feed.run())
    await idle()
    assert feed.told == [("ADDED", "a")] and feed.closed == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert feed.closed == 1


async def next_of(changes: AsyncIterator[PodChange]) -> tuple[str, str]:
    change = await anext(changes)
    return change.kind, change.pod.uid


@pytest.mark.parametrize("away", [None, refuses(Status.UNAVAILABLE, "shutting down", after=(added("x"),))])
async def test_a_real_socket_goes_and_comes_back(tmp_path: Path, away: Behaviour | None) -> None:
    path, waits = tmp_path / "pods.sock", asyncio.Queue[float]()
    again = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.put_nowait(seconds)
        await again.wait()

    api = PodsApi(str(path), sleep=sleep)
    async with aclosing(api.changes()) as changes:  # type: ignore[type-var]
        hangs = Hangs(*EVENTS)
        async with FakeKubelet(path, {WATCH: hangs if away is None else away}):
            uids = [(await next_of(changes))[1] for _ in range(3 if away is None else 1)]
            if away is None:
                assert uids[1:] == ["u-2", "u-3"] and (await next_of(changes))[0] == "DELETED"
                assert api.synced and api.error == ""
        waiting = asyncio.ensure_future(next_of(changes))
        assert await waits.get() > 0.0
        assert api.error and not api.synced and not api.unserved
        async with FakeKubelet(path, {WATCH: Hangs(added("new"), ALL)}):
            again.set()
            assert await waiting == ("ADDED", "new")
            assert api.error == ""


async def test_a_real_kubelet_without_the_service_is_told_apart(tmp_path: Path) -> None:
    waits: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        waits.put_nowait(seconds)
        await asyncio.Event().wait()

    async with FakeKubelet(tmp_path / "pods.sock") as kubelet:
        api = PodsApi(str(tmp_path / "pods.sock"), sleep=sleep)
        running = asyncio.ensure_future(anext(api.changes()))
        assert await waits.get() == UNSERVED_SECONDS
        assert api.unserved and "not served by this kubelet" in api.error
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert kubelet.asked == [(WATCH, b"")]

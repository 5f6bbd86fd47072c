"""Pods and holders of one node together: when the kubelet is asked, what the core is told, and what an outage keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from grpclib.const import Status

from agent.model import Allocation
from agent.occupants import ASK_AGAIN_SECONDS, ASK_SECONDS, Occupants
from agent.pods import Pod
from agent.sources.kubelet.grpc import CallError
from agent.sources.kubelet.pod_resources import ALLOCATABLE, CONFIRM_SECONDS, LIST
from agent.sources.kubelet.pods_api import WATCH, PodsApi
from agent.sources.podfeed import KnownPods, PodChange
from tests.sources.fake_kubelet import EVENTS, FakeKubelet, Hangs, listed_of, message, refuses, says
from tests.sources.loop_clock import LoopClock, idle

CHAT = ("llm", "chat-0", {"sglang": "GPU-a"})
NEXT = ("llm", "next-0", {"sglang": "GPU-a"})


class Feed:
    """A feed of pods that the test tells of."""

    error, errors, synced = "", 0, True

    def __init__(self) -> None:
        self.known = KnownPods()
        self._news: asyncio.Queue[PodChange] = asyncio.Queue()

    def see(self, name: str, uid: str) -> None:
        change = self.known.seen(Pod(namespace="llm", name=name, uid=uid))
        assert change is not None
        self._news.put_nowait(change)

    async def changes(self) -> AsyncIterator[PodChange]:
        while True:
            yield await self._news.get()


@dataclass
class Node:
    """Occupants of a kubelet that answers what the test says, on a clock that the test turns."""

    answer: bytes | CallError = b""
    names: dict[str, str] = field(default_factory=dict)
    """GPUs of DRA devices, as far as the slices were read."""
    told: list[list[Allocation]] = field(default_factory=list)
    asked: int = 0
    looks: int = 0
    news: int = 0
    feed: Feed = field(default_factory=Feed)

    def held(self, allocations: Iterable[Allocation]) -> None:
        self.told.append(list(allocations))

    def look(self) -> None:
        self.looks += 1

    def pods(self) -> None:
        self.news += 1

    async def call(self, path: str, method: str, request: bytes) -> bytes:
        assert path == "/k.sock"
        if method != LIST:
            return b""
        self.asked += 1
        if isinstance(self.answer, CallError):
            raise self.answer
        return self.answer

    @asynccontextmanager
    async def running(self, *, feed: bool = True) -> AsyncIterator[LoopClock]:
        loop = asyncio.get_running_loop()
        self.occupants = Occupants(
            feed=self.feed if feed else None, socket="/k.sock", driver="gpu.nvidia.com", held=self.held,
            resolve=lambda d: self.names.get(d, d), on_pods=self.pods, on_look=self.look, clock=lambda: loop.time(),
        )  # fmt: skip
        assert self.occupants.holders is not None
        self.occupants.holders.call = self.call
        with LoopClock() as clock:
            task = asyncio.create_task(self.occupants.run())
            await idle()
            try:
                yield clock
            finally:
                assert not task.done(), task
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @property
    def last(self) -> list[tuple[str, str, tuple[str, ...], bool]]:
        """Of the last word: pod, uid, devices, and whether it holds them still."""
        return [(a.container.pod, a.container.uid, a.devices, a.until is None) for a in self.told[-1]]


async def test_the_kubelet_is_asked_at_once_and_then_now_and_then() -> None:
    node = Node(listed_of(CHAT))
    async with node.running() as clock:
        assert (node.asked, node.looks) == (1, 1)
        assert node.last == [("chat-0", "", ("GPU-a",), True)]
        await clock.forward(ASK_SECONDS - 1.0)
        assert node.asked == 1
        await clock.forward(2.0)
        assert (node.asked, node.looks) == (2, 2)


async def test_pods_that_change_make_it_ask_soon_once_for_a_group() -> None:
    node = Node()
    async with node.running() as clock:
        assert node.told == [], "nobody holds anything: nothing is told"
        node.answer = listed_of(CHAT)
        for n in range(5):
            node.feed.see(f"pod-{n}", f"u{n}")
        node.feed.see("chat-0", "u-chat")
        await clock.forward(0.0)
        assert (node.news, node.asked) == (6, 1), "the group may go on"
        await clock.forward(ASK_AGAIN_SECONDS)
        assert node.asked == 2
        assert node.last == [("chat-0", "u-chat", ("GPU-a",), True)]


async def test_a_pod_that_comes_while_it_asks_is_not_overlooked() -> None:
    node = Node(listed_of(CHAT))
    asking, answer = asyncio.Event(), asyncio.Event()
    once = node.call

    async def slow(path: str, method: str, request: bytes) -> bytes:
        found = await once(path, method, request)
        if method == LIST and node.asked == 2:
            asking.set()
            await answer.wait()
        return found

    async with node.running() as clock:
        assert node.occupants.holders is not None
        node.occupants.holders.call = slow
        await clock.forward(ASK_SECONDS + 1.0)
        assert asking.is_set()
        node.feed.see("chat-0", "u-chat")
        await idle()
        answer.set()
        await clock.forward(0.0)
        await clock.forward(ASK_AGAIN_SECONDS)
        assert node.asked == 3 and node.last == [("chat-0", "u-chat", ("GPU-a",), True)]


async def test_a_crashed_containers_gpu_stays_known_after_it_was_given_to_another() -> None:
    """What the correlation asks for: who held the GPU when it failed, though the pod is long gone."""
    node = Node(listed_of(CHAT))
    node.feed.see("chat-0", "u1")
    async with node.running() as clock:
        node.answer = listed_of(NEXT)
        node.feed.see("next-0", "u2")
        for _ in range(10):
            await clock.forward(ASK_AGAIN_SECONDS + 1.0)
        assert node.last == [("chat-0", "u1", ("GPU-a",), False), ("next-0", "u2", ("GPU-a",), True)]
        assert node.told[-1][0].until is not None and node.told[-1][0].until <= node.told[-1][1].since
        asked = node.asked
        await clock.forward(2 * ASK_AGAIN_SECONDS)
        assert node.asked == asked, "nothing is in doubt any more"


async def test_while_an_answer_is_doubted_it_asks_every_other_second() -> None:
    node = Node(listed_of(CHAT))
    async with node.running() as clock:
        node.answer = b""  # a kubelet that has just started
        await clock.forward(ASK_SECONDS + 1.0)
        assert node.asked == 2
        await clock.forward(ASK_AGAIN_SECONDS + 0.1)
        assert node.asked == 3
        assert node.last == [("chat-0", "", ("GPU-a",), True)], "no proof that nobody holds the GPU"
        node.answer = listed_of(CHAT)
        await clock.forward(ASK_AGAIN_SECONDS + 0.1)
        await clock.forward(ASK_AGAIN_SECONDS + 0.1)
        assert node.asked == 4


async def test_a_kubelet_that_is_away_is_asked_often_and_what_was_known_is_told_on() -> None:
    node = Node(listed_of(CHAT))
    async with node.running() as clock:
        node.answer = CallError("away", missing=True)
        await clock.forward(ASK_SECONDS + 1.0)
        for _ in range(20):
            await clock.forward(ASK_AGAIN_SECONDS + 0.1)
        assert node.asked == 22 and node.looks == 22
        assert node.occupants.holders is not None and node.occupants.holders.error == "away"
        assert node.occupants.allocatable() is None
        assert node.last == [("chat-0", "", ("GPU-a",), True)]
        node.answer = listed_of(CHAT)
        await clock.forward(ASK_AGAIN_SECONDS + 0.1)
        assert node.occupants.holders.error == "" and node.occupants.allocatable() == frozenset()


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (("GPU-a",), ("GPU-a",)),
        (("GPU-a::3",), ("GPU-a",)),
        (("MIG-a::0", "MIG-a::1"), ("MIG-a",)),
        (("MIG-a", "GPU-b::12"), ("MIG-a", "GPU-b")),
    ],
)
async def test_shared_and_partial_gpus_are_told_by_their_own_id(ids: tuple[str, ...], told: tuple[str, ...]) -> None:
    entry = message((1, "nvidia.com/gpu.shared"), *((2, i) for i in ids))
    node = Node(message((1, message((1, "p"), (2, "llm"), (3, message((1, "c"), (2, entry)))))))
    async with node.running():
        assert node.last == [("p", "", told, True)]


async def test_a_dra_device_is_told_by_its_gpu_as_soon_as_the_slices_tell_which() -> None:
    claimed = message((4, message((2, "gpu.nvidia.com"), (3, "n1"), (4, "gpu-0"))))
    node = Node(message((1, message((1, "p"), (2, "llm"), (3, message((1, "c"), (5, claimed)))))))
    async with node.running() as clock:
        assert node.last == [("p", "", ("gpu.nvidia.com/n1/gpu-0",), True)]
        node.names["gpu.nvidia.com/n1/gpu-0"] = "GPU-a"
        await clock.forward(ASK_SECONDS + 1.0)
        assert node.last == [("p", "", ("GPU-a",), True)]


async def test_without_a_feed_holders_are_told_and_without_a_socket_pods_are() -> None:
    node = Node(listed_of(CHAT))
    async with node.running(feed=False):
        assert node.last == [("chat-0", "", ("GPU-a",), True)] and len(node.occupants.pods) == 0
    feed, seen = Feed(), list[int]()
    only_pods = Occupants(
        feed=feed, socket="", driver="x", held=lambda _: None, resolve=str, on_look=lambda: None,
        on_pods=lambda: seen.append(len(feed.known)), clock=lambda: 0.0,
    )  # fmt: skip
    assert only_pods.holders is None and only_pods.allocatable() is None
    running = asyncio.create_task(only_pods.run())
    feed.see("a", "a")
    await idle()
    assert seen == [1] and only_pods.pods.get("a") is not None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_both_of_a_real_kubelet_that_goes_and_comes_back(tmp_path: Path) -> None:
    """Two sockets, the recorded pods, a restart: the pods and the hold are the same afterwards."""
    pods, resources = tmp_path / "pods.sock", tmp_path / "resources.sock"
    told: asyncio.Queue[list[Allocation]] = asyncio.Queue()
    looks: asyncio.Queue[None] = asyncio.Queue()
    api = PodsApi(str(pods), sleep=lambda seconds: asyncio.sleep(ASK_SECONDS))
    occupants = Occupants(
        feed=api, socket=str(resources), driver="gpu.nvidia.com", held=lambda a: told.put_nowait(list(a)), resolve=str,
        on_pods=lambda: None, on_look=lambda: looks.put_nowait(None), clock=lambda: 0.0,
    )  # fmt: skip
    listing, offered = listed_of(CHAT), message((1, message((1, "nvidia.com/gpu"), (2, "GPU-a"))))
    answers = {LIST: says(listing), ALLOCATABLE: says(offered)}
    with LoopClock() as clock:
        async with FakeKubelet(resources, answers), FakeKubelet(pods, {WATCH: Hangs(*EVENTS[:-1])}):
            task = asyncio.create_task(occupants.run())
            uid = ""
            while not uid:  # the name is told by one socket, the uid by the other
                (held,) = await told.get()
                uid = held.container.uid
                await clock.forward(ASK_AGAIN_SECONDS)
            assert uid == "11111111-2222-3333-4444-555555555555" and api.synced
            assert occupants.allocatable() == {"GPU-a"}
        while occupants.allocatable() is not None or api.synced:
            await clock.forward(ASK_SECONDS + 1.0)
            await looks.get()
        refused = {LIST: refuses(Status.UNAVAILABLE)}
        async with FakeKubelet(resources, refused) as back, FakeKubelet(pods, {WATCH: Hangs(*EVENTS[:-1])}):
            back.answers |= answers
            while occupants.allocatable() is None or not api.synced:
                await clock.forward(ASK_SECONDS + 1.0)
                await looks.get()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    while not told.empty():
        (held,) = told.get_nowait()
        assert (held.container.uid, held.devices, held.until) == (uid, ("GPU-a",), None)
    assert len(occupants.pods) == 3


def test_the_times_fit_each_other() -> None:
    assert ASK_AGAIN_SECONDS * 2 <= CONFIRM_SECONDS <= ASK_SECONDS, "a doubt is asked about before it is believed"

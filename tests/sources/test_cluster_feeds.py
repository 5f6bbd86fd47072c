"""Pods and slices of this node from the API server's watch: what is taken up, told on, and left out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from agent.kube.client import KubeClient, UnreachableError
from agent.kube.watch import Changed, Listed, Watch
from agent.slices import KnownDevices
from agent.sources.cluster import slices as slices_module
from agent.sources.cluster.pods import ClusterPods, cluster_pods
from agent.sources.cluster.slices import SliceSource


class PlayedWatch:
    """A watch whose news is the test's; a text in between is an error that it then has."""

    def __init__(self, *news: Listed | Changed | str) -> None:
        self.news, self.error, self.errors = news, "", 0

    async def changes(self) -> AsyncIterator[Listed | Changed]:
        for one in self.news:
            if isinstance(one, str):
                self.error, self.errors = one, self.errors + bool(one)
            else:
                yield one


def watch(*news: Listed | Changed | str) -> Watch:
    return cast(Watch, PlayedWatch(*news))


def pod(uid: str, *, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": uid, "namespace": "llm", "uid": uid}, "status": {"phase": phase}}


def listed(*items: dict[str, Any]) -> Listed:
    return Listed(items=items)


@pytest.mark.parametrize(
    ("news", "told"),
    [
        ([listed(pod("a"), pod("b"))], ["ADDED a", "ADDED b"]),
        ([listed(pod("a")), listed(pod("a"))], ["ADDED a"]),
        ([listed(pod("a"), pod("b")), listed(pod("b", phase="Failed"), pod("c"))],
         ["ADDED a", "ADDED b", "DELETED a", "MODIFIED b", "ADDED c"]),
        ([listed(pod("a")), listed()], ["ADDED a", "DELETED a"]),
        ([listed(), Changed(kind="ADDED", object=pod("a")), Changed(kind="MODIFIED", object=pod("a")),
          Changed(kind="MODIFIED", object=pod("a", phase="Failed")), Changed(kind="DELETED", object=pod("a"))],
         ["ADDED a", "MODIFIED a", "DELETED a"]),
        ([Changed(kind="DELETED", object=pod("a"))], []),
        ([listed({}, {"metadata": None}, {"metadata": {"name": "x"}}), Changed(kind="ADDED", object={})], []),
    ],
)  # fmt: skip
async def test_what_is_told_of_the_pods(news: Sequence[Listed | Changed], told: list[str]) -> None:
    feed = ClusterPods(watch(*news))
    assert [f"{change.kind} {change.pod.uid}" async for change in feed.changes()] == told


async def test_the_feed_is_complete_from_its_first_list_until_it_is_blind() -> None:
    feed = ClusterPods(watch(Changed(kind="ADDED", object=pod("a")), listed(pod("b")), "gone", listed(pod("c")), ""))
    seen = []
    assert not feed.synced
    async for change in feed.changes():
        seen.append((change.kind, change.pod.uid, feed.synced, feed.error))
    assert seen == [
        ("ADDED", "a", False, ""),
        ("DELETED", "a", False, ""),
        ("ADDED", "b", False, ""),
        ("DELETED", "b", False, "gone"),
        ("ADDED", "c", False, "gone"),
    ]
    assert feed.synced and feed.errors == 1 and feed.known.uid_of("llm", "c") == "c"


class AskedError(Exception):
    """The request was noted: that is all."""


class NotingClient:
    """Notes what is listed, answers with an empty list, and ends the test's patience at the watch."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def get(self, path: str, *, params: dict[str, str]) -> dict[str, Any]:
        self.asked.append((path, params))
        return {"metadata": {"resourceVersion": "7"}, "items": None}

    @asynccontextmanager
    async def stream(self, method: str, path: str, *, params: dict[str, str], deadline: float) -> AsyncIterator[None]:
        self.asked.append((path, params))
        raise AskedError
        yield


async def test_only_this_nodes_pods_and_slices_are_asked_for() -> None:
    client = NotingClient()
    kube = cast(KubeClient, client)
    with pytest.raises(AskedError):
        async for _ in cluster_pods(kube, "node-a", clock=lambda: 0.0).changes():
            pass
    known = KnownDevices()
    with pytest.raises(AskedError):
        await SliceSource(kube, node="node-a", known=known, clock=lambda: 0.0, version="v1beta2").run()
    assert [path for path, _ in client.asked] == ["/api/v1/pods"] * 2 + [
        "/apis/resource.k8s.io/v1beta2/resourceslices"
    ] * 2
    assert {params["fieldSelector"] for _, params in client.asked} == {"spec.nodeName=node-a"}
    assert known.offered == (), "an empty list was read"


def a_slice(name: str, *devices: str, node: str = "node-a", generation: int = 1) -> dict[str, Any]:
    pool = {"name": node, "generation": generation}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": [{"name": d} for d in devices]}
    return {"metadata": {"name": name}, "spec": spec}


def offered(known: KnownDevices) -> list[str] | None:
    return None if known.offered is None else [d.device for d in known.offered]


@pytest.mark.parametrize(
    ("news", "now", "last"),
    [
        ([], None, []),
        ([listed()], [], []),
        ([listed(a_slice("s1", "gpu-0"), a_slice("s2", "gpu-1"))], ["gpu-0", "gpu-1"], ["gpu-0", "gpu-1"]),
        ([listed(a_slice("s1", "gpu-0")), Changed(kind="ADDED", object=a_slice("s2", "gpu-1"))],
         ["gpu-0", "gpu-1"], ["gpu-0", "gpu-1"]),
        ([listed(a_slice("s1", "gpu-0")), Changed(kind="MODIFIED", object=a_slice("s1", "gpu-0", "gpu-1"))],
         ["gpu-0", "gpu-1"], ["gpu-0", "gpu-1"]),
        ([listed(a_slice("s1", "gpu-0")), Changed(kind="ADDED", object=a_slice("s2", "gpu-9", generation=2))],
         ["gpu-9"], ["gpu-9"]),
        # A kubelet's start deletes all slices of its node at once: no slice is not no GPU.
        ([listed(a_slice("s1", "gpu-0")), Changed(kind="DELETED", object=a_slice("s1"))], [], ["gpu-0"]),
        ([listed(a_slice("s1", "gpu-0")), listed()], [], ["gpu-0"]),
        ([listed(a_slice("s1", "gpu-0")), Changed(kind="DELETED", object=a_slice("s9"))], ["gpu-0"], ["gpu-0"]),
        ([listed(a_slice("s1", "gpu-0", node="node-b"))], [], []),
        ([listed({}, {"metadata": 5}), Changed(kind="ADDED", object={"metadata": None})], [], []),
    ],
)  # fmt: skip
async def test_what_is_offered_now_and_what_was_last(
    news: list[Listed | Changed], now: list[str] | None, last: list[str]
) -> None:
    known, changed = KnownDevices(), list[None]()
    source = SliceSource(
        cast(KubeClient, None), node="node-a", known=known, clock=lambda: 0.0, watch=watch(*news),
        on_change=lambda: changed.append(None),
    )  # fmt: skip
    await source.run()
    assert (offered(known), [d.device for d in known.devices]) == (now, last)
    assert len(changed) == len(news) and source.error == ""


async def test_slices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "MAX_SLICES", 2)
    known = KnownDevices()
    source = SliceSource(cast(KubeClient, None), node="node-a", known=known, clock=lambda: 0.0, watch=watch())
    source.take(listed(*(a_slice(f"s{n}", f"gpu-{n}") for n in range(5))))
    source.take(Changed(kind="ADDED", object=a_slice("s7", "gpu-7")))
    assert offered(known) == ["gpu-0", "gpu-1"]
    source.take(Changed(kind="MODIFIED", object=a_slice("s1", "gpu-8")))
    assert offered(known) == ["gpu-0", "gpu-8"], "a known one still changes"


async def test_a_blind_source_of_slices_says_why() -> None:
    source = SliceSource(
        cast(KubeClient, None), node="n", known=KnownDevices(), clock=lambda: 0.0, watch=watch("no right to list")
    )
    await source.run()
    assert source.error == "no right to list"


async def test_a_real_watch_that_fails_leaves_what_is_known() -> None:
    class Cut(NotingClient):
        answers = 0

        async def get(self, path: str, *, params: dict[str, str]) -> dict[str, Any]:
            self.answers += 1
            if self.answers > 1:
                raise UnreachableError("no connection")
            return {"metadata": {"resourceVersion": "7"}, "items": [a_slice("s1", "gpu-0")]}

        @asynccontextmanager
        async def stream(
            self, method: str, path: str, *, params: dict[str, str], deadline: float
        ) -> AsyncIterator[None]:
            raise UnreachableError("cut")
            yield

    class PatienceError(Exception):
        pass

    def sleep(_: float) -> None:
        raise PatienceError

    known = KnownDevices()
    watched = Watch(cast(KubeClient, Cut()), "/x", clock=lambda: 0.0, sleep=sleep)
    source = SliceSource(cast(KubeClient, None), node="node-a", known=known, clock=lambda: 0.0, watch=watched)
    with pytest.raises(PatienceError):
        await source.run()
    assert source.error == "cut" and offered(known) == ["gpu-0"]

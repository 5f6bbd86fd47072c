"""Who holds which GPU: the kubelet's real bytes, what a list without a holder proves and does not, and the socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from grpclib.const import Status
from hypothesis import given
from hypothesis import strategies as st

from agent.model import Allocation
from agent.sources.kubelet import pod_resources
from agent.sources.kubelet.pod_resources import (
    ALLOCATABLE,
    CONFIRM_SECONDS,
    EMPTY_SECONDS,
    LIST,
    Holders,
    Listed,
    Name,
    PodResourcesSource,
    allocatable,
    listed,
)
from tests.sources.fake_kubelet import (
    ALLOCATABLE_ANSWER,
    LISTED,
    Behaviour,
    FakeKubelet,
    cuts,
    listed_of,
    message,
    refuses,
    says,
)

CHAT: Name = ("llm", "chat-0", "sglang")
OTHER: Name = ("llm", "other-0", "main")


def of_container(*parts: tuple[int, object]) -> bytes:
    """A list of one pod with one container that is made of these fields."""
    return message((1, message((1, "p"), (2, "n"), (3, message((1, "c"), *parts)))))


def plugin(resource: str, *ids: str) -> tuple[int, object]:
    return 2, message((1, resource), *((2, i) for i in ids), (3, message((1, b""))))


def claim(*resources: bytes) -> tuple[int, object]:
    return 5, message((2, "claim"), (3, "n"), *((4, r) for r in resources))


def device(driver: str = "", pool: str = "", name: str = "", *, cdi: tuple[str, ...] = ()) -> bytes:
    named = [(number, text) for number, text in ((2, driver), (3, pool), (4, name)) if text]
    return message(*((1, message((1, c))) for c in cdi), *named)


def test_the_kubelets_own_bytes_name_each_holder_once() -> None:
    answer = listed(LISTED)
    assert answer.pods == 4
    assert answer.devices == {
        CHAT: ("GPU-aaaa", "GPU-bbbb"),  # one entry for each NUMA node
        ("llm", "slice-0", "main"): ("MIG-cccc", "GPU-aaaa"),  # two replicas of one GPU
        ("llm", "claim-0", "main"): ("gpu.nvidia.com/node-a/gpu-0", "k8s.gpu.nvidia.com/device=gpu-1"),
    }
    assert listed(LISTED, driver="dra.net").devices["llm", "claim-0", "main"] == ("dra.net/node-a/nic0",)
    assert allocatable(ALLOCATABLE_ANSWER) == {"GPU-aaaa", "GPU-cccc"}


@pytest.mark.parametrize(
    ("parts", "ids"),
    [
        ((plugin("nvidia.com/gpu", "GPU-a"), plugin("nvidia.com/gpu", "GPU-b")), ("GPU-a", "GPU-b")),
        ((plugin("nvidia.com/gpu", "GPU-b", "GPU-a"),), ("GPU-b", "GPU-a")),
        ((plugin("nvidia.com/gpu.shared", "GPU-a::0", "GPU-a::3", "GPU-b::1"),), ("GPU-a", "GPU-b")),
        ((plugin("nvidia.com/mig-1g.10gb", "MIG-a"), plugin("nvidia.com/mig-2g.20gb", "MIG-b::7")), ("MIG-a", "MIG-b")),
        ((plugin("nvidia.com/gpu", "0", "1"),), ("0", "1")),
        ((plugin("nvidia.com/gpu"),), None),
        ((plugin("nvidia.com/gpu", "", "::3"),), None),
        ((plugin("amd.com/gpu", "GPU-a"), plugin("rdma/ib", "x")), None),
        ((plugin("", "GPU-a"),), None),
        ((claim(device("gpu.nvidia.com", "n1", "gpu-0")),), ("gpu.nvidia.com/n1/gpu-0",)),
        ((claim(device("gpu.nvidia.com", "", "gpu-0")),), ("gpu.nvidia.com//gpu-0",)),
        ((claim(device("gpu.nvidia.com", "n1", "a"), device("gpu.nvidia.com", "n1", "b")),),
         ("gpu.nvidia.com/n1/a", "gpu.nvidia.com/n1/b")),
        ((claim(device("gpu.nvidia.com", "n1", "a")), claim(device("gpu.nvidia.com", "n1", "a"))),
         ("gpu.nvidia.com/n1/a",)),
        ((claim(device("gpu.nvidia.com", "n1", "")),), None),
        ((claim(device("compute-domain.nvidia.com", "n1", "d0")),), None),
        ((claim(device("dra.net", "n1", "nic0", cdi=("k8s.gpu.nvidia.com/claim=1-gpu-0",))),), None),
        ((claim(device(cdi=("k8s.gpu.nvidia.com/claim=1-gpu-0", "k8s.dra.net/x=y"))),),
         ("k8s.gpu.nvidia.com/claim=1-gpu-0",)),
        ((claim(device(cdi=("nvidia.com/gpu=0",))),), None),
        ((plugin("nvidia.com/gpu", "GPU-a"), claim(device("gpu.nvidia.com", "n1", "gpu-1"))),
         ("GPU-a", "gpu.nvidia.com/n1/gpu-1")),
        ((), None),
    ],
)  # fmt: skip
def test_which_devices_of_a_container_are_gpus(
    parts: tuple[tuple[int, object], ...], ids: tuple[str, ...] | None
) -> None:
    answer = listed(of_container(*parts))
    assert answer.pods == 1
    assert answer.devices == ({} if ids is None else {("n", "p", "c"): ids})


def test_an_empty_answer_is_one_and_names_nobody() -> None:
    assert listed(b"") == Listed(devices={}, pods=0)
    assert allocatable(b"") == frozenset()


Step = tuple[float, Listed, dict[Name, tuple[str, ...]]]


def says_that(pods: int = 1, **devices: tuple[str, ...]) -> Listed:
    """An answer; `chat` and `other` are the two containers."""
    names = {"chat": CHAT, "other": OTHER}
    return Listed(devices={names[n]: ids for n, ids in devices.items()}, pods=pods)


@dataclass
class Node:
    """Holders, fed by one answer after the other, with the pods' uids as a feed would know them."""

    holders: Holders = field(default_factory=Holders)
    uids: dict[tuple[str, str], str] = field(default_factory=dict)

    def take(self, now: float, answer: Listed) -> bool:
        return self.holders.take(answer, uid_of=lambda *name: self.uids.get(name), now=now)

    def held(self) -> list[tuple[str, str, tuple[str, ...], float, float | None]]:
        return [(a.container.pod, a.container.uid, a.devices, a.since, a.until) for a in self.holders.allocations]


GPU = ("GPU-a",)


@pytest.mark.parametrize(
    ("answer", "grace"),
    [
        (says_that(pods=3), CONFIRM_SECONDS),  # others are named: the kubelet is up
        (says_that(pods=0), EMPTY_SECONDS),  # what a kubelet says that has just started
        (says_that(chat=("GPU-b",)), CONFIRM_SECONDS),  # a living pod keeps its devices
    ],
    ids=["not named", "nobody named", "other devices"],
)
def test_a_holder_is_believed_in_until_it_was_missing_for_long_enough(answer: Listed, grace: float) -> None:
    node = Node()
    assert node.take(100.0, says_that(chat=GPU))
    assert not node.holders.doubtful
    for now in (110.0, 111.0, 110.0 + grace - 0.1):
        assert not node.take(now, answer), "nothing is known to have changed"
        assert node.holders.doubtful
        assert node.held() == [("chat-0", "", GPU, 100.0, None)]
    assert node.take(110.0 + grace, answer)
    assert not node.holders.doubtful
    assert node.held()[0] == ("chat-0", "", GPU, 100.0, 110.0), "it ended when it was first missing"
    assert node.held()[1:] == [("chat-0", "", ids, 110.0 + grace, None) for ids in answer.devices.values()]
    assert node.holders.unlisted == 1


def test_a_holder_that_is_named_again_was_never_gone() -> None:
    node = Node()
    node.take(0.0, says_that(chat=GPU))
    for now in (1.0, 20.0, 40.0):
        node.take(now, says_that(pods=2))
        assert not node.take(now + 1.0, says_that(chat=GPU)), "the wait begins anew"
    assert node.held() == [("chat-0", "", GPU, 0.0, None)]
    assert node.holders.unlisted == 3


def test_the_same_devices_in_another_order_are_the_same() -> None:
    node = Node()
    node.take(0.0, says_that(chat=("GPU-a", "GPU-b")))
    assert not node.take(1.0, says_that(chat=("GPU-b", "GPU-a")))
    assert not node.holders.doubtful


def test_a_clock_that_was_set_back_lengthens_the_wait_and_ends_nothing_early() -> None:
    node = Node()
    node.take(1000.0, says_that(chat=GPU))
    node.take(1001.0, says_that(pods=1))
    assert not node.take(500.0, says_that(pods=1))
    assert not node.take(500.0 + CONFIRM_SECONDS - 0.1, says_that(pods=1))
    assert node.take(500.0 + CONFIRM_SECONDS, says_that(pods=1))


def test_the_uid_is_learnt_when_the_feed_knows_it_and_kept_when_it_forgets() -> None:
    node = Node()
    node.take(0.0, says_that(chat=GPU))
    node.uids["llm", "chat-0"] = "u1"
    assert node.take(1.0, says_that(chat=GPU))
    assert node.held() == [("chat-0", "u1", GPU, 0.0, None)]
    node.uids.clear()
    assert not node.take(2.0, says_that(chat=GPU))
    assert node.held() == [("chat-0", "u1", GPU, 0.0, None)]


def test_a_new_pod_of_the_same_name_ends_the_old_ones_hold_at_once() -> None:
    node = Node(uids={("llm", "chat-0"): "u1"})
    node.take(0.0, says_that(chat=GPU))
    node.uids["llm", "chat-0"] = "u2"
    assert node.take(5.0, says_that(chat=("GPU-b",)))
    assert node.held() == [("chat-0", "u1", GPU, 0.0, 5.0), ("chat-0", "u2", ("GPU-b",), 5.0, None)]
    assert not node.holders.doubtful


def test_what_ended_stays_known_beside_what_holds_the_gpu_now() -> None:
    node = Node(uids={("llm", "chat-0"): "u1", ("llm", "other-0"): "u2"})
    node.take(0.0, says_that(chat=GPU))
    node.take(1.0, says_that(other=GPU))
    node.take(1.0 + CONFIRM_SECONDS, says_that(other=GPU))
    assert node.held() == [("chat-0", "u1", GPU, 0.0, 1.0), ("other-0", "u2", GPU, 1.0, None)]


def test_history_and_holders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_resources, "HISTORY_LIMIT", 3)
    monkeypatch.setattr(pod_resources, "HOLDER_LIMIT", 2)
    node = Node()
    for n in range(6):
        node.uids["llm", "chat-0"] = f"u{n}"
        node.take(float(n), says_that(chat=GPU))
    assert [uid for _, uid, _, _, _ in node.held()] == ["u2", "u3", "u4", "u5"]
    many: Mapping[Name, tuple[str, ...]] = {("n", str(i), "c"): (f"GPU-{i}",) for i in range(9)}
    node.take(10.0, Listed(devices=many, pods=9))
    assert len([a for a in node.holders.allocations if a.until is None]) == 2


ANSWERS = st.sampled_from(
    [says_that(0), says_that(1), says_that(chat=GPU), says_that(chat=("GPU-b",)), says_that(other=GPU),
     says_that(2, chat=GPU, other=GPU)]
)  # fmt: skip


@given(st.lists(st.tuples(ANSWERS, st.floats(0, 90), st.sampled_from(["", "u1", "u2"])), max_size=25))
def test_any_sequence_of_answers_leaves_each_container_one_hold_at_most(steps: list[tuple[Listed, float, str]]) -> None:
    node, now = Node(), 0.0
    for answer, passed, uid in steps:
        now += passed
        node.uids = {("llm", "chat-0"): uid} if uid else {}
        before = node.held()
        assert node.take(now, answer) or node.held() == before
        present = [a.container.pod for a in node.holders.allocations if a.until is None]
        assert len(present) == len(set(present))
        assert {name[1] for name in answer.devices} <= set(present), "who is named holds something"
        assert all(a.since <= (now if a.until is None else a.until) for a in node.holders.allocations)


def names(found: tuple[Allocation, ...] | None) -> list[tuple[str, tuple[str, ...]]] | None:
    return None if found is None else [(str(a.container), a.devices) for a in found]


def source(path: Path) -> PodResourcesSource:
    return PodResourcesSource(path=str(path), uid_of=lambda namespace, name: f"uid-{name}")


BOTH: dict[str, Behaviour] = {LIST: says(LISTED), ALLOCATABLE: says(ALLOCATABLE_ANSWER)}


async def test_the_socket_is_asked_for_both_and_tells_only_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    reader = source(path)
    async with FakeKubelet(path, BOTH) as kubelet:
        found = await reader.read(100.0)
        assert names(found) == [
            ("llm/chat-0/sglang", ("GPU-aaaa", "GPU-bbbb")),
            ("llm/slice-0/main", ("MIG-cccc", "GPU-aaaa")),
            ("llm/claim-0/main", ("gpu.nvidia.com/node-a/gpu-0", "k8s.gpu.nvidia.com/device=gpu-1")),
        ]
        assert found is not None and found[0].container.uid == "uid-chat-0"
        assert reader.allocatable() == {"GPU-aaaa", "GPU-cccc"}
        assert (reader.error, reader.errors, reader.reads, reader.last_read) == ("", 0, 1, 100.0)
        assert await reader.read(130.0) is None
        assert not reader.ask_again and reader.last_read == 130.0
    assert kubelet.asked == [(LIST, b""), (ALLOCATABLE, b"")] * 2


async def test_a_first_answer_without_holders_is_an_answer(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path / "k.sock", {LIST: says(b""), ALLOCATABLE: says(b"")}):
        reader = source(tmp_path / "k.sock")
        assert await reader.read(0.0) == ()
        assert reader.allocatable() == frozenset()


async def test_a_kubelet_that_starts_takes_nobodys_gpu_away(tmp_path: Path) -> None:
    """It goes, comes back with an empty list for a second, and then names everybody again."""
    path = tmp_path / "k.sock"
    reader = source(path)
    async with FakeKubelet(path, BOTH):
        before = await reader.read(100.0)
    assert await reader.read(110.0) is None
    assert "nobody listens" in reader.error and reader.cure and reader.ask_again
    assert reader.allocatable() is None, "what may be allocated is not known while nobody tells"
    async with FakeKubelet(path, {LIST: says(b""), ALLOCATABLE: says(b"")}) as kubelet:
        assert await reader.read(112.0) is None
        assert reader.ask_again and reader.error == "" and reader.cure == ""
        assert reader.holders.allocations == before
        kubelet.answers |= BOTH
        assert await reader.read(114.0) is None
        assert not reader.ask_again
    assert reader.holders.allocations == before and reader.errors == 1


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (refuses(Status.UNIMPLEMENTED), "not served"),
        (refuses(Status.RESOURCE_EXHAUSTED), "too many requests"),
        (cuts, "cut"),
        (says(b"\xff\xff"), "not understood: cut short"),
        (says(message((1, 5))), "not understood: a number where bytes belong"),
    ],
)
async def test_a_list_that_cannot_be_had_changes_nothing_and_is_told(
    tmp_path: Path, behaviour: Behaviour, words: str
) -> None:
    reader = source(tmp_path / "k.sock")
    async with FakeKubelet(tmp_path / "k.sock", BOTH) as kubelet:
        before = await reader.read(0.0)
        kubelet.answers[LIST] = behaviour
        for errors in (1, 2):
            assert await reader.read(100.0 * errors) is None
            assert (reader.errors, reader.last_read, reader.allocatable()) == (errors, 0.0, None)
            assert words in reader.error and reader.ask_again
        assert reader.holders.allocations == before
        kubelet.answers |= BOTH
        assert await reader.read(500.0) is None
        assert (reader.error, reader.last_read) == ("", 500.0)


async def test_without_the_allocatable_ones_the_holders_are_told_all_the_same(tmp_path: Path) -> None:
    reader = source(tmp_path / "k.sock")
    async with FakeKubelet(tmp_path / "k.sock", BOTH | {ALLOCATABLE: says(b"\x0a")}) as kubelet:
        assert len(await reader.read(0.0) or ()) == 3
        assert reader.allocatable() is None and "not understood" in reader.error
        kubelet.answers |= BOTH
        assert await reader.read(1.0) is None
        assert reader.allocatable() == {"GPU-aaaa", "GPU-cccc"} and reader.error == ""


async def test_devices_that_turn_unhealthy_are_allocatable_no_more_while_their_holder_stays(tmp_path: Path) -> None:
    """As measured: the list still shows the pod on the bad device, only GetAllocatableResources leaves it out."""
    reader = source(tmp_path / "k.sock")
    listing = listed_of(("llm", "chat-0", {"sglang": "GPU-a"}))
    offered = [message((1, message((1, "nvidia.com/gpu"), (2, i)))) for i in ("GPU-a", "GPU-b")]
    async with FakeKubelet(tmp_path / "k.sock", {LIST: says(listing), ALLOCATABLE: says(b"".join(offered))}) as kubelet:
        await reader.read(0.0)
        assert reader.allocatable() == {"GPU-a", "GPU-b"}
        kubelet.answers[ALLOCATABLE] = says(offered[1])
        assert await reader.read(10.0) is None
        assert reader.allocatable() == {"GPU-b"}
        assert names(reader.holders.allocations) == [("llm/chat-0/sglang", ("GPU-a",))]

"""The marks on a real API server: set, kept against hostile writers, taken back; never half, never somebody else's."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.kube import KubeClient, KubeError, Patch
from agent.model import Action, Component, Fault, GpuRef, Plan, Scope, Severity, parse_pci
from agent.respond.marks import CONDITION, KEY, RELEASE, Mark, NodeView, Record, record_of
from agent.respond.policy import Mode, Situation, plan_for
from agent.respond.responder import Limits, Responder


def fault(name: str = "fault-1", *, action: Action = Action.TAINT) -> Fault:
    return Fault(
        id=name, scope=Scope.GPU, gpu=GpuRef(pci=parse_pci("0000:5d:00"), uuid="GPU-4"), cause="xid/79", title="Xid 79",
        severity=Severity.FATAL, recovery="reboot_node", component=Component.GPU, action=action, value="xid-79",
        xids=(79,), first_seen=1e9, last_seen=1e9, why="Xid 79 is fatal",
    )  # fmt: skip


@dataclass
class Mind:
    """What the agent knows, as plain values (agent.respond.responder.Brain)."""

    node: str
    known: list[Fault] = field(default_factory=list)
    mode: Mode = "cordon"
    brake: str = ""
    read: bool = True
    told: list[tuple[Record | None, Mark]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    taken_up: list[Record] = field(default_factory=list)

    def faults(self) -> Sequence[Fault]:
        return self.known

    def plans(self) -> Sequence[Plan]:
        situation = Situation(obstacle="", brake=self.brake)
        return [plan_for(f, mode=self.mode, node=self.node, situation=situation) for f in self.known]

    def blind(self) -> str:
        return ""

    def settled(self) -> bool:
        return self.read

    def braked(self, why: str) -> None:
        self.brake = why

    def found(self, record: Record) -> None:
        self.taken_up.append(record)

    def release(self, asked: str) -> None:
        self.asked.append(asked)
        self.known.clear()

    def marked(self, record: Record | None, mark: Mark) -> None:
        self.told.append((record, mark))


def responder(client: Any, mind: Mind, *, limit: str = "100") -> Responder:
    limits = Limits(max_marked=limit, gpu_nodes="nvidia.com/gpu.present=true", heartbeat=1800)
    return Responder(client, node=mind.node, boot="b1", brain=mind, limits=lambda: limits, clock=time.time)


async def seen(client: KubeClient, node: str) -> NodeView:
    return NodeView.of(await client.get(f"/api/v1/nodes/{node}"))


async def test_a_fault_is_marked_and_the_mark_falls_with_it(client: KubeClient, node: str) -> None:
    mind = Mind(node, [fault(action=Action.CORDON)])
    part = responder(client, mind)
    await part.turn()
    assert part.error == ""
    there = await seen(client, node)
    assert (there.taint, there.unschedulable, there.labels[KEY]) == ("xid-79", True, "cordon")
    assert next(c for c in there.conditions if c["type"] == CONDITION)["status"] == "True"
    writes = part.writes
    for _ in range(3):
        await part.turn()
    assert part.writes == writes, "what is right is not written again"
    mind.known.clear()
    await part.turn()
    gone = await seen(client, node)
    assert (gone.marked, gone.unschedulable) == (False, False)
    assert next(c for c in gone.conditions if c["type"] == CONDITION)["status"] == "False"


async def test_until_the_kernel_log_was_read_no_mark_is_taken_back(client: KubeClient, node: str) -> None:
    await responder(client, Mind(node, [fault()])).turn()
    restarted = Mind(node, read=False)
    part = responder(client, restarted)
    await part.turn()
    assert (await seen(client, node)).taint == "xid-79"
    assert restarted.taken_up and restarted.taken_up[0].entries[0].fault == "fault-1"
    restarted.read = True
    await part.turn()
    assert not (await seen(client, node)).marked


async def test_a_person_releases_by_an_annotation(client: KubeClient, node: str) -> None:
    mind = Mind(node, [fault()])
    part = responder(client, mind)
    await part.turn()
    await client.patch(part.path, {"metadata": {"annotations": {RELEASE: "0000:5d:00"}}}, kind=Patch.MERGE)
    part.observed(await client.get(part.path))
    await part.turn()
    gone = await seen(client, node)
    assert mind.asked == ["0000:5d:00"] and not gone.marked and RELEASE not in gone.annotations


async def test_a_persons_uncordon_stays(client: KubeClient, node: str) -> None:
    mind = Mind(node, [fault(action=Action.CORDON)])
    part = responder(client, mind)
    await part.turn()
    await client.patch(part.path, {"spec": {"unschedulable": None}}, kind=Patch.MERGE)
    part.observed(await client.get(part.path))
    await part.turn()
    there = await seen(client, node)
    assert (there.unschedulable, there.taint) == (False, "xid-79")
    mind.known.clear()
    await part.turn()
    assert not (await seen(client, node)).marked


async def test_a_stale_view_of_the_node_costs_another_look_and_nothing_else(client: KubeClient, node: str) -> None:
    part = responder(client, Mind(node, [fault()]))
    part.observed(await client.get(part.path))
    foreign = {"key": "other/team", "value": "x", "effect": "NoSchedule"}
    await client.patch(part.path, {"spec": {"taints": [foreign]}}, kind=Patch.MERGE)
    await part.turn()
    assert part.conflicts == 1 and part.error == ""
    assert foreign in (await seen(client, node)).taints and (await seen(client, node)).taint == "xid-79"


class Cut(BaseException):
    """The process dies here."""


class Dying:
    """A client whose process is killed at its n-th request, before it is sent or after it was answered."""

    def __init__(self, client: KubeClient, *, at: int, after: bool) -> None:
        self._client, self._at, self._after = client, at, after
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self._at and not self._after:
                raise Cut
            answer = await getattr(self._client, name)(*args, **named)
            if self.count == self._at:
                raise Cut
            return answer

        return call


@pytest.mark.parametrize("marking", [True, False], ids=["marking", "unmarking"])
async def test_a_kill_at_any_request_leaves_one_mark_or_none(client: KubeClient, node: str, marking: bool) -> None:
    sick = [fault(action=Action.CORDON)]
    wanted, before = (sick, []) if marking else ([], sick)
    points = 0
    for after in (False, True):
        for at in itertools.count(1):
            await responder(client, Mind(node, list(before))).turn()
            try:
                await responder(Dying(client, at=at, after=after), Mind(node, list(wanted))).turn()
                finished = True
            except Cut:
                finished = False
                points += 1
            await responder(client, Mind(node, list(wanted))).turn()
            there = await seen(client, node)
            assert len([t for t in there.taints if t["key"] == KEY]) == len(wanted)
            assert there.unschedulable is bool(wanted)
            assert (record_of(there.annotations) is not None) is bool(wanted)
            if finished:
                break
    assert points >= 6


@pytest.fixture
async def nodes(client: KubeClient) -> AsyncIterator[list[str]]:
    names = [f"fleet-{random.randrange(1 << 32):08x}-{i}" for i in range(4)]
    async with AsyncExitStack() as stack:
        for name in names:
            body = {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", "fleet": names[0]}},
            }  # fmt: skip
            await client.create("/api/v1/nodes", body)
            stack.push_async_callback(client.delete, f"/api/v1/nodes/{name}")
        yield names


async def test_the_brake_holds_when_all_act_in_the_same_moment(client: KubeClient, nodes: list[str]) -> None:
    minds = [Mind(name, [fault()]) for name in nodes]
    parts = [responder(client, mind, limit="2") for mind in minds]
    await asyncio.gather(*(part.turn() for part in parts))
    assert len([name for name in nodes if (await seen(client, name)).marked]) <= 2
    for part in parts:
        await part.turn()
    marked = [name for name in nodes if (await seen(client, name)).marked]
    assert len(marked) == 2, "who stepped back tried again"
    assert all(("2 may be" in p.braked) is (m.node not in marked) for m, p in zip(minds, parts, strict=True))
    # The brake never stops a release, and the next one may then be marked.
    first = next(i for i, m in enumerate(minds) if m.node in marked)
    minds[first].known.clear()
    await parts[first].turn()
    assert not (await seen(client, nodes[first])).marked
    waiting = next(i for i, m in enumerate(minds) if m.node not in marked)
    await parts[waiting].turn()
    assert (await seen(client, nodes[waiting])).marked


async def test_a_fleet_that_cannot_be_counted_holds_a_mark_back(client: KubeClient, node: str) -> None:
    class Uncounted(Dying):
        async def metadata(self, *_: Any, **__: Any) -> Any:
            raise KubeError("GET /api/v1/nodes: 403 Forbidden")

    mind = Mind(node, [fault()])
    part = responder(Uncounted(client, at=0, after=False), mind)
    await part.turn()
    assert not (await seen(client, node)).marked and "cannot be counted" in part.braked
    assert part.error == "", "the condition is told all the same"


async def test_a_node_that_is_gone_is_an_error_that_is_said_and_tried_again(client: KubeClient) -> None:
    part = responder(client, Mind("no-such-node", [fault()]))
    wait = await part.turn()
    assert "404" in part.error and 0 < wait <= 30

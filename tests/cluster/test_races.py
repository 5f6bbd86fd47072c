"""Eight hostile writers on one node for a minute, while faults come and go: nothing of theirs is lost through us, and
our mark is right in the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from agent.kube import KubeClient, Patch, RefusedError, login
from agent.kube.client import Json
from agent.model import Action
from agent.respond.marks import KEY, record_of
from tests.cluster.server import ApiServer
from tests.cluster.test_responder import Mind, fault, responder, seen
from tests.conftest import make_node

SECONDS = 60.0
EFFECT = "NoSchedule"


class Writer:
    """One other controller. It keeps a book of what the server has acknowledged, and looks whether it still stands."""

    def __init__(self, client: KubeClient, node: str, number: int) -> None:
        self.client, self.path = client, f"/api/v1/nodes/{node}"
        self.key = f"hostile.example/{number}"
        self.rng = random.Random(number)
        self.wrote = self.refused = 0
        self.taint = self.note = ""
        """The value of its taint, and of its label or annotation, as last acknowledged; empty: not there."""

    async def turn(self) -> None:
        raise NotImplementedError

    def look(self, found: Json) -> None:
        """What it had written must be there: nobody else writes these keys."""
        taints = {t["key"]: t.get("value") for t in found["spec"].get("taints") or ()}
        if self.taint:
            assert taints.get(self.key) == self.taint, f"the taint of {type(self).__name__} was lost"
        if self.note:
            meta = found["metadata"]
            notes = {**meta.get("labels", {}), **meta.get("annotations", {})}
            assert notes.get(self.key) == self.note, f"the note of {type(self).__name__} was lost"

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                await self.turn()
                self.wrote += 1
            except RefusedError as error:
                assert error.status == 409, error
                self.refused += 1
            await asyncio.sleep(self.rng.random() * 0.02)

    async def read(self) -> Json:
        found = await self.client.get(self.path)
        self.look(found)
        return found

    def value(self) -> str:
        return f"v{self.wrote}"

    def with_taint(self, found: Json, value: str) -> list[Json]:
        taints = [t for t in found["spec"].get("taints") or () if t["key"] != self.key]
        taints.append({"key": self.key, "value": value, "effect": EFFECT})
        self.rng.shuffle(taints)
        return taints


def version(found: Json) -> Json:
    return {"resourceVersion": found["metadata"]["resourceVersion"]}


class Strategic(Writer):
    """A careful controller: read, change, patch with the version."""

    async def turn(self) -> None:
        found, value = await self.read(), self.value()
        body = {"metadata": version(found), "spec": {"taints": self.with_taint(found, value)}}
        await self.client.patch(self.path, body)
        self.taint = value


class Replacing(Writer):
    """Sends the whole object back, as older controllers do."""

    async def turn(self) -> None:
        found, value = await self.read(), self.value()
        found["spec"]["taints"] = self.with_taint(found, value)
        found["metadata"].setdefault("labels", {})[self.key] = value
        found["metadata"].pop("managedFields", None)
        await put(self.client, self.path, found)
        self.taint = self.note = value


class Operations(Writer):
    """JSON patch without a version, of one annotation."""

    async def turn(self) -> None:
        await self.read()
        value = self.value()
        at = "/metadata/annotations/" + self.key.replace("/", "~1")
        await self.client.patch(self.path, [{"op": "add", "path": at, "value": value}], kind=Patch.JSON)
        self.note = value


class Merging(Writer):
    """A merge patch that replaces the list of taints, with the version."""

    async def turn(self) -> None:
        found, value = await self.read(), self.value()
        body = {"metadata": version(found), "spec": {"taints": self.with_taint(found, value)}}
        await self.client.patch(self.path, body, kind=Patch.MERGE)
        self.taint = value


class Applying(Writer):
    """Server-side apply with force."""

    async def turn(self) -> None:
        await self.read()
        value = self.value()
        name = self.path.rpartition("/")[2]
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {self.key: value}}}
        params = {"fieldManager": "hostile-apply", "force": "true"}
        await self.client.patch(self.path, body, kind=Patch.APPLY, params=params)
        self.note = value


class Person(Writer):
    """`kubectl cordon` and `kubectl uncordon`: neither writes where there is nothing to change."""

    cordoned = False

    def look(self, found: Json) -> None:
        assert found["spec"].get("unschedulable", False) or not self.cordoned, "a person's cordon was lifted"

    async def turn(self) -> None:
        found, wish = await self.read(), self.rng.random() < 0.5
        if found["spec"].get("unschedulable", False) is wish:
            self.wrote -= 1
            return
        body = {"metadata": version(found), "spec": {"unschedulable": wish or None}}
        await self.client.patch(self.path, body, params={"fieldManager": "kubectl-cordon"})
        self.cordoned = wish
        await asyncio.sleep(self.rng.random() * 0.1)


class Kubelet(Writer):
    """The node's own heartbeat."""

    async def turn(self) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        await self.client.patch(f"{self.path}/status", {"status": {"conditions": [ready]}})


class Rival(Writer):
    """Takes our own key: rewrites the taint, deletes label and annotation."""

    async def turn(self) -> None:
        found = await self.read()
        taints = [t for t in found["spec"].get("taints") or () if t["key"] != KEY]
        if self.rng.random() < 0.5:
            taints.append({"key": KEY, "value": "rival", "effect": EFFECT})
        notes = {KEY: None} if self.rng.random() < 0.5 else {}
        meta = version(found) | {"labels": {KEY: None}, "annotations": notes}
        await self.client.patch(self.path, {"metadata": meta, "spec": {"taints": taints}})
        await asyncio.sleep(0.05)


async def put(client: KubeClient, path: str, body: Json) -> None:
    async with client.stream("PUT", path, body=body, deadline=10) as response:
        await response.read()


async def until_quiet(turn: Callable[[], Awaitable[object]], right: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(20):
        await turn()
        if await right():
            return
    raise AssertionError("our mark is not right though nobody writes any more")


async def test_a_minute_of_hostile_writers(newest_server: ApiServer) -> None:
    node = "raced"
    kinds: list[type[Writer]] = [Strategic, Replacing, Operations, Merging, Applying, Person, Kubelet, Rival]
    async with KubeClient(await login(kubeconfig=str(newest_server.kubeconfig()))) as client:
        await make_node(client, node)
        await client.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {"a": "b"}}})
        mind = Mind(node)
        part = responder(client, mind)
        writers = [kind(client, node, number) for number, kind in enumerate(kinds)]
        until = time.monotonic() + SECONDS
        numbers, turns, stood = iter(range(1 << 30)), 0, Counter[str]()
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run(until))
            while time.monotonic() < until:
                if turns % 3 == 0:
                    sick = fault(f"fault-{next(numbers)}", action=random.choice([Action.TAINT, Action.CORDON]))
                    mind.known[:] = [] if mind.known else [sick]
                part.observed(await client.get(part.path))
                await part.turn()
                turns += 1
                if mind.told:
                    stood[mind.told[-1][1].means] += 1
        for writer in writers:
            await writer.read()
        person = next(w for w in writers if isinstance(w, Person))

        mind.known[:] = [fault("fault-last", action=Action.CORDON)]

        async def marked() -> bool:
            there = await seen(client, node)
            record = record_of(there.annotations)
            return (
                (there.taint, there.labels.get(KEY), there.unschedulable) == ("xid-79", "cordon", True)
                and record is not None
                and [e.fault for e in record.entries] == ["fault-last"]
                and record.cordoned is not person.cordoned
            )

        await until_quiet(lambda: look(part, client), marked)
        for writer in writers:
            await writer.read()
        mind.known.clear()

        async def clean() -> bool:
            there = await seen(client, node)
            return not there.marked and there.unschedulable is person.cordoned

        await until_quiet(lambda: look(part, client), clean)
        for writer in writers:
            await writer.read()
        there = await seen(client, node)
        await client.delete(f"/api/v1/nodes/{node}")

    figures: dict[str, Any] = {type(w).__name__: (w.wrote, w.refused) for w in writers}
    figures |= {"turns": turns, "writes": part.writes, "conflicts": part.conflicts, "stood": dict(stood)}
    print(figures)
    assert all(w.wrote >= 50 for w in writers), figures
    assert turns >= 100 and part.writes >= 50 and part.conflicts >= 10, figures
    assert stood["cordon"] >= 10 and stood["node"] >= 10 and stood[""] >= 10, figures
    assert there.annotations["a"] == "b"


async def look(part: Any, client: KubeClient) -> None:
    part.observed(await client.get(part.path))
    await part.turn()
    assert part.error == "", part.error

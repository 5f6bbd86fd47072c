"""Reports through a server that refuses what the real one refuses: nothing lost, nothing twice, never too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from agent.kube import KubeClient, RefusedError, UnreachableError
from agent.report.events import ObjectRef, Reason, Report, fault_reports, node_ref, verdict_reports
from agent.report.postman import LIMIT, POSTED, Posted, Postman
from agent.report.reporter import REPORT
from agent.report.services import SERVICE_LABEL, Services
from agent.report.store import Store, encode
from tests.report.event_server import EventServer, status
from tests.report.report_examples import FAULT, VERDICT

NODE = "node-a"
(FAULTED,) = fault_reports(None, FAULT, node=NODE)
(FAILED,) = verdict_reports(None, VERDICT, node=NODE)
SERVICE = ObjectRef(kind="InferenceService", name="qwen", namespace="llm", uid="s-1")


def blind(n: int) -> Report:
    return Report(
        reason=Reason.SOURCE_BLIND, type="Warning", regarding=node_ref(NODE), note=f"Cannot read {n}.",
        key=f"source/{n}", action="Observe", first_seen=float(n), last_seen=float(n),
    )  # fmt: skip


def again(report: Report, count: int) -> Report:
    return replace(report, count=count, last_seen=(report.last_seen or 0.0) + count)


class Time:
    """A clock that stands while nobody turns it; every wait of the postman is one of its pauses."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.pauses = 0
        self.kill_at: int | None = None
        self.killed = asyncio.Event()
        self._sleepers: dict[asyncio.Future[None], float] = {}

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1_700_000_000.0

    async def pause(self, seconds: float) -> None:
        assert seconds >= 0.0
        self.pauses += 1
        if self.pauses == self.kill_at:
            self.killed.set()
            await asyncio.Event().wait()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers[future] = self.now + seconds
        try:
            await future
        finally:
            self._sleepers.pop(future, None)

    async def settle(self, *dead: asyncio.Event) -> None:
        """Until the postman has done what it can do now (or has been killed)."""
        async with asyncio.timeout(20):
            for _ in range(10):
                await asyncio.sleep(0)
            # Requests go through real sockets: the loop has to turn until they are answered.
            while all(f.done() for f in self._sleepers) and not any(d.is_set() for d in dead):  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def turn(self, seconds: float, *dead: asyncio.Event) -> None:
        end = self.now + seconds
        await self.settle(*dead)
        while not any(d.is_set() for d in dead):
            first = min((f for f in self._sleepers if not f.done()), key=lambda f: self._sleepers[f])
            if self._sleepers[first] > end:
                break
            self.now = max(self._sleepers[first], self.now)
            first.set_result(None)
            await self.settle(*dead)
        self.now = max(end, self.now)


class Desk:
    """One agent's postman over one store, which can be killed and begun anew."""

    def __init__(self, client: KubeClient, store: Store, time: Time, *, service: ObjectRef | None = None) -> None:
        self.client, self.store, self.time, self.service = client, store, time, service
        self.reports: dict[str, Report] = {}
        self.task: asyncio.Task[None] | None = None
        self.uid = "uid-1"
        self.began: list[float] = []
        self.start()

    def start(self) -> None:
        self.postman = Postman(
            self.client, store=self.store, clock=self.time.wall, node=NODE, instance="faultline-x",
            uid_of_node=self._uid, service_of=self._service, reports=lambda: tuple(self.reports.values()),
            monotonic=self.time.monotonic, pause=self.time.pause, chance=lambda: 0.5,
        )  # fmt: skip
        self.task = asyncio.create_task(self.postman.run())

    async def kill(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def tell(self, *reports: Report) -> None:
        """As the reporter and the app do it: handed over, then stored."""
        for report in reports:
            self.reports[report.key] = report
            self.postman.post(report)
        self.store.commit(put=[(REPORT, r.key, encode(r)) for r in reports])

    async def _uid(self) -> str:
        return self.uid

    async def _service(self, pod: ObjectRef) -> ObjectRef | None:
        assert pod.kind == "Pod"
        return self.service


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as found:
        yield found


@pytest.fixture
async def server() -> EventServer:
    return EventServer()


@pytest.fixture
async def client(server: EventServer) -> AsyncIterator[KubeClient]:
    async with server.serve() as found:
        yield found


@pytest.fixture
async def desk(client: KubeClient, store: Store) -> AsyncIterator[Desk]:
    found = Desk(client, store, Time())
    yield found
    await found.kill()


async def test_a_fault_is_one_event_whose_count_goes_up(desk: Desk, server: EventServer) -> None:
    desk.tell(FAULTED)
    await desk.time.settle()
    desk.tell(again(FAULTED, 2))
    await desk.time.settle()
    assert server.told() == [("Node/node-a", "GpuFault", 2)]
    desk.tell(again(FAULTED, 5))
    desk.tell(again(FAULTED, 9))
    await desk.time.turn(299)
    assert server.told() == [("Node/node-a", "GpuFault", 2)]
    await desk.time.turn(1)
    assert server.told() == [("Node/node-a", "GpuFault", 9)]
    assert server.log == [("POST", 201), ("PATCH", 200), ("PATCH", 200)]
    (event,) = server.events.values()
    assert event["regarding"]["uid"] == "uid-1"
    assert event["series"]["lastObservedTime"] == "1970-01-01T00:01:49.000000Z"
    assert (desk.postman.posted, desk.postman.repeated, desk.postman.pending) == (1, 2, 0)


async def test_ten_idle_minutes_write_nothing(desk: Desk, server: EventServer) -> None:
    desk.tell(FAULTED, FAILED)
    await desk.time.settle()
    before = list(server.log)
    await desk.time.turn(600)
    assert server.log == before


async def test_a_count_that_nobody_posted_is_found(desk: Desk, server: EventServer) -> None:
    desk.tell(FAULTED)
    await desk.time.settle()
    desk.reports[FAULTED.key] = again(FAULTED, 4)
    await desk.time.turn(301)
    assert server.told() == [("Node/node-a", "GpuFault", 4)]


async def test_a_failure_is_told_on_its_service_too(client: KubeClient, store: Store, server: EventServer) -> None:
    desk = Desk(client, store, Time(), service=SERVICE)
    desk.tell(FAILED)
    await desk.time.settle()
    desk.tell(again(FAILED, 2))
    await desk.time.settle()
    reason = "BackendFailedOnFaultedGpu"
    assert server.told() == [("Pod/qwen-0", reason, 2), ("InferenceService/qwen", reason, 2)]
    on_pod, on_service = server.events.values()
    assert on_pod["related"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "uid-1"}
    assert on_service["metadata"]["namespace"] == "llm"
    assert on_service["regarding"]["uid"] == "s-1"
    assert on_service["related"]["uid"] == "u-1"
    await desk.kill()


async def test_a_pod_without_a_service_is_asked_for_once(desk: Desk, server: EventServer) -> None:
    desk.tell(FAILED)
    await desk.time.settle()
    desk.tell(again(FAILED, 2))
    await desk.time.settle()
    assert server.told() == [("Pod/qwen-0", "BackendFailedOnFaultedGpu", 2)]
    assert desk.postman.pending == 0


async def test_while_the_service_cannot_be_had_the_rest_goes_on(
    desk: Desk, server: EventServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_: ObjectRef) -> ObjectRef | None:
        raise UnreachableError("pod llm/qwen-0 is not known yet")

    monkeypatch.setattr(desk.postman, "_service_of", unknown)
    desk.tell(FAILED, FAULTED)
    await desk.time.settle()
    assert [reason for _, reason, _ in server.told()] == ["BackendFailedOnFaultedGpu", "GpuFault"]
    assert desk.postman.pending == 1
    await desk.time.turn(120)
    assert desk.postman.pending == 0


async def test_an_outage_loses_nothing_and_keeps_the_order(desk: Desk, server: EventServer) -> None:
    server.instead = lambda _: status(503, "away")
    await desk.time.settle()
    desk.tell(blind(1), FAULTED, blind(2))
    await desk.time.turn(600)
    desk.tell(blind(3), again(FAULTED, 7))
    await desk.time.turn(600)
    assert server.events == {}
    assert "503" in desk.postman.error
    assert desk.postman.errors < 40
    server.instead = lambda _: None
    await desk.time.turn(100)
    assert [e["note"][:13] for e in server.events.values()] == [
        "Cannot read 1", FAULTED.note[:13], "Cannot read 2", "Cannot read 3",
    ]  # fmt: skip
    assert ("Node/node-a", "GpuFault", 7) in server.told()
    assert (desk.postman.error, desk.postman.pending, desk.postman.dropped) == ("", 0, 0)


async def test_the_server_is_given_the_time_it_asked_for(desk: Desk, server: EventServer) -> None:
    server.instead = lambda _: status(429, retry_after=90)
    await desk.time.settle()
    desk.tell(FAULTED)
    await desk.time.turn(89)
    assert desk.postman.errors == 1
    server.instead = lambda _: None
    await desk.time.turn(2)
    assert len(server.events) == 1


async def test_an_outage_over_a_restart_loses_nothing(desk: Desk, server: EventServer) -> None:
    server.instead = lambda _: status(500)
    desk.tell(FAULTED, FAILED)
    await desk.time.settle()
    await desk.kill()
    server.instead = lambda _: None
    desk.start()
    await desk.time.settle()
    assert len(server.events) == 2
    await desk.kill()
    desk.start()
    await desk.time.settle()
    assert [code for _, code in server.log if code < 400] == [201, 201]


async def test_a_burst_waits_and_is_told_whole(desk: Desk, server: EventServer) -> None:
    await desk.time.settle()
    desk.tell(*(blind(n) for n in range(40)))
    await desk.time.settle()
    assert len(server.events) == 25
    await desk.time.turn(5.9)
    assert len(server.events) == 25
    await desk.time.turn(0.2)
    assert len(server.events) == 26
    await desk.time.turn(14 * 6)
    assert [e["note"] for e in server.events.values()] == [f"Cannot read {n}." for n in range(40)]
    assert desk.postman.dropped == 0


async def test_an_expired_event_is_made_anew_under_another_name(desk: Desk, server: EventServer) -> None:
    desk.tell(FAULTED)
    await desk.time.settle()
    (old,) = server.events
    server.events.clear()
    desk.tell(again(FAULTED, 6))
    await desk.time.settle()
    assert server.told() == [("Node/node-a", "GpuFault", 6)]
    assert old not in server.events
    desk.tell(again(FAULTED, 8))
    await desk.time.turn(301)
    assert server.told() == [("Node/node-a", "GpuFault", 8)]


async def test_a_series_that_begins_again_goes_on_counting(desk: Desk, server: EventServer) -> None:
    desk.tell(replace(blind(1), count=4, last_seen=10.0))
    await desk.time.settle()
    desk.tell(replace(blind(1), count=1, last_seen=900.0))  # after a restart of the agent
    await desk.time.turn(301)
    assert server.told() == [("Node/node-a", "SourceBlind", 5)]


@pytest.mark.parametrize("code", [400, 403, 404, 413, 422])
async def test_what_is_refused_for_good_is_said_once_and_stops_nothing(
    desk: Desk, server: EventServer, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(request: web.Request) -> web.Response | None:
        return status(code, "no") if request.match_info["namespace"] == "default" else None

    server.instead = refuse
    desk.tell(blind(1), blind(2), FAILED)
    await desk.time.turn(60)
    assert server.told() == [("Pod/qwen-0", "BackendFailedOnFaultedGpu", 1)]
    assert desk.postman.dropped == 2
    assert desk.postman.pending == 0
    assert len([r for r in caplog.records if "cannot be told" in r.getMessage()]) == 1


async def test_one_event_that_the_server_fails_at_holds_up_the_others_for_a_while_only(
    desk: Desk, server: EventServer
) -> None:
    server.instead = lambda r: status(500, "webhook") if r.match_info["namespace"] == "llm" else None
    await desk.time.settle()
    desk.tell(FAILED, FAULTED)
    await desk.time.turn(60)
    assert server.told() == [("Node/node-a", "GpuFault", 1)]
    assert desk.postman.dropped == 0
    server.instead = lambda _: None
    await desk.time.turn(120)
    assert len(server.events) == 2


async def test_a_node_that_may_not_be_read_is_named_as_kubelet_names_it(
    desk: Desk, server: EventServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused() -> str:
        raise RefusedError("GET", status=403, reason="Forbidden", message="")

    monkeypatch.setattr(desk.postman, "_uid_of_node", refused)
    desk.tell(FAULTED)
    await desk.time.settle()
    (event,) = server.events.values()
    assert event["regarding"]["uid"] == NODE


async def test_too_many_waiting_are_counted_as_lost(desk: Desk, server: EventServer) -> None:
    server.instead = lambda _: status(503)
    await desk.time.settle()
    for n in range(LIMIT + 10):
        desk.postman.post(blind(n))
    assert desk.postman.pending == LIMIT
    assert desk.postman.dropped == 10


async def test_records_of_series_that_are_forgotten_go(desk: Desk, store: Store) -> None:
    desk.tell(FAULTED, FAILED)
    await desk.time.settle()
    store.commit(drop=[(REPORT, FAILED.key)], put=[(POSTED, "bad", b"[")])
    await desk.kill()
    desk.start()
    await desk.time.settle()
    assert set(store.load().objects[POSTED]) == {FAULTED.key}


@asynccontextmanager
async def living(tmp_path: Path) -> AsyncIterator[tuple[EventServer, Desk]]:
    server = EventServer()
    async with server.serve() as client:
        with Store.open(tmp_path) as store:
            desk = Desk(client, store, Time(), service=SERVICE)
            try:
                yield server, desk
            finally:
                await desk.kill()


STEPS: tuple[Iterable[Report] | str, ...] = (
    (FAULTED, FAILED),
    (again(FAULTED, 2),),
    (again(FAILED, 3), again(FAULTED, 5)),
    "expired",
    (again(FAULTED, 6), again(FAILED, 4)),
)


async def story(server: EventServer, desk: Desk) -> int:
    """What happens on a bad day; a kill is followed by a new start. Gives the number of kills."""
    dead, kills = (server.hung, desk.time.killed), 0
    for step in STEPS:
        if step == "expired":
            server.events.clear()
        else:
            desk.tell(*(r for r in step if isinstance(r, Report)))
        await desk.time.turn(400, *dead)
        if any(d.is_set() for d in dead):
            await desk.kill()
            for d in dead:
                d.clear()
            desk.start()
            kills += 1
            await desk.time.turn(400)
    return kills


async def _whole(tmp_path: Path) -> tuple[int, int]:
    async with living(tmp_path) as (server, desk):
        await story(server, desk)
        reason = "BackendFailedOnFaultedGpu"
        assert server.told() == [
            ("Node/node-a", "GpuFault", 6), ("Pod/qwen-0", reason, 4), ("InferenceService/qwen", reason, 4),
        ]  # fmt: skip
        return len(server.log), desk.time.pauses


async def test_a_kill_at_any_request_leaves_one_event_a_series(tmp_path: Path) -> None:
    requests, _ = await _whole(tmp_path / "whole")
    assert requests > 10
    for at in range(1, requests + 1):
        for after in (False, True):
            async with living(tmp_path / f"{at}-{after}") as (server, desk):
                server.kill_at, server.after = at, after
                assert await story(server, desk) == 1
                assert_right(server, desk, f"request {at}, after it: {after}")


async def test_a_kill_at_any_wait_leaves_one_event_a_series(tmp_path: Path) -> None:
    _, pauses = await _whole(tmp_path / "whole")
    for at in range(1, pauses + 1):
        async with living(tmp_path / str(at)) as (server, desk):
            desk.time.kill_at = at
            assert await story(server, desk) == 1
            assert_right(server, desk, f"wait {at}")


async def test_a_double_whose_count_grew_meanwhile_is_told_the_count(desk: Desk, server: EventServer) -> None:
    server.kill_at, server.after = 1, True
    desk.tell(FAULTED)
    await desk.time.settle(server.hung)
    desk.tell(again(FAULTED, 4))
    await desk.kill()
    desk.start()
    await desk.time.settle()
    assert server.log == [("POST", 409), ("PATCH", 200)]
    assert server.told() == [("Node/node-a", "GpuFault", 4)]


def assert_right(server: EventServer, desk: Desk, where: str) -> None:
    reason = "BackendFailedOnFaultedGpu"
    assert sorted(server.told()) == [
        ("InferenceService/qwen", reason, 4), ("Node/node-a", "GpuFault", 6), ("Pod/qwen-0", reason, 4),
    ], where  # fmt: skip
    assert all(code in (200, 201, 404, 409) for _, code in server.log), where
    assert (desk.postman.pending, desk.postman.dropped) == (0, 0), where


def test_what_the_server_was_not_told_of() -> None:
    record = Posted(name="x", seen=4, count=4, last=100.0)
    assert record.fresh(replace(FAULTED, count=7, last_seen=50.0)) == 3
    assert record.fresh(replace(FAULTED, count=4, last_seen=100.0)) == 0
    assert record.fresh(replace(FAULTED, count=4, last_seen=101.0)) == 1
    assert record.fresh(replace(FAULTED, count=2, last_seen=101.0)) == 2
    assert record.fresh(replace(FAULTED, count=2, last_seen=None)) == 0


async def test_the_service_of_a_pod_is_the_one_of_its_label(client: KubeClient, server: EventServer) -> None:
    labels: dict[str, dict[str, str] | None] = {
        "u-1": {SERVICE_LABEL: "qwen"}, "u-2": {}, "u-3": {SERVICE_LABEL: "gone"}, "u-4": {SERVICE_LABEL: "kserve"},
        "u-5": {SERVICE_LABEL: "../../x"},
    }  # fmt: skip
    server.services["llm", "qwen"] = {
        "apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "metadata": {"uid": "s-1"},
    }  # fmt: skip
    server.services["llm", "kserve"] = {
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"uid": "s-2"},
    }  # fmt: skip
    time = Time()
    services = Services(client, labels_of=lambda pod: labels.get(pod.uid), clock=time.wall)
    pod = ObjectRef(kind="Pod", name="p", namespace="llm", uid="u-1")
    found = await services.of(pod)
    assert found == replace(SERVICE, api_version="inference.llmkube.dev/v1alpha1")
    assert await services.of(pod) == found
    assert server.log == [("GET", 200)]
    for uid in ("u-2", "u-3", "u-4", "u-5"):
        assert await services.of(replace(pod, uid=uid)) is None
    with pytest.raises(UnreachableError):
        await services.of(replace(pod, uid="u-9"))

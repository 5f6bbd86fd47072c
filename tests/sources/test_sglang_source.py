"""Which server is asked when and where; a made-up client and clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import pytest

from agent.model import ContainerRef
from agent.sources.sglang import Answer, Answered, Server, ServerSource
from agent.sources.sglang.source import ATTEMPTS, RETRY_SECONDS, SERVER_LIMIT, is_pod_address


def container(n: int = 0, restart: int = 0) -> ContainerRef:
    return ContainerRef(namespace="llm", pod=f"chat-{n}", uid=f"u{n}", container="sglang", restart=restart)


class FakeClient:
    """Answers all pages alike; `asked` is what was asked."""

    def __init__(self, outcome: str = "answered", status: int = 200) -> None:
        self.outcome, self.status = outcome, status
        self.asked: list[tuple[str, str]] = []

    def _answer(self, path: str, server: Server) -> Answer:
        self.asked.append((path, f"{server.scheme}://{server.host}:{server.port}"))
        return Answer(path=path, outcome=self.outcome, status=self.status, body=b"{}")  # type: ignore[arg-type]

    async def server_info(self, server: Server, *, deprecated: Literal["try", "leave"] = "try") -> Answer:
        answer = self._answer("/server_info", server)
        if answer.outcome == "missing" and deprecated == "try":
            return self._answer("/get_server_info", server)
        return answer

    async def model_info(self, server: Server) -> Answer:
        return self._answer("/model_info", server)

    async def metrics(self, server: Server) -> Answer:
        return self._answer("/metrics", server)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


class Bench:
    """A source with a clock that stands still until it is moved."""

    def __init__(
        self,
        client: FakeClient,
        *,
        address_of: Callable[[ContainerRef], str | None] = lambda _: "10.0.0.9",
        interval: float = 60.0,
    ) -> None:
        self.now = 0.0
        self.client = client
        self.source = ServerSource(
            client, address_of=address_of, port=30000, interval=interval, clock=lambda: 1000 + self.now,
            monotonic=lambda: self.now,
        )  # fmt: skip
        self.got: list[Answered] = []

    async def __aenter__(self) -> Bench:
        async def collect() -> None:
            async for answered in self.source.answers():
                self.got.append(answered)

        self._task = asyncio.create_task(collect())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def after(self, seconds: float) -> None:
        """Moves the clock and lets the source do all that is due."""
        self.now += seconds
        self.source.wake()
        for _ in range(50):
            await asyncio.sleep(0)


async def test_a_server_is_asked_once_what_it_runs_and_now_and_then_how_fast_it_is() -> None:
    async with Bench(FakeClient()) as bench:
        bench.source.ready(container(), {})
        await bench.after(0)
        assert bench.client.paths == ["/server_info", "/model_info", "/metrics"]
        await bench.after(59)
        assert len(bench.client.paths) == 3
        await bench.after(1)
        assert bench.client.paths[3:] == ["/metrics"]
        assert bench.got[1].info is None and bench.source.last_read == 1060


async def test_without_an_address_nothing_is_asked_and_the_server_is_let_go() -> None:
    async with Bench(FakeClient(), address_of=lambda _: None) as bench:
        bench.source.ready(container(), {"host": "0.0.0.0", "port": "30000"})
        for _ in range(ATTEMPTS + 1):
            await bench.after(RETRY_SECONDS)
    assert (bench.client.asked, bench.source.followed) == ([], 0)


async def test_an_address_that_becomes_known_later_is_used() -> None:
    known: list[str] = []
    async with Bench(FakeClient(), address_of=lambda _: known[0] if known else None) as bench:
        bench.source.ready(container(), {})
        await bench.after(0)
        known.append("10.0.0.4")
        await bench.after(RETRY_SECONDS)
    assert bench.client.asked[0] == ("/server_info", "http://10.0.0.4:30000")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "::ffff:127.0.0.1", "localhost", "fe80::1", "", "x/y"]
)
async def test_this_machine_and_the_metadata_service_are_never_asked(host: str) -> None:
    assert not is_pod_address(host)
    async with Bench(FakeClient(), address_of=lambda _: host) as bench:
        bench.source.ready(container(), {})
        await bench.after(0)
    assert bench.client.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_a_server_that_listens_inside_its_pod_only_is_not_asked(host: str) -> None:
    async with Bench(FakeClient()) as bench:
        bench.source.ready(container(), {"listen_host": host})
        await bench.after(0)
    assert bench.client.asked == []


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ({}, "http://10.0.0.9:30000"),
        ({"port": "8000"}, "http://10.0.0.9:8000"),
        ({"port": "8000", "listen_port": "8001", "scheme": "https"}, "https://10.0.0.9:8001"),
        ({"port": "99999"}, "http://10.0.0.9:30000"),
        ({"port": "-1"}, "http://10.0.0.9:30000"),
    ],
)
async def test_the_port_is_the_one_its_log_tells(facts: dict[str, str], where: str) -> None:
    async with Bench(FakeClient()) as bench:
        bench.source.ready(container(), facts)
        await bench.after(0)
    assert {at for _, at in bench.client.asked} == {where}


async def test_a_key_that_is_wanted_is_no_error_and_is_not_asked_for_again() -> None:
    async with Bench(FakeClient("unauthorized", 401)) as bench:
        bench.source.ready(container(), {})
        await bench.after(0)
        await bench.after(60)
    assert bench.client.paths == ["/server_info", "/metrics", "/metrics"]
    assert bench.source.errors == 0


async def test_the_old_page_is_asked_for_once() -> None:
    async with Bench(FakeClient("missing", 404)) as bench:
        bench.source.ready(container(), {})
        for _ in range(5):
            await bench.after(60)
    assert bench.client.paths == ["/server_info", "/get_server_info", "/metrics"]
    assert bench.source.followed == 0, "a server without metrics and without more to ask is let go"


async def test_a_server_that_does_not_answer_is_let_go_after_some_attempts() -> None:
    async with Bench(FakeClient("unreachable", 0)) as bench:
        bench.source.ready(container(), {})
        for _ in range(10):
            await bench.after(RETRY_SECONDS)
    assert bench.client.paths.count("/server_info") == ATTEMPTS
    assert bench.source.errors == 2 * ATTEMPTS and bench.source.last_read is None


async def test_a_server_that_serves_no_metrics_is_not_asked_for_them() -> None:
    async with Bench(FakeClient()) as bench:
        bench.source.ready(container(), {"enable_metrics": "no"})
        await bench.after(0)
    assert "/metrics" not in bench.client.paths and bench.source.followed == 0


async def test_a_restarted_server_is_asked_anew() -> None:
    async with Bench(FakeClient()) as bench:
        bench.source.ready(container(), {})
        await bench.after(0)
        bench.source.ready(container(restart=1), {})
        await bench.after(0)
    assert bench.client.paths.count("/server_info") == 2 and bench.source.followed == 1


async def test_the_number_of_servers_is_bounded() -> None:
    async with Bench(FakeClient(), address_of=lambda _: None) as bench:
        for n in range(SERVER_LIMIT + 5):
            bench.source.ready(container(n), {})
        assert (bench.source.followed, bench.source.lost) == (SERVER_LIMIT, 5)

"""The server: real requests on a real port."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from report_examples import FAULT, VERDICT

from agent.doctor import server_on
from agent.gpus import GpuProcess, GpuState, NodeGpus
from agent.model import Action, Evidence, Fault, PciAddress, Plan, Severity, Verdict
from agent.report.events import Report, fault_reports
from agent.report.gpus import GpuStatus, gpu_statuses
from agent.report.http import SERVER, ListenError, PortInUseError, StatusServer
from agent.report.metrics import Metrics
from agent.report.page import headline, status_page
from agent.report.status import Readiness, RuleStatus, SourceStatus

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[2J\u202e"


@dataclass
class Known:
    """What a test's agent knows."""

    node: str = "gpu-1"
    mode: str = "observe"
    waits_for: tuple[str, ...] = ()
    faults_: list[Fault] = field(default_factory=lambda: [FAULT])
    verdicts_: list[Verdict] = field(default_factory=lambda: [VERDICT])
    gpus_: tuple[GpuStatus, ...] = ()
    broken: bool = False

    def now(self) -> float:
        return 110.0

    def metrics(self, accept: str) -> tuple[bytes, str]:
        return METRICS.exposition(accept)

    def readiness(self) -> Readiness:
        return Readiness(reasons=self.waits_for)

    def faults(self) -> Sequence[Fault]:
        if self.broken:
            raise RuntimeError("a secret of the inside")
        return self.faults_

    def failures(self) -> Sequence[object]:
        return []

    def verdicts(self) -> Sequence[Verdict]:
        return self.verdicts_

    def plans(self) -> Sequence[Plan]:
        return [Plan(action=Action.CORDON, target="gpu-1", why="w", value="xid-79", withheld="mode is observe")]

    def events(self) -> Sequence[Report]:
        return fault_reports(None, FAULT, node="gpu-1")

    def sources(self) -> Sequence[SourceStatus]:
        return [SourceStatus(name="kernel", state="reading", how="/dev/kmsg", last_read=109.0)]

    def gpus(self) -> Sequence[GpuStatus]:
        return self.gpus_

    def rules(self) -> Sequence[RuleStatus]:
        return [RuleStatus(id="xid/79", title="t", component="gpu", hits=1)]


METRICS = Metrics(CollectorRegistry(), version="1")


@pytest.fixture
def known() -> Known:
    return Known()


@pytest_asyncio.fixture
async def client(known: Known) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        StatusServer(known, address="127.0.0.1", port=0) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):
        yield session


async def test_metrics_are_served_in_the_form_that_is_asked_for(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics") as answer:
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain")
        assert "faultline_build_info" in await answer.text()
    async with client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await answer.text()).endswith("# EOF\n")
        assert answer.headers["Content-Encoding"] in ("gzip", "deflate")


async def test_health_is_answered_whatever_the_sources_do(client: aiohttp.ClientSession, known: Known) -> None:
    known.waits_for, known.broken = ("kernel: not read yet",), True
    async with client.get("/healthz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})


async def test_readiness_says_what_is_waited_for(client: aiohttp.ClientSession, known: Known) -> None:
    known.waits_for = ("kernel: not read yet",)
    async with client.get("/readyz") as answer:
        body = await answer.json()
        assert (answer.status, body["ready"], body["reasons"]) == (503, False, ["kernel: not read yet"])
        assert body["sources"][0]["name"] == "kernel"
    known.waits_for = ()
    async with client.get("/readyz") as answer:
        assert (answer.status, (await answer.json())["ready"]) == (200, True)


@pytest.mark.parametrize(
    ("path", "kind", "count"),
    [
        ("faults", "FaultList", 1), ("failures", "FailureList", 0), ("verdicts", "VerdictList", 1),
        ("plans", "PlanList", 1), ("events", "EventList", 1), ("sources", "SourceList", 1), ("rules", "RuleList", 1),
    ],
)  # fmt: skip
async def test_each_list_of_the_api(client: aiohttp.ClientSession, path: str, kind: str, count: int) -> None:
    async with client.get(f"/api/v1/{path}") as answer:
        body = await answer.json()
        assert answer.content_type == "application/json"
        assert (body["apiVersion"], body["kind"], len(body["items"])) == ("faultline.dev/v1", kind, count)


async def test_a_fault_is_served_with_all_its_fields(client: aiohttp.ClientSession) -> None:
    async with client.get("/api/v1/faults") as answer:
        (fault,) = (await answer.json())["items"]
    assert fault["gpu"]["pci"] == "0000:5d:00"
    assert (fault["xids"], fault["severity"], fault["action"]) == ([79], "fatal", "cordon")


async def test_head_is_answered_without_a_body(client: aiohttp.ClientSession) -> None:
    for path in ("/", "/healthz", "/metrics", "/api/v1/faults"):
        async with client.head(path) as answer:
            assert (answer.status, await answer.read()) == (200, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_changed(client: aiohttp.ClientSession, method: str) -> None:
    async with client.request(method, "/api/v1/faults", data=b"{}") as answer:
        body = await answer.json()
        assert (answer.status, body["kind"], body["code"]) == (405, "Status", 405)
        assert answer.headers["Allow"] == "GET,HEAD"


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/favicon.ico", "/../etc/passwd", "/api/v1/faults/", "/%00"])
async def test_what_is_not_there_is_404_as_json(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(path) as answer:
        assert (answer.status, (await answer.json())["code"]) == (404, 404)


async def test_a_mistake_of_ours_is_500_and_tells_nothing_of_the_inside(
    client: aiohttp.ClientSession, known: Known, caplog: pytest.LogCaptureFixture
) -> None:
    known.broken = True
    async with client.get("/api/v1/faults") as answer:
        assert answer.status == 500
        assert "secret" not in await answer.text()
    assert "the answer to /api/v1/faults failed" in caplog.text


async def test_the_page_tells_the_story_and_runs_nothing(client: aiohttp.ClientSession) -> None:
    async with client.get("/") as answer:
        page = await answer.text()
        policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Server"] == SERVER
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert '<h1 class="bad">1 fault on gpu-1 (GPU 0000:5d:00): fallen off the bus.</h1>' in page
    assert "withheld: mode is observe" in page
    assert "qwen-0" in page and "Drain and reboot the node." in page
    assert "<script" not in page and "style=" not in page and "http://" not in page


async def test_refusals_carry_the_protecting_headers_too(client: aiohttp.ClientSession) -> None:
    async with client.get("/nothing") as answer:
        assert "Content-Security-Policy" in answer.headers and answer.headers["Server"] == SERVER


def test_hostile_text_is_never_markup() -> None:
    lines = (Evidence(source=HOSTILE, text=HOSTILE, line=1),)
    fault = replace(FAULT, title=HOSTILE, why=HOSTILE, fix=(HOSTILE,), evidence=lines)
    verdict = replace(
        VERDICT, title=HOSTILE, cause=HOSTILE, why=HOSTILE, fix=(HOSTILE,), checked=(HOSTILE,), evidence=lines
    )
    page = status_page(Known(node=HOSTILE, faults_=[fault], verdicts_=[verdict]))
    assert "<script" not in page and "<img" not in page
    assert "\x1b" not in page and "\u202e" not in page
    assert page.count("&lt;script&gt;alert(1)") > 8
    assert not re.search(r"<[^>]*onerror", page)


def test_blindness_and_ignorance_never_read_like_health() -> None:
    blind = SourceStatus(name="kernel", state="blind", why="EPERM")
    starting = SourceStatus(name="logs", state="starting")
    reading = SourceStatus(name="logs", state="reading")
    assert headline("n", [], [], [blind, reading]) == ("blind: kernel cannot be read.", True)
    assert headline("n", [], [], [starting]) == ("Not known yet: logs not read on n so far.", True)
    assert headline("n", [], [], [reading]) == ("No fault is known on n.", False)
    assert headline("n", [], [VERDICT], [reading])[0].endswith("1 failed or slow backend explained below.")
    assert headline("n", [replace(FAULT, cleared=1.0)], [], [reading])[1] is False
    assert headline("n", [replace(FAULT, severity=Severity.PENDING)], [], [reading])[0].startswith("1 lesser fault")


async def test_a_port_in_use_is_told_with_the_cure(known: Known) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for address in ("127.0.0.1", ""):
            with pytest.raises(PortInUseError, match=rf"port {port}.* is in use .*http\.port, FAULTLINE_HTTP_PORT"):
                await StatusServer(known, address=address, port=port).start()


async def test_an_address_of_another_machine_is_told_with_the_cure(known: Known) -> None:
    with pytest.raises(ListenError, match=r"port 0 of 192\.0\.2\.1: Cannot assign .*; set http\.address"):
        await StatusServer(known, address="192.0.2.1", port=0).start()
    with pytest.raises(ListenError, match=r"http\.address 'not an address'"):
        await StatusServer(known, address="not an address", port=0).start()


async def test_every_address_means_ipv4_too(known: Known) -> None:
    async with StatusServer(known, port=0) as server, aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{server.port}/healthz") as answer:
            assert answer.status == 200


async def test_the_doctor_knows_a_running_agent_by_its_answer(known: Known) -> None:
    async with StatusServer(known, address="127.0.0.1", port=0) as server:
        assert await asyncio.to_thread(server_on, "127.0.0.1", server.port) == SERVER


async def test_the_server_stops_at_once_with_clients_that_hold_on(known: Known) -> None:
    server = StatusServer(known, address="127.0.0.1", port=0)
    await server.start()
    idle_reader, idle = await asyncio.open_connection("127.0.0.1", server.port)
    idle.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    await idle_reader.readuntil(b"\r\n\r\n")
    _, half = await asyncio.open_connection("127.0.0.1", server.port)
    half.write(b"GET /metrics HT")
    await half.drain()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await server.stop()
    await server.stop()
    assert loop.time() - begun < 1.0
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", server.port)
    idle.close()
    half.close()
    again = StatusServer(known, address="127.0.0.1", port=server.port)
    await again.start()
    with pytest.raises(RuntimeError, match="was started already"):
        await again.start()
    await again.stop()


async def test_rubbish_on_the_port_does_not_end_the_server(client: aiohttp.ClientSession) -> None:
    base = client._base_url
    assert base is not None
    for rubbish in (b"\x00\xff" * 5000, b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 20000 + b" HTTP/1.1\r\n\r\n"):
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(rubbish)
        await asyncio.wait_for(reader.read(64), 5)
        writer.close()
    async with client.get("/healthz") as answer:
        assert json.loads(await answer.text()) == {"status": "ok"}


async def test_gpus_on_the_page_and_as_data(client: aiohttp.ClientSession, known: Known) -> None:
    well, sick, mute = (PciAddress(f"0000:{bus}:00") for bus in ("1a", "3b", "5d"))
    told = NodeGpus(
        at=1.0,
        gpus=(
            GpuState(pci=well, uuid="GPU-1", model=HOSTILE, processes=(GpuProcess(pid=7, name=HOSTILE),)),
            GpuState(pci=sick, uuid="GPU-2", recovery_action=1, compute_mode="prohibited"),
        ),
    )
    known.gpus_ = gpu_statuses({well: "GPU-1", sick: "GPU-2", mute: "GPU-3"}, told)
    async with client.get("/api/v1/gpus") as answer:
        found = await answer.json()
    assert found["kind"] == "GpuList" and [g["wrong"] for g in found["items"]] == [
        [], ["the driver asks for a GPU reset"], ["NVML does not know it"],
    ]  # fmt: skip
    async with client.get("/") as answer:
        page = await answer.text()
    assert "nothing speaks against it" in page and "<script>" not in page
    assert "the driver asks for a GPU reset; compute mode Prohibited" in page and "NVML does not know it" in page
    known.gpus_ = gpu_statuses({mute: ""}, NodeGpus(at=1.0))
    async with client.get("/") as answer:
        assert "not known" in await answer.text(), "without NVML nothing is called well"

"""The demo's story, lived through by the real agent on real files, without waiting for the clock."""

import asyncio
from pathlib import Path

import aiohttp

from agent.app import App
from agent.demo.story import SLOW, Story
from agent.demo.told import settings_for, shortcomings
from agent.report.events import Report


async def until(condition, *, what: str) -> None:  # type: ignore[no-untyped-def]
    """Waits for the agent to get there; the limit is for a broken agent only."""
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(what)


async def live(root: Path, told: list[Report]):  # type: ignore[no-untyped-def]
    """Runs the agent through the story; each pause of the story ends when the agent has read all that was written."""
    app: App

    async def pause(_seconds: float) -> None:
        for _ in range(10):
            await asyncio.sleep(0.002)

    story = Story(root, pause=pause)
    app = App(settings_for(story, root), sink=told.append)
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(stop))
    await until(app.started.is_set, what="started")
    await story.tell()
    await until(lambda: not shortcomings(app, story), what="; ".join(shortcomings(app, story)))
    return app, story, stop, running


async def test_the_story_is_understood_as_it_happened(tmp_path: Path) -> None:
    told: list[Report] = []
    app, story, stop, running = await live(tmp_path, told)
    assert shortcomings(app, story) == []
    assert len({r.key for r in told}) == len(told), "each series is begun once"
    async with aiohttp.ClientSession(f"http://127.0.0.1:{app.port}") as web:
        async with web.get("/metrics") as answer:
            metrics = await answer.text()
        async with web.get("/api/v1/verdicts") as answer:
            verdicts = (await answer.json())["items"]
        async with web.get("/readyz") as answer:
            assert answer.status == 200
    assert 'faultline_faults_open{scope="gpu",severity="fatal"} 1.0' in metrics
    assert "faultline_kernel_foreign_records_total 1.0" in metrics
    assert len(verdicts) == 4
    stop.set()
    await asyncio.wait_for(running, 5)


async def test_a_forged_xid_in_log_and_kernel_log_changes_nothing(tmp_path: Path) -> None:
    app, _, stop, running = await live(tmp_path, [])
    forged = "0000:3b:00"
    assert not [f for f in app.faults() if f.gpu.pci == forged]
    assert not [v for v in app.verdicts() if v.gpu.pci == forged]
    stop.set()
    await running


async def test_a_restart_tells_nothing_twice_and_forgets_nothing(tmp_path: Path) -> None:
    app, story, stop, running = await live(tmp_path, [])
    faults, verdicts = app.faults(), {v.id for v in app.verdicts()}
    stop.set()
    await running
    again: list[Report] = []
    second = App(settings_for(story, tmp_path), sink=again.append)
    stop = asyncio.Event()
    running = asyncio.create_task(second.run(stop))
    await until(second.started.is_set, what="started")
    marker = "NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=x, MMU Fault"
    story._record(marker)
    await until(lambda: any(f.gpu.pci == "0000:9b:00" for f in second.faults()), what="reads on")
    assert {f.id: f.signals for f in faults}.items() <= {f.id: f.signals for f in second.faults()}.items()
    assert verdicts <= {v.id for v in second.verdicts()}
    assert [r for r in again if "0000:9b:00" not in r.note] == []
    stop.set()
    await running


async def test_sigterm_stops_within_two_seconds_in_the_middle_of_the_story(tmp_path: Path) -> None:
    story = Story(tmp_path, pause=lambda _: asyncio.sleep(0))
    app = App(settings_for(story, tmp_path), sink=lambda _: None)
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(stop))
    await until(app.started.is_set, what="started")
    story._start(SLOW)
    story._print(SLOW, 0, "x\n" * 100_000)
    stop.set()
    await asyncio.wait_for(running, 2)

"""SIGKILL at each point of the acting path: one mark, one series for each event, and nothing of ours left behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections import Counter
from pathlib import Path

from agent.kube import KubeClient, login
from agent.respond.marks import NodeView
from tests.cluster import killed
from tests.cluster.server import ApiServer
from tests.cluster.test_agent import slice_of
from tests.conftest import make_node

AT_ONCE = 6
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.cluster.killed"])


async def live(server: ApiServer, root: Path, node: str, *, at: str) -> int:
    """One life of an agent; how it ended: 0, or minus the signal."""
    process = processes.Process(target=killed.life, args=(str(server.kubeconfig()), str(root), node, at))
    process.start()
    async with asyncio.timeout(killed.LIMIT_SECONDS + 20):
        while (code := process.exitcode) is None:  # noqa: ASYNC110 - a join in a thread would read the pipe that a start reads
            await asyncio.sleep(0.02)
    return code


async def two_lives(
    server: ApiServer, client: KubeClient, root: Path, *, number: int, at: str
) -> tuple[int, list[str]]:
    """A life that ends at a point, and another that has its state; how the first ended, and what was told at last."""
    node = f"killed-{number}"
    root = root / str(number)
    (root / "pods").mkdir(parents=True)
    record = "4,{},{},-;{}\n"
    (root / "kmsg").write_text(record.format(1, 1, killed.RESET) + record.format(2, 2, killed.FALLEN))
    await make_node(client, node)
    await client.create("/apis/resource.k8s.io/v1/resourceslices", slice_of(node))
    first = await live(server, root, node, at=at)
    if first != 0:
        assert first == -signal.SIGKILL, f"killed at {at}: {first}"
        assert await live(server, root, node, at="") == 0, f"killed at {at}: it does not come to an end"
    there = NodeView.of(await client.get(f"/api/v1/nodes/{node}"))
    assert not there.marked and not there.unschedulable, f"killed at {at}: {there}"
    assert await killed.rules(client, node) == [], f"killed at {at}"
    told = await killed.reasons(client, node)
    await client.delete(f"/api/v1/nodes/{node}")
    await client.delete(f"/apis/resource.k8s.io/v1/resourceslices/{node}-gpu")
    return first, told


async def test_a_kill_at_any_point_leaves_one_mark_one_series_and_nothing_in_the_end(
    newest_server: ApiServer, tmp_path: Path
) -> None:
    async with KubeClient(await login(kubeconfig=str(newest_server.kubeconfig()))) as client:
        first, whole = await two_lives(newest_server, client, tmp_path, number=0, at="")
        assert first == 0 and whole == sorted([*killed.TOLD, *killed.CLEARED])
        points = (tmp_path / "0" / "points").read_text().splitlines()
        gate = asyncio.Semaphore(AT_ONCE)

        async def kill(number: int, at: str) -> tuple[int, list[str]]:
            async with gate:
                return await two_lives(newest_server, client, tmp_path, number=number, at=at)

        ends = await asyncio.gather(*(kill(number, at) for number, at in enumerate(points, 1)))
    wrong = {at: Counter(told) for at, (_, told) in zip(points, ends, strict=True) if told != whole}
    assert wrong == {}, wrong
    died = [at for at, (first, _) in zip(points, ends, strict=True) if first != 0]
    # Two parts of the agent work side by side, so that a point which is reached in one life may not be in another.
    assert len(died) >= 0.8 * len(points) and len(points) >= 40, (len(died), points)
    seen = Counter(" ".join(at.split()[:2]) for at in died)
    for kind in ("before PATCH", "answered PATCH", "before POST", "answered POST", "answered DELETE", "after commit"):
        assert seen[kind], (kind, seen)

"""An agent that is killed (SIGKILL) at the n-th point of its acting path, as a program of its own.

A point is each moment around something that lasts: before a request is sent, when the server has carried it out and
its answer was not seen yet, before a commit to the state file and after it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.app import App
from agent.config import (
    BrakeSettings,
    ClusterSettings,
    HttpSettings,
    KernelSettings,
    KubeletSettings,
    LogsSettings,
    Settings,
)
from agent.kube import KubeClient, Patch, login
from agent.report.store import Store
from agent.respond.marks import KEY, RELEASE, NodeView

FALLEN = "NVRM: Xid (PCI:0000:5f:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
"""The node itself must be rebooted: taint and cordon."""

RESET = "NVRM: Xid (PCI:0000:5d:00): 119, pid=1234, name=python3, Timeout after 6s of waiting for RPC response."
"""Its GPU is a DRA device: its own taint."""

TOLD = ("GpuFault", "GpuFault", "GpuFaultStillAdvertised", "GpuFaultStillAdvertised", "NodeCordoned")
CLEARED = ("GpuFaultCleared", "GpuFaultCleared", "MarkRemoved")
LIMIT_SECONDS = 40.0


def life(kubeconfig: str, root: str, node: str, at: str) -> None:
    """From the kernel's records to the mark, and by a person's release back. Ends when all of it is done and told.

    The points are written to the file ``points`` in `root`, one line each: what happens, and for the how many-th time.
    `at` is the one at which to die; empty: none.
    """
    asyncio.run(_live(kubeconfig, Path(root), node, at))


async def _live(kubeconfig: str, root: Path, node: str, at: str) -> None:
    points = os.open(root / "points", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    counts = Counter[str]()

    def point(what: str) -> None:
        counts[what] += 1
        name = f"{what} #{counts[what]}"
        os.write(points, f"{name}\n".encode())
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)

    admin = KubeClient(await login(kubeconfig=kubeconfig))
    _mark_points(point, spared=admin)
    settings = Settings(
        node_name=node,
        mode="cordon",
        state_dir=str(root / "state"),
        http=HttpSettings(address="127.0.0.1", port=0),
        kernel=KernelSettings(path=str(root / "kmsg")),
        logs=LogsSettings(root=str(root / "pods")),
        kubelet=KubeletSettings(checkpoint="", pods="", pod_resources="", pods_api=""),
        cluster=ClusterSettings(kubeconfig=kubeconfig),
        brake=BrakeSettings(max_marked="1000"),
    )
    app = App(settings, sink=lambda _: None, login=await login(kubeconfig=kubeconfig))
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    async with admin, asyncio.timeout(LIMIT_SECONDS):
        if not (root / "released").exists():
            await _until(lambda: _marked(admin, app, node))
            (root / "released").touch()
        there = NodeView.of(await admin.get(f"/api/v1/nodes/{node}"))
        if there.marked and RELEASE not in there.annotations:
            note = {"metadata": {"annotations": {RELEASE: "all"}}}
            await admin.patch(f"/api/v1/nodes/{node}", note, kind=Patch.MERGE)
        await _until(lambda: _clean(admin, app, node))
        stop.set()
        await task


def _mark_points(point: Callable[[str], None], *, spared: KubeClient) -> None:
    stream, commit = KubeClient.stream, Store.commit

    @asynccontextmanager
    async def watched(self: KubeClient, method: str, path: str, **named: Any) -> AsyncIterator[Any]:
        if self is spared:
            async with stream(self, method, path, **named) as response:
                yield response
            return
        what = f"{method} {path.rpartition('/')[0]}"
        point(f"before {what}")
        async with stream(self, method, path, **named) as response:
            point(f"answered {what}")
            yield response

    def committed(self: Store, **named: Any) -> bool:
        named = {
            key: value if value is None or key in ("positions", "meta") else list(value) for key, value in named.items()
        }
        if not any(named.values()):
            return commit(self, **named)
        kinds = sorted({entry[0] for entry in named.get("put") or ()})
        point(f"before commit {kinds}")
        done = commit(self, **named)
        point(f"after commit {kinds}")
        return done

    KubeClient.stream = watched  # type: ignore[method-assign,assignment]
    Store.commit = committed  # type: ignore[method-assign,assignment]


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def reasons(client: KubeClient, node: str) -> list[str]:
    """The reason of each Event about the node, each series once."""
    found = await client.get("/apis/events.k8s.io/v1/namespaces/default/events")
    return sorted(e["reason"] for e in found["items"] if e["regarding"]["name"] == node)


async def rules(client: KubeClient, node: str) -> list[dict[str, Any]]:
    found = await client.get("/apis/resource.k8s.io/v1/devicetaintrules")
    return [r for r in found["items"] or () if r["spec"]["deviceSelector"].get("pool") == node]


async def _marked(admin: KubeClient, app: App, node: str) -> bool:
    there = NodeView.of(await admin.get(f"/api/v1/nodes/{node}"))
    told = set(await reasons(admin, node)) >= set(TOLD)
    return (
        told
        and there.unschedulable
        and len([t for t in there.taints if t["key"] == KEY]) == 1
        and len(await rules(admin, node)) == 1
        and _nothing_waits(app)
    )


async def _clean(admin: KubeClient, app: App, node: str) -> bool:
    there = NodeView.of(await admin.get(f"/api/v1/nodes/{node}"))
    told = set(await reasons(admin, node)) >= {*TOLD, *CLEARED}
    return told and not there.marked and not await rules(admin, node) and _nothing_waits(app)


def _nothing_waits(app: App) -> bool:
    return app.cluster is not None and app.cluster.postman.pending == 0

"""From a kernel record to the acknowledged mark on a real API server, and what the client costs at rest."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from agent.app import App
from agent.config import ClusterSettings, HttpSettings, KernelSettings, KubeletSettings, LogsSettings, Settings
from agent.kube import KubeClient, login
from agent.respond.marks import KEY
from tests.cluster.server import ApiServer
from tests.conftest import make_node

RUNS = 200
USER = "system:serviceaccount:faultline:bench"
XID = "NVRM: Xid (PCI:0000:5d:00): 119, pid=1234, name=python3, Timeout after 6s of waiting for RPC response."


async def acting(root: Path) -> list[tuple[str, str, str, bool]]:
    with ApiServer() as server:
        return await _measure(root, server)


async def _measure(root: Path, server: ApiServer) -> list[tuple[str, str, str, bool]]:
    (root / "pods").mkdir(parents=True)
    feed = root / "kmsg"
    feed.touch()
    way = await login(kubeconfig=str(server.kubeconfig()))
    async with KubeClient(await login(kubeconfig=str(server.kubeconfig()))) as admin:
        await make_node(admin, "bench")
    settings = Settings(
        node_name="bench",
        mode="taint",
        state_dir=str(root / "state"),
        http=HttpSettings(address="127.0.0.1", port=0),
        kernel=KernelSettings(path=str(feed)),
        logs=LogsSettings(root=str(root / "pods")),
        kubelet=KubeletSettings(checkpoint="", pods="", pod_resources="", pods_api=""),
        cluster=ClusterSettings(kubeconfig=str(server.kubeconfig())),
    )
    app = App(settings, sink=lambda _: None, login=way)
    assert app.cluster is not None
    marked: asyncio.Queue[float] = asyncio.Queue()
    plain = app.cluster.client.patch

    async def timed(path: str, body: Any, **named: Any) -> Any:
        answer = await plain(path, body, **named)
        if path == "/api/v1/nodes/bench" and any(t["key"] == KEY for t in body.get("spec", {}).get("taints") or ()):
            marked.put_nowait(time.time())
        return answer

    app.cluster.client.patch = timed  # type: ignore[method-assign]
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    await app.started.wait()
    await app.cluster.responder.turned.wait()
    await asyncio.sleep(2.0)  # the kernel log counts as read to its end
    took = []
    for n in range(RUNS):
        with feed.open("a") as file:
            began = time.time()
            file.write(f"4,{n + 1},{time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000},-;{XID}\n")
        try:
            async with asyncio.timeout(10):
                took.append(await marked.get() - began)
        except TimeoutError:
            raise SystemExit(f"run {n}: not marked: {app.plans()} {app.cluster.responder.error}") from None
        for marked_now in (True, False):  # the turn that set the mark ends, the one that takes it back too
            while (app.cluster.standing is not None) is not marked_now:
                app.cluster.responder.turned.clear()
                await app.cluster.responder.turned.wait()
            if marked_now:
                app.recoveries.release("all")
    stop.set()
    await task
    rss = await _memory(root, server)
    took.sort()
    p50, p99 = took[len(took) // 2] * 1000, took[int(len(took) * 0.99)] * 1000
    return [
        (f"kernel record to acknowledged taint ({RUNS})", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", "< 50 ms", p99 < 50),
        ("memory of the agent in a cluster, at rest", f"{rss:.0f} MiB", "< 80 MiB", rss < 80),
    ]  # fmt: skip


async def _memory(root: Path, server: ApiServer) -> float:
    """Resident MiB of the agent as a process of its own, logged in as a pod is, ten seconds after its start."""
    account = root / "serviceaccount"
    account.mkdir()
    shutil.copy(server.folder / "ca.crt", account)
    (account / "namespace").write_text("faultline")
    server.kubectl(
        "create", "clusterrolebinding", "bench", "--clusterrole=cluster-admin", "--serviceaccount=faultline:bench"
    )
    (account / "token").write_text(server.service_account_token("faultline", "bench", "bench", "bench"))
    (root / "alone").mkdir()
    flags = {
        "node-name": "bench", "state-dir": root / "alone", "http-port": 0, "http-address": "127.0.0.1",
        "kernel-path": root / "kmsg", "logs-root": root / "pods", "kubelet-pods-api": "", "kubelet-pod-resources": "",
        "kubelet-checkpoint": "",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    start = (
        "import importlib; from pathlib import Path; from agent.cli import main; "
        f"importlib.import_module('agent.kube.login').SERVICE_ACCOUNT = Path({str(account)!r}); main()"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", start, "run", *words,
        env=os.environ | {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)},
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await asyncio.sleep(10)
        assert any(e["userAgent"].startswith("faultline/") for e in server.audit(user=USER)), "it did not log in"
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{agent.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024
    finally:
        agent.terminate()
        await agent.wait()

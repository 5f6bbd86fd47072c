"""Sources, pipeline and store alone, in a process made to be killed: what the agent runs, without its port."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing
from pathlib import Path

from agent.pipeline import NullListener, Pipeline
from agent.report.store import Store
from agent.rulebook import load_rulebook
from agent.sources.kernel import open_kernel_source
from agent.sources.logs.follow import LogSource


async def run(root: Path) -> None:
    store = Store.open(root / "state")
    pipeline = Pipeline(
        load_rulebook(), store=store, listener=NullListener(), clock=time.time, boot_id="boot-1", window=120
    )
    cursor, positions = pipeline.restore()
    kernel = open_kernel_source(str(root / "kmsg"), boot_id="boot-1", after=cursor, batch=5)
    logs = LogSource(root / "pods", select=lambda _: True, positions=positions, back_read=1 << 30, block=4096)
    print("ready", flush=True)

    async def follow_kernel() -> None:
        async with aclosing(kernel.records()) as batches:
            async for batch in batches:
                pipeline.kernel(batch, kernel.cursor)
                await asyncio.sleep(0)

    async def follow_logs() -> None:
        async with aclosing(logs.chunks()) as chunks:
            async for chunk in chunks:
                pipeline.chunk(chunk)

    async with asyncio.TaskGroup() as group:
        group.create_task(follow_kernel())
        group.create_task(follow_logs())


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))

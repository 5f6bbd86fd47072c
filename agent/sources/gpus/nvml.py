"""NVML through a child process: one question at a time under a deadline. A stuck driver delays nothing here.

A child that hangs, crashes or answers nonsense is killed and replaced, ever more slowly while that goes on. One that
the kernel does not let die (uninterruptible sleep) is abandoned and counted.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from agent.gpus import NodeGpus
from agent.kube.backoff import Backoff

CHILD = (sys.executable, "-m", "agent.sources.gpus.nvml_child")
DEADLINE_SECONDS = 5.0
"""One look at all GPUs; a healthy driver needs some 100 ms for eight."""

GRACE_SECONDS = 1.0
"""How long a killed child may take to end before it counts as stuck in the driver."""

ABANDONED = 4
"""Children stuck in the driver at once; each holds 17 MiB. With so many no other is started."""

ANSWER_BYTES = 1 << 20

LIBRARY_NOT_FOUND = 12
"""NVML's number where there is no ``libnvidia-ml.so.1``: no driver's files in this container, or no driver."""


class _Answer(msgspec.Struct, frozen=True):
    id: int
    gpus: NodeGpus


class NvmlSource:
    """The node's GPUs by NVML. ``error`` says why nothing is known now, empty while it is."""

    def __init__(
        self,
        *,
        command: Sequence[str] = CHILD,
        environ: Mapping[str, str] | None = None,
        deadline: float = DEADLINE_SECONDS,
        backoff: Backoff | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``environ`` is added to the agent's own environment for the child; ``deadline`` is in seconds."""
        self.error = ""
        self.errors = 0
        """Looks that brought no answer."""
        self.hangs = 0
        """Children that did not answer in time."""
        self.abandoned = 0
        """Children that could not be killed, ever."""
        self.last_read: float | None = None
        """When the driver last answered, epoch seconds."""
        self.last: NodeGpus | None = None
        """The last answer in which the driver told of its GPUs."""
        self._command, self._environ, self._deadline = tuple(command), dict(environ or {}), deadline
        self._backoff = backoff or Backoff(first=1.0, limit=300.0)
        self._monotonic = monotonic
        self._not_before = float("-inf")
        self._child: Process | None = None
        self._stuck: list[Process] = []
        self._asked = 0
        self._one = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The child's, while it runs: what it does is none of the node's own work."""
        return self._child.pid if self._child is not None else None

    @property
    def stuck(self) -> int:
        """Children that are stuck in the driver now."""
        self._stuck = [child for child in self._stuck if child.returncode is None]
        return len(self._stuck)

    async def read(self) -> NodeGpus | None:
        """One look; None where nothing answered. Never longer than the deadline and the grace."""
        async with self._one:
            if self._monotonic() < self._not_before:
                return None
            if self.stuck >= ABANDONED:
                self.error = (
                    f"{self.stuck} processes that asked NVML are stuck in the driver; no further one is started"
                )
                return None
            try:
                found = await self._ask()
            except (OSError, EOFError, ValueError, TimeoutError, msgspec.DecodeError) as error:
                self.errors += 1
                await self._failed(error)
                return None
            except asyncio.CancelledError:
                await self._kill()  # its answer would be taken for that of the next question
                raise
            self._backoff.succeeded()
            self.error = f"NVML: {found.error}" if found.error else ""
            if not found.error:
                self.last_read, self.last = found.at, found
            return found

    async def close(self) -> None:
        """Ends the child."""
        await self._kill()

    async def _ask(self) -> NodeGpus:
        child = self._child
        if child is None:
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env=os.environ | self._environ,
                limit=ANSWER_BYTES,
            )
        assert child.stdin is not None and child.stdout is not None
        self._asked += 1
        async with asyncio.timeout(self._deadline):
            child.stdin.write(b'{"id":%d}\n' % self._asked)
            await child.stdin.drain()
            line = await child.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.id != self._asked:
            raise ValueError(f"answer {answer.id} to question {self._asked}")
        return answer.gpus

    async def _failed(self, error: BaseException) -> None:
        child = self._child
        if child is not None and isinstance(error, (EOFError, ConnectionError)):
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await child.wait()  # to kill what has just ended would lose how it ended
        await self._kill()
        code = child.returncode if child is not None else None
        if isinstance(error, TimeoutError):
            self.hangs += 1
            why = f"NVML did not answer within {self._deadline:g} s"
        elif isinstance(error, (EOFError, ConnectionError)):
            why = f"the process that asks NVML ended ({_ending(code)})"
        elif isinstance(error, OSError):
            why = f"the process that asks NVML cannot be started: {error.strerror or error}"
        else:
            why = "the process that asks NVML gave no answer that is understood"
        wait = self._backoff.failed()
        self._not_before = self._monotonic() + wait
        self.error = f"{why}; asked again in {wait:.0f} s"

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            try:
                async with asyncio.timeout(GRACE_SECONDS):
                    await child.wait()
            except TimeoutError:
                self._stuck.append(child)
                self.abandoned += 1
        if (pipe := child.stdin) is not None:
            pipe.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await pipe.wait_closed()


def _ending(code: int | None) -> str:
    if code is None:
        return "it is stuck in the driver"
    return f"signal {-code}" if code < 0 else f"exit status {code}"

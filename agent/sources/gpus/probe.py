"""The active probe: does a new CUDA context work on a GPU? By a short-lived child, one at a time, and not often.

Nothing is probed unless the settings allow it (`recovery.probe`). Who asks sees to it that nobody else uses the GPU.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

CHILD = (sys.executable, "-m", "agent.sources.gpus.probe_child")
DEADLINE_SECONDS = 60.0
"""A context takes 0.2 to 0.4 s on an H200; the first one after a reset, without persistence, some seconds."""

PAUSE_SECONDS = 300.0
"""The least time between two probes of one GPU."""

GRACE_SECONDS = 1.0


class Probed(msgspec.Struct, frozen=True):
    """How it went. `ok` is None where it could not be tried; `code` and `name` are CUDA's, for the failed `call`."""

    ok: bool | None
    call: str = ""
    code: int | None = None
    name: str = ""
    ms: float = 0.0

    @property
    def says(self) -> str:
        """For a person: a phrase that says how it went."""
        if self.ok:
            return f"a CUDA context was made on it in {self.ms:.0f} ms, and memory written and read"
        if self.ok is None:
            return f"a CUDA context could not be tried: {self.name}"
        number = "" if not self.code else f" ({self.code})"
        return f"a CUDA context does not work on it: {self.call}: {self.name}{number}"


class Probe:
    """Probes GPUs by UUID. A child that the driver holds is abandoned, and nothing is probed until it ends."""

    def __init__(
        self,
        *,
        command: Sequence[str] = CHILD,
        environ: Mapping[str, str] | None = None,
        deadline: float = DEADLINE_SECONDS,
        pause: float = PAUSE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deadline` and `pause` are in seconds; `environ` is added to the agent's own for the child."""
        self.runs = 0
        self._command, self._environ = tuple(command), dict(environ or {})
        self._deadline, self._pause, self._monotonic = deadline, pause, monotonic
        self._last: dict[str, tuple[float, Probed]] = {}
        self._child: asyncio.subprocess.Process | None = None

    async def run(self, uuid: str) -> Probed:
        """One probe, or the result of the last one while it is too soon for another. Never raises for a sick GPU."""
        last = self._last.get(uuid)
        if last is not None and 0 <= self._monotonic() - last[0] < self._pause:
            return last[1]
        if self._child is not None and self._child.returncode is None:
            return Probed(ok=None, name="another probe has not ended")
        self.runs += 1
        probed = await self._try(uuid)
        self._last[uuid] = (self._monotonic(), probed)
        return probed

    async def _try(self, uuid: str) -> Probed:
        try:
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command, uuid, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=os.environ | self._environ
            )
        except OSError as error:
            return Probed(ok=None, name=str(error.strerror or error))
        assert child.stdout is not None
        try:
            async with asyncio.timeout(self._deadline):
                line = await child.stdout.read(1 << 16)
                await child.wait()
            return msgspec.json.decode(line, type=Probed)
        except TimeoutError:
            return Probed(ok=False, call="the whole of it", name=f"not done within {self._deadline:g} s")
        except msgspec.DecodeError:
            return Probed(ok=False, call="the process", name=f"ended with {child.returncode} and said nothing")
        finally:
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    child.kill()
                with suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_SECONDS):
                        await child.wait()

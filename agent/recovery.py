"""Looks, while a fault is open, whether it is over. Reads the node through what it is given; decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from agent.detect.catalogue import Catalogue
from agent.diagnose.recovery import Proofs, Recovery, hold_for, recovered, with_context, without_probe
from agent.diagnose.release import released
from agent.gpus import NodeGpus
from agent.model import Fault, PciAddress, Scope
from agent.pipeline import Pipeline
from agent.sources.gpus.probe import Probed

log = logging.getLogger("faultline")

LOOK_SECONDS = 30.0
"""How often the driver's list of GPUs is looked at while a GPU is accused."""


class Holds(NamedTuple):
    """Seconds of quiet: the usual, and the longest."""

    usual: float
    longest: float


class Recoveries:
    """Closes faults that are proved to be over, and those that a person releases."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        boot: str,
        booted: float | None,
        catalogue: Callable[[], Catalogue],
        gpus: Callable[[], Mapping[PciAddress, str] | None],
        states: Callable[[], Awaitable[NodeGpus | None]],
        probe: Callable[[str], Awaitable[Probed]] | None = None,
        holds: Callable[[], Holds],
        settled: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`gpus` is the driver's list; it is called in a thread. `states` asks NVML, under a deadline of its own.

        `probe` tries a CUDA context on the GPU of a UUID; None where that is not allowed.
        `settled`: the kernel log was read to its end once.
        """
        self.states: dict[str, str] = {}
        """Why each accusing fault is not over yet, by its id."""
        self._pipeline, self._boot, self._booted = pipeline, boot, booted
        self._catalogue, self._gpus, self._holds, self._settled, self._clock = catalogue, gpus, holds, settled, clock
        self._states, self._probe = states, probe
        self._asked: set[str] = set()
        """UUIDs of GPUs for which NVML told a recovery action."""
        self._calm: dict[str, float] = {}
        """Since when it tells none any more."""
        self._wake = asyncio.Event()

    def told(self, gpus: NodeGpus) -> None:
        """What NVML says now: remembers for which GPUs the driver asks for something."""
        for gpu in gpus.gpus:
            if gpu.recovery_action:
                self._asked.add(gpu.uuid)
                self._calm.pop(gpu.uuid, None)
            elif gpu.recovery_action == 0 and gpu.uuid in self._asked:
                self._calm.setdefault(gpu.uuid, gpus.at)

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Looks for ever, but not while nothing is accused."""
        while True:
            self._wake.clear()
            wait = await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def look(self) -> float | None:
        """One look; seconds until the next one, None while nothing is accused."""
        if not any(f.accuses for f in self._pipeline.diagnostician.faults):
            self.states = {}
            return None
        gpus = await asyncio.to_thread(self._gpus)
        found = await self._states()
        if found is not None:
            self.told(found)
        if not self._settled():
            return LOOK_SECONDS  # a record that is still to be read may be of this very fault
        now, core = self._clock(), self._pipeline.diagnostician
        proofs = Proofs(
            now=now,
            boot=self._boot,
            booted=self._booted,
            driver_loaded=self._pipeline.driver_loaded,
            gpus=gpus,
            states=found.gpus if found is not None else (),
            calm=dict(self._calm),
        )
        recoveries, holds = self._catalogue().recoveries, self._holds()
        over: dict[str, str] = {}
        states: dict[str, str] = {}
        next_look = LOOK_SECONDS
        for fault in [f for f in core.faults if f.accuses]:
            word = recoveries.get(fault.recovery)
            hold = hold_for(fault, core.faults, hold=holds.usual, limit=holds.longest)
            end = recovered(fault, proofs, proof=word.proof if word is not None else "service", hold=hold)
            if end.state == "proved":
                end = await self._probed(fault, end, found)
            if end.state == "proved":
                over[fault.id] = end.why
            else:
                states[fault.id] = end.why
                if end.until is not None:
                    next_look = min(next_look, max(end.until - now, 1.0))
        self.states = states
        if over:
            self._pipeline.end(over, at=now)
        return next_look

    async def _probed(self, fault: Fault, end: Recovery, found: NodeGpus | None) -> Recovery:
        """The last proof, where it is allowed: a CUDA context on that GPU."""
        if self._probe is None or fault.scope is not Scope.GPU or not (uuid := fault.gpu.uuid):
            return end
        state = next((g for g in found.gpus if g.uuid == uuid), None) if found is not None else None
        holders = self._pipeline.diagnostician.holders(uuid)
        if (without := without_probe(end, state, holders=[str(h) for h in holders])) is not None:
            return without
        probed = await self._probe(uuid)
        return with_context(end, works=probed.ok is True, says=probed.says)

    def release(self, asked: str) -> None:
        """Ends the faults that a person names."""
        ids, strange = released(asked, self._pipeline.diagnostician.faults)
        if strange:
            log.warning("release: no open fault is named by %s", ", ".join(strange))
        self._pipeline.end(dict.fromkeys(ids, "a person released it"), at=self._clock())

"""What every way to withhold one GPU from new work has in common. Whether to use one is the policy's decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agent.model import GpuRef


class WithholdError(Exception):
    """It cannot be done as asked, and trying again does not help; the text says why. Nothing was sent or changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whether a means can withhold a GPU, from what is known now. ``why`` is always said."""

    can: bool
    why: str
    already: bool = False
    """Somebody else (its driver) withholds it already: there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One mark of ours in the cluster. ``handle`` is what :meth:`Means.release` takes."""

    means: str
    handle: str
    gpu: GpuRef
    fault: str = ""
    value: str = ""
    why: str = ""
    since: float | None = None


class Means(Protocol):
    """A way to withhold one GPU. Requests raise :class:`agent.kube.KubeError` as they are."""

    @property
    def name(self) -> str: ...

    def reach(self, gpu: GpuRef) -> Reach:
        """Whether it could, from what is known: no request."""
        ...

    async def withhold(self, gpu: GpuRef, *, value: str, why: str, fault: str) -> tuple[Held, ...]:
        """Withhold it; a second call changes nothing. Raises WithholdError where that is impossible."""
        ...

    async def release(self, handle: str) -> tuple[Held, ...]:
        """Take back ours of this handle or this fault; what was taken back. What is gone already is no error."""
        ...

    async def held(self) -> tuple[Held, ...]:
        """Everything of ours that is in the cluster for this node."""
        ...

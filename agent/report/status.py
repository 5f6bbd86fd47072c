"""What the agent says of itself, as values, and the questions that its pages ask. Decides nothing, reads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agent.model import Fault, Plan, Verdict
from agent.report.events import Report
from agent.report.gpus import GpuStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """One source of input. `how` is the way it is read; `why` and `cure` are empty unless it is blind."""

    name: str
    state: Literal["starting", "reading", "blind"]
    how: str = ""
    last_read: float | None = None
    lost: int = 0
    errors: int = 0
    why: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """One rule in force, and how often it was met since the start."""

    id: str
    title: str
    component: str
    pack: str = ""
    hits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether every source was read once; `reasons` say what is waited for."""

    reasons: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.reasons


class State(Protocol):
    """What the running agent knows now. Each answer is a value that no one changes afterwards."""

    @property
    def node(self) -> str: ...
    @property
    def mode(self) -> str: ...
    def now(self) -> float: ...
    def metrics(self, accept: str) -> tuple[bytes, str]: ...
    def readiness(self) -> Readiness: ...
    def faults(self) -> Sequence[Fault]: ...
    def failures(self) -> Sequence[object]: ...
    def verdicts(self) -> Sequence[Verdict]: ...
    def plans(self) -> Sequence[Plan]: ...
    def events(self) -> Sequence[Report]: ...
    def sources(self) -> Sequence[SourceStatus]: ...
    def rules(self) -> Sequence[RuleStatus]: ...
    def gpus(self) -> Sequence[GpuStatus]: ...

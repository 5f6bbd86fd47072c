"""How the agent must have understood the demo's story; used by the demo itself and by its test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from agent.config import (
    CorrelationSettings,
    GpusSettings,
    HttpSettings,
    KernelSettings,
    KubeletSettings,
    LogsSettings,
    Settings,
)
from agent.demo.story import FAULTED, FIRST, GPUS, NEXT, REFUSED, SLOW, Story
from agent.model import Action, Component, Fault, Plan, Verdict
from agent.report.events import Reason, Report


class Told(Protocol):
    """What of the agent is looked at."""

    def faults(self) -> Sequence[Fault]: ...
    def verdicts(self) -> Sequence[Verdict]: ...
    def plans(self) -> Sequence[Plan]: ...
    def events(self) -> Sequence[Report]: ...


def settings_for(story: Story, root: Path, *, port: int = 0) -> Settings:
    """The settings of the real agent on the story's files."""
    return Settings(
        node_name="gpu-node-7",
        state_dir=str(root / "state"),
        http=HttpSettings(address="127.0.0.1", port=port),
        kernel=KernelSettings(path=str(story.kmsg)),
        logs=LogsSettings(root=str(story.pods)),
        kubelet=KubeletSettings(checkpoint=str(story.checkpoint)),
        gpus=GpusSettings(proc=""),  # the story's GPUs are made up: this machine's driver has no part in it
        correlation=CorrelationSettings(settle_seconds=2.0),
    )


def shortcomings(told: Told, story: Story) -> list[str]:
    """What the agent should have said and did not, or should not have said and did. Empty: all as it should be."""
    wrong: list[str] = []
    pci, uuid = GPUS[FAULTED]
    accused = [f for f in told.faults() if f.accuses]
    if [(f.gpu.pci, f.gpu.uuid, f.cause, f.action) for f in accused] != [(pci, uuid, "xid/79", Action.CORDON)]:
        wrong.append(f"accused: {[(f.gpu.pci, f.gpu.uuid, f.cause, f.action) for f in accused]}")
    by_pod = {v.container.pod: v for v in told.verdicts() if v.container is not None}
    for pod in (FIRST, NEXT):
        verdict = by_pod.get(pod.name)
        if verdict is None or (verdict.component, verdict.gpu.pci, verdict.xids[:1]) != (Component.GPU, pci, (79,)):
            wrong.append(f"{pod.name}: {verdict}")
    refused = by_pod.get(REFUSED.name)
    if refused is None or refused.component is not Component.CONFIG or refused.count != 2:
        wrong.append(f"{REFUSED.name}: {refused}")
    elif "--mamba-ssm-dtype bfloat16" not in " ".join(refused.fix):
        wrong.append(f"{REFUSED.name}: no fix in {refused.fix}")
    slow = by_pod.get(SLOW.name)
    if slow is None or slow.component is not Component.CONFIG or slow.gpu.known:
        wrong.append(f"{SLOW.name}: {slow}")
    if [p.action for p in told.plans() if p.action not in (Action.NONE, Action.ADVISE)] != [Action.CORDON]:
        wrong.append(f"plans: {told.plans()}")
    if not all(p.withheld for p in told.plans() if p.action is Action.CORDON):
        wrong.append("the plan is not withheld in mode observe")
    reasons = sorted(r.reason for r in told.events())
    expected = sorted(
        [Reason.GPU_FAULT, *[Reason.BACKEND_FAILED_ON_FAULTED_GPU] * 2, Reason.BACKEND_VALIDATION_FAILED,
         Reason.SLOW_BACKEND_CONFIGURATION]
    )  # fmt: skip
    if reasons != expected:
        wrong.append(f"events: {[str(r) for r in reasons]}")
    if story.rotations != 1:
        wrong.append(f"rotations: {story.rotations}")
    return wrong

"""Small makers of plain values for the tests of the pure core."""

from __future__ import annotations

from agent.detect.causes import Alternative
from agent.detect.rules import Examples, FixStep, Rule
from agent.model import (
    NO_GPU,
    Component,
    ContainerRef,
    Evidence,
    FaultHint,
    GpuRef,
    Role,
    Scope,
    Severity,
    Signal,
    parse_pci,
)

BUSY = Rule(
    id="cuda/busy",
    title="CUDA error 46",
    literals=("busy or unavailable",),
    examples=Examples(match=("x",)),
    source="test",
    role=Role.SYMPTOM,
    component=Component.UNDECIDED,
    cause="A context was refused.",
    check=("Read the kernel log of the node.",),
    suspects=(Scope.GPU, Scope.FABRIC, Scope.NODE),
    alternatives=("causes/mps", "causes/reset"),
)
ILLEGAL = Rule(
    id="cuda/illegal-address",
    title="CUDA error 700",
    literals=("illegal memory access",),
    examples=Examples(match=("x",)),
    source="test",
    role=Role.SYMPTOM,
    component=Component.APPLICATION,
    cause="The program used a bad address.",
    check=("Run with CUDA_LAUNCH_BLOCKING=1.",),
    suspects=(Scope.GPU,),
    xids=(31, 13, 43),
)
FLAG = Rule(
    id="sglang/bad-flag",
    title="A flag is refused",
    literals=("invalid choice",),
    examples=Examples(match=("x",)),
    source="test",
    component=Component.CONFIG,
    cause="{value} is not known.",
    fix=(FixStep(say="Use one of {choices}."),),
)
DIED = Rule(
    id="sglang/child-died",
    title="A child died",
    literals=("sigquit",),
    examples=Examples(match=("x",)),
    source="test",
    role=Role.ECHO,
    component=Component.REMOTE,
    cause="Another process failed first.",
)
SLOW = Rule(
    id="sglang/slow",
    title="Slow backend",
    literals=(),
    examples=Examples(match=("x",)),
    source="test",
    role=Role.ADVICE,
    component=Component.CONFIG,
    cause="Runs {attention_backend}.",
    fix=(FixStep(say="Set another backend."),),
    when={"attention_backend": ("triton",), "gpu_arch": ("sm10*",)},
)
RULES = (BUSY, ILLEGAL, FLAG, DIED, SLOW)
ALTERNATIVES = (
    Alternative(
        id="causes/mps",
        title="MPS has too many clients",
        component=Component.SHARING,
        cause="Too many.",
        standing="field",
        check=("Look at the replicas.",),
        fix=(FixStep(say="Lower the number of replicas."),),
        source="test",
        hints=("sharing.mps",),
    ),
    Alternative(
        id="causes/reset",
        title="The GPU waits for a reset",
        component=Component.GPU,
        cause="An Xid.",
        standing="documented",
        check=("dmesg",),
        fix=(FixStep(say="Reset the GPU."),),
        source="test",
    ),
)


def pod(name: str = "chat-0", *, restart: int = 0) -> ContainerRef:
    return ContainerRef(namespace="serving", pod=name, uid=f"uid-{name}", container="server", restart=restart)


def gpu(pci: str = "0000:5d:00", uuid: str | None = None) -> GpuRef:
    return GpuRef(pci=parse_pci(pci), uuid=uuid)


def said(
    rule: Rule,
    *,
    by: ContainerRef | None = None,
    at: float | None = 100.0,
    text: str = "",
    **more: object,
) -> Signal:
    """A container's signal."""
    return Signal(
        rule=rule.id,
        role=rule.role,
        container=by or pod(),
        time=at,
        evidence=Evidence(source="log", text=text or rule.title, line=1),
        **more,  # type: ignore[arg-type]
    )


def told(facts: dict[str, str], *, by: ContainerRef | None = None, at: float = 90.0) -> Signal:
    """A fact about a run."""
    return Signal(
        rule="sglang/fact",
        role=Role.CONTEXT,
        container=by or pod(),
        time=at,
        fields=facts,
        evidence=Evidence(source="log", text="fact"),
    )


def kernel(
    rule: str = "kernel/test",
    *,
    at: float | None = 95.0,
    of: GpuRef = NO_GPU,
    severity: Severity = Severity.FATAL,
    recovery: str = "reset_gpu",
    scope: Scope = Scope.GPU,
    xid: int | None = None,
    text: str = "NVRM: something",
    **hint: object,
) -> Signal:
    """A kernel record, judged."""
    return Signal(
        rule=rule,
        time=at,
        gpu=of,
        xid=xid,
        evidence=Evidence(source="kernel", text=text),
        fault=FaultHint(severity=severity, recovery=recovery, scope=scope, **hint),  # type: ignore[arg-type]
    )


def xid(code: int, *, of: GpuRef | None = None, at: float | None = 95.0, severity: Severity = Severity.FATAL,
        recovery: str = "reset_gpu", **hint: object) -> Signal:  # fmt: skip
    of = of or gpu()
    text = f"NVRM: Xid (PCI:{of.pci}): {code}, pid=77, name=python3, words"
    return kernel(f"xid/{code}", at=at, of=of, severity=severity, recovery=recovery, xid=code, text=text, **hint)


UNKNOWN = Rule(
    id="python/unknown",
    title="An unknown exception",
    literals=("Error: ",),
    examples=Examples(match=("x",)),
    source="test",
    role=Role.UNCLAIMED,
    component=Component.UNDECIDED,
    check=("Read it.",),
)

"""A fault and a verdict that several tests tell of."""

from __future__ import annotations

from agent.model import (
    Action,
    Component,
    Confidence,
    ContainerRef,
    Evidence,
    Fault,
    GpuRef,
    Scope,
    Severity,
    Verdict,
    parse_pci,
)

FAULT = Fault(
    id="f1", scope=Scope.GPU, gpu=GpuRef(pci=parse_pci("0000:5d:00")), cause="xid/79", title="fallen off the bus",
    severity=Severity.FATAL, recovery="reboot_node", component=Component.GPU, action=Action.CORDON, xids=(79,),
    signals=1, first_seen=100.0, last_seen=100.0, why="The driver lost the GPU", fix=("Drain and reboot the node.",),
    evidence=(Evidence(source="kernel", text="NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."),),
)  # fmt: skip
VERDICT = Verdict(
    id="v1", rule="cuda/device-busy", title="CUDA device busy or unavailable", component=Component.GPU,
    cause="The GPU fell off the bus", confidence=Confidence.LIKELY, action=Action.CORDON, why="Xid 79 came 2 s before",
    gpu=FAULT.gpu, xids=(79,), fault="f1", fix=("Move the pod.",), first_seen=102.0, last_seen=102.0,
    container=ContainerRef(namespace="llm", pod="qwen-0", uid="u-1", container="sglang"),
    evidence=(Evidence(source="qwen-0", line=14, text="torch.AcceleratorError: CUDA error"),),
)  # fmt: skip

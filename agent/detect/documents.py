"""Joins what stands in several lines of a pasted document: the GPU of a section of `nvidia-smi -q`, a node's counts.

Pure, and about words only: it must never name a GPU that no line named, and never outlive the document it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from agent.model import Role, Signal, parse_pci

SECTION_REACH = 32 * 1024
"""Bytes after the head of a section within which its lines still belong to it."""

LISTED_LIMIT = 16
"""GPUs that a list is followed for; no machine has more."""

HEADER, LISTED = "nvidia-smi/gpu-header", "nvidia-smi/listed-gpu"
SECTION, COUNT, WITHDRAWN = "kubernetes/node-section", "kubernetes/node-gpu-count", "kubernetes/gpus-withdrawn"
OF_A_SECTION = frozenset((
    "nvidia-smi/recovery-reset", "nvidia-smi/recovery-reboot", "nvidia-smi/recovery-drain-p2p",
    "nvidia-smi/remap-failed", "nvidia-smi/remap-pending", "nvidia-smi/sram-threshold", "host/fabric-state-not-ready",
))  # fmt: skip
"""Rules whose lines stand below a GPU's header and do not name it themselves."""
OF_A_DOCUMENT = OF_A_SECTION | {HEADER, LISTED, SECTION, COUNT}
"""Rules whose line means what the lines before it make of it: the same words twice are not the same finding."""


@dataclass(slots=True)
class DocumentState:
    """What must be remembered of the lines before, for one document."""

    gpu: str = ""
    gpu_at: int = 0
    listed: list[str] = field(default_factory=list)
    section: str = ""
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def refine(self, signal: Signal, *, offset: int) -> Iterator[Signal]:
        """The signal as the lines before it make it, and what it completes; `offset` is its line's, in bytes."""
        if signal.rule == HEADER:
            self.gpu, self.gpu_at = signal.fields.get("pci", ""), offset
            return
        if signal.rule == LISTED:
            uuid = signal.fields.get("uuid", "")
            if uuid and uuid not in self.listed and len(self.listed) < LISTED_LIMIT:
                self.listed.append(uuid)
            # All of them in one fact: what the container could use, whatever it was given by name.
            model = {k: v for k, v in signal.fields.items() if k == "gpu_model"}
            yield replace(signal, fields={"visible_gpus": " ".join(self.listed), **model})
            return
        if signal.rule == SECTION:
            self.section = signal.fields.get("section", "").lower()
            if any(section == self.section for section, _ in self.counts):
                self.counts.clear()  # the same heading again: the next node's description begins
            return
        if signal.rule in OF_A_SECTION:
            yield self._of_the_gpu(signal, offset)
            return
        if signal.rule == COUNT:
            yield from self._counted(signal)
            return
        yield signal

    def _of_the_gpu(self, signal: Signal, offset: int) -> Signal:
        pci = parse_pci(self.gpu) if self.gpu and 0 <= offset - self.gpu_at <= SECTION_REACH else None
        if pci is None or signal.gpu.known:
            return signal
        return replace(signal, gpu=replace(signal.gpu, pci=pci), fields={**signal.fields, "pci": str(pci)})

    def _counted(self, signal: Signal) -> Iterator[Signal]:
        resource, count = signal.fields.get("resource", ""), signal.fields.get("count", "")
        if not self.section or not (count.isascii() and count.isdigit() and len(count) < 9):
            return
        self.counts[self.section, resource] = int(count)
        capacity, allocatable = self.counts.get(("capacity", resource)), self.counts.get(("allocatable", resource))
        if capacity is None or allocatable is None or allocatable >= capacity:
            return
        text = f"capacity and allocatable of {resource}: {capacity} and {allocatable}"
        yield replace(
            signal,
            rule=WITHDRAWN,
            role=Role.SYMPTOM,
            fields={"resource": resource, "capacity": str(capacity), "allocatable": str(allocatable)},
            evidence=replace(signal.evidence, text=text),
        )

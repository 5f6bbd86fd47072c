"""The node's GPUs as the driver shows them: frozen values that what decides is given. No I/O.

None is unknown: a driver that does not know a field has not said that it is well. ``unknown`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agent.model import PciAddress

ComputeMode = Literal["default", "exclusive_thread", "prohibited", "exclusive_process"]
FabricState = Literal["not_supported", "not_started", "in_progress", "completed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with a context on a GPU. ``pid`` is in the namespace of who asked NVML."""

    pid: int
    name: str = ""
    kind: Literal["compute", "graphics", "mps"] = "compute"
    memory: int | None = None
    """Bytes of the GPU's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One MIG device; ``gi`` and ``ci`` are the instance ids that the kernel log prints."""

    uuid: str
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU at one moment, by NVML's terms. Memory is in bytes, counters are since the driver was loaded or ever."""

    pci: PciAddress
    uuid: str = ""
    minor: int | None = None
    model: str = ""
    compute_capability: str = ""
    """``9.0``; empty where it is not known."""
    lost: str = ""
    """NVML's answer where the GPU itself cannot be asked: ``GPU is lost``, ``GPU requires reset``."""
    recovery_action: int | None = None
    """Field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover IMEX domain."""
    reset_required: bool | None = None
    """Field 226, which 230 has replaced."""
    drain_and_reset: bool | None = None
    """Field 227."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    retired_pending: bool | None = None
    retired_pages: int | None = None
    ecc: bool | None = None
    ecc_volatile: int | None = None
    """Uncorrected errors since the driver was loaded."""
    ecc_aggregate: int | None = None
    """Uncorrected errors of the card's life."""
    sram_threshold_exceeded: bool | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    unrepairable_memory: bool | None = None
    compute_mode: ComputeMode | None = None
    mig: bool | None = None
    mig_instances: tuple[MigInstance, ...] | None = None
    persistence: bool | None = None
    processes: tuple[GpuProcess, ...] | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    nvlinks: Mapping[int, bool] | None = None
    """Whether each NVLink is active, by its number; empty where the GPU has none."""
    fabric: FabricState | None = None
    fabric_status: int | None = None
    """NVML's return code of the fabric's set-up: 0 is success. Only where it is completed."""
    fabric_health: int | None = None
    """NVML's mask."""
    clocks_event_reasons: tuple[str, ...] | None = None
    """Why the clocks are low: ``hw_thermal_slowdown``, ``sw_power_cap``."""
    vgpu_licensed: bool | None = None
    """None also on what is no virtual GPU."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """NVML's answer for each field that it did not tell: ``Not Supported``, ``Invalid Argument``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """Every GPU of the node, and the driver. ``error`` where the library or the driver could not be asked at all."""

    at: float
    """When it was read, epoch seconds."""
    driver: str = ""
    cuda: str = ""
    """The newest CUDA version of the driver, ``13.0``."""
    gpus: tuple[GpuState, ...] = ()
    unnamed: tuple[str, ...] = ()
    """What NVML said of each GPU whose address it did not tell: ``GPU is lost``."""
    error: str = ""
    """``Driver Not Loaded``, ``Driver/library version mismatch``; empty when all went well."""
    code: int | None = None
    """NVML's number for ``error``, where it is NVML's."""

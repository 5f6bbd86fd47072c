"""What NVML says of the GPUs, as a program of its own: a driver that hangs or crashes takes only this process with it.

Each line of standard input asks for one look (`{"id": 1}`); each answer is one line of JSON, a `NodeGpus` beside the
same id. It ends with its standard input. Started by :mod:`agent.sources.gpus.nvml`; imports no more than it needs.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import pynvml as nvml

from agent.gpus import GpuProcess, GpuState, MigInstance, NodeGpus
from agent.model import PciAddress, parse_pci

T = TypeVar("T")

LINKS = 18
"""NVLinks of one GPU that are asked for; the first that NVML does not know ends the list."""

PROCESSES = 256
"""Processes of one GPU that are told at most."""

COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
REASONS = {
    0x01: "gpu_idle",
    0x02: "applications_clocks_setting",
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of NVML's clocks event reasons."""

RESET_STATUS, DRAIN_AND_RESET, RECOVERY_ACTION = 226, 227, 230
"""Field ids; a driver before branch 565 knows no 230."""

VGPU = 2
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU: this machine is the guest."""

GONE = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)
SESSION_ENDED = (
    nvml.NVML_ERROR_UNINITIALIZED,
    nvml.NVML_ERROR_DRIVER_NOT_LOADED,
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    nvml.NVML_ERROR_UNKNOWN,
)
"""The driver was unloaded or replaced under us: another session may see it again."""


class Session:
    """One use of the library, begun again when the driver went away under it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._open = False
        self._names: dict[int, tuple[PciAddress, str]] = {}
        """Address and UUID by NVML's index, for a GPU that does not tell them any more."""

    def read(self) -> NodeGpus:
        """One look at every GPU. What NVML refuses is in the answer; nothing is raised for it."""
        at = self._clock()
        try:
            if not self._open:
                nvml.nvmlInit()
                self._open = True
            return self._look(at)
        except nvml.NVMLError as error:
            if self._open and error.value in SESSION_ENDED:
                self.close()
            return NodeGpus(at=at, error=str(error), code=error.value)

    def close(self) -> None:
        self._open = False
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    def _look(self, at: float) -> NodeGpus:
        count = nvml.nvmlDeviceGetCount()
        gpus, unnamed = [], []
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                pci = parse_pci(nvml.nvmlDeviceGetPciInfo(handle).busId)
            except nvml.NVMLError as error:
                if (named := self._names.get(index)) is not None:
                    lost = str(error) if error.value in GONE else ""
                    gpus.append(GpuState(pci=named[0], uuid=named[1], lost=lost, unknown={"handle": str(error)}))
                else:
                    unnamed.append(str(error))
                continue
            if pci is None:
                unnamed.append("its address is of no known form")
                continue
            state = _state(handle, pci)
            if not state.uuid and (named := self._names.get(index)) is not None and named[0] == pci:
                state = GpuState(**{f: getattr(state, f) for f in GpuState.__slots__} | {"uuid": named[1]})
            self._names[index] = (pci, state.uuid)
            gpus.append(state)
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return NodeGpus(
            at=at,
            driver=nvml.nvmlSystemGetDriverVersion(),
            cuda=f"{version // 1000}.{version % 1000 // 10}",
            gpus=tuple(gpus),
            unnamed=tuple(unnamed),
        )


class _Asked:
    """Asks one GPU and keeps what it did not answer."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.unknown: dict[str, str] = {}
        self.lost = ""

    def __call__(self, name: str, ask: Callable[[Any], T]) -> T | None:
        try:
            return ask(self.handle)
        except nvml.NVMLError as error:
            self.refused(name, error.value)
        except (IndexError, ValueError, UnicodeDecodeError):  # a value that is newer than this program
            self.unknown[name] = "not understood"
        return None

    def refused(self, name: str, code: int) -> None:
        self.unknown[name] = str(nvml.NVMLError(code))
        if code in GONE and not self.lost:
            self.lost = self.unknown[name]

    def fields(self, wanted: dict[str, int]) -> dict[str, int | None]:
        """Field values by name; each has an error of its own."""
        found: dict[str, int | None] = dict.fromkeys(wanted)
        values = self("fields", lambda h: nvml.nvmlDeviceGetFieldValues(h, list(wanted.values())))
        if values is None:
            self.unknown |= dict.fromkeys(wanted, self.unknown.pop("fields"))
            return found
        for name, value in zip(wanted, values, strict=True):
            if value.nvmlReturn != nvml.NVML_SUCCESS:
                self.refused(name, value.nvmlReturn)
            else:
                found[name] = _number(value)
        return found


def _number(value: Any) -> int:
    """A field's value by its type (nvmlValueType_t): double, unsigned int, unsigned long, unsigned long long, ..."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return int(getattr(value.value, names[value.valueType]))


def _state(handle: Any, pci: PciAddress) -> GpuState:
    ask = _Asked(handle)
    fields = ask.fields(
        {"recovery_action": RECOVERY_ACTION, "reset_required": RESET_STATUS, "drain_and_reset": DRAIN_AND_RESET}
    )
    capability = ask("compute_capability", nvml.nvmlDeviceGetCudaComputeCapability)
    rows = ask("remap_pending", nvml.nvmlDeviceGetRemappedRows)
    repair = ask("channel_repair_pending", nvml.nvmlDeviceGetRepairStatus)
    memory = ask("memory_total", _memory)
    ecc = ask("ecc", nvml.nvmlDeviceGetEccMode)
    mig = ask("mig", nvml.nvmlDeviceGetMigMode)
    mode = ask("compute_mode", lambda h: COMPUTE_MODES[nvml.nvmlDeviceGetComputeMode(h)])
    fabric = ask("fabric", _fabric)
    licence = ask("vgpu_licensed", _licensed)
    pages = [ask("retired_pages", partial(_retired, why=why)) for why in (0, 1)]
    return GpuState(
        pci=pci,
        uuid=ask("uuid", nvml.nvmlDeviceGetUUID) or "",
        minor=ask("minor", nvml.nvmlDeviceGetMinorNumber),
        model=ask("model", nvml.nvmlDeviceGetName) or "",
        compute_capability="" if capability is None else f"{capability[0]}.{capability[1]}",
        recovery_action=fields["recovery_action"],
        reset_required=_flag(fields["reset_required"]),
        drain_and_reset=_flag(fields["drain_and_reset"]),
        remapped_correctable=None if rows is None else rows[0],
        remapped_uncorrectable=None if rows is None else rows[1],
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        retired_pending=_flag(ask("retired_pending", nvml.nvmlDeviceGetRetiredPagesPendingStatus)),
        retired_pages=None if None in pages else sum(p for p in pages if p is not None),
        ecc=None if ecc is None else bool(ecc[0]),
        ecc_volatile=ask("ecc_volatile", lambda h: nvml.nvmlDeviceGetTotalEccErrors(h, 1, 0)),
        ecc_aggregate=ask("ecc_aggregate", lambda h: nvml.nvmlDeviceGetTotalEccErrors(h, 1, 1)),
        sram_threshold_exceeded=ask("sram_threshold_exceeded", _sram),
        channel_repair_pending=None if repair is None else bool(repair[0]),
        tpc_repair_pending=None if repair is None else bool(repair[1]),
        unrepairable_memory=_flag(ask("unrepairable_memory", nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1)),
        compute_mode=mode,  # type: ignore[arg-type]
        mig=None if mig is None else bool(mig[0]),
        mig_instances=ask("mig_instances", lambda h: tuple(_instances(h))) if mig is not None and mig[0] else None,
        persistence=_flag(ask("persistence", nvml.nvmlDeviceGetPersistenceMode)),
        processes=ask("processes", lambda h: tuple(_processes(h))[:PROCESSES]),
        memory_total=None if memory is None else memory.total,
        memory_used=None if memory is None else memory.used,
        nvlinks=ask("nvlinks", _links),
        fabric=None if fabric is None else fabric[0],  # type: ignore[arg-type]
        fabric_status=None if fabric is None else fabric[1],
        fabric_health=None if fabric is None else fabric[2],
        clocks_event_reasons=ask("clocks_event_reasons", _reasons),
        vgpu_licensed=licence,
        lost=ask.lost,
        unknown=ask.unknown,
    )


def _memory(handle: Any) -> Any:
    # The second form: the first counts what the driver keeps for itself as used, 615 MiB of an idle H200.
    return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)


def _retired(handle: Any, *, why: int) -> int:
    return len(nvml.nvmlDeviceGetRetiredPages(handle, why))


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _instances(handle: Any) -> Iterator[MigInstance]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        yield MigInstance(
            uuid=nvml.nvmlDeviceGetUUID(device),
            gi=nvml.nvmlDeviceGetGpuInstanceId(device),
            ci=nvml.nvmlDeviceGetComputeInstanceId(device),
        )


def _processes(handle: Any) -> Iterator[GpuProcess]:
    for kind, ask in (
        ("compute", nvml.nvmlDeviceGetComputeRunningProcesses_v3),
        ("mps", nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3),
        ("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses_v3),
    ):
        for found in ask(handle):
            yield GpuProcess(pid=found.pid, name=_comm(found.pid), kind=kind, memory=found.usedGpuMemory)  # type: ignore[arg-type]


def _comm(pid: int) -> str:
    """The kernel's name of the process; NVML's own call gives the user's whole command line."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _links(handle: Any) -> dict[int, bool]:
    links: dict[int, bool] = {}
    for link in range(LINKS):
        try:
            links[link] = bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            break
    return links


def _fabric(handle: Any) -> tuple[str, int | None, int | None]:
    info = nvml.c_nvmlGpuFabricInfoV_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    except nvml.NVMLError_NotSupported:
        return FABRIC_STATES[0], None, None
    done = info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED
    return FABRIC_STATES[info.state], info.status if done else None, info.healthMask if done else None


def _reasons(handle: Any) -> tuple[str, ...]:
    bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return tuple(name for bit, name in REASONS.items() if bits & bit)


def _sram(handle: Any) -> bool:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _licensed(handle: Any) -> bool | None:
    if nvml.nvmlDeviceGetVirtualizationMode(handle) != VGPU:
        return None
    found = nvml.nvmlDeviceGetGridLicensableFeatures(handle)
    features = found.gridLicensableFeatures[: found.licensableFeaturesCount]
    return any(feature.featureState for feature in features)


def main() -> None:
    # The agent's death must end this process even while the driver holds it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    session = Session()
    for line in sys.stdin:
        asked = json.loads(line)
        answer = {"id": asked["id"], "gpus": asdict(session.read())}
        sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    session.close()


if __name__ == "__main__":
    main()

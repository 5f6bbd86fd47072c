"""Whether a faulty GPU is still offered to new work: by the kubelet's ids, the slices, the pods' word. Pure.

Never guesses: counts name no GPU, a missing slice is not a missing GPU, an empty list may be a kubelet that starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.model import GpuRef
from agent.pods import DeviceHealth
from agent.slices import SliceDevice, of_gpu


class Offer(StrEnum):
    ADVERTISED = "advertised"
    WITHDRAWN = "withdrawn"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    offer: Offer
    why: str


def advertised(
    gpu: GpuRef,
    *,
    allocatable_ids: Collection[str] | None = None,
    capacity: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
    devices: Sequence[SliceDevice] | None = None,
    health: Iterable[DeviceHealth] = (),
) -> Advertised:
    """``None`` is "not known"; ``allocatable_ids`` has no replica suffixes, ``devices`` are those offered *now*.

    A GPU that is offered in one way is advertised, whatever another way says.
    """
    if not gpu.known:
        return _unknown("which GPU it is is not known")
    ours = of_gpu(devices, gpu) if devices else ()
    free = [d for d in ours if not d.withheld]
    if free:
        return Advertised(offer=Offer.ADVERTISED, why=f"offered by {free[0].driver} as {_names(free)}")
    listed = gpu.uuid is not None and allocatable_ids is not None and gpu.uuid in allocatable_ids
    if listed:
        return Advertised(offer=Offer.ADVERTISED, why=f"the kubelet can allocate {gpu.uuid}")
    if ours:
        taint = ours[0].withheld[0]
        return Advertised(
            offer=Offer.WITHDRAWN,
            why=f"its driver withholds {_names(ours)}: {taint.key}={taint.value}:{taint.effect}",
        )
    there, total = _counted(allocatable), _counted(capacity)
    if allocatable_ids and gpu.uuid is not None:
        # Others are listed, so the kubelet and the plugin are up. Ids of another kind (MIG, indexes) prove nothing.
        if any(i.startswith("GPU-") for i in allocatable_ids) and all(i.startswith("GPU-") for i in allocatable_ids):
            return Advertised(
                offer=Offer.WITHDRAWN, why=f"the kubelet offers {len(set(allocatable_ids))} GPUs, not this one"
            )
        return _unknown("the kubelet's device ids are not UUIDs of whole GPUs")
    if sum(total.values()) and not any(there.values()) and capacity is not None and allocatable is not None:
        # One unhealthy GPU among several, all unhealthy, or no plugin: in each case nothing is handed out now.
        return Advertised(
            offer=Offer.WITHDRAWN,
            why=f"the node offers no GPU at all (0 of {sum(total.values())}); its device plugin may be gone",
        )
    if sum(there.values()) and there == total:
        return Advertised(
            offer=Offer.ADVERTISED, why=f"all {sum(total.values())} GPUs of the node are allocatable, this one too"
        )
    if gpu.uuid is not None:
        for one in health:
            if one.health == "Unhealthy" and gpu.uuid == one.id.partition("::")[0] and one.resource in there:
                # The word of the plugin to the kubelet, which does not allocate what it called unhealthy.
                return Advertised(offer=Offer.WITHDRAWN, why=f"a pod's status calls {one.id} Unhealthy")
    if sum(there.values()) < sum(total.values()):
        return _unknown(
            f"{sum(there.values())} of {sum(total.values())} GPUs are allocatable; which ones, the counts do not tell"
        )
    return _unknown("neither the kubelet nor a slice says what is offered")


def _unknown(why: str) -> Advertised:
    return Advertised(offer=Offer.UNKNOWN, why=why)


def _names(devices: Iterable[SliceDevice]) -> str:
    return ", ".join(d.device for d in devices)


def _counted(resources: Mapping[str, str] | None) -> dict[str, int]:
    """GPUs by resource; what has no whole number is left out."""
    found = {}
    for name, count in (resources or {}).items():
        if name.startswith("nvidia.com/") and isinstance(count, str) and count.isascii() and count.isdigit():
            if len(count) < 10 and int(count) >= 0:
                found[name] = int(count)
    return {n: c for n, c in found.items() if c or n.startswith(("nvidia.com/gpu", "nvidia.com/mig-"))}

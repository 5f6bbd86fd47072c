"""The doctor's check of NVML: asked once, as the agent asks it. Changes nothing."""

from __future__ import annotations

from agent.config import Settings
from agent.diagnose.gpu_health import against
from agent.doctor import Check
from agent.sources.gpus.nvml import NvmlSource

_LOST = "whether a GPU is well again after a reset or a reboot: pending row remaps, what the driver asks for"
_GRANT = """\
runtimeClassName: nvidia             # the pod's spec; in the chart the value of the same name
env:
  - {name: NVIDIA_VISIBLE_DEVICES, value: all}
  - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}"""


async def gpu_checks(settings: Settings, *, source: NvmlSource | None = None) -> list[Check]:
    """One check; none where the settings do not ask for NVML."""
    if not settings.gpus.nvml:
        return []
    asked = source or NvmlSource()
    try:
        found = await asked.read()
    finally:
        await asked.close()
    if found is None or found.error:
        return [Check(name="nvml", status="warn", seen=asked.error, lost=_LOST, grant=_GRANT)]
    seen = f"driver {found.driver}; {len(found.gpus)} GPU{'' if len(found.gpus) == 1 else 's'}"
    wrong = [f"{gpu.pci}: {why}" for gpu in found.gpus if (why := against(gpu))] + list(found.unnamed)
    if wrong:
        return [Check(name="nvml", status="warn", seen="; ".join([seen, *wrong]), lost="", grant="faultline gpus")]
    return [Check(name="nvml", status="ok", seen=seen)]

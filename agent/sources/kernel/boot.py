"""Tells which boot of the machine this is and how its clock relates to wall time; decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent.sources.kernel.source import KernelLogUnavailable

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


def read_boot_id(path: str = BOOT_ID_PATH) -> str:
    """The random id of this boot, as the kernel spells it. Raises :class:`KernelLogUnavailable`."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError as problem:
        raise KernelLogUnavailable(
            f"the boot id at {path} cannot be read: {problem.strerror}", "Mount proc at /proc as every container has it"
        ) from problem
    if not text:
        raise KernelLogUnavailable(f"the boot id at {path} is empty", "Mount proc at /proc as every container has it")
    return text


def wall_offset(clock: Callable[[], float], monotonic: Callable[[], float]) -> float:
    """Seconds to add to a kernel stamp to get epoch seconds, as of now.

    Taken anew for each read: the wall clock is set, the kernel's clock drifts and stands still in suspend.
    """
    return clock() - monotonic()

"""Who holds which device, from the kubelet's device-manager checkpoint. Reads one file; knows no GPU.

The file is the kubelet's own (`/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint`), not an API: what cannot
be understood is an error that is counted, never a guess. Devices given out through DRA are not in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agent.model import Allocation, ContainerRef


class CheckpointError(Exception):
    """The checkpoint is there but cannot be read or understood. The text says which and what to do."""


class _Entry(msgspec.Struct):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    devices: Any = msgspec.field(name="DeviceIDs", default=None)


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")


def parse_checkpoint(text: bytes, *, now: float) -> tuple[Allocation, ...]:
    """The NVIDIA devices that each container holds. Raises CheckpointError for text of another form.

    The file names pods by uid only: `ContainerRef.namespace` and `pod` are empty.
    """
    try:
        parsed = msgspec.json.decode(text, type=_Checkpoint)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"not a device-manager checkpoint: {error}") from None
    held: dict[tuple[str, str], list[str]] = {}
    for entry in parsed.data.entries or ():
        if "nvidia.com/" in entry.resource:
            held.setdefault((entry.pod_uid, entry.container), []).extend(_ids(entry.devices))
    return tuple(
        Allocation(container=ContainerRef(uid=uid, container=name), devices=tuple(dict.fromkeys(ids)), since=now)
        for (uid, name), ids in held.items()
    )


def _ids(devices: Any) -> list[str]:
    """Device ids by NUMA node (a list in kubelets before 1.20), without time-slicing's and MPS's `::<replica>`."""
    groups = devices.values() if isinstance(devices, dict) else [devices]
    return [
        str(i).split("::", 1)[0] for group in groups if isinstance(group, list) for i in group if isinstance(i, str)
    ]


class CheckpointSource:
    """The checkpoint file of this node; `read` is cheap when it did not change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.errors = 0
        self.error = ""
        self._seen: tuple[int, int, int] | None = None

    def read(self, *, now: float) -> tuple[Allocation, ...] | None:
        """What containers hold, or None when nothing changed since the last call (or the file cannot be used)."""
        try:
            stat = self.path.stat()
            mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if mark == self._seen:
                return None
            found = parse_checkpoint(self.path.read_bytes(), now=now)
        except FileNotFoundError:
            self.error = f"{self.path} is not there"
            return None
        except (OSError, CheckpointError) as error:
            self.errors += 1
            self.error = f"{self.path}: {getattr(error, 'strerror', None) or error}"
            return None
        self._seen, self.error = mark, ""
        return found

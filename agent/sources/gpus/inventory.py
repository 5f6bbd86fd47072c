"""The driver's list of GPUs, from /proc: address and UUID. Touches no GPU, so that a dead one cannot stop it."""

from __future__ import annotations

import re
from pathlib import Path

from agent.model import PciAddress, parse_pci
from agent.sources.gpus.driver import PROC

_GPUS = 64
_SIZE = 64 * 1024
_UUID = re.compile(r"^GPU UUID:\s{0,20}(?P<uuid>GPU-[0-9a-fA-F-]{36})\s*$", re.MULTILINE)


def parse_uuid(text: str) -> str:
    """The UUID of one GPU's `information` file; empty where it is not told (``GPU-????...`` before the first use)."""
    found = _UUID.search(text)
    return found["uuid"] if found else ""


def read_gpus(proc: Path = PROC) -> dict[PciAddress, str] | None:
    """UUID by address of every GPU that the driver lists; None where the list cannot be read (no driver is loaded)."""
    gpus: dict[PciAddress, str] = {}
    try:
        for folder in sorted((proc / "gpus").iterdir())[:_GPUS]:
            if (pci := parse_pci(folder.name)) is not None:
                with (folder / "information").open("rb") as file:
                    gpus[pci] = parse_uuid(file.read(_SIZE).decode("utf-8", "replace"))
    except OSError:
        return None
    return gpus

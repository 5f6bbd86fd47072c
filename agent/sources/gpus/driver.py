"""The NVIDIA driver's own files under /proc: its version, its kind, the GPUs' model. Never waits on a GPU.

These files are kept by the kernel module in memory: reading them touches no GPU, and so cannot hang on a dead one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/driver/nvidia")

_SIZE = 64 * 1024
_GPUS = 64

_VERSION = re.compile(
    r"NVIDIA UNIX (?P<open>Open )?(?:[\w-]{1,16} )?Kernel Module(?: for [\w-]{1,16})?\s{1,8}"
    r"(?P<version>\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)(?!\S)"
)
_MODEL = re.compile(r"^Model:\s{0,20}(?P<model>\S[^\n]{0,80})$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The loaded driver. `model` is the GPUs' name where all of the node have one name, else empty."""

    version: str
    open: bool
    model: str = ""

    @property
    def facts(self) -> dict[str, str]:
        """The same as facts about the node."""
        facts = {"driver": self.version, "driver_kind": "open" if self.open else "closed"}
        return facts | ({"gpu_model": self.model} if self.model else {})


def parse_version(text: str) -> Driver | None:
    """The driver of `/proc/driver/nvidia/version`; None for text of another form."""
    found = _VERSION.search(text)
    return None if found is None else Driver(version=found["version"], open=found["open"] is not None)


def parse_model(text: str) -> str:
    """The model of one GPU's `information` file; empty where it has none."""
    found = _MODEL.search(text)
    return found["model"].strip() if found else ""


class DriverSource:
    """The files of one node's driver; `error` says why nothing could be read."""

    def __init__(self, proc: Path = PROC) -> None:
        self.proc = proc
        self.error = ""

    def read(self) -> Driver | None:
        """The loaded driver, or None where none is loaded or its files cannot be read."""
        try:
            driver = parse_version(_text(self.proc / "version"))
        except OSError as error:
            self.error = f"{self.proc / 'version'}: {error.strerror}"
            return None
        if driver is None:
            self.error = f"{self.proc / 'version'}: not of the form that is known"
            return None
        self.error = ""
        return Driver(version=driver.version, open=driver.open, model=self._model())

    def _model(self) -> str:
        """Empty where a GPU cannot be read: then nothing is known of all of them."""
        try:
            folders = sorted((self.proc / "gpus").iterdir())[:_GPUS]
            models = {parse_model(_text(folder / "information")) for folder in folders}
        except OSError:
            return ""
        return models.pop() if len(models) == 1 else ""


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_SIZE).decode("utf-8", "replace")

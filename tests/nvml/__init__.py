"""Stand-ins for the NVIDIA driver's libraries, with the state that a test gives them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

LIBRARIES = {"standin.c": "libnvidia-ml.so.1", "cuda.c": "libcuda.so.1"}

HEALTHY_H200 = {
    "count": "1", "driver": "580.159.04", "cuda": "13000",
    "0.pci": "00000000:00:06.0", "0.uuid": "GPU-11111111-2222-3333-4444-555555555555", "0.minor": "0",
    "0.name": "NVIDIA H200", "0.compute_capability": "9.0", "0.field.230": "0", "0.field.226": "0", "0.field.227": "0",
    "0.rows": "0 0 0 0", "0.ecc": "1", "0.ecc_volatile": "0", "0.ecc_aggregate": "0", "0.sram_threshold_exceeded": "0",
    "0.repair": "0 0", "0.unrepairable": "0", "0.compute_mode": "0", "0.mig": "0", "0.persistence": "1",
    "0.compute": "", "0.mps": "", "0.graphics": "", "0.memory": f"{143771 << 20} 0", "0.clocks_event_reasons": "1",
    "0.virtualization": "1",
}  # fmt: skip
"""What a healthy card answered (driver 580.159.04): alone, without NVLink, passed through to a virtual machine."""


def build(folder: Path) -> Path:
    """The stand-ins as libraries in the folder, which it gives back. Raises RuntimeError where they do not compile."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("the stand-ins for NVIDIA's libraries need a C compiler (Debian: gcc, libc6-dev)")
    for source, library in LIBRARIES.items():
        made, from_ = str(folder / library), str(Path(__file__).with_name(source))
        command = [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", made, from_]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
    return folder


class StandIn:
    """The libraries with a state of their own."""

    def __init__(self, libraries: Path, folder: Path) -> None:
        self.state = folder / "nvml-state"
        self.environ = {"LD_LIBRARY_PATH": str(libraries), "FAULTLINE_NVML_STATE": str(self.state)}
        self.set(HEALTHY_H200)

    def set(self, *states: dict[str, str], without: tuple[str, ...] = ()) -> None:
        """The state from now on: the union of those given, whole at once."""
        union = {key: value for state in states for key, value in state.items() if key not in without}
        part = self.state.with_suffix(".part")
        part.write_text("".join(f"{key} {value}\n" for key, value in union.items()))
        part.replace(self.state)

    def change(self, changes: dict[str, str], *, without: tuple[str, ...] = ()) -> None:
        """The healthy card but for these."""
        self.set(HEALTHY_H200, changes, without=without)

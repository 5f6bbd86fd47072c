"""Namespaces of a test's own: what is started in a room touches no mount, network, or process of the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVICE_ADDRESS = "10.96.0.1"
"""Where pods find the API server: the first address of the services' range."""

NODE_ADDRESS = "192.0.2.1"

# The mounts are made shared again within the room: containers take them over with propagation, as on a real node.
OPEN = """\
set -e
mount --make-rprivate / && mount --make-rshared /
mount -t proc proc /proc
ip link set lo up && ip address add {service}/32 dev lo
ip link add node0 type veth peer name node1 && ip link set node0 up && ip link set node1 up
ip address add {node}/24 dev node0 && ip route add default via 192.0.2.254 dev node0
mount -t tmpfs tmpfs /run/containerd
{binds}
echo open
exec sleep infinity
"""


class RoomError(Exception):
    """The namespaces cannot be made; the text says why."""


class Room:
    """Open from the constructor to :meth:`close`; also closed by the kernel when this process ends."""

    def __init__(self, *, binds: Mapping[Path, Path]) -> None:
        """``binds`` lays folders, which are made, over paths of the machine, as seen from within."""
        missing = [name for name in ("unshare", "nsenter", "setpriv", "ip") if shutil.which(name) is None]
        if missing:
            raise RoomError(f"not found: {', '.join(missing)} (Debian: util-linux, iproute2)")
        self._made: list[Path] = []
        for at in (Path("/run/containerd"), *binds):
            for path in [p for p in (*reversed(at.parents), at) if not p.exists()]:
                path.mkdir()
                self._made.append(path)
        for folder in binds.values():
            folder.mkdir(parents=True, exist_ok=True)
        lines = "\n".join(f"mount --bind '{folder}' '{at}'" for at, folder in binds.items())
        told = OPEN.format(service=SERVICE_ADDRESS, node=NODE_ADDRESS, binds=lines)
        self._door = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", told],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._door.stdout is not None and self._door.stderr is not None
        if self._door.stdout.readline() != "open\n":
            self.close()
            raise RoomError(f"no namespaces: {self._door.stderr.read().strip()}")
        self._first = child_of(self._door.pid)

    def command(self, argv: Sequence[str]) -> list[str]:
        """The same command, run within; it is killed with the process that starts it."""
        enter = ["nsenter", f"--target={self._first}", "--mount", "--net", "--pid", f"--wd={os.getcwd()}"]
        return [*enter, "setpriv", "--pdeathsig=KILL", "--", *argv]

    def close(self) -> None:
        """Ends every process within, and with them all mounts and links."""
        self._door.kill()
        self._door.wait()
        for path in reversed(self._made):  # mount points that the machine lacked
            with contextlib.suppress(OSError):
                path.rmdir()


def child_of(pid: int) -> int:
    """The one process that nsenter or unshare started; the pid itself where there is none yet."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid

"""Programs that end with the tests, however those end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.room import Room, child_of

STOP_SECONDS = 10.0


class ClusterError(Exception):
    """A program of the cluster did not do what it was started for."""


class Process:
    """A child that ends with this process, even when this one is killed. In a room it is a child of nsenter."""

    def __init__(
        self, command: list[str], *, log: Path, room: Room | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._entered = room is not None
        with open(log, "ab") as out:
            self._child = subprocess.Popen(
                command if room is None else room.command(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=log.parent,
                env=os.environ | (environ or {}),
                preexec_fn=_end_with_parent,
            )

    def ended(self) -> bool:
        return self._child.poll() is not None

    def end(self, *, patience: float = STOP_SECONDS) -> None:
        """Asks it to end, and kills it after ``patience`` seconds."""
        if self._child.poll() is not None:
            return
        if patience > 0:
            self._signal(signal.SIGTERM)
            try:
                self._child.wait(patience)
                return
            except subprocess.TimeoutExpired:
                pass
        self._signal(signal.SIGKILL)
        self._child.wait()

    def _signal(self, number: signal.Signals) -> None:
        os.kill(child_of(self._child.pid) if self._entered else self._child.pid, number)


_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """In the child: the kernel kills it when the thread that started it is gone, even by kill -9."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def tail(path: Path) -> str:
    return path.read_text(errors="replace")[-3000:] if path.exists() else ""

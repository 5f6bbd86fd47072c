"""Reads the kubelet's names of pod log directories and files; it must never touch the file system.

Form: ``<root>/<namespace>_<pod>_<uid>/<container>/<restart>.log``. All functions are total: a name that the kubelet
would not have made gives None. That keeps hostile names (control characters, markup, ``..``) out of everything that
is later shown to a person or made a label.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from agent.model import ContainerRef

# Kubernetes names are RFC 1123 labels or subdomains; they cannot hold the separator "_".
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
# For a static pod the third part is a hash, not a UUID, hence no stricter form.
_POD = re.compile(rf"(?P<namespace>{_NAME})_(?P<pod>{_NAME})_(?P<uid>[A-Za-z0-9-]{{1,128}})\Z")
_CONTAINER = re.compile(rf"{_NAME}\Z")
_LOG = re.compile(r"(?P<restart>[0-9]{1,9})\.log(?:\.(?P<stamp>[0-9]{8}-[0-9]{6})(?P<ending>\.gz|\.tmp)?)?\Z")

LIVE = "~"
"""Sorts after every stamp: the live file is the newest of its instance."""

Order = tuple[int, str]
"""When a file was written, relative to the other files of its container: restart, then rotation."""

BEFORE_ALL: Order = (-1, "")


class PodDir(NamedTuple):
    namespace: str
    pod: str
    uid: str


class Kind(StrEnum):
    LIVE = "live"
    ROTATED = "rotated"
    COMPRESSED = "compressed"
    TEMPORARY = "temporary"


class LogName(NamedTuple):
    """A log file's name taken apart. ``stamp`` is the time of its rotation, empty for the live file."""

    restart: int
    stamp: str
    kind: Kind

    @property
    def order(self) -> Order:
        return (self.restart, self.stamp or LIVE)

    @property
    def readable(self) -> bool:
        """True for plain text. Compressed files are copies of text that was there to read before."""
        return self.kind in (Kind.LIVE, Kind.ROTATED)


_ENDINGS = {".gz": Kind.COMPRESSED, ".tmp": Kind.TEMPORARY, None: Kind.ROTATED}


def pod_dir(name: str) -> PodDir | None:
    """The pod whose log directory has this name (last path component)."""
    found = _POD.match(name)
    return PodDir(found["namespace"], found["pod"], found["uid"]) if found else None


def container_ref(pod: PodDir, name: str, *, restart: int = 0) -> ContainerRef | None:
    """The container whose log directory, inside the pod's, has this name."""
    if _CONTAINER.match(name) is None:
        return None
    return ContainerRef(namespace=pod.namespace, pod=pod.pod, uid=pod.uid, container=name, restart=restart)


def log_name(name: str) -> LogName | None:
    """The parts of a log file's name (last path component)."""
    found = _LOG.match(name)
    if found is None:
        return None
    stamp = found["stamp"] or ""
    return LogName(int(found["restart"]), stamp, _ENDINGS[found["ending"]] if stamp else Kind.LIVE)


def container_of(path: str) -> ContainerRef | None:
    """The container instance that a log file's full path belongs to, by its last three components."""
    parts = path.rsplit("/", 3)
    if len(parts) < 3:
        return None
    pod, log = pod_dir(parts[-3]), log_name(parts[-1])
    return container_ref(pod, parts[-2], restart=log.restart) if pod and log else None

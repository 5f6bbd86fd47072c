"""Tells whether the agent can work on this node, what is lost otherwise and how to grant it. Never changes the node."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from agent.config import Settings
from agent.detect.rules import RuleError
from agent.text import printable

Status = Literal["ok", "warn", "fail"]
"""`fail`: the agent cannot keep a promise. `warn`: it works, with less."""

NVIDIA_VERSION = "/proc/driver/nvidia/version"
NVIDIA_GPUS = "/proc/driver/nvidia/gpus"

_GRANT_KERNEL = """\
securityContext:            # the agent's container
  runAsUser: 0
  capabilities: {drop: [ALL], add: [SYSLOG]}
# and no `hostUsers: false` in the pod. Or, for exact loss counts, `privileged: true` and the device:
volumes:
  - name: kmsg
    hostPath: {path: /dev/kmsg, type: CharDevice}
volumeMounts:
  - {name: kmsg, mountPath: /dev/kmsg, readOnly: true}"""

_GRANT_LOGS = """\
securityContext: {runAsUser: 0}    # the files belong to root
volumes:
  - name: pod-logs
    hostPath: {path: %(root)s, type: Directory}
volumeMounts:
  - {name: pod-logs, mountPath: %(root)s, readOnly: true}
# on a node with SELinux also
seLinuxOptions: {type: container_logreader_t}"""

_GRANT_DOCKER = """\
volumes:                     # Docker: the files are links to where it keeps them
  - name: docker-logs
    hostPath: {path: /var/lib/docker/containers, type: Directory}
volumeMounts:
  - {name: docker-logs, mountPath: /var/lib/docker/containers, readOnly: true}"""

_GRANT_STATE = """\
volumes:
  - name: state
    hostPath: {path: %(directory)s, type: DirectoryOrCreate}
volumeMounts:
  - {name: state, mountPath: %(directory)s}"""

_GRANT_KUBELET = """\
volumes:
  - name: device-plugins
    hostPath: {path: /var/lib/kubelet/device-plugins, type: Directory}
  - name: pod-resources
    hostPath: {path: /var/lib/kubelet/pod-resources, type: Directory}
volumeMounts:
  - {name: device-plugins, mountPath: /var/lib/kubelet/device-plugins, readOnly: true}
  - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources}"""

_GRANT_NODE_NAME = """\
env:
  - name: FAULTLINE_NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was tried. `lost` and `grant` (the words for the manifest) are empty where nothing is missing."""

    name: str
    status: Status
    seen: str
    lost: str = ""
    grant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsSeen:
    """What a look at the root of the pods' logs found; it stops after some dozen files."""

    readable: int = 0
    unreadable: int = 0
    broken_links: int = 0
    example: str = ""
    """One file that could not be read, with the reason."""


def read_kmsg(path: str) -> None:
    """Open the kernel log and read one record of it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.read(fd, 8192)
    except BlockingIOError:
        pass  # nothing logged yet: it may be read all the same
    except BrokenPipeError:
        pass  # the oldest record was overwritten under us: it may be read all the same
    finally:
        os.close(fd)


def syslog_size() -> int:
    """Size of the kernel's ring in bytes, by syslog(2); asks for what a read asks for. Raises OSError."""
    klogctl = ctypes.CDLL(None, use_errno=True).klogctl
    read_all, size_buffer = 3, 10  # never 2, 4 or 5: they consume or clear what others want to read
    one = ctypes.create_string_buffer(1)
    size = int(klogctl(size_buffer, None, 0))
    if size < 0 or klogctl(read_all, one, 1) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return size


def look_at_logs(root: Path, *, files: int = 50) -> LogsSeen:
    """Try to read some logs under `root` (`<pod>/<container>/<n>.log`). Raises OSError where the root is closed."""
    readable = unreadable = broken = 0
    example = ""
    for log in _some_logs(root, files):
        try:
            with log.open("rb") as opened:
                opened.read(1)
            readable += 1
        except OSError as error:
            dangling = isinstance(error, FileNotFoundError) and log.is_symlink()
            broken, unreadable = broken + dangling, unreadable + (not dangling)
            example = example or f"{log}: {os.strerror(error.errno or 0)}"
    return LogsSeen(readable=readable, unreadable=unreadable, broken_links=broken, example=example)


def _some_logs(root: Path, limit: int) -> Iterator[Path]:
    for pod in sorted(os.listdir(root)):
        try:
            logs = sorted((root / pod).glob("*/*.log"))
        except OSError:
            logs = [root / pod]  # shown as unreadable
        for log in logs:
            if limit <= 0:
                return
            limit -= 1
            yield log


def watch(path: str) -> None:
    """Take one inotify watch and give it back. Raises OSError."""
    from asyncinotify import Inotify, Mask

    with Inotify() as inotify:
        inotify.add_watch(path, Mask.CREATE)


def try_write(directory: Path) -> int:
    """Write to `directory`, or to the nearest one above that exists; free bytes there. Raises OSError."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    with tempfile.TemporaryFile(dir=place) as file:
        file.write(b"\0" * 4096)
        file.flush()
        os.fsync(file.fileno())
    free = os.statvfs(place)
    return free.f_bavail * free.f_frsize


def try_listen(address: str, port: int) -> None:
    """Listen and let go. Raises `agent.report.http.ListenError`."""
    from agent.report.http import listen

    listen(address, port).close()


def server_on(address: str, port: int) -> str:
    """The Server header of what answers on a port of this machine; empty when nothing that speaks HTTP does."""
    import http.client

    connection = http.client.HTTPConnection(address or "127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().headers.get("Server", "")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def is_socket(path: str) -> bool:
    """True when there is a socket at the path. Raises OSError where that cannot be told."""
    return stat.S_ISSOCK(os.stat(path).st_mode)


def read_text(path: str) -> str:
    """The text of a small file. Raises OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What touches the machine, one callable each, so that every failure can be played."""

    load_rules: Callable[[], int]
    """Loads the rules in force; their number. Raises RuleError."""
    read_kmsg: Callable[[str], None] = read_kmsg
    syslog_size: Callable[[], int] = syslog_size
    look_at_logs: Callable[[Path], LogsSeen] = look_at_logs
    watch: Callable[[str], None] = watch
    try_write: Callable[[Path], int] = try_write
    try_listen: Callable[[str, int], None] = try_listen
    server_on: Callable[[str, int], str] = server_on
    is_socket: Callable[[str], bool] = is_socket
    read_text: Callable[[str], str] = read_text
    list_directory: Callable[[str], Sequence[str]] = os.listdir


def run_checks(settings: Settings, *, probes: Probes) -> list[Check]:
    """Every check, in the order of what matters most. A check that fails to run is a failed check."""
    checks: list[Check] = []
    for name, check in _CHECKS:
        try:
            checks.append(check(settings, probes))
        except Exception as error:  # a doctor that dies at the first odd thing tells nothing
            checks.append(Check(name=name, status="fail", seen=f"the check itself failed: {error!r}"))
    return checks


def worst(checks: Iterable[Check]) -> Status:
    order: tuple[Status, ...] = ("ok", "warn", "fail")
    return max((check.status for check in checks), key=order.index, default="ok")


def _kernel_log(settings: Settings, probes: Probes) -> Check:
    path = settings.kernel.path
    try:
        probes.read_kmsg(path)
        return Check(name="kernel-log", status="ok", seen=f"{path} can be read")
    except OSError as error:
        refused = f"{path}: {_why(error)}"
    try:
        size = probes.syslog_size()
    except OSError as error:
        return Check(
            name="kernel-log",
            status="fail",
            seen=f"{refused}; syslog(2): {_why(error)}",
            lost="Xids and every other word of the driver: no GPU can be found faulty",
            grant=_GRANT_KERNEL,
        )
    return Check(
        name="kernel-log",
        status="ok",
        seen=f"read by syslog(2) every {settings.kernel.interval:g} s, ring of {size // 1024} KiB ({refused})",
        lost="the exact number of records overwritten between two reads",
    )


def _kernel_trust(settings: Settings, probes: Probes) -> Check:
    if not settings.kernel.accept_user_records:
        return Check(name="kernel-trust", status="ok", seen="only the kernel's own records accuse a GPU")
    return Check(
        name="kernel-trust",
        status="warn",
        seen="kernel.accept_user_records is true",
        lost="any root process of this node can accuse a GPU by writing to the kernel log",
        grant="kernel: {accept_user_records: false}    # settings file",
    )


def _log_root(settings: Settings, probes: Probes) -> Check:
    root = settings.logs.root
    lost = "what containers print: failures of backends are neither seen nor explained"
    grant = _GRANT_LOGS % {"root": root}
    try:
        seen = probes.look_at_logs(Path(root))
    except OSError as error:
        return Check(name="log-root", status="fail", seen=f"{root}: {_why(error)}", lost=lost, grant=grant)
    if seen.unreadable or seen.broken_links:
        status: Status = "warn" if seen.readable else "fail"
        bad = seen.unreadable + seen.broken_links
        return Check(
            name="log-root",
            status=status,
            seen=f"{bad} of {bad + seen.readable} logs under {root} cannot be read ({seen.example})",
            lost=lost,
            grant=_GRANT_DOCKER if seen.broken_links else grant,
        )
    if not seen.readable:
        return Check(
            name="log-root",
            status="warn",
            seen=f"{root} holds no container's log",
            lost=f"nothing, if no pod runs here; else {lost}",
            grant="logs: {root: /path/of/the/kubelets/podLogsDir}    # settings file",
        )
    return Check(name="log-root", status="ok", seen=f"logs under {root} can be read")


def _inotify(settings: Settings, probes: Probes) -> Check:
    try:
        probes.watch(settings.logs.root)
    except OSError as error:
        limits = ", ".join(f"{name} {_limit(name, probes)}" for name in ("max_user_instances", "max_user_watches"))
        grant = {
            errno.EMFILE: "sysctl -w fs.inotify.max_user_instances=1024    # on the node",
            errno.ENOSPC: "sysctl -w fs.inotify.max_user_watches=524288    # on the node",
            errno.EACCES: "seLinuxOptions: {type: container_logwriter_t}    # container_logreader_t may not watch",
            errno.ENOENT: _GRANT_LOGS % {"root": settings.logs.root},
        }.get(error.errno or 0, "")
        return Check(
            name="inotify",
            status="warn",
            seen=f"no watch on {settings.logs.root}: {_why(error)} ({limits})",
            lost=f"immediacy: logs are looked at every {settings.logs.poll_interval:g} s instead, at more cost",
            grant=grant,
        )
    return Check(name="inotify", status="ok", seen=f"{settings.logs.root} can be watched")


def _limit(name: str, probes: Probes) -> str:
    try:
        return probes.read_text(f"/proc/sys/fs/inotify/{name}").strip()
    except OSError:
        return "unknown"


def _state_dir(settings: Settings, probes: Probes) -> Check:
    lost = "memory of what was told: after a restart everything still in the logs is reported again"
    if not settings.state_dir:
        return Check(
            name="state-dir",
            status="warn",
            seen="state_dir is empty: the state is kept in memory",
            lost=lost,
            grant=_GRANT_STATE % {"directory": "/var/lib/faultline"},
        )
    grant = _GRANT_STATE % {"directory": settings.state_dir}
    try:
        free = probes.try_write(Path(settings.state_dir))
    except OSError as error:
        return Check(
            name="state-dir", status="fail", seen=f"{settings.state_dir}: {_why(error)}", lost=lost, grant=grant
        )
    if free < settings.limits.store_bytes:
        return Check(
            name="state-dir",
            status="warn",
            seen=f"{settings.state_dir} has {free >> 20} MiB free; the state may grow to "
            f"{settings.limits.store_bytes >> 20} MiB",
            lost=lost,
            grant="free some space there, or lower limits.store_bytes",
        )
    return Check(name="state-dir", status="ok", seen=f"{settings.state_dir} can be written")


def _port(settings: Settings, probes: Probes) -> Check:
    from agent.report.http import ListenError, PortInUseError

    address, port = settings.http.address, settings.http.port
    try:
        probes.try_listen(address, port)
    except PortInUseError as error:
        server = probes.server_on(address, port)
        if server.startswith("faultline"):
            return Check(name="port", status="ok", seen=f"port {port} is held by a running {server}")
        return Check(name="port", status="fail", seen=str(error), lost="the agent does not start", grant=_OTHER_PORT)
    except ListenError as error:
        return Check(name="port", status="fail", seen=str(error), lost="the agent does not start", grant=_OTHER_PORT)
    return Check(name="port", status="ok", seen=f"port {port} is free")


_OTHER_PORT = "http: {port: 9754}    # settings file; the Service, PodMonitor and probes must follow"


def _rules(settings: Settings, probes: Probes) -> Check:
    try:
        return Check(name="rules", status="ok", seen=f"{probes.load_rules()} rules load")
    except (RuleError, OSError) as error:
        return Check(
            name="rules",
            status="fail",
            seen=str(error),
            lost="the agent does not start with a rule that it cannot read",
            grant="correct the file; `faultline rules check FILE` tells every mistake in it",
        )


def _nvidia_driver(settings: Settings, probes: Probes) -> Check:
    try:
        version = probes.read_text(NVIDIA_VERSION).partition("\n")[0].strip()
    except OSError as error:
        return Check(
            name="nvidia-driver",
            status="warn",
            seen=f"{NVIDIA_VERSION}: {_why(error)}",
            lost="which UUID and model an address has; on a node without the driver, nothing",
            grant="install the driver on the node, or keep the agent to GPU nodes:\n"
            'nodeSelector: {nvidia.com/gpu.present: "true"}',
        )
    try:
        gpus = len(probes.list_directory(NVIDIA_GPUS))
    except OSError as error:
        return Check(
            name="nvidia-driver",
            status="warn",
            seen=f"{version}; {NVIDIA_GPUS}: {_why(error)}",
            lost="which UUID and model an address has",
            grant="do not run the agent through the NVIDIA runtime class: it hides the other GPUs' entries",
        )
    return Check(name="nvidia-driver", status="ok", seen=f"{version}; {gpus} GPU{'' if gpus == 1 else 's'}")


def _kubelet(settings: Settings, probes: Probes) -> Check:
    seen, missing = [], []
    checkpoint = settings.kubelet.checkpoint
    if checkpoint:
        try:
            probes.read_text(checkpoint)
            seen.append(f"{checkpoint} can be read")
        except OSError as error:
            missing.append(f"{checkpoint}: {_why(error)}")
    path = settings.kubelet.pod_resources
    if path:
        try:
            if probes.is_socket(path):
                seen.append(f"{path} is there")
            else:
                missing.append(f"{path} is no socket")
        except OSError as error:
            missing.append(f"{path}: {_why(error)}")
    if seen:
        return Check(name="kubelet", status="ok", seen="; ".join(seen + missing))
    return Check(
        name="kubelet",
        status="warn",
        seen="; ".join(missing) or "kubelet.checkpoint and kubelet.pod_resources are empty",
        lost="which container holds which GPU: a failure is tied to a fault only by what its text says",
        grant=_GRANT_KUBELET,
    )


def _node_name(settings: Settings, probes: Probes) -> Check:
    if settings.node_name:
        return Check(name="node-name", status="ok", seen=settings.node_name)
    return Check(
        name="node-name",
        status="warn",
        seen="node_name is not set; the host name is used",
        lost="events and marks on the right node, where its name in the cluster differs",
        grant=_GRANT_NODE_NAME,
    )


_CHECKS: tuple[tuple[str, Callable[[Settings, Probes], Check]], ...] = (
    ("kernel-log", _kernel_log),
    ("kernel-trust", _kernel_trust),
    ("log-root", _log_root),
    ("inotify", _inotify),
    ("state-dir", _state_dir),
    ("port", _port),
    ("rules", _rules),
    ("nvidia-driver", _nvidia_driver),
    ("kubelet", _kubelet),
    ("node-name", _node_name),
)


def _why(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


_PAINT: dict[Status, str] = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}


def as_text(checks: Sequence[Check], *, colour: bool = False) -> str:
    """The checks for a person: a line each, and below it what is lost and the words that grant it."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        word = f"{check.status:<4}"
        if colour:
            word = f"{_PAINT[check.status]}{word}\x1b[0m"
        lines.append(f"{word}  {check.name:<{width}}  {printable(check.seen)}")
        if check.lost:
            lines.append(f"        lost: {printable(check.lost)}")
        if check.grant:
            lines.append("        grant:")
            lines += [f"            {printable(line)}" for line in check.grant.splitlines()]
    return "\n".join(lines) + "\n"


def as_json(checks: Sequence[Check]) -> bytes:
    """The same as JSON, with the worst status on top."""
    body = {"apiVersion": "faultline.dev/v1", "kind": "DoctorReport", "status": worst(checks), "checks": checks}
    return msgspec.json.encode(body)

"""The kernel log of this machine as a stream of records; never says what a record means.

Every source keeps the rule of facility 0: a record that a program wrote is counted and not handed on.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable

from agent.sources.kernel.boot import read_boot_id
from agent.sources.kernel.cure import Standing, cure_for
from agent.sources.kernel.feed import FileFeed
from agent.sources.kernel.kmsg import DEFAULT_PATH, KmsgSource
from agent.sources.kernel.record import KernelRecord
from agent.sources.kernel.source import Cursor, KernelLogUnavailable, KernelSource
from agent.sources.kernel.standing import read_standing
from agent.sources.kernel.stream import StreamFeed
from agent.sources.kernel.syslog import SyslogSource

__all__ = [
    "DEFAULT_PATH",
    "Cursor",
    "FileFeed",
    "KernelLogUnavailable",
    "KernelRecord",
    "KernelSource",
    "KmsgSource",
    "StreamFeed",
    "SyslogSource",
    "open_kernel_source",
    "read_boot_id",
]


def open_kernel_source(
    path: str = DEFAULT_PATH,
    *,
    boot_id: str,
    after: Cursor | None = None,
    interval: float = 1.0,
    batch: int = 256,
    accept_user_records: bool = False,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    open_kmsg: Callable[..., KernelSource] = KmsgSource,
    open_syslog: Callable[..., KernelSource] = SyslogSource,
    standing: Callable[[], Standing] = read_standing,
) -> KernelSource:
    """Open the kernel log by the best way this process is allowed.

    The default path falls back to ``syslog(2)``, polled every ``interval`` seconds. Any other path is what the operator
    named and nothing else is read instead: a character device, a file, a FIFO or a Unix socket, told apart by what it
    is. ``after`` counts only for the kind of source and the boot that it was taken from. Raises
    :class:`KernelLogUnavailable`.
    """

    def seq(kind: str) -> int | None:
        return after.seq if after is not None and (after.kind, after.boot_id) == (kind, boot_id) else None

    def kmsg() -> KernelSource:
        return open_kmsg(
            path,
            boot_id=boot_id,
            after=seq(KmsgSource.kind),
            clock=clock,
            monotonic=monotonic,
            accept_user_records=accept_user_records,
            batch=batch,
        )

    def feed(kind: type[FileFeed | StreamFeed]) -> KernelSource:
        return kind(
            path,
            boot_id=boot_id,
            after=seq(kind.kind),
            clock=clock,
            monotonic=monotonic,
            accept_user_records=accept_user_records,
            batch=batch,
        )

    if path != DEFAULT_PATH:
        try:
            mode = os.stat(path).st_mode
            if stat.S_ISCHR(mode):
                return kmsg()
            if stat.S_ISREG(mode):
                return feed(FileFeed)
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                return feed(StreamFeed)
        except OSError as problem:
            raise KernelLogUnavailable(
                f"the kernel log at {path} cannot be opened: {problem.strerror}", _cure_for_path(path, problem.errno)
            ) from problem
        raise KernelLogUnavailable(
            f"{path} is neither a device, a file, a FIFO nor a socket",
            f"Name a source of raw kernel records, or leave the setting out to read {DEFAULT_PATH}",
        )
    try:
        return kmsg()
    except OSError as problem:
        refused = problem.strerror
    try:
        return open_syslog(
            boot_id=boot_id,
            after=seq(SyslogSource.kind),
            interval=interval,
            clock=clock,
            monotonic=monotonic,
            accept_user_records=accept_user_records,
            batch=batch,
        )
    except OSError as problem:
        raise KernelLogUnavailable(
            f"{DEFAULT_PATH} cannot be opened ({refused}) and syslog(2) is refused ({problem.strerror})",
            cure_for(standing()),
        ) from problem


def _cure_for_path(path: str, code: int | None) -> str:
    match code:
        case errno.ENOENT:
            return f"Create {path} before the agent starts, or leave the setting out to read {DEFAULT_PATH}"
        case errno.EPROTOTYPE:
            return "Serve the records on a seqpacket or stream socket: only its owner can read a datagram socket"
        case errno.ECONNREFUSED:
            return f"Start the program that serves {path} before the agent"
        case errno.EMFILE | errno.ENFILE | errno.ENOSPC:
            return "Raise fs.inotify.max_user_instances and max_user_watches on the node, or the limit of open files"
        case _:
            return "Make it readable for the agent's user; a device also needs securityContext.privileged: true"

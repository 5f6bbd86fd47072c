"""Which way to the kernel log is taken, and what an operator is told when there is none."""

import errno
import os
import socket

import pytest

from agent.sources.kernel import (
    Cursor,
    FileFeed,
    KernelLogUnavailable,
    StreamFeed,
    open_kernel_source,
    read_boot_id,
)
from agent.sources.kernel.cure import CAP_SYSLOG, Standing, cure_for
from agent.sources.kernel.standing import read_standing

SYSLOG = 1 << CAP_SYSLOG


def refuse(code: int):
    def opener(*_args, **_options):
        raise OSError(code, os.strerror(code))

    return opener


def standing(*, euid=0, capabilities=0, user_namespace=False) -> Standing:
    return Standing(euid=euid, capabilities=capabilities, user_namespace=user_namespace)


def test_syslog_is_taken_when_the_device_is_not_there():
    taken = object()
    source = open_kernel_source(
        boot_id="b", open_kmsg=refuse(errno.ENOENT), open_syslog=lambda **_: taken, standing=standing
    )
    assert source is taken


def test_when_both_ways_are_shut_the_error_names_both_and_one_cure():
    with pytest.raises(KernelLogUnavailable) as caught:
        open_kernel_source(
            boot_id="b", open_kmsg=refuse(errno.ENOENT), open_syslog=refuse(errno.EPERM), standing=standing
        )
    assert caught.value.why == (
        "/dev/kmsg cannot be opened (No such file or directory) and syslog(2) is refused (Operation not permitted)"
    )
    assert "capabilities.add: [SYSLOG]" in caught.value.cure


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"euid": 0}, "capabilities.add: [SYSLOG]"),
        ({"euid": 65534}, "runAsUser: 0"),
        ({"capabilities": SYSLOG, "user_namespace": True}, "hostUsers: true"),
        ({"euid": 65534, "user_namespace": True}, "hostUsers: true"),
        ({"capabilities": SYSLOG}, "seccomp"),
    ],
)
def test_each_standing_has_its_own_cure(facts, word):
    assert word in cure_for(standing(**facts))


def test_a_named_path_is_never_replaced_by_another_source(tmp_path):
    with pytest.raises(KernelLogUnavailable, match="No such file") as caught:
        open_kernel_source(str(tmp_path / "none"), boot_id="b", open_syslog=lambda **_: object())
    assert "before the agent starts" in caught.value.cure


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(KernelLogUnavailable, match="neither a device"):
        open_kernel_source(str(tmp_path), boot_id="b")


def test_a_file_and_a_fifo_are_told_apart_by_what_they_are(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo")
    for name, kind in (("file", FileFeed), ("fifo", StreamFeed)):
        source = open_kernel_source(str(tmp_path / name), boot_id="b")
        assert type(source) is kind
        source.close()


def test_a_datagram_socket_is_refused_with_the_cure(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        with pytest.raises(KernelLogUnavailable, match="seqpacket"):
            open_kernel_source(path, boot_id="b")


def test_a_socket_that_nobody_serves_is_refused_with_the_cure(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        with pytest.raises(KernelLogUnavailable, match="Start the program"):
            open_kernel_source(path, boot_id="b")


@pytest.mark.parametrize(
    ("cursor", "after"),
    [
        (None, None),
        (Cursor(kind="kmsg", boot_id="b", seq=7), 7),
        (Cursor(kind="kmsg", boot_id="earlier", seq=7), None),
        (Cursor(kind="syslog", boot_id="b", seq=7), None),
    ],
)
def test_a_cursor_counts_only_in_its_boot_and_for_its_kind(cursor, after):
    given = {}
    open_kernel_source(boot_id="b", after=cursor, open_kmsg=lambda *_, **options: given.update(options))
    assert given["after"] == after


def test_the_boot_id_is_read_and_a_missing_one_is_a_clear_error(tmp_path):
    assert len(read_boot_id()) == 36
    (tmp_path / "empty").write_text("\n")
    for name in ("none", "empty"):
        with pytest.raises(KernelLogUnavailable, match="boot id"):
            read_boot_id(str(tmp_path / name))


def test_the_standing_is_read_from_proc(tmp_path):
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t0000000400000000\n")
    (tmp_path / "uid_map").write_text("         0     100000      65536\n")
    found = read_standing(str(tmp_path))
    assert (found.holds_syslog, found.user_namespace, found.euid) == (True, True, os.geteuid())
    (tmp_path / "uid_map").write_text("         0          0 4294967295\n")
    (tmp_path / "status").write_text("CapEff:\tnonsense\n")
    found = read_standing(str(tmp_path))
    assert (found.holds_syslog, found.user_namespace) == (False, False)


def test_an_unreadable_proc_counts_as_nothing_granted(tmp_path):
    found = read_standing(str(tmp_path / "none"))
    assert (found.capabilities, found.user_namespace) == (0, False)

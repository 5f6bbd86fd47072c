"""The doctor: each thing that can be missing, what is said of it, and what grants it."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.config import Settings, load_settings
from agent.detect.rules import RuleError
from agent.doctor import (
    Check,
    LogsSeen,
    Probes,
    as_json,
    as_text,
    is_socket,
    look_at_logs,
    read_kmsg,
    run_checks,
    server_on,
    try_listen,
    try_write,
    watch,
    worst,
)
from agent.report.http import ListenError, PortInUseError


def raising(error: Exception) -> Callable[..., Any]:
    def probe(*_: object) -> Any:
        raise error

    return probe


def refused(number: int) -> Callable[..., Any]:
    return raising(OSError(number, os.strerror(number)))


WELL = Probes(
    load_rules=lambda: 120,
    read_kmsg=lambda path: None,
    syslog_size=lambda: 131072,
    look_at_logs=lambda root: LogsSeen(readable=3),
    watch=lambda path: None,
    try_write=lambda directory: 1 << 40,
    try_listen=lambda address, port: None,
    server_on=lambda address, port: "",
    is_socket=lambda path: True,
    read_text=lambda path: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08\nGCC\n",
    list_directory=lambda path: ["0000:5d:00.0"],
)
NODE = {"FAULTLINE_NODE_NAME": "gpu-1"}


def checked(name: str, probes: Probes, **environ: str) -> Check:
    settings = load_settings(environ={**NODE, **environ}).settings
    return next(check for check in run_checks(settings, probes=probes) if check.name == name)


def test_on_a_well_set_up_node_everything_is_ok() -> None:
    checks = run_checks(load_settings(environ=NODE).settings, probes=WELL)
    assert worst(checks) == "ok"
    assert len(checks) == 10
    assert all(not check.lost and not check.grant for check in checks)


CASES = [
    ("kernel-log", replace(WELL, read_kmsg=refused(errno.EPERM)), {}, "ok", "read by syslog(2) every 1 s, ring of 128"),
    (
        "kernel-log", replace(WELL, read_kmsg=refused(errno.ENOENT), syslog_size=refused(errno.EPERM)), {}, "fail",
        "/dev/kmsg: No such file or directory; syslog(2): Operation not permitted",
    ),
    ("kernel-trust", WELL, {"FAULTLINE_KERNEL_ACCEPT_USER_RECORDS": "true"}, "warn", "accept_user_records is true"),
    ("log-root", replace(WELL, look_at_logs=refused(errno.ENOENT)), {}, "fail", "/var/log/pods: No such file"),
    (
        "log-root", replace(WELL, look_at_logs=lambda r: LogsSeen(unreadable=2, example="x: Permission denied")), {},
        "fail", "2 of 2 logs under /var/log/pods cannot be read (x: Permission denied)",
    ),
    (
        "log-root", replace(WELL, look_at_logs=lambda r: LogsSeen(readable=1, broken_links=1)), {}, "warn",
        "1 of 2 logs",
    ),
    ("log-root", replace(WELL, look_at_logs=lambda r: LogsSeen()), {}, "warn", "holds no container's log"),
    ("inotify", replace(WELL, watch=refused(errno.EMFILE)), {}, "warn", "Too many open files"),
    ("inotify", replace(WELL, watch=refused(errno.ENOSPC)), {}, "warn", "No space left on device"),
    ("inotify", replace(WELL, watch=refused(errno.EACCES), read_text=refused(errno.EACCES)), {}, "warn", "unknown"),
    ("state-dir", replace(WELL, try_write=refused(errno.EROFS)), {}, "fail", "/var/lib/faultline: Read-only file"),
    ("state-dir", replace(WELL, try_write=lambda d: 1 << 20), {}, "warn", "has 1 MiB free; the state may grow to 64"),
    ("state-dir", WELL, {"FAULTLINE_STATE_DIR": ""}, "warn", "the state is kept in memory"),
    ("port", replace(WELL, try_listen=raising(PortInUseError("port 9753 is in use"))), {}, "fail", "is in use"),
    ("port", replace(WELL, try_listen=raising(ListenError("needs a privilege"))), {}, "fail", "needs a privilege"),
    ("rules", replace(WELL, load_rules=raising(RuleError("a.yaml", "bad", line=3, key="id"))), {}, "fail", "a.yaml:3"),
    ("nvidia-driver", replace(WELL, read_text=refused(errno.ENOENT)), {}, "warn", "nvidia/version: No such"),
    ("nvidia-driver", replace(WELL, list_directory=refused(errno.ENOENT)), {}, "warn", "575.57.08; /proc/driver"),
    (
        "kubelet", replace(WELL, is_socket=refused(errno.ENOENT), read_text=refused(errno.EACCES)), {}, "warn",
        "kubelet_internal_checkpoint: Permission denied; /var/lib/kubelet/pod-resources/kubelet.sock: No such file",
    ),
    (
        "kubelet", replace(WELL, is_socket=lambda p: False), {"FAULTLINE_KUBELET_CHECKPOINT": ""}, "warn",
        "is no socket",
    ),
    ("node-name", WELL, {"FAULTLINE_NODE_NAME": ""}, "warn", "the host name is used"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "probes", "environ", "status", "seen"), CASES)
def test_what_is_missing_is_told_with_what_is_lost_and_what_grants_it(
    name: str, probes: Probes, environ: dict[str, str], status: str, seen: str
) -> None:
    check = checked(name, probes, **environ)
    assert (check.status, seen in check.seen) == (status, True), check
    assert check.lost
    assert check.grant or status == "ok"


def test_every_check_has_a_case_in_which_it_is_not_ok() -> None:
    names = {check.name for check in run_checks(Settings(), probes=WELL)}
    assert {name for name, _, _, status, _ in CASES if status != "ok"} == names


@pytest.mark.parametrize(("name", "probes", "environ"), [case[:3] for case in CASES])
def test_the_words_for_a_manifest_are_yaml(name: str, probes: Probes, environ: dict[str, str]) -> None:
    grant = checked(name, probes, **environ).grant
    if "volumes:" in grant or "env:" in grant:
        assert isinstance(yaml.safe_load(grant), dict)


def test_a_port_held_by_a_running_agent_is_as_it_should_be() -> None:
    held = replace(WELL, try_listen=raising(PortInUseError("x")), server_on=lambda address, port: "faultline/0.1.0")
    assert checked("port", held).seen == "port 9753 is held by a running faultline/0.1.0"


def test_one_of_two_ways_to_the_kubelet_is_enough() -> None:
    assert checked("kubelet", replace(WELL, is_socket=refused(errno.ENOENT))).status == "ok"
    assert checked("kubelet", replace(WELL, read_text=refused(errno.ENOENT))).status == "ok"


def test_a_check_that_breaks_does_not_end_the_others() -> None:
    checks = run_checks(Settings(), probes=replace(WELL, look_at_logs=raising(ZeroDivisionError("odd"))))
    assert len(checks) == 10
    assert next(c for c in checks if c.name == "log-root").seen == "the check itself failed: ZeroDivisionError('odd')"


def test_text_and_json_say_the_same() -> None:
    checks = run_checks(Settings(), probes=replace(WELL, try_write=refused(errno.EACCES)))
    text = as_text(checks)
    assert "fail  state-dir      /var/lib/faultline: Permission denied\n        lost: memory of what was told" in text
    assert "                hostPath: {path: /var/lib/faultline, type: DirectoryOrCreate}" in text
    assert "\x1b" not in text
    assert "\x1b[31mfail\x1b[0m" in as_text(checks, colour=True)
    body = json.loads(as_json(checks))
    assert (body["kind"], body["status"]) == ("DoctorReport", "fail")
    assert [check["name"] for check in body["checks"]] == [check.name for check in checks]


def test_the_log_root_is_really_looked_at(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        look_at_logs(tmp_path / "none")
    assert look_at_logs(tmp_path) == LogsSeen()
    folder = tmp_path / "ns_pod_uid" / "main"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text("x\n")
    (folder / "1.log").symlink_to(tmp_path / "gone-json.log")
    (folder / "2.log").mkdir()
    seen = look_at_logs(tmp_path)
    assert (seen.readable, seen.unreadable, seen.broken_links) == (1, 1, 1)
    assert look_at_logs(tmp_path, files=1).readable == 1


def test_the_probes_of_the_machine_work(tmp_path: Path) -> None:
    assert try_write(tmp_path / "not" / "yet") > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        try_write(tmp_path / "file" / "below")
    watch(str(tmp_path))
    with pytest.raises(OSError):
        watch(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "kmsg")
    read_kmsg(str(tmp_path / "kmsg"))
    with pytest.raises(OSError):
        read_kmsg(str(tmp_path / "none"))
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "sock"))
        assert is_socket(str(tmp_path / "sock"))
    assert not is_socket(str(tmp_path / "file"))


def test_a_port_that_another_program_holds_is_no_agent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortInUseError):
            try_listen("127.0.0.1", port)
    try_listen("127.0.0.1", port)
    assert server_on("127.0.0.1", port) == ""

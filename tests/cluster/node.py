"""A whole cluster of one node: control plane, containerd, and kubelet, in a room of their own.

Needs root, and Debian's containernetworking-plugins beside what ``build.NODE`` builds. Images come from archives.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.cluster.build import NODE, build
from tests.cluster.image import program_archive
from tests.cluster.process import ClusterError, Process, tail
from tests.cluster.room import NODE_ADDRESS, Room
from tests.cluster.server import ApiServer

NAME = "gpu-node-1"
PAUSE = "localhost/pause:1"
CNI_PLUGINS = Path("/usr/lib/cni")
READY_SECONDS = 120.0

CONTAINERD = """\
version = 3
root = '{at}/containerd'
state = '/run/containerd/state'
[grpc]
address = '{at}/containerd.sock'
[plugins.'io.containerd.cri.v1.images']
# Overlay on the machine's file system is what a node has.
snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{pause}'
[plugins.'io.containerd.cri.v1.runtime']
# A machine without CAP_SYS_RESOURCE refuses a negative oom_score_adj.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{cni}']
conf_dir = '{at}/cni'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{runc}'
SystemdCgroup = false
"""

NETWORK = {
    "cniVersion": "1.0.0",
    "name": "test",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]},
        }
    ],
}


class Node:
    """One node that is ready, with its control plane. Use as a context manager.

    ``plugins`` and ``pods`` are the node's ``/var/lib/kubelet`` and ``/var/log/pods`` as this process sees them.
    """

    def __init__(self) -> None:
        """Builds what is not built yet; starts nothing. Raises ClusterError where this machine cannot hold a node."""
        if os.geteuid() != 0:
            raise ClusterError("a node needs root")
        if not (CNI_PLUGINS / "bridge").exists():
            raise ClusterError(f"{CNI_PLUGINS}/bridge not found (Debian: containernetworking-plugins)")
        self._programs = {program.name: build(program) for program in NODE}
        self.folder = Path()
        self._api: ApiServer | None = None
        self._room: Room | None = None
        self._processes: dict[str, Process] = {}

    @property
    def kubelet_folder(self) -> Path:
        """What the node has as /var/lib/kubelet."""
        return self.folder / "kubelet"

    @property
    def api(self) -> ApiServer:
        assert self._api is not None, "not started"
        return self._api

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="faultline-node-"))
        self._cgroup = f"faultline-{self.folder.name[-8:]}"
        atexit.register(self.stop)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends everything that runs on the node and removes the folder. More than once is fine."""
        atexit.unregister(self.stop)
        if self._room is not None:
            self._room.close()
            self._room = None
        for process in self._processes.values():
            process.end()
        self._processes.clear()
        if self._api is not None:
            self._api.stop()
        for cgroup in _cgroups(self._cgroup):
            _remove_cgroup(cgroup)
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def kubectl(self, *args: str, stdin: str = "") -> str:
        return self.api.kubectl(*args, stdin=stdin)

    def load(self, archive: Path) -> None:
        """Puts the images of an archive on the node, under the names that it gives them."""
        self._ctr("images", "import", "--local", str(archive))

    def tag(self, name: str, other: str) -> None:
        """Gives an image that is on the node another name as well."""
        self._ctr("images", "tag", name, other)

    def until(self, condition: Callable[[], Any], *, what: str, seconds: float = READY_SECONDS) -> Any:
        """What the condition gives once it is truthy; raises ClusterError with the node's last words otherwise."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            for name, process in self._processes.items():
                if process.ended():
                    raise ClusterError(f"{name} ended: {tail(process.log)}")
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {seconds:g} s: {what}\n{self.told()}")
            time.sleep(0.1)
        return found

    def told(self) -> str:
        """Pods, events, and what the agent says, for a failed test's message."""
        said = [("get", "pods,events", "-A"), ("logs", "--namespace=faultline", "daemonset/faultline", "--tail=40")]
        return "\n".join(self._read(*args) for args in said)

    def _start(self) -> None:
        at = self.folder
        self._room = Room(
            binds={
                Path("/var/lib/kubelet"): at / "kubelet",
                Path("/var/log/pods"): at / "pods",
                Path("/var/lib/faultline"): at / "agent",
            }
        )
        for cgroup in _cgroups(self._cgroup):
            cgroup.mkdir()
        self._api = ApiServer(room=self._room)
        self._api.start()
        self._start_containerd()
        self.load(self._pause())
        self._start_control_plane()
        self.start_kubelet()
        ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        self.until(lambda: self._read("get", "node", NAME, "-o", ready) == "True", what="the node is ready")
        account = ("get", "serviceaccount", "default", "-o", "name")
        self.until(lambda: self._read(*account), what="the controller-manager made the default account")

    def _read(self, *args: str) -> str:
        """What kubectl prints; empty where it fails."""
        try:
            return self.kubectl(*args)
        except ClusterError:
            return ""

    def _start_containerd(self) -> None:
        at = self.folder
        (at / "cni").mkdir()
        (at / "cni" / "test.conflist").write_text(json.dumps(NETWORK))
        settings = at / "containerd.toml"
        runc = self._programs["runc"]
        settings.write_text(CONTAINERD.format(at=at, pause=PAUSE, cni=CNI_PLUGINS, runc=runc))
        shims = self._programs["containerd-shim-runc-v2"].parent
        self._run("containerd", "--config", str(settings), environ={"PATH": f"{shims}:{os.environ['PATH']}"})
        self.until(lambda: (at / "containerd.sock").exists() and self._ctr_answers(), what="containerd answers")

    def _start_control_plane(self) -> None:
        kubeconfig = f"--kubeconfig={self.api.kubeconfig()}"
        self._run(
            "kube-controller-manager", kubeconfig, "--leader-elect=false", "--use-service-account-credentials=false",
            f"--service-account-private-key-file={self.api.folder / 'accounts.key'}",
            f"--root-ca-file={self.api.folder / 'ca.crt'}",
        )  # fmt: skip
        self._run("kube-scheduler", kubeconfig, "--leader-elect=false")

    def start_kubelet(self) -> None:
        at = self.folder
        (at / "resolv.conf").write_text("")
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.api.folder / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "clusterDNS": ["10.96.0.10"],
            "cgroupRoot": f"/{self._cgroup}",
            "containerRuntimeEndpoint": f"unix://{at / 'containerd.sock'}",
            "enforceNodeAllocatable": [],
            "evictionHard": {name: "0%" for name in ("memory.available", "nodefs.available", "nodefs.inodesFree",
                                                     "imagefs.available", "imagefs.inodesFree")},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "resolvConf": str(at / "resolv.conf"),
            "staticPodPath": "",
        }  # fmt: skip
        path = at / "kubelet.json"
        path.write_text(json.dumps(settings))
        kubeconfig = self.api.kubeconfig_for(f"system:node:{NAME}", ["system:nodes"])
        self._run(
            "kubelet", f"--config={path}", f"--kubeconfig={kubeconfig}", f"--hostname-override={NAME}",
            f"--node-ip={NODE_ADDRESS}", "--root-dir=/var/lib/kubelet", f"--cert-dir={at / 'kubelet-certificates'}",
        )  # fmt: skip

    def stop_kubelet(self) -> None:
        self._processes.pop("kubelet").end()

    def _run(self, name: str, *args: str, environ: dict[str, str] | None = None) -> None:
        command = [str(self._programs[name]), *args]
        process = Process(command, log=self.folder / f"{name}.log", room=self._room, environ=environ)
        self._processes[name.removeprefix("kube-")] = process

    def _ctr(self, *args: str) -> str:
        assert self._room is not None, "not started"
        command = [str(self._programs["ctr"]), f"--address={self.folder / 'containerd.sock'}", "--namespace=k8s.io"]
        done = subprocess.run(
            self._room.command([*command, *args]), capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"ctr {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def _ctr_answers(self) -> bool:
        try:
            return bool(self._ctr("version"))
        except ClusterError:
            return False

    def _pause(self) -> Path:
        """An archive of the sandbox's image: one static program."""
        return program_archive(self.folder / "pause.tar", name=PAUSE, program=self._programs["pause"])


def _cgroups(name: str) -> list[Path]:
    """The node's own cgroup in each hierarchy of version 1, or in the one of version 2."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root / name]
    return [
        folder / name for folder in root.iterdir() if (folder / "cgroup.procs").exists() and not folder.is_symlink()
    ]


def _remove_cgroup(folder: Path) -> None:
    """Bottom up, and again while the last of its killed processes are being taken away."""
    for _ in range(50):
        for inner, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(inner)
        if not folder.exists():
            return
        time.sleep(0.1)

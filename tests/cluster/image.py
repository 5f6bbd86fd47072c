"""Container images without a registry: the agent's by buildah from the Dockerfile, others as archives written here."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.build import cache_folder
from tests.cluster.process import ClusterError

ROOT = Path(__file__).parents[2]
SOURCES = ("Dockerfile", "pyproject.toml", "README.md", "LICENSE", "agent", "rules")
"""What the Dockerfile reads."""

SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python-is-python3", "python3", "python3-venv")
"""What the Dockerfile expects of its base: the Python image has the same."""

CERTIFICATES = Path("/etc/ssl/certs")


def agent_image(name: str) -> Path:
    """An archive of the agent's image under that name, built from the tree's Dockerfile; minutes the first time.

    Only the base is not the public one, which cannot be had without a registry.
    """
    _needs("buildah", "debootstrap")
    archive = cache_folder() / f"image-{_digest(name)}.tar"
    if not archive.exists():
        for older in cache_folder().glob("image-*.tar"):
            older.unlink()
        _say("building the agent's image", lambda: _build(name, archive))
    return archive


def archive(path: Path, *, name: str, layer: Path, entrypoint: str = "") -> Path:
    """Writes a Docker-format archive of an image with one layer, a tar file."""
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {"Entrypoint": [entrypoint]} if entrypoint else {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha256(layer)}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, mode="w") as image:
        for entry, told in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(told).encode()
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            image.addfile(info, io.BytesIO(data))
        image.add(layer, arcname="layer.tar")
    return path


def program_archive(path: Path, *, name: str, program: Path) -> Path:
    """An archive of an image that holds one static program, at its own name in the root."""
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, mode="w") as files:
        files.add(program, arcname=program.name)
    made = archive(path, name=name, layer=layer, entrypoint=f"/{program.name}")
    layer.unlink()
    return made


def _build(name: str, out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="faultline-image-") as at:
        work = Path(at)
        context = work / "context"
        context.mkdir()
        for source in SOURCES:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, context / source, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, context / source)
        base = work / "base.tar"
        layer = work / "layer.tar"
        with gzip.open(_base()) as packed, open(layer, "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        archive(base, name="localhost/base:test", layer=layer)
        layer.unlink()
        store = ["--root", str(work / "store"), "--runroot", str(work / "run"), "--storage-driver", "overlay"]
        volumes = [f"--volume={path}:{at}:ro" for path, at in _pip_settings(work).items()]
        _run(
            "buildah", *store, "build", "--isolation=chroot", "--network=host",
            f"--build-arg=BASE=docker-archive:{base}", *volumes, "--tag=localhost/agent:test", str(context),
        )  # fmt: skip
        part = out.with_suffix(".part")
        part.unlink(missing_ok=True)
        _run("buildah", *store, "push", "localhost/agent:test", f"docker-archive:{part}:{name}")
        part.replace(out)


def _base() -> Path:
    """A gzipped tar of a small Debian with Python, made once."""
    wanted = hashlib.sha256(" ".join((SUITE, *BASE_PACKAGES)).encode()).hexdigest()[:16]
    packed = cache_folder() / f"base-{wanted}.tar.gz"
    if not packed.exists():
        _say("making the image's base with debootstrap", lambda: _bootstrap(packed))
    return packed


def _bootstrap(packed: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="faultline-base-") as at:
        root = Path(at) / "root"
        _run("debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", SUITE, str(root))
        for pattern in ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "var/cache/apt/*.bin"):
            for path in root.glob(pattern):
                if path.is_file():
                    path.unlink()
        part = packed.with_suffix(".part")
        _run(
            "tar",
            "--create",
            "--gzip",
            "--numeric-owner",
            "--exclude=./dev/*",
            f"--file={part}",
            f"--directory={root}",
            ".",
        )
        part.replace(packed)


def _pip_settings(work: Path) -> dict[Path, str]:
    """What pip needs within the build to reach PyPI as this process does: path here -> path there."""
    lines = ["[global]"]
    lines += [
        f"{key.removeprefix('PIP_').lower().replace('_', '-')} = {value}"
        for key, value in sorted(os.environ.items())
        if key in ("PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "PIP_TRUSTED_HOST")
    ]
    settings = work / "pip.conf"
    settings.write_text("\n".join(lines) + "\n")
    return {settings: "/etc/pip.conf"} | ({CERTIFICATES: str(CERTIFICATES)} if CERTIFICATES.is_dir() else {})


def _digest(name: str) -> str:
    digest = hashlib.sha256(name.encode())
    for source in SOURCES:
        at = ROOT / source
        for path in sorted(at.rglob("*")) if at.is_dir() else [at]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"\n{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _needs(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise ClusterError(f"the agent's image is built by Debian's packages {', '.join(missing)}: not found")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command[:8])}: {(done.stderr or done.stdout).strip()[-3000:]}")


def _say(what: str, work: Callable[[], None]) -> None:
    print(f"{what}: a minute or two", file=sys.stderr, flush=True)
    begun = time.monotonic()
    work()
    print(f"done in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

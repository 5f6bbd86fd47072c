"""Reads the Python files of an SGLang source tree or wheel as bytes. It imports, unpacks and judges nothing."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

LARGEST_FILE = 8 << 20
"""Bytes of one source file; a larger one is data, and no wheel can fill the memory with it."""

MOST_FILES = 20_000


class NotSGLangError(ValueError):
    """A path that holds no SGLang: it is missing, no archive, or has no `srt/server_args.py`."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One version's source."""

    version: str
    files: dict[str, bytes]
    """Path inside the package, with slashes (`srt/server_args.py`) -> the file's bytes."""


def read_tree(path: Path, *, wanted: Callable[[str], bool]) -> Tree:
    """The files of the package `sglang` that `wanted` names, from a wheel (.whl, .zip) or a folder.

    Raises NotSGLangError.
    """
    try:
        if path.is_dir():
            return _tree(str(path), _folder(path), wanted)
        with zipfile.ZipFile(path) as archive:
            return _tree(str(path), _archive(archive), wanted)
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        raise NotSGLangError(f"{path}: neither a folder nor a wheel that can be read: {error}") from None


_Entry = tuple[str, int, Callable[[], bytes]]


def _folder(root: Path) -> Iterator[_Entry]:
    for file in sorted(root.rglob("*")):
        if file.name == "METADATA" or file.suffix == ".py":
            if file.is_file():
                yield file.relative_to(root).as_posix(), file.stat().st_size, file.read_bytes


def _archive(archive: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in archive.infolist():
        if info.filename.endswith((".py", "/METADATA")):

            def read(member: zipfile.ZipInfo = info) -> bytes:
                return archive.read(member)

            yield info.filename, info.file_size, read


_SERVER_ARGS = "srt/server_args.py"


def _tree(name: str, entries: Iterable[_Entry], wanted: Callable[[str], bool]) -> Tree:
    listed = list(entries)[:MOST_FILES]
    roots = [p.removesuffix(_SERVER_ARGS) for p, _, _ in listed if p == _SERVER_ARGS or p.endswith("/" + _SERVER_ARGS)]
    if not roots:
        raise NotSGLangError(f"{name}: no {_SERVER_ARGS} in it; give an SGLang wheel or its unpacked source")
    root = min(roots, key=len)
    files: dict[str, bytes] = {}
    version = ""
    for path, size, read in listed:
        if size > LARGEST_FILE:
            continue
        inside = path.removeprefix(root) if path.startswith(root) else ""
        if inside in ("_version.py", "version.py") and not version:
            version = _assigned_version(read())
        elif PurePosixPath(path).name == "METADATA" and "sglang" in path.lower():
            version = _metadata_version(read()) or version
        elif inside and wanted(inside):
            files[inside] = read()
    return Tree(version or PurePosixPath(name).name, files)


def _assigned_version(source: bytes) -> str:
    found = re.search(rb"^(?:__version__\s*=\s*)?(?:__)?version(?:__)?\s*=\s*[\"']([\w.+]{1,64})[\"']", source, re.M)
    return found[1].decode("ascii", "replace") if found else ""


def _metadata_version(text: bytes) -> str:
    found = re.search(rb"^Version: ([\w.+]{1,64})\s*$", text, re.M)
    return found[1].decode("ascii", "replace") if found else ""

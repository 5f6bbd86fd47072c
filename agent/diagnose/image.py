"""Whether image, driver and GPU go together: exact floors from data in, facts and a sharper verdict out. Reads nothing.

Only what is known is compared: an image's CUDA build, the node's driver, the GPUs' architecture. A server that got
ready is its own proof that they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.detect.rules import load_document, render
from agent.model import Component, Verdict

NODE_FACTS = frozenset({"driver", "driver_kind", "gpu_model"})
"""Facts about a node, true of each container on it."""

NODE_TEXT = NODE_FACTS | {"visible_gpus"}
"""All that a text about a node alone tells (nvidia-smi, the driver's file)."""

IMAGE_FACTS = frozenset({"cuda", "cuda_tag"})
"""Facts about an image. Files handed in together mostly speak of one."""

DERIVED = frozenset({"driver_branch", "driver_fit", "driver_needs", "driver_wants", "image_arch", "arch_cuda"})
"""Facts that :func:`derived` alone gives."""

Version = Annotated[str, Meta(pattern=r"^\d{1,5}(\.\d{1,5}){0,3}$")]


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From CUDA `cuda` on, within its major version: which driver is needed."""

    cuda: Version
    needs: Version
    """Below it nothing built with this CUDA runs, except through NVIDIA's forward-compatibility libraries."""
    wants: Version
    """The oldest driver that such images are published for; between the two only part of CUDA works."""
    source: Annotated[str, Meta(min_length=3)]


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU architecture: what its GPUs are called, and the first CUDA that can compile for it."""

    arch: str
    cuda: Version
    models: tuple[str, ...]
    source: Annotated[str, Meta(min_length=3)]


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How known facts sharpen the verdict of certain rules. Texts may hold ``{facts}``."""

    rules: Annotated[tuple[str, ...], Meta(min_length=1)]
    when: Mapping[str, tuple[str, ...]]
    why: Annotated[str, Meta(min_length=8)]
    component: Component | None = None
    cause: str = ""
    fix: tuple[str, ...] = ()
    """What to do first, before what the rule says."""


class ImageTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of `rules/image/cuda-driver.yaml`."""

    schema: Literal[1] = 1
    floors: tuple[Floor, ...] = ()
    architectures: tuple[Architecture, ...] = ()
    outcomes: tuple[Outcome, ...] = ()


def parse_table(text: bytes, *, file: str) -> ImageTable:
    """Raises RuleError."""
    return load_document(text, ImageTable, file=file)


class Fit(StrEnum):
    """Whether a driver can run what a CUDA version built."""

    FITS = "fits"
    MINOR_COMPAT = "minor-compat"
    """Only as far as compatibility within the major version goes: kernels that are compiled at run time fail."""
    TOO_OLD = "too-old"
    RUNS = "runs"
    """It should not fit, and yet the server got ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFit:
    """The comparison: which driver this CUDA build needs and wants, and how the node's compares."""

    fit: Fit
    needs: str
    wants: str


def driver_fit(cuda: str, driver: str, floors: tuple[Floor, ...]) -> DriverFit | None:
    """Whether `driver` (``580.178.04``) runs a build of CUDA `cuda` (``12.9``). None: not known, so nothing is said."""
    build, loaded = _version(cuda), _version(driver)
    if not build or not loaded:
        return None
    rows = [(at, f) for f in floors if (at := _version(f.cuda)) and at[0] == build[0] and at <= build]
    if not rows:
        return None
    floor = max(rows, key=lambda row: row[0])[1]
    if loaded < _version(floor.needs):
        fit = Fit.TOO_OLD
    elif loaded < _version(floor.wants):
        fit = Fit.MINOR_COMPAT
    else:
        fit = Fit.FITS
    return DriverFit(fit=fit, needs=floor.needs, wants=floor.wants)


def derived(facts: Mapping[str, str], table: ImageTable) -> dict[str, str]:
    """What follows from the facts: CUDA from the image's tag, the driver's branch, the architecture, the fit."""
    found: dict[str, str] = {}
    cuda = facts.get("cuda", "")
    if not cuda and (tag := _tag(facts.get("cuda_tag", ""))):
        cuda = found["cuda"] = tag
    driver = facts.get("driver", "")
    if branch := driver.partition(".")[0]:
        found["driver_branch"] = branch
    arch = facts.get("gpu_arch", "")
    if not arch and (model := facts.get("gpu_model")):
        arch = next((a.arch for a in table.architectures if any(fnmatchcase(model, m) for m in a.models)), "")
        if arch:
            found["gpu_arch"] = arch
    if (row := next((a for a in table.architectures if a.arch == arch), None)) and _version(cuda):
        found["image_arch"] = "too-old" if _version(cuda) < _version(row.cuda) else "known"
        found["arch_cuda"] = row.cuda
    if (fit := driver_fit(cuda, driver, table.floors)) is not None:
        ran = facts.get("ready") == "yes" and fit.fit is not Fit.FITS
        found |= {"driver_fit": (Fit.RUNS if ran else fit.fit).value, "driver_needs": fit.needs}
        found["driver_wants"] = fit.wants
    return found


def settle(verdict: Verdict, facts: Mapping[str, str], table: ImageTable) -> Verdict:
    """The verdict, sharpened by the first outcome whose facts all hold; one that blames a fault stays as it is."""
    if verdict.fault is not None:
        return verdict
    for outcome in table.outcomes:
        if verdict.rule in outcome.rules and all(facts.get(k) in allowed for k, allowed in outcome.when.items()):
            return replace(
                verdict,
                component=outcome.component or verdict.component,
                cause=render(outcome.cause, facts) or verdict.cause,
                why=render(outcome.why, facts),
                fix=(*(render(step, facts) for step in outcome.fix), *verdict.fix),
            )
    return verdict


def _version(text: str) -> tuple[int, ...]:
    """A version as numbers; empty for text that is none."""
    parts = text.split(".")
    if len(parts) > 4 or not all(p.isascii() and p.isdigit() and len(p) < 6 for p in parts):
        return ()
    return tuple(map(int, parts))


def _tag(text: str) -> str:
    """``129`` (of ``-cu129``) as ``12.9``."""
    return f"{text[:2]}.{text[2:]}" if len(text) in (3, 4) and text.isascii() and text.isdigit() else ""

"""The packaged Xid catalogue and kernel rules, as the tests of detection use them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from agent.detect.catalogue import Catalogue
from agent.detect.kernel import KernelDetector
from agent.detect.rules import Rule, parse_rules

RULES = Path(__file__).parents[2] / "rules"
KERNEL_FILES = sorted((RULES / "kernel").glob("*.yaml"))


@cache
def catalogue() -> Catalogue:
    return Catalogue.from_yaml(*((RULES / "xid" / name).read_bytes() for name in ("catalogue.yaml", "nvlink5.yaml")))


@cache
def kernel_rules() -> tuple[Rule, ...]:
    return tuple(rule for path in KERNEL_FILES for rule in parse_rules(path.read_bytes(), file=path.name))


def detector() -> KernelDetector:
    return KernelDetector(catalogue(), kernel_rules())

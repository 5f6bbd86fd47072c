"""What the peers are given, and detectors with as many rules as asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from agent.detect.container import ContainerDetector, StreamState
from agent.detect.literals import choose_anchors
from agent.detect.rules import Examples, Rule
from agent.model import Component, ContainerRef
from agent.rulebook import ORDINARY, load_rulebook, packaged_rules

MTAIL = r"""
counter busy
counter memory
counter xid
counter refused
/CUDA-capable device\(s\) is\/are busy or unavailable/ {
  busy++
}
/CUDA out of memory\. Tried to allocate (?P<size>[\d.]+) (GiB|MiB)/ {
  memory++
}
/NVRM: Xid \(PCI:(?P<pci>[0-9a-f:]+)\): (?P<code>\d+),/ {
  xid++
}
/requires --mamba-ssm-dtype bfloat16, got/ {
  refused++
}
"""


@cache
def literals() -> tuple[str, ...]:
    """Every literal of every packaged rule, once."""
    return tuple(dict.fromkeys(t for r in load_rulebook().rules for t in r.literals))


def detector(count: int) -> Callable[[bytes], object]:
    """A scan of one block with that many rules: the packaged ones, then made-up ones of the same kind."""
    rules = [r for r in load_rulebook().rules if r.reads == "container" and r.literals][:count]
    for n in range(count - len(rules)):
        text = f"--made-up-flag-{n:03d} needs --another-flag-{n * 7 % 1000:03d}, got"
        rules.append(
            Rule(id=f"made/up-{n}", title="made up", literals=(text,), examples=Examples(match=(text,)),
                 source="bench", component=Component.CONFIG)
        )  # fmt: skip
    ordinary = (packaged_rules() / ORDINARY).read_bytes()
    anchors = choose_anchors((t.encode() for r in rules for t in r.literals), ordinary=ordinary)
    found = ContainerDetector(rules, anchors=anchors)
    where = ContainerRef(file="bench")
    return lambda block: found.signals(block, state=StreamState(), container=where, source="bench")

"""`make fuzz SECONDS=60`: mutated real text and random bytes through every parser; stops at the first exception.

The property tests do the same in small; this runs as long as it is let, and prints the input that broke a parser.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent.detect.catalogue import Catalogue
from agent.detect.container import ContainerDetector, StreamState
from agent.detect.framing import frame
from agent.detect.kernel import KernelDetector
from agent.detect.kernel_text import kernel_line
from agent.detect.recognise import recognise
from agent.detect.redact import redact
from agent.detect.rules import RuleError, parse_rules
from agent.detect.server_args import parse_server_args
from agent.detect.xid import parse_gpu_at, parse_nvlink5, parse_recovery_action, parse_sxid, parse_xid
from agent.model import ContainerRef, parse_pci
from agent.rulebook import load_rulebook, packaged_rules
from agent.sources.kernel.record import parse_record, parse_syslog_line
from agent.sources.kubelet.checkpoint import CheckpointError, parse_checkpoint
from agent.sources.kubelet.pod_resources import allocatable, listed
from agent.sources.kubelet.pods_api import pod_of_wire
from agent.sources.kubelet.wire import Field, Table, WireError, read
from tests.sources.fake_kubelet import ALLOCATABLE_ANSWER, EVENTS, LISTED, PODS

SLOW_SECONDS = 2.0
"""A parser that takes longer than this on one input hangs."""


BINARY_WEIGHT = 200
"""How often each recorded message is in the corpus: there are few beside thousands of lines."""


def parsers() -> dict[str, Callable[[bytes], object]]:
    book = load_rulebook()
    container = ContainerDetector(book.rules, anchors=book.anchors)
    kernel = KernelDetector(book.catalogue, [r for r in book.rules if r.reads == "kernel"])
    catalogue: Catalogue = book.catalogue

    def text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
        return lambda data: parse(data.decode("utf-8", "replace"))

    def xid(line: str) -> object:
        found = parse_xid(line)
        return None if found is None else catalogue.judge(found)

    def rule_file(data: bytes) -> object:
        try:
            return parse_rules(data, file="fuzz.yaml", thorough=True)
        except RuleError as refused:
            return str(refused)

    def checkpoint(data: bytes) -> object:
        try:
            return parse_checkpoint(data, now=0.0)
        except CheckpointError as refused:
            return str(refused)

    def protobuf(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
        def checked(data: bytes) -> object:
            try:
                return parse(data)
            except WireError as refused:
                return str(refused)

        return checked

    every_field: Table = {n: Field(str(n), many=n % 2 == 0) for n in range(1, 64)}
    where = ContainerRef(file="fuzz")
    return {
        "kmsg record": lambda d: parse_record(d, boot_id="b", offset=0.0),
        "syslog line": parse_syslog_line,
        "kernel text": text(kernel_line),
        "kernel message": text(lambda t: kernel.signals(t)),
        "Xid": text(xid),
        "SXid": text(parse_sxid),
        "NVLink event": text(parse_nvlink5),
        "recovery action": text(parse_recovery_action),
        "GPU at": text(parse_gpu_at),
        "PCI address": text(parse_pci),
        "container line": text(frame),
        "container block": lambda d: container.signals(d, state=StreamState(), container=where, source="fuzz"),
        "server arguments": text(parse_server_args),
        "redaction": text(redact),
        "recognition": lambda d: recognise(d, "fuzz"),
        "rule file": rule_file,
        "checkpoint": checkpoint,
        "protobuf": protobuf(lambda d: read(d, every_field)),
        "holders of devices": protobuf(listed),
        "allocatable devices": protobuf(allocatable),
        "pod as protobuf": pod_of_wire,
    }


def corpus() -> list[bytes]:
    """Real text to begin with: everything in the tests' data, and the rule files."""
    folders = [Path(__file__).parent.parent / "data", packaged_rules()]
    texts = [p.read_bytes()[:60_000] for f in folders for p in f.rglob("*") if p.is_file()]
    answers = [LISTED, ALLOCATABLE_ANSWER, *EVENTS, *(data for _, data in PODS)]
    return [line for t in texts for line in (t, *t.splitlines()[:200])] + answers * BINARY_WEIGHT


def mutate(dice: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(dice.choice(seeds)[: dice.choice((80, 400, 4000, 60_000))])
    for _ in range(dice.randrange(6)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(6):
            case 0:
                data[at:at] = dice.randbytes(dice.randrange(9))
            case 1:
                del data[at : at + dice.randrange(20)]
            case 2:
                data[at:at] = dice.choice(
                    (b"'", b'"', b"(", b"[", b"{", b"\\", b"\x1b[", b"\r", b"\n", b"\0", b": ", b"%s")
                )
            case 3:
                data[at:at] = bytes(data[at : at + dice.randrange(200)]) * dice.randrange(1, 5)
            case 4:
                data[at:at] = dice.choice(seeds)[: dice.randrange(200)]
            case _:
                if data:
                    data[at % len(data)] = dice.randrange(256)
    return bytes(data)


def main(seconds: float) -> int:
    dice = random.Random()
    seed = dice.randrange(2**32)
    dice.seed(seed)
    seeds, targets = corpus(), parsers()
    end, runs, worst = time.monotonic() + seconds, 0, dict.fromkeys(targets, 0.0)
    while time.monotonic() < end:
        data = mutate(dice, seeds)
        for name, parse in targets.items():
            began = time.perf_counter()
            try:
                parse(data)
            except Exception as error:
                print(f"{name}: {error!r} on {data!r} (seed {seed})")
                return 1
            took = time.perf_counter() - began
            worst[name] = max(worst[name], took)
            if took > SLOW_SECONDS:
                print(f"{name}: {took:.1f} s on {data!r} (seed {seed})")
                return 1
            runs += 1
    print(f"{runs} inputs, no exception, slowest:")
    for name, took in sorted(worst.items(), key=lambda item: -item[1])[:5]:
        print(f"  {name:<18} {took * 1000:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))

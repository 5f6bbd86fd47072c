"""Reads `kubectl describe pod|node` as people paste it: each container's last words, and the faults on a node.

Pure and total. What a container wrote is taken out of the description, so that it is read as its own and not as the
cluster's word; all else stays where it stands, and is read line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.detect.objects import FAULT_KEY, Objects, Part, ReportedFault, faults_on_node
from agent.model import ContainerRef

LIMIT = 8 << 20
"""Bytes up to which a text is read as a description."""

PART_LIMIT = 2000

_HEAD = re.compile(rb"\s*Name: {2,}\S")
_TOP = re.compile(rb"(Name|Namespace|Annotations|Containers|Init Containers|Ephemeral Containers):[ ]*(.*?)\s*\Z")
_CONTAINER = re.compile(rb"  ([a-z0-9][-a-z0-9]{0,62}):\s*\Z")
_STATE = re.compile(rb"    (State|Last State): ")
_RESTARTS = re.compile(rb"    Restart Count: +([0-9]{1,9})\s*\Z")
_MESSAGE = re.compile(rb"      Message: {1,6}")
_AFTER = re.compile(rb"      (?:Exit Code|Signal|Started|Finished): |    [A-Z][A-Za-z ]{1,30}:(?: |\s*\Z)")
_KEY = FAULT_KEY.encode() + b":"


@dataclass(slots=True)
class _Reading:
    """Where in a description we are."""

    name: str = ""
    namespace: str = ""
    section: bytes = b""
    container: str = ""
    restarts: int = 0
    last: bool = False
    said: list[tuple[bool, bytes]] = field(default_factory=list)

    def parts(self) -> Iterator[Part]:
        """What the container said, now that its restarts are known; the earlier instance first."""
        for last, text in sorted(self.said, key=lambda one: not one[0]):
            ref = ContainerRef(
                namespace=self.namespace,
                pod=self.name,
                container=self.container,
                restart=max(self.restarts - last, 0),
            )
            yield Part(text=text.decode("utf-8", "replace"), container=ref)
        self.said, self.restarts, self.last = [], 0, False


def may_be_described(sample: bytes) -> bool:
    return _HEAD.match(sample[:4096]) is not None


def read_described(text: bytes) -> tuple[Objects, bytes] | None:
    """What a description says beyond its lines, and its text with containers' words blanked; None for another text.

    The blanked text is as long as the given one, so that every line keeps its place.
    """
    if len(text) > LIMIT or not may_be_described(text):
        return None
    parts: list[Part] = []
    faults: list[ReportedFault] = []
    rest: list[bytes] = []
    at = _Reading()
    lines = text.splitlines(keepends=True)
    i = 0
    while i < len(lines):
        line = lines[i]
        i += 1
        top = _TOP.match(line)
        if line[:1] not in (b" ", b"\t", b"\n", b"\r"):
            parts += at.parts()
            at.section, at.container = line.partition(b":")[0], ""
        if top is not None:
            word, value = top[1], top[2].decode("utf-8", "replace")
            if word == b"Name":
                at.name, at.namespace = value, ""
            elif word == b"Namespace":
                at.namespace = value
        if at.section == b"Annotations" and _KEY in line:
            value_of = line.partition(_KEY)[2].strip() or (lines[i].strip() if i < len(lines) else b"")
            faults += _faults(at.name, value_of)
        elif at.section.endswith(b"Containers"):
            if (named := _CONTAINER.match(line)) is not None:
                parts += at.parts()
                at.container = named[1].decode()
            elif (state := _STATE.match(line)) is not None:
                at.last = state[1] == b"Last State"
            elif (count := _RESTARTS.match(line)) is not None:
                at.restarts = int(count[1])
            elif at.container and (message := _MESSAGE.match(line)) is not None and len(parts) < PART_LIMIT:
                first, said = line[: message.end()], [line[message.end() :]]
                while i < len(lines) and not _AFTER.match(lines[i]):
                    said.append(lines[i])
                    i += 1
                at.said.append((at.last, b"".join(said)))
                rest += [first, *(_blank(one) for one in said)]
                continue
        rest.append(line)
    parts += at.parts()
    return Objects(parts=tuple(parts), faults=tuple(faults)), b"".join(rest)


def _blank(line: bytes) -> bytes:
    ending = len(line) - len(line.rstrip(b"\r\n"))
    return b" " * (len(line) - ending) + line[len(line) - ending :]


def _faults(node: str, value: bytes) -> tuple[ReportedFault, ...]:
    """kubectl shortens a long annotation: then it is not whole JSON, and nothing is read from it."""
    text = value.decode("utf-8", "replace")
    return faults_on_node({"metadata": {"name": node, "annotations": {FAULT_KEY: text}}})

"""Tells what a text that a user handed in is: a container's log, a kernel log, both pasted together, or something else.

It must never take a container's log for a kernel log because some of its lines look like the kernel's: a program can
print anything. So one mark of a container's log outweighs any number of kernel lines, unless the two stand apart
from each other as they do in a report that a person put together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from agent.detect.framing import has_head, open_envelope
from agent.detect.kernel_text import is_system_line, kernel_line

Kind = Literal["container", "kernel", "device-plugin", "mixed", "prose", "other"]
"""`mixed`: a program's output and, under headings, kernel lines; `prose`: kernel lines among a person's words."""

SAMPLE = 256 * 1024
"""Bytes from the start of a text that are enough to know it."""

MAX_LINES = 3000
"""Lines of a sample that are looked at."""

RUN_AT_EDGE = 3
"""Kernel lines in a row, at the start or the end of a text, that count as pasted when nothing separates them."""

WINDOW = 64
"""Neighbours on each side that are enough for :func:`stands_apart`."""

_Class = Literal["kernel", "bare", "system", "container", "wrapped", "plugin", "heading", "blank", "other"]

_A = re.ASCII
_KLOG = re.compile(r"[IWEF][0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6} +[0-9]+ [\w./-]+\.go:[0-9]+\] ", _A)
_PLUGIN_WORDS = (
    "nvidia.com/", "XidCriticalError", "device plugin", "device-plugin", "nvmlEvent", "marking device", "health.go",
    "Registered device", "NVIDIA_", "deviceIDStrategy", "GRPC server for",
)  # fmt: skip

_PROGRAM = re.compile(
    r"Traceback \(most recent call last\):"
    r"| {0,8}File \"[^\"]{1,4096}\", line [0-9]+"
    r"|(?:[A-Za-z_]\w*\.){0,12}[A-Za-z_]\w{0,80}(?:Error|Exception|Interrupt|Exit): "
    r"|usage: \S|[\w. -]{1,80}: error: (?:argument|unrecognized|the following|ambiguous)"
    r"|(?:INFO|WARNING|ERROR|CRITICAL):(?: {4}|[A-Za-z_])"
    r"|\[rank[0-9]+\]:|[\w.-]{1,253}:[0-9]+:[0-9]+ \[[0-9]+\] NCCL "
    r"|/\S{1,4096}\.py:[0-9]+: [A-Za-z]*Warning: "
    r"|terminate called after throwing|Fatal Python error: |THCudaCheck FAIL"
    r"|server_args=(?:ServerArgs\(|\{)|(?:RuntimeError: )?CUDA error: |CUDA out of memory"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3} ",
    _A,
)
_ENGINE_WORDS = re.compile(
    r"\b(?:sglang|vllm|torch|cuda\w*|nccl\w*|uvicorn|triton|flashinfer|tensorrt|llama\w*)\b", re.I | _A
)
_DOCUMENT = re.compile(
    r"apiVersion: |kind: |metadata:|spec:|Name: {2,}|Namespace: {2,}|Capacity:|Allocatable:|Containers:|Events:"
    r"|sharing:|version: v[0-9]|[|+=].{0,40}NVIDIA-SMI|=+NVSMI LOG=+|Driver Version +:"
    r"|GPU [0-9]+: NVIDIA .{0,60}\(UUID: GPU-",
    _A,
)
_HEADING = re.compile(r"```|~~~|[-=#*]{1,80} ?.{0,40}\bkernel\b|[^ ]{0,80}[$#] \S", re.I | _A)
_HEADING_WORDS = re.compile(
    r"\b(?:dmesg|journalctl|kmsg|kern\.log|kernel (?:log|ring|messages?)|syslog)\b|\b(?:host|node)\b[^\n]{0,40}:\s*\Z",
    re.I | _A,
)
"""How a person parts what he pastes. Rulers and lines that end in a colon are not among them: programs print both."""
_KERNEL_NAME = re.compile(r"dmesg|kmsg|kern(?:el)?\.log|kern(?:el)?(?:[._-]|\Z)|messages|syslog|journal", re.I)
_CONTAINER_NAME = re.compile(
    r"(?:\A|[/\\_.-])(?:containers?|pods?|stdout|stderr)(?=[_.-][^/\\]*\Z)|(?:\A|[/\\])[0-9]{1,6}\.log\Z"
    r"|-json\.log\Z|/var/log/(?:pods|containers)/",
    re.I | _A,
)
"""Names under which a runtime or a person keeps a container's log: whatever stands in it, a tenant may have printed."""


def _class_of(line: str) -> tuple[_Class, bool]:
    """What a line is by itself, and whether a runtime or a tool wrapped it."""
    if not line or line.isspace():
        return "blank", False
    record = kernel_line(line)
    if record is not None and record.trusted_shape:
        return ("bare" if record.form == "bare" else "kernel"), False
    wrapped = open_envelope(line)
    content = wrapped.content
    if _KLOG.match(content):
        return ("plugin" if any(word in content for word in _PLUGIN_WORDS) else "other"), wrapped.enveloped
    if record is not None or is_system_line(line):
        return "system", False
    if has_head(content) or _PROGRAM.match(content) or "%|" in content[:200]:
        return "container", wrapped.enveloped
    if wrapped.enveloped:
        return "wrapped", True
    if _HEADING.match(content) or (len(content) <= 300 and _HEADING_WORDS.search(content)):
        return "heading", False
    return "other", False


_RUN: frozenset[_Class] = frozenset(("kernel", "bare", "system"))
_Side = Literal["edge", "blank", "heading", "none"]


def _side(classes: Sequence[_Class], at: int, step: Literal[-1, 1]) -> _Side:
    """What parts a run from the rest, `at` being its neighbour's index: the text's end, a heading, blank lines."""
    blank = False
    while 0 <= at < len(classes) and classes[at] == "blank":
        blank = True
        at += step
    if not 0 <= at < len(classes):
        return "edge"
    if classes[at] == "heading":
        return "heading"
    return "blank" if blank else "none"


def _apart(classes: Sequence[_Class], start: int, end: int, *, among_program: bool) -> bool:
    """True when the kernel lines from `start` up to `end` look pasted, not printed by the program around them.

    Where the text is a program's otherwise (`among_program`), a person must have written above them what they are:
    blank lines, and any number of lines in a row, a program can print too.
    """
    length = sum(1 for c in classes[start:end] if c == "kernel")
    if not length:
        return False
    before, after = _side(classes, start - 1, -1), _side(classes, end, 1)
    if before == "heading":
        return True  # a person wrote above it what it is
    if among_program:
        return before == "edge" and after == "heading"
    if "none" not in (before, after):
        return length > 1 or (before == "edge" and after == "heading")
    return "edge" in (before, after) and length >= RUN_AT_EDGE


def _runs(classes: Sequence[_Class]) -> list[tuple[int, int]]:
    runs, start = [], None
    for i, c in enumerate(classes):
        if c in _RUN:
            start = i if start is None else start
        elif start is not None:
            runs.append((start, i))
            start = None
    if start is not None:
        runs.append((start, len(classes)))
    return runs


def stands_apart(lines: Sequence[str], index: int, *, among_program: bool = True) -> bool:
    """May ``lines[index]`` be taken for the kernel's, or may the program around it have printed it?

    For a "mixed" text, or one of "prose" (then not `among_program`).

    `lines` are the physical lines around it, :data:`WINDOW` on each side where there are as many; where they end, the
    text counts as ended.
    """
    judged = [_class_of(line) for line in lines]
    classes: list[_Class] = [c for c, _ in judged]
    if not 0 <= index < len(classes) or classes[index] not in ("kernel", "bare"):
        return False
    if _wholly_wrapped(judged):
        return True
    start, end = index, index + 1
    while start and classes[start - 1] in _RUN:
        start -= 1
    while end < len(classes) and classes[end] in _RUN:
        end += 1
    return _apart(classes, start, end, among_program=among_program)


def _wholly_wrapped(judged: Sequence[tuple[_Class, bool]]) -> bool:
    """What a runtime wraps it wraps wholly: a bare kernel line among such lines was put there by a person."""
    wrapped = [enveloped for c, enveloped in judged if c in ("container", "wrapped")]
    return bool(wrapped) and all(wrapped)


def named_as_container(name: str) -> bool:
    """True for a name under which a runtime or a person keeps a container's log."""
    return name.endswith(".log") and _CONTAINER_NAME.search(name) is not None


def recognise(sample: bytes, name: str) -> Kind:
    """What the text is, judged by its first :data:`SAMPLE` bytes (UTF-8).

    `name`, the file's, breaks ties; and what is named a container's log is never taken for the kernel's.
    """
    text = sample[:SAMPLE].decode("utf-8", "replace")
    lines = text.replace("\0", "").split("\n")[:MAX_LINES]
    if len(lines) > 1 and len(sample) >= SAMPLE:
        lines.pop()  # cut in the middle
    judged = [_class_of(line) for line in lines]
    classes: list[_Class] = [c for c, _ in judged]
    count = {c: classes.count(c) for c in set(classes)}

    def of(*names: _Class) -> int:
        return sum(count.get(n, 0) for n in names)

    if of("plugin") and of("plugin") >= of("container"):
        return "device-plugin"
    kernel = of("kernel", "bare")
    wrapped = _wholly_wrapped(judged)
    own_name = name.replace("\\", "/").rsplit("/", 1)[-1]
    if kernel and not wrapped and _CONTAINER_NAME.search(name):
        return "container"
    program = bool(of("container", "wrapped"))
    runs = [run for run in _runs(classes) if _apart(classes, *run, among_program=program)]
    if program:
        return "mixed" if of("kernel") and (runs or wrapped) else "container"
    rest = of("other")
    if kernel and kernel >= rest:
        return "kernel"
    if kernel and kernel * 2 >= rest and _KERNEL_NAME.search(own_name):
        return "kernel"
    if runs:
        return "prose"
    if of("system") > rest and _KERNEL_NAME.search(own_name):
        return "kernel"
    remaining = [line for line, c in zip(lines, classes, strict=True) if c in ("other", "heading")]
    if any(_DOCUMENT.match(line) for line in remaining):
        return "other"
    return "container" if any(_ENGINE_WORDS.search(line[:4096]) for line in remaining) else "other"

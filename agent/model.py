"""The words of Faultline: frozen values that travel from detection to reports. No I/O, no clock, no decision.

Times are wall-clock seconds since the epoch (float), or None where the input carries none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NewType

PciAddress = NewType("PciAddress", str)
"""A PCI bus address ``dddd:bb:dd``: lower case, no function number. Made only by :func:`parse_pci`."""

_PCI = re.compile(r"(?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?\Z")


def parse_pci(text: str) -> PciAddress | None:
    """Normalise any spelling of a PCI address (NVML's ``00000000:65:00.0``, the kernel's ``PCI:0000:65:00``).

    Returns None for text that is no address. A domain that needs more than four digits keeps them.
    """
    found = _PCI.match(text.strip())
    if found is None:
        return None
    domain, bus, device = found.groups()
    return PciAddress(f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}")


class Component(StrEnum):
    """Whose failure it is; the closed list of the ``explain`` contract."""

    CONFIG = "config"
    IMAGE = "image"
    MODEL = "model"
    APPLICATION = "application"
    GPU = "gpu"
    FABRIC = "fabric"
    DRIVER = "driver"
    SHARING = "sharing"
    NODE = "node"
    PLACEMENT = "placement"
    REMOTE = "remote"
    KUBERNETES = "kubernetes"
    UNDECIDED = "undecided"


class Action(StrEnum):
    """What the evidence warrants, mildest first. Compare with :func:`strongest`, never with ``<``."""

    NONE = "none"
    ADVISE = "advise"
    TAINT = "taint"
    CORDON = "cordon"


def strongest(*actions: Action) -> Action:
    """The strongest of the actions given; NONE when there is none."""
    order = list(Action)
    return max(actions, key=order.index, default=Action.NONE)


class Confidence(StrEnum):
    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"
    UNDECIDED = "undecided"


class Severity(StrEnum):
    """What a kernel record says of its GPU, mildest first (the terms of ``rules/xid/catalogue.yaml``)."""

    INFO = "info"
    CONTEXT = "context"
    APP = "app"
    UNKNOWN = "unknown"
    PENDING = "pending"
    DEGRADED = "degraded"
    FATAL = "fatal"


def graver(a: Severity, b: Severity) -> Severity:
    """The graver of two severities; the first where they are equal."""
    order = list(Severity)
    return b if order.index(b) > order.index(a) else a


class Scope(StrEnum):
    """How far a fault reaches."""

    GPU = "gpu"
    FABRIC = "fabric"
    NODE = "node"


class Role(StrEnum):
    """What a rule's text contributes to the explanation of a failure."""

    CAUSE = "cause"
    """The text itself says what is wrong."""
    SYMPTOM = "symptom"
    """Something failed here; the text does not say why (error 46, an NCCL error)."""
    UNCLAIMED = "unclaimed"
    """An exception that no other rule knows. Told only where something else shows that the program ended: a server
    that goes on serving prints many."""
    ECHO = "echo"
    """The consequence of a failure elsewhere: another process, another rank."""
    CONTEXT = "context"
    """A fact about the run: version, arguments, backend, rank."""
    ADVICE = "advice"
    """Nothing failed, but it runs badly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRef:
    """What is known of one GPU; every field may be unknown. ``index`` is the CUDA index the program printed."""

    pci: PciAddress | None = None
    uuid: str | None = None
    index: int | None = None
    tp_rank: int | None = None

    @property
    def known(self) -> bool:
        """True when the GPU is named for certain: by address or UUID, not by an index."""
        return self.pci is not None or self.uuid is not None


NO_GPU = GpuRef()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRef:
    """One container of one pod. ``restart`` is the instance (the kubelet's restart counter). Offline: the file."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    restart: int = 0
    file: str = ""
    document: bool = False
    """Offline: the file is a report about the node (nvidia-smi, kubectl describe), not what a program printed."""

    @property
    def key(self) -> str:
        """Names the container whatever its restarts."""
        return self.file or f"{self.namespace}/{self.pod}/{self.uid}/{self.container}"

    def __str__(self) -> str:
        return self.file or f"{self.namespace}/{self.pod}/{self.container}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A line as it was read, redacted and shortened. ``line`` is 1-based; None for a live kernel record."""

    source: str
    text: str
    line: int | None = None
    time: float | None = None
    offset: int | None = None
    """Where the line begins in its source, while its number is not counted yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHint:
    """What one kernel record says about the hardware, already judged by the catalogue.

    ``recovery`` is the catalogue's action (``reset_gpu``, ``reboot_node``, ...); ``clears`` is true for the driver's
    word that the GPU needs nothing any more (Xid 154 to 0x0).
    """

    scope: Scope = Scope.GPU
    severity: Severity = Severity.UNKNOWN
    recovery: str = "none"
    component: Component = Component.GPU
    clears: bool = False
    verdict: bool = False
    """True for the driver's own verdict (154): it overrides the catalogue."""
    caused_by: int | None = None
    """The Xid that the line itself names as the root cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One recognised occurrence in a source.

    ``rule`` is a rule id (``cuda/device-busy``) or ``xid/<code>`` / ``sxid/<code>``. ``fields`` are what the rule
    captured, strings only, secrets removed. ``count`` is how often the same line came in one read.
    """

    rule: str
    evidence: Evidence
    role: Role = Role.CAUSE
    time: float | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    gpu: GpuRef = NO_GPU
    pid: int | None = None
    xid: int | None = None
    container: ContainerRef | None = None
    fault: FaultHint | None = None
    rank: int | None = None
    count: int = 1

    @property
    def from_kernel(self) -> bool:
        return self.container is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Which devices one container held. ``devices`` are device-plugin ids with replica suffixes removed."""

    container: ContainerRef
    devices: tuple[str, ...]
    since: float
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something wrong with a GPU, the fabric or the node that stays true until proved gone; many signals, one fault."""

    id: str
    scope: Scope
    gpu: GpuRef
    cause: str
    """Id of the rule or Xid that accuses: the gravest, not the last."""
    title: str
    severity: Severity
    recovery: str
    component: Component
    action: Action
    xids: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    signals: int = 0
    first_seen: float | None = None
    last_seen: float | None = None
    cleared: float | None = None
    driver_verdict: bool = False
    boot: str = ""
    """Boot id of the node when it was last seen; empty where it is not known."""
    over: str = ""
    """Why it was closed, where that was not the driver's own word."""
    pids: tuple[int, ...] = ()
    value: str = ""
    """What a taint for it would say: ``xid-79``, ``reset-required``."""
    why: str = ""
    fix: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    @property
    def open(self) -> bool:
        return self.cleared is None

    @property
    def accuses(self) -> bool:
        """True when new work on this GPU (or node) can be expected to fail."""
        return self.open and self.severity is Severity.FATAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A backend that failed or runs badly: the container, the signal that explains it best, and what else was seen.

    A crash loop is one failure: `count` instances (kubelet restart counters) failed the same way.
    """

    id: str
    container: ContainerRef
    primary: Signal
    signals: int = 1
    count: int = 1
    """How many instances failed this way."""
    restarts: tuple[int, ...] = (0,)
    """The last of them, bounded."""
    first_seen: float | None = None
    last_seen: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    others: tuple[Signal, ...] = ()
    """Further causes, symptoms and echoes of the same instance, in order, bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a workload: a verb of the rules' fixes (``set_flag``, ``image_tag``, ...), its object, its value.

    ``value`` is None for a switch, and where the log does not tell the value: a person must choose it then.
    """

    verb: str
    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One way out of a failure, for a person (``say``) and as data; all ``changes`` together are this one way."""

    say: str
    changes: tuple[Change, ...] = ()
    standing: Literal["measured", "documented", "untried"] = "documented"
    source: str = ""
    versions: str = ""
    """SGLang versions it holds for (PEP 440); empty: any that its failure occurs in."""
    gpu_arch: tuple[str, ...] = ()
    """GPU architectures it holds for (``sm90``, ``sm10*``); empty: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A failure with its cause, how sure we are, what was checked, the evidence, what to change."""

    id: str
    rule: str
    title: str
    component: Component
    cause: str
    confidence: Confidence
    action: Action
    why: str
    gpu: GpuRef = NO_GPU
    xids: tuple[int, ...] = ()
    fix: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    """The ways out that `fix` words, as data, in the order in which to try them; none where hardware is blamed."""
    checked: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    container: ContainerRef | None = None
    count: int = 1
    first_seen: float | None = None
    last_seen: float | None = None
    fault: str | None = None
    """Id of the fault that this verdict blames."""


Means = Literal["", "device", "node", "cordon"]
"""What keeps new work away, mildest first: nothing, one device's taint, the node's taint, that and a cordon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to change in the cluster, and why. ``action`` NONE or ADVISE changes nothing."""

    action: Action
    target: str
    why: str
    value: str = ""
    """The taint's value: ``xid-79``, ``reset-required``."""
    withheld: str = ""
    """Why the action is not carried out; empty when it is."""
    fault: str | None = None
    means: Means = ""
    """What carries it out."""

"""`python -m tests.regenerate_docs`: writes the generated parts of docs/ anew from the code. Never touches other text.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`. `tests/test_docs.py` fails when a
part differs from what the code gives.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agent.config import Key, keys
from agent.detect.recognise import recognise
from agent.explain import as_json, explain
from agent.gpus import GpuState, NodeGpus
from agent.model import ContainerRef, Evidence, Failure, PciAddress, Role, Signal
from agent.report import events, metrics
from agent.report.events import Reason, fault_reports
from agent.report.gpus import gpu_statuses
from agent.report.status import Readiness, RuleStatus, SourceStatus
from agent.respond.policy import plan_for
from agent.rulebook import load_rulebook
from agent.sources.handed import open_handed
from tests.report.report_examples import FAULT, VERDICT

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

_PART = re.compile(r"<!-- generated: (?P<name>[\w/-]+) -->\n(?P<body>.*?)<!-- end of (?P=name) -->", re.DOTALL)


class Told(NamedTuple):
    """On which object an event reason appears, and when."""

    on: str
    when: str


EVENTS: Mapping[Reason, Told] = {
    Reason.GPU_FAULT: Told(
        "Node",
        "The kernel log shows a fault of a GPU, the fabric or the node, of severity unknown, pending, degraded or "
        "fatal. Told again, with a higher count, while records go on; a new series begins when it becomes graver.",
    ),
    Reason.GPU_FAULT_CLEARED: Told(
        "Node",
        "A fault that was told is over: the driver says so (Xid 154 to 0x0), it is proved (docs/recovery.md), or a "
        "person released it.",
    ),
    Reason.GPU_FAULT_STILL_ADVERTISED: Told(
        "Node",
        "A faulted GPU is still offered to new pods, recovery.withdrawn_seconds after its fault was seen: by the "
        "kubelet's list of allocatable devices, by a ResourceSlice, or because all GPUs of the node are allocatable. "
        "Once a fault.",
    ),
    Reason.BACKEND_FAILED_ON_FAULTED_GPU: Told(
        "Pod",
        "A backend failed and a kernel record explains it: a faulted GPU, a fault of the fabric or the node, or the "
        "Xid of the program's own error. The note says which.",
    ),
    Reason.BACKEND_VALIDATION_FAILED: Told(
        "Pod", "A backend was refused for what it was given: component config, model or image."
    ),
    Reason.BACKEND_FAILED: Told("Pod", "A backend failed for another reason that its log settles or makes likely."),
    Reason.BACKEND_FAILURE_UNDECIDED: Told(
        "Pod",
        "A backend failed, and nothing seen tells the possible causes apart. Told only after the failure was held back "
        "for correlation.settle_seconds. Names no GPU.",
    ),
    Reason.SLOW_BACKEND_CONFIGURATION: Told("Pod", "A backend runs, but its log proves that it is set up badly."),
    Reason.DRIVER_TOO_OLD_FOR_IMAGE: Told(
        "Pod",
        "The image's CUDA build and the node's driver are both known, and the driver is too old for it. Nothing need "
        "have failed yet; a server that got ready takes it back.",
    ),
    Reason.NODE_TAINTED: Told("Node", "The agent put its taint on the node."),
    Reason.NODE_CORDONED: Told("Node", "The agent tainted and cordoned the node."),
    Reason.DEVICE_TAINTED: Told("Node", "The agent tainted single devices by a DeviceTaintRule."),
    Reason.MARK_REMOVED: Told("Node", "The mark of the agent is gone."),
    Reason.ACTION_WITHHELD: Told(
        "Node", "A plan is not carried out (the mode, the brake); the note says why. Not in mode observe."
    ),
    Reason.SOURCE_BLIND: Told(
        "agent's pod",
        "The kernel log or the directory of container logs cannot be read. The note says what to grant. A kubelet "
        "checkpoint that cannot be read is shown by the metric faultline_source_blind only.",
    ),
}


def events_table() -> str:
    rows = ["| Reason | Type | `action` | Object | When |", "|---|---|---|---|---|"]
    for reason in Reason:
        told = EVENTS[reason]
        kind = "Normal" if reason in events._NORMAL else "Warning"
        rows.append(f"| `{reason.value}` | {kind} | {events.DEEDS[reason]} | {told.on} | {told.when} |")
    return "\n".join(rows) + "\n"


def settings_table() -> str:
    unread = set(unread_settings())
    rows = ["| Key | Variable | Flag | Default | Meaning | Change takes effect |", "|---|---|---|---|---|---|"]
    for key in keys():
        when = "not yet in force" if key.name in unread else "on reload" if key.live else "at a restart"
        rows.append(
            f"| `{key.name}` | `{key.variable}` | `{key.flag}` | {_default(key.default)} "
            f"| {_cell(key.description)} | {when} |"
        )
    return "\n".join(rows) + "\n"


def unread_settings() -> list[str]:
    """Settings that no code reads: declared for what comes next. Found in the source, so that the page stays honest."""
    sources = [p.read_text() for p in sorted((ROOT / "agent").rglob("*.py")) if p.name != "config.py"]
    return [key.name for key in keys() if key.path[0] != "select" and not any(_reads(text, key) for text in sources)]


def _reads(text: str, key: Key) -> bool:
    *above, name = key.path
    if not above:
        return re.search(rf"ettings\.{name}\b", text) is not None
    section = ".".join(above)
    if re.search(rf"ettings\.{section}\.{name}\b", text):
        return True
    taken = re.search(rf"(?P<alias>\w+) = (?:\w+\.)*settings\.{section}\n", text)
    return taken is not None and re.search(rf"\b{taken['alias']}\.{name}\b", text) is not None


def _default(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "<br>".join(f"`{item}`" for item in value) if value else "none"
    return "empty" if value == "" else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def idle_metrics() -> str:
    """The metrics that no code sets, as a sentence; found in the source, so that the page stays honest."""
    sources = {p: p.read_text() for p in sorted((ROOT / "agent").rglob("*.py"))}
    names = {id(spec): name for name, spec in vars(metrics).items() if isinstance(spec, metrics.MetricSpec)}
    idle = [
        f"`{spec.name}`"
        for spec in metrics.METRICS
        if not any(re.search(rf"(?:\bm\.|self\.info\(){names[id(spec)]}\b", text) for text in sources.values())
    ]
    return (
        f"Declared, but not counted by this version: {', '.join(idle)}.\n" if idle else "This version sets them all.\n"
    )


# -- examples of the API, made from real values

_CONTAINER = ContainerRef(namespace="llm", pod="qwen-0", uid="u-1", container="sglang")
_FAILURE = Failure(
    id="failure-1",
    container=_CONTAINER,
    primary=Signal(
        rule="cuda/device-busy",
        role=Role.SYMPTOM,
        time=102.0,
        container=_CONTAINER,
        evidence=Evidence(source="llm/qwen-0/sglang", text="torch.AcceleratorError: CUDA error: ...", time=102.0),
    ),
    first_seen=102.0,
    last_seen=102.0,
    facts={"gpu_arch": "sm100", "tp_size": "4"},
)
_SOURCES = (
    SourceStatus(name="kernel", state="reading", how="kmsg", last_read=104.2),
    SourceStatus(
        name="logs",
        state="blind",
        why="/var/log/pods is not there",
        cure="Mount the node's /var/log/pods read-only, or set logs.root to the kubelet's podLogsDir",
    ),
)
_RULES = (
    RuleStatus(id="cuda/device-busy", title="CUDA refused a context", component="undecided", pack="cuda", hits=2),
)

_PCI = PciAddress("0000:5d:00")
_GPUS = gpu_statuses(
    {_PCI: "GPU-44444444-aaaa-bbbb-cccc-000000000005"},
    NodeGpus(
        at=104.0,
        gpus=(
            GpuState(
                pci=_PCI,
                uuid="GPU-44444444-aaaa-bbbb-cccc-000000000005",
                model="NVIDIA H200",
                recovery_action=1,
                nvlinks={0: True},
                unknown={"retired_pages": "Not Supported"},
            ),
        ),
    ),
)


def _list(kind: str, *items: object) -> str:
    return _json({"apiVersion": "faultline.dev/v1", "kind": kind, "items": items})


def _ready() -> str:
    readiness = Readiness(reasons=("logs: /var/log/pods is not there",))
    return _json({"ready": readiness.ready, "reasons": readiness.reasons, "sources": _SOURCES})


_POD = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
_DMESG = "[  100.500000] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
_REFUSED = (
    "ValueError: --linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16, got None\n"
)


def explained(**texts: str) -> dict[str, Any]:
    """The contract of `explain --format json` on texts by file name (without `.log`)."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in texts.items():
            Path(f"{name}.log").write_text(text)
        inputs = open_handed([f"{name}.log" for name in texts], stdin=io.BytesIO(), recognise=recognise)
        document: dict[str, Any] = json.loads(as_json(explain(inputs, load_rulebook())))
    return document


def refused_document() -> dict[str, Any]:
    """A verdict whose remedies hold changes."""
    return explained(refused=_REFUSED)


def _json(value: object) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return f"```json\n{text}\n```\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "metrics": metrics.docs_table,
    "metrics/idle": idle_metrics,
    "settings": settings_table,
    "events": events_table,
    "api/readyz": _ready,
    "api/faults": lambda: _list("FaultList", FAULT),
    "api/failures": lambda: _list("FailureList", _FAILURE),
    "api/verdicts": lambda: _list("VerdictList", VERDICT),
    "api/plans": lambda: _list("PlanList", plan_for(FAULT, mode="observe", node="gpu-1")),
    "api/events": lambda: _list("EventList", *fault_reports(None, FAULT, node="gpu-1")),
    "api/sources": lambda: _list("SourceList", *_SOURCES),
    "api/rules": lambda: _list("RuleList", *_RULES),
    "api/gpus": lambda: _list("GpuList", *_GPUS),
    "explain": lambda: _json(explained(pod=_POD, dmesg=_DMESG)),
    "explain/remedy": lambda: _json(refused_document()["verdicts"][0]["remedies"][0]),
}


def regenerated(text: str, *, used: set[str] | None = None) -> str:
    """The page with every generated part as the code gives it now; the names of the parts go to `used`."""

    def part(found: re.Match[str]) -> str:
        name = found["name"]
        if used is not None:
            used.add(name)
        return f"<!-- generated: {name} -->\n{PARTS[name]()}<!-- end of {name} -->"

    return _PART.sub(part, text)


def main() -> int:
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text()
        after = regenerated(before)
        if after != before:
            page.write_text(after)
            print(f"{page.relative_to(ROOT)}: written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Every metric of the agent in one catalogue, and the registry made from it. Counts what it is told; measures nothing.

Label values come from closed lists, or from lists that grow only by `allow` (rule files, the Xid catalogue) up to a
bound: whatever a log says, the number of series is known in advance. Series of closed lists exist at zero from the
start, so that the first increase is seen; series of growing lists appear when first met, since hundreds of zeros on
thousands of nodes would cost more than they tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest
from prometheus_client.registry import Collector

from agent.model import Action, Component, Confidence, Scope, Severity
from agent.report.events import Reason

PREFIX = "faultline_"

OTHER = "other"
"""What a value that is on no list is counted as."""

SOURCES = ("kernel", "logs", "kubelet", "servers", "pods", "cluster", "nvml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A label with its closed list of values; without one, with the bound of a list that grows by `allow`."""

    name: str
    values: tuple[str, ...] = ()
    bound: int = 0

    @property
    def closed(self) -> bool:
        return bool(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric: its exposed name, the unit of its value, and what it means to its reader."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    meaning: str
    unit: Literal["", "seconds", "bytes"] = ""
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> int:
        """The most label sets that this metric can have."""
        count = 1
        for label in self.labels:
            count *= len(label.values) or label.bound + 1
        return count


_SOURCE = Label(name="source", values=SOURCES)
_SEVERITY = Label(name="severity", values=tuple(Severity))
_SCOPE = Label(name="scope", values=tuple(Scope))
_COMPONENT = Label(name="component", values=tuple(Component))
_CONFIDENCE = Label(name="confidence", values=tuple(Confidence))
RULE = Label(name="rule", bound=1000)
XID = Label(name="xid", bound=300)
PACK = Label(name="pack", bound=50)

BUILD = MetricSpec(
    name="faultline_build_info", kind="info", meaning="The version that runs.",
    labels=(Label(name="version", bound=1),),
)  # fmt: skip
CONFIG = MetricSpec(
    name="faultline_config_info", kind="info",
    meaning="Settings that change what the agent may do or believe. accept_user_records must be false in production: "
    "with it any root process can accuse a GPU.",
    labels=(
        Label(name="mode", values=("observe", "device", "taint", "cordon")),
        Label(name="accept_user_records", values=("false", "true")),
    ),
)  # fmt: skip
SIGNALS = MetricSpec(
    name="faultline_signals_total", kind="counter", meaning="Recognised occurrences, repeats included.",
    labels=(_SOURCE,),
)  # fmt: skip
RULE_SIGNALS = MetricSpec(
    name="faultline_rule_signals_total", kind="counter", meaning="Recognised occurrences by the rule that knew them.",
    labels=(RULE,),
)  # fmt: skip
XID_RECORDS = MetricSpec(
    name="faultline_xid_records_total", kind="counter",
    meaning="Xid records of the kernel log. A code that the catalogue does not hold counts as other.",
    labels=(XID,),
)  # fmt: skip
SIGNALS_SUPPRESSED = MetricSpec(
    name="faultline_signals_suppressed_total",
    kind="counter",
    meaning="Occurrences counted with an earlier one of the same container, instead of being followed up again.",
)
FAULTS_OPEN = MetricSpec(
    name="faultline_faults_open", kind="gauge", meaning="Faults that are open now.", labels=(_SEVERITY, _SCOPE)
)
FAULTS_TOTAL = MetricSpec(
    name="faultline_faults_total", kind="counter", meaning="Faults found, each once however many records it has.",
    labels=(_SEVERITY, _SCOPE),
)  # fmt: skip
FAILURES = MetricSpec(
    name="faultline_failures_total", kind="counter",
    meaning="Failures of backends, by whose they are and how sure that is.", labels=(_COMPONENT, _CONFIDENCE),
)  # fmt: skip
VERDICTS = MetricSpec(
    name="faultline_verdicts", kind="gauge", meaning="Verdicts that are kept now.", labels=(_CONFIDENCE,)
)
PLANS = MetricSpec(
    name="faultline_plans", kind="gauge", meaning="Plans that hold now, by what they ask for.",
    labels=(Label(name="action", values=tuple(Action)),),
)  # fmt: skip
PLANS_WITHHELD = MetricSpec(
    name="faultline_plans_withheld",
    kind="gauge",
    meaning="Plans that ask for a change which is not carried out (the mode forbids it, or a brake holds it).",
)
SOURCE_LAST_READ = MetricSpec(
    name="faultline_source_last_read_timestamp_seconds", kind="gauge", unit="seconds",
    meaning="When the source was last read to its end, in seconds since the epoch; 0: never.", labels=(_SOURCE,),
)  # fmt: skip
SOURCE_LOST = MetricSpec(
    name="faultline_source_lost_records_total", kind="counter",
    meaning="Records or lines that were overwritten or removed before they could be read.", labels=(_SOURCE,),
)  # fmt: skip
SOURCE_ERRORS = MetricSpec(
    name="faultline_source_errors_total", kind="counter", meaning="Failed reads and malformed records.",
    labels=(_SOURCE,),
)  # fmt: skip
SOURCE_BLIND = MetricSpec(
    name="faultline_source_blind", kind="gauge",
    meaning="1 while the source cannot be read: what only it shows is not seen, and its silence is no health.",
    labels=(_SOURCE,),
)  # fmt: skip
KERNEL_FOREIGN = MetricSpec(
    name="faultline_kernel_foreign_records_total",
    kind="counter",
    meaning="Kernel-log records that programs wrote there (facility other than 0). They accuse no GPU.",
)
GPUS = MetricSpec(
    name="faultline_gpus", kind="gauge",
    meaning="GPUs by what NVML says of them: nothing against them, something, or that they do not answer.",
    labels=(Label(name="state", values=("ok", "unwell", "lost")),),
)  # fmt: skip
NVML_HANGS = MetricSpec(
    name="faultline_nvml_hangs_total",
    kind="counter",
    meaning="Times that NVML did not answer in time and the process that asked it was replaced.",
)
NVML_STUCK = MetricSpec(
    name="faultline_nvml_stuck_processes",
    kind="gauge",
    meaning="Processes that asked NVML and cannot be killed: the driver holds them.",
)
LOG_BYTES = MetricSpec(
    name="faultline_log_read_bytes_total", kind="counter", unit="bytes", meaning="Bytes read from container logs."
)
LOG_FILES = MetricSpec(name="faultline_log_followed_files", kind="gauge", meaning="Container log files followed now.")
CAPTURE_TIMEOUTS = MetricSpec(
    name="faultline_capture_timeouts_total",
    kind="counter",
    meaning="Lines given up because a rule's expression took too long on them.",
)
RULES_LOADED = MetricSpec(
    name="faultline_rules_loaded", kind="gauge", meaning="Rules in force, by rule pack.", labels=(PACK,)
)
RULES_RELOAD_ERRORS = MetricSpec(
    name="faultline_rules_reload_errors_total",
    kind="counter",
    meaning="Reloads refused because of a mistake in a rule file; the rules before it stayed in force.",
)
INTERNAL_ERRORS = MetricSpec(
    name="faultline_internal_errors_total", kind="counter",
    meaning="Batches that were given up because of a mistake of the agent's own; the agent's log has the traceback. "
    "Anything above 0 is a bug worth reporting.",
    labels=(_SOURCE,),
)  # fmt: skip
STORE_ERRORS = MetricSpec(
    name="faultline_store_errors_total", kind="counter", meaning="Writes of the durable state that failed."
)
STORE_DURABLE = MetricSpec(
    name="faultline_store_durable",
    kind="gauge",
    meaning="1 while everything found is on disk. At 0 a restart may report it again.",
)
STORE_PENDING = MetricSpec(
    name="faultline_store_pending_changes", kind="gauge", meaning="Changes that wait in memory for the disk."
)
STORE_DROPPED = MetricSpec(
    name="faultline_store_dropped_changes_total",
    kind="counter",
    meaning="Changes given up before the disk took them, because too many waited.",
)
EVENTS = MetricSpec(
    name="faultline_events_total", kind="counter", meaning="Events told, new series and repeats, by reason.",
    labels=(Label(name="reason", values=tuple(Reason)),),
)  # fmt: skip
EVENTS_PENDING = MetricSpec(
    name="faultline_events_pending", kind="gauge",
    meaning="Event series that wait for the API server, those that wait for their next count included.",
)  # fmt: skip
EVENTS_DROPPED = MetricSpec(
    name="faultline_events_dropped_total", kind="counter",
    meaning="Events that the API server refused for good, or that were one too many waiting.",
)  # fmt: skip
MARK = MetricSpec(
    name="faultline_mark", kind="gauge", labels=(Label(name="means", values=("device", "node", "cordon")),),
    meaning="1 for the mark that this node carries now: a device's taint, the node's taint, that and a cordon.",
)  # fmt: skip
API_REQUESTS = MetricSpec(
    name="faultline_api_requests_total", kind="counter",
    meaning="Requests to the API server by HTTP method and outcome; a watch counts when it ends.",
    labels=(
        Label(name="method", values=("GET", "POST", "PATCH", "DELETE")),
        Label(name="outcome", values=("2xx", "3xx", "4xx", "5xx", "unreachable")),
    ),
)  # fmt: skip
DETECTION = MetricSpec(
    name="faultline_detection_seconds", kind="histogram", unit="seconds",
    meaning="From a kernel record's own time, or from reading a log line, until its signal is known.",
    labels=(Label(name="source", values=("kernel", "logs")),),
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)  # fmt: skip

METRICS: tuple[MetricSpec, ...] = (
    BUILD, CONFIG, SIGNALS, RULE_SIGNALS, XID_RECORDS, SIGNALS_SUPPRESSED, FAULTS_OPEN, FAULTS_TOTAL, FAILURES,
    VERDICTS, PLANS, PLANS_WITHHELD, SOURCE_LAST_READ, SOURCE_LOST, SOURCE_ERRORS, SOURCE_BLIND, KERNEL_FOREIGN,
    GPUS, NVML_HANGS, NVML_STUCK, LOG_BYTES, LOG_FILES, CAPTURE_TIMEOUTS, RULES_LOADED, RULES_RELOAD_ERRORS,
    INTERNAL_ERRORS, STORE_ERRORS, STORE_DURABLE,
    STORE_PENDING, STORE_DROPPED, EVENTS, EVENTS_PENDING, EVENTS_DROPPED, MARK, API_REQUESTS, DETECTION,
)  # fmt: skip


class Metrics:
    """The metrics of one agent, in a registry of its own. Methods take a spec of the catalogue and its labels.

    A label value that is not allowed counts as `other`; a label name that the spec does not have is a mistake in the
    caller and raises ValueError.
    """

    def __init__(self, registry: CollectorRegistry, *, version: str, process: bool = False) -> None:
        """`process` adds the usual `process_*` metrics (CPU, memory, open files) of this process."""
        self._registry = registry
        self._made: dict[str, Counter | Gauge | Histogram | Info] = {}
        self._allowed: dict[str, dict[str, None]] = {}
        self._totals: dict[tuple[str, tuple[str, ...]], float] = {}
        for spec in METRICS:
            self._made[spec.name] = metric = _make(spec, registry)
            if isinstance(metric, Info) or not all(label.closed for label in spec.labels):
                continue
            for values in itertools.product(*(label.values for label in spec.labels)):
                if values:
                    metric.labels(*values)
        self.allow(BUILD.labels[0], [version])
        self.info(BUILD, version=version)
        if process:
            ProcessCollector(registry=registry)

    def allow(self, label: Label, values: Iterable[str]) -> None:
        """Let a growing label take these values, up to its bound; what is beyond it counts as `other`."""
        allowed = self._allowed.setdefault(label.name, {})
        for value in values:
            if len(allowed) >= label.bound:
                break
            allowed[value] = None

    def add(self, spec: MetricSpec, amount: float = 1, **labels: str) -> None:
        """Raise a counter."""
        child = self._child(spec, labels)
        assert isinstance(child, Counter), f"{spec.name} is no counter"
        child.inc(amount)

    def total(self, spec: MetricSpec, value: float, **labels: str) -> None:
        """Bring a counter up to a figure that someone else counts. A lower figure is a count begun anew."""
        key = spec.name, self._values(spec, labels)
        last = self._totals.get(key, 0.0)
        self._totals[key] = value
        self.add(spec, value - last if value >= last else value, **labels)

    def set(self, spec: MetricSpec, value: float, **labels: str) -> None:
        child = self._child(spec, labels)
        assert isinstance(child, Gauge), f"{spec.name} is no gauge"
        child.set(value)

    def replace(self, spec: MetricSpec, values: Mapping[tuple[str, ...], float]) -> None:
        """Set a gauge as a whole: label values (in the spec's order) to value. Closed label sets that are missing
        become 0, others disappear."""
        metric = self._made[spec.name]
        assert isinstance(metric, Gauge), f"{spec.name} is no gauge"
        summed: dict[tuple[str, ...], float] = {}
        for given, value in values.items():
            key = self._values(spec, dict(zip((label.name for label in spec.labels), given, strict=True)))
            summed[key] = summed.get(key, 0) + value
        if all(label.closed for label in spec.labels):
            for key in itertools.product(*(label.values for label in spec.labels)):
                summed.setdefault(tuple(map(str, key)), 0)
        metric.clear()
        for key, value in summed.items():
            metric.labels(*key).set(value)

    def observe(self, spec: MetricSpec, value: float, **labels: str) -> None:
        """Add one measurement to a histogram. A negative one (the clock was set back) counts as 0."""
        child = self._child(spec, labels)
        assert isinstance(child, Histogram), f"{spec.name} is no histogram"
        child.observe(max(value, 0.0))

    def info(self, spec: MetricSpec, **labels: str) -> None:
        metric = self._made[spec.name]
        assert isinstance(metric, Info), f"{spec.name} is no info"
        values = self._values(spec, labels)
        metric.info({label.name: value for label, value in zip(spec.labels, values, strict=True)})

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The body and content type that an Accept header asks for: OpenMetrics when asked, else the text format."""
        lean = _WithoutCreated(self._registry)
        try:
            encode, kind = choose_encoder(accept)
            return encode(lean), kind
        except (ValueError, TypeError, IndexError):  # a header that makes no sense gets what everyone reads
            return generate_latest(lean), CONTENT_TYPE_LATEST

    def samples(self) -> dict[str, float]:
        """Every sample of ours by name and labels, for a comparison of two moments."""
        found: dict[str, float] = {}
        for family in _WithoutCreated(self._registry).collect():
            for sample in family.samples:
                if sample.name.startswith(PREFIX):
                    labels = ",".join(f'{k}="{v}"' for k, v in sample.labels.items())
                    found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def _child(self, spec: MetricSpec, labels: Mapping[str, str]) -> Counter | Gauge | Histogram | Info:
        metric = self._made[spec.name]
        values = self._values(spec, labels)
        return metric.labels(*values) if values else metric

    def _values(self, spec: MetricSpec, labels: Mapping[str, str]) -> tuple[str, ...]:
        if len(labels) != len(spec.labels):
            raise ValueError(f"{spec.name} has the labels {[label.name for label in spec.labels]}, not {list(labels)}")
        values = []
        for label in spec.labels:
            if label.name not in labels:
                raise ValueError(f"{spec.name} needs the label {label.name}")
            value = str(labels[label.name])
            allowed = label.values if label.closed else self._allowed.get(label.name, {})
            values.append(value if value in allowed else OTHER)
        return tuple(values)


class _WithoutCreated(Collector):
    """A registry without the `_created` samples, which would double the number of series for nothing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


def _make(spec: MetricSpec, registry: CollectorRegistry) -> Counter | Gauge | Histogram | Info:
    names = [label.name for label in spec.labels]
    match spec.kind:
        case "counter":
            return Counter(spec.name, spec.meaning, names, unit=spec.unit, registry=registry)
        case "gauge":
            return Gauge(spec.name, spec.meaning, names, unit=spec.unit, registry=registry)
        case "histogram":
            return Histogram(spec.name, spec.meaning, names, unit=spec.unit, buckets=spec.buckets, registry=registry)
        case "info":
            return Info(spec.name.removesuffix("_info"), spec.meaning, registry=registry)


def docs_table() -> str:
    """The catalogue as a Markdown table, for the documentation."""
    rows = ["| Metric | Type | Unit | Labels | Most series | Meaning |", "|---|---|---|---|---|---|"]
    for spec in METRICS:
        labels = "<br>".join(_label_words(label) for label in spec.labels) or "-"
        rows.append(f"| `{spec.name}` | {spec.kind} | {spec.unit or '-'} | {labels} | {spec.series} | {spec.meaning} |")
    return "\n".join(rows) + "\n"


def _label_words(label: Label) -> str:
    if label.closed:
        return f"`{label.name}`: {', '.join(label.values)}"
    return f"`{label.name}`: up to {label.bound}" + (f", else {OTHER}" if label.bound > 1 else "")

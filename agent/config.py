"""Settings of the agent: file, environment and flags in, one checked frozen value out. Never acts on a setting.

Each setting is declared once, with its type, default, limits and description; the environment variable, the flag, the
table of ``faultline config`` and the text of an error all come from that one declaration.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from agent.detect.rules import RuleError, load_document
from agent.model import ContainerRef

DEFAULT_FILE = Path("/etc/faultline/config.yaml")
"""Read when it exists and no other file is named."""

PREFIX = "FAULTLINE_"

_NOT_SETTINGS = frozenset({"FAULTLINE_CONFIG"})
"""Variables of ours that name no setting: the settings file itself."""

_LIVE: dict[str, Any] = {"live": True}
"""Marks a setting that a reload applies; the others hold what was opened with them (a socket, a file, a cursor)."""


class ConfigError(ValueError):
    """Settings that cannot be used. The text names the file, line and key, or the variable or flag."""

    def __init__(self, where: str, why: str, *, key: str = "") -> None:
        self.where, self.key, self.why = where, key, why
        super().__init__(": ".join(part for part in (where, key, why) if part))


class Choice(StrEnum):
    """What the operator's selection says of one container."""

    FOLLOW = "follow"
    BY_CONTENT = "by-content"
    """Read it until its text shows what it runs."""
    IGNORE = "ignore"


Globs = tuple[Annotated[str, Meta(min_length=1)], ...]
Labels = tuple[Annotated[str, Meta(pattern=r"^[^=,\s]+(=[^=,\s]*)?$")], ...]
Seconds = Annotated[float, Meta(ge=0)]


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    address: Annotated[str, Meta(description="Address to listen on; empty: every address, IPv4 and IPv6.")] = ""
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of metrics, health, API and status page; 0: any free port.")
    ] = 9753


class KernelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    path: Annotated[
        str, Meta(min_length=1, description="Kernel log device; where it is refused, syslog(2) is used.")
    ] = "/dev/kmsg"
    interval: Annotated[
        float,
        Meta(ge=0.05, le=60, description="Seconds between two reads through syslog(2), which cannot be waited on."),
    ] = 1.0
    accept_user_records: Annotated[
        bool,
        Meta(
            description="Believe records that programs wrote to the kernel log (facility other than 0). For tests and "
            "demonstrations only: any root process could then accuse a GPU. Shown in the metrics."
        ),
    ] = False


class LogsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    root: Annotated[str, Meta(min_length=1, description="Directory of the pods' logs (the kubelet's podLogsDir).")] = (
        "/var/log/pods"
    )
    back_read_bytes: Annotated[
        int, Meta(ge=0, description="How much of a log that was there before the agent is read, from its end.")
    ] = 256 * 1024
    poll_interval: Annotated[
        float, Meta(ge=0.1, le=300, description="Seconds between looks at the files where inotify is not available.")
    ] = 1.0
    grace_seconds: Annotated[
        float, Meta(ge=0, le=300, description="How long a rotated file is read on when its end was not seen.")
    ] = 2.0


class SelectSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which containers' logs are read. Globs are case-sensitive and match the whole name."""

    containers: Annotated[Globs, Meta(description="Globs of container names to read.", extra=_LIVE)] = (
        "sglang",
        "sglang-*",
    )
    images: Annotated[
        Globs, Meta(description="Globs of images to read, held against the image where it is known.", extra=_LIVE)
    ] = ("*sglang*",)
    labels: Annotated[
        Labels,
        Meta(
            description="Pod labels to read, `key` or `key=value`; one match is enough. Used once labels are known.",
            extra=_LIVE,
        ),
    ] = (
        "inference.llmkube.dev/runtime=sglang",
        "engine=sglang",
        "app.kubernetes.io/name=sglang",
        "app.kubernetes.io/component=sglang",
    )
    namespaces: Annotated[
        Globs, Meta(description="Globs of namespaces to read; empty: every namespace.", extra=_LIVE)
    ] = ()
    exclude_namespaces: Annotated[
        Globs, Meta(description="Globs of namespaces never to read; wins over everything else.", extra=_LIVE)
    ] = ()
    exclude_containers: Annotated[Globs, Meta(description="Globs of container names never to read.", extra=_LIVE)] = (
        "istio-proxy",
        "linkerd-proxy",
    )
    exclude_images: Annotated[
        Globs, Meta(description="Globs of images never to read: a router holds no GPU.", extra=_LIVE)
    ] = ("*sglang-router*",)
    content: Annotated[
        bool, Meta(description="Recognise other containers that run SGLang by what they print.", extra=_LIVE)
    ] = True
    all: Annotated[bool, Meta(description="Read every container that is not excluded.", extra=_LIVE)] = False

    def excludes(self, container: ContainerRef, *, image: str = "") -> bool:
        """Whether the operator rules this container out, whatever else says that it runs SGLang."""
        return (
            _any_glob(self.exclude_namespaces, container.namespace)
            or _any_glob(self.exclude_containers, container.container)
            or (bool(self.namespaces) and not _any_glob(self.namespaces, container.namespace))
            or (image != "" and _any_glob(self.exclude_images, image))
        )

    def choose(self, container: ContainerRef, *, image: str = "", labels: Mapping[str, str] | None = None) -> Choice:
        """What is to be done with one container; ``image`` and ``labels`` are empty while they are not known."""
        if self.excludes(container, image=image):
            return Choice.IGNORE
        if (
            self.all
            or _any_glob(self.containers, container.container)
            or (image and _any_glob(self.images, image))
            or (labels and any(_has_label(labels, wanted) for wanted in self.labels))
        ):
            return Choice.FOLLOW
        return Choice.BY_CONTENT if self.content else Choice.IGNORE


def _any_glob(globs: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _has_label(labels: Mapping[str, str], wanted: str) -> bool:
    key, equals, value = wanted.partition("=")
    return key in labels and (not equals or labels[key] == value)


class KubeletSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    checkpoint: Annotated[
        str, Meta(description="The kubelet's record of which container holds which device; empty: not read.")
    ] = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    pods: Annotated[
        str,
        Meta(
            description="The kubelet's directory of pods, where each pod's address is found; empty: no server is asked."
        ),
    ] = "/var/lib/kubelet/pods"

    pod_resources: Annotated[
        str, Meta(description="The kubelet's PodResources socket, which says who holds which device; empty: not asked.")
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    pods_api: Annotated[
        str,
        Meta(description="The kubelet's Pods API socket; where it is not served the API server is watched instead."),
    ] = "/var/lib/kubelet/pods-api/pods-api.sock"


class GpusSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    proc: Annotated[str, Meta(description="Directory of the driver's own files; empty: not read.")] = (
        "/proc/driver/nvidia"
    )
    nvml: Annotated[
        bool, Meta(description="Ask NVML for the GPUs' health, in a process of its own, where its library is there.")
    ] = True
    nvml_seconds: Annotated[float, Meta(ge=5, description="How often NVML is asked.", extra=_LIVE)] = 60.0


class SglangSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Asking a running server what it runs: GET only, without a credential, at its pod's address."""

    ask: Annotated[
        bool, Meta(description="Ask servers that got ready for /server_info, once, and for /metrics now and then.")
    ] = True
    timeout_seconds: Annotated[
        float,
        Meta(ge=0.1, le=60, description="How long one request to a server may take, from connection to last byte."),
    ] = 3.0
    port: Annotated[
        int, Meta(ge=1, le=65535, description="Port that a server is asked at when its log does not tell one.")
    ] = 30000
    metrics_seconds: Annotated[
        Seconds, Meta(description="Seconds between two looks at a server's /metrics; 0: one look, when it got ready.")
    ] = 300.0


class CorrelationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    window_seconds: Annotated[
        Seconds, Meta(description="How far apart a failure and the fault that explains it may lie.", extra=_LIVE)
    ] = 120.0
    settle_seconds: Annotated[
        Seconds,
        Meta(description="How long a failure is held back for a kernel record that comes late.", extra=_LIVE),
    ] = 10.0


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The API server: who the agent is, and what it tells there."""

    kubeconfig: Annotated[
        str,
        Meta(description="Kubeconfig to log in with; empty: the pod's service account, and no cluster without one."),
    ] = ""
    context: Annotated[str, Meta(description="Context of the kubeconfig; empty: its current one.")] = ""
    deadline_seconds: Annotated[
        float, Meta(ge=0.5, le=60, description="How long one request to the API server may take.")
    ] = 10.0
    heartbeat_seconds: Annotated[
        float, Meta(ge=300, description="How often the condition GpuFault is refreshed while nothing changes.")
    ] = 1800.0
    events: Annotated[bool, Meta(description="Write Kubernetes Events.", extra=_LIVE)] = True
    pod_name: Annotated[str, Meta(description="Name of the agent's own pod (downward API), for events about it.")] = ""
    pod_namespace: Annotated[str, Meta(description="Namespace of the agent's own pod (downward API).")] = ""
    pod_uid: Annotated[str, Meta(description="UID of the agent's own pod (downward API).")] = ""


class BrakeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many nodes of the cluster may be marked at once. It never stops a release."""

    max_marked: Annotated[
        str,
        Meta(
            pattern=r"^([1-9][0-9]{0,5}|([1-9][0-9]?|100)%)$",
            description="Nodes that may carry a mark at once: a number, or a share of the GPU nodes (`10%`; 1 always).",
            extra=_LIVE,
        ),
    ] = "10%"
    gpu_nodes: Annotated[
        str, Meta(min_length=1, description="Label selector of the cluster's GPU nodes, for a share.", extra=_LIVE)
    ] = "nvidia.com/gpu.present=true"


class RecoverySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a mark is taken back: see docs/recovery.md."""

    hold_seconds: Annotated[
        Seconds, Meta(description="How long a GPU must stay without a new fault before its mark falls.", extra=_LIVE)
    ] = 600.0
    hold_limit_seconds: Annotated[
        Seconds, Meta(description="Longest hold: each fault that comes back doubles it up to this.", extra=_LIVE)
    ] = 86400.0
    withdrawn_seconds: Annotated[
        Seconds,
        Meta(
            description="How long a GPU must be withdrawn by its device plugin before the node's taint falls for it.",
            extra=_LIVE,
        ),
    ] = 60.0
    probe: Annotated[
        bool,
        Meta(
            description="As the last proof, make a CUDA context on a GPU that nobody uses: some 500 MiB of it for "
            "under a second. Needs NVML and CUDA's driver library in the container.",
        ),
    ] = False


class DraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    driver: Annotated[str, Meta(min_length=1, description="DRA driver whose devices are GPUs of this node.")] = (
        "gpu.nvidia.com"
    )


class LimitsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    retention_seconds: Annotated[
        Seconds, Meta(description="How long cleared faults, failures and events are kept across restarts.")
    ] = 7 * 86400.0
    store_bytes: Annotated[
        int, Meta(ge=1 << 20, description="Largest size of the state file; beyond it nothing new is kept on disk.")
    ] = 64 << 20


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: Annotated[
        Literal["text", "json"], Meta(description="Form of the agent's own log on standard error.", extra=_LIVE)
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least level that is logged.", extra=_LIVE)
    ] = "info"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set, with its default."""

    node_name: Annotated[
        str, Meta(max_length=253, description="Name of this node in the cluster; empty: the machine's host name.")
    ] = ""
    mode: Annotated[
        Literal["observe", "device", "taint", "cordon"],
        Meta(description="The most that may be changed in the cluster; each mode allows those before it.", extra=_LIVE),
    ] = "observe"
    state_dir: Annotated[
        str, Meta(description="Directory of the durable state; empty: memory only, a restart reads everything again.")
    ] = "/var/lib/faultline"
    rules_dirs: Annotated[
        Globs, Meta(description="More directories of rule files; a rule of the same id replaces ours.", extra=_LIVE)
    ] = ()
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    kernel: KernelSettings = msgspec.field(default_factory=KernelSettings)
    logs: LogsSettings = msgspec.field(default_factory=LogsSettings)
    select: SelectSettings = msgspec.field(default_factory=SelectSettings)
    kubelet: KubeletSettings = msgspec.field(default_factory=KubeletSettings)
    gpus: GpusSettings = msgspec.field(default_factory=GpusSettings)
    sglang: SglangSettings = msgspec.field(default_factory=SglangSettings)
    correlation: CorrelationSettings = msgspec.field(default_factory=CorrelationSettings)
    cluster: ClusterSettings = msgspec.field(default_factory=ClusterSettings)
    brake: BrakeSettings = msgspec.field(default_factory=BrakeSettings)
    recovery: RecoverySettings = msgspec.field(default_factory=RecoverySettings)
    dra: DraSettings = msgspec.field(default_factory=DraSettings)
    limits: LimitsSettings = msgspec.field(default_factory=LimitsSettings)
    log: LogSettings = msgspec.field(default_factory=LogSettings)


Origin = Literal["default", "file", "environment", "flag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting as it is declared. ``live`` is true when a reload applies a new value."""

    path: tuple[str, ...]
    type: Any
    default: object
    description: str
    live: bool

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return PREFIX + "_".join(self.path).upper()

    @property
    def flag(self) -> str:
        return "--" + "-".join(self.path).replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings, with the place that each value which is no default came from."""

    settings: Settings
    origins: Mapping[str, Origin] = field(default_factory=dict)
    file: Path | None = None


class SettingRow(NamedTuple):
    """One row of ``faultline config``."""

    key: str
    value: object
    default: object
    origin: Origin
    description: str
    variable: str
    flag: str
    live: bool


@cache
def keys() -> tuple[Key, ...]:
    """Every setting, in the order of declaration."""
    return tuple(_keys(Settings, ()))


def _keys(kind: type[msgspec.Struct], above: tuple[str, ...]) -> Iterator[Key]:
    for info in msgspec.structs.fields(kind):
        if isinstance(info.type, type) and issubclass(info.type, msgspec.Struct):
            yield from _keys(info.type, (*above, info.name))
            continue
        # The outermost Meta is ours: an alias (Seconds) may carry its own, which msgspec merges before it.
        metas = [m for m in getattr(info.type, "__metadata__", ()) if isinstance(m, Meta)]
        described = next((m for m in reversed(metas) if m.description), Meta())
        yield Key(
            path=(*above, info.name),
            type=info.type,
            default=info.default,
            description=described.description or "",
            live=bool((described.extra or {}).get("live")),
        )


def load_settings(
    file: Path | None = None, *, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> Loaded:
    """The settings in force: defaults, then the file, then the environment, then ``overrides`` (flags, by key).

    An override of None counts as not given. Raises ConfigError.
    """
    raw: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    text = b""
    if file is not None:
        text = _read(file)
        raw = _from_file(text, file=str(file))
        origins |= {key.name: "file" for key in keys() if _get(raw, key.path) is not None}
    for key, value, where in _from_environment(environ):
        _set(raw, key.path, _convert(key, value, where=where))
        origins[key.name] = "environment"
    for name, given in (overrides or {}).items():
        if given is None:
            continue
        key = _key_named(name)
        _set(raw, key.path, _convert(key, given, where=key.flag))
        origins[name] = "flag"
    settings = msgspec.convert(raw, Settings)
    for names, why in _contradictions(settings):
        name = next((n for n in names if n in origins), names[0])
        raise ConfigError(_place(name, origins, file), why, key=name)
    return Loaded(settings=settings, origins=origins, file=file)


def describe(loaded: Loaded) -> list[SettingRow]:
    """One row a setting, from the declarations."""
    return [
        SettingRow(
            key=key.name,
            value=_value(loaded.settings, key),
            default=key.default,
            origin=loaded.origins.get(key.name, "default"),
            description=key.description,
            variable=key.variable,
            flag=key.flag,
            live=key.live,
        )
        for key in keys()
    ]


def changed(old: Settings, new: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys that differ: those that a reload applies, and those that need a restart."""
    differ = [key for key in keys() if _value(old, key) != _value(new, key)]
    return tuple(k.name for k in differ if k.live), tuple(k.name for k in differ if not k.live)


def _value(settings: Settings, key: Key) -> object:
    value: object = settings
    for part in key.path:
        value = getattr(value, part)
    return value


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {os.strerror(error.errno or 0)}") from None


def _from_file(text: bytes, *, file: str) -> dict[str, Any]:
    try:
        if load_document(text, object, file=file) is None:  # an empty file, or nothing but comments
            return {}
        load_document(text, Settings, file=file)
        return load_document(text, dict[str, Any], file=file)
    except RuleError as error:
        where = f"{error.file}:{error.line}" if error.line else error.file
        raise ConfigError(where, _hint(error.why, error.key), key=error.key) from None


def _hint(why: str, key: str) -> str:
    if "unknown field" not in why:
        return why
    near = difflib.get_close_matches(key, [k.name for k in keys()], n=1)
    return "no such setting" + (f"; did you mean {near[0]}?" if near else "")


_SERVICE_LINK = re.compile(r"_SERVICE_(?:HOST|PORT(?:_\w+)?)\Z|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?\Z")
_SERVICE_URL = re.compile(r"(?:tcp|udp|sctp)://")


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[Key, str, str]]:
    known = {key.variable: key for key in keys()}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in _NOT_SETTINGS:
            continue
        value = environ[name]
        # A Service called `faultline` or `faultline-http` makes the kubelet set FAULTLINE_PORT, FAULTLINE_HTTP_PORT
        # and more in every pod of the namespace. They look like settings and are none.
        if _SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_URL.match(value)):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(name, "no such setting" + (f"; did you mean {near[0]}?" if near else ""))
        yield known[name], value, name


def _key_named(name: str) -> Key:
    for key in keys():
        if key.name == name:
            return key
    raise ConfigError(name, "no such setting")


def _convert(key: Key, value: object, *, where: str) -> object:
    """A value as text (environment) or already typed (a flag), checked. Lists as text are comma-separated or JSON."""
    given = value
    if isinstance(value, str) and _is_list(key.type):
        if value.lstrip().startswith("["):
            try:
                given = msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise ConfigError(where, f"not a JSON list: {error}") from None
        else:
            given = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(given, key.type, strict=False)
    except msgspec.ValidationError as error:
        choices = get_args(key.type) if get_origin(key.type) is Literal else _choices(key.type)
        one_of = f"; one of {', '.join(map(str, choices))}" if choices else ""
        raise ConfigError(where, f"{error} (given: {value!r:.100}){one_of}") from None


def _choices(kind: Any) -> tuple[Any, ...]:
    """The closed list of values of an annotated Literal; empty for any other type."""
    inner = get_args(kind)[0] if get_args(kind) else None
    return get_args(inner) if get_origin(inner) is Literal else ()


def _is_list(kind: Any) -> bool:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return get_origin(kind) is tuple


def _get(raw: Mapping[str, Any], path: tuple[str, ...]) -> object:
    value: Any = raw
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _set(raw: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for part in path[:-1]:
        raw = raw.setdefault(part, {})
    raw[path[-1]] = value


def _contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Settings that are right each by itself, but not together: their keys, and why."""
    correlation = settings.correlation
    if correlation.settle_seconds > correlation.window_seconds:
        yield (
            ("correlation.settle_seconds", "correlation.window_seconds"),
            f"settle_seconds ({correlation.settle_seconds:g}) must not exceed "
            f"window_seconds ({correlation.window_seconds:g})",
        )


def _place(name: str, origins: Mapping[str, Origin], file: Path | None) -> str:
    key = _key_named(name)
    match origins.get(name):
        case "environment":
            return key.variable
        case "flag":
            return key.flag
        case "file":
            return str(file)
    return "default"

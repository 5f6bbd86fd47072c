"""Which containers run SGLang, and which InferenceService a pod serves. Pure; patterns are data, at the top.

The first that speaks decides: the user's own word on the pod, LLMKube's label, the command, the image, common labels.
Routers and load balancers run beside SGLang and are none. Where nothing tells, the log's text still may.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.pods import Pod, PodContainer

WATCH_KEY = "faultline.dev/watch"
"""Label or annotation of a pod: "true" or "false"."""

CONTAINER_KEY = "faultline.dev/container"
"""Label or annotation of a pod: the container that the word above is about."""

RUNTIME_LABEL, RUNTIME = "inference.llmkube.dev/runtime", "sglang"
RUNTIME_CONTAINER = "sglang"
"""LLMKube names the container so in every pod of this runtime."""

SERVICE_LABEL = "inference.llmkube.dev/service"
SERVICE_GROUP = "inference.llmkube.dev"
SERVICE_API_VERSION = "inference.llmkube.dev/v1alpha1"

LABELS = (
    ("engine", "sglang"),
    ("app.kubernetes.io/name", "sglang"),
    ("app.kubernetes.io/component", "sglang"),
)
"""Labels by which common deployments say so of the whole pod."""

COMMANDS = re.compile(
    r"(?:^|[\s/])sglang\s+serve\b|\bsglang\.launch_server\b|\bsglang\.srt\b|\bdynamo\.sglang\b",
)
ROUTER_COMMANDS = re.compile(r"\bsglang_router\b|\blaunch_router\b|\bmini_lb\b|\bsgl-router\b|(?:^|[\s/])smg(?=\s|$)")

IMAGES = re.compile(r"(?:^|/)sglang(?:-[a-z0-9-]{1,64})?(?:[:@]|$)")
ROUTER_IMAGES = re.compile(r"(?:^|/)(?:[a-z0-9-]{0,64}-)?(?:router|gateway|smg|mini-lb)(?:-[a-z0-9-]{0,64})?(?:[:@]|$)")

GPU_LIMIT = "nvidia.com/"
"""How the names of resources begin that are GPUs, whole, shared or in part."""

SIDECARS = frozenset({"istio-proxy", "linkerd-proxy", "queue-proxy", "envoy", "cloudsql-proxy", "vault-agent"})
"""Containers that others put into a pod: never the one that a label of the pod means."""

WORDS_LIMIT = 64 * 1024
"""So much of a command is looked at."""


class Answer(StrEnum):
    YES = "yes"
    NO = "no"
    BY_CONTENT = "by content"
    """Neither: what the container prints decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Whether a container runs SGLang, and what says so."""

    answer: Answer
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The custom resource that a pod serves. ``api_version`` is the one known; ask the API server which it serves."""

    group: str
    api_version: str
    kind: str
    namespace: str
    name: str


def runs_sglang(pod: Pod, container: PodContainer) -> Reading:
    """Whether this container runs SGLang, as far as its pod tells."""
    if (said := _own_word(pod, container)) is not None:
        return said
    words = " ".join((*container.command, *container.args))[:WORDS_LIMIT]
    images = tuple(filter(None, (container.image, container.resolved_image)))
    if found := ROUTER_COMMANDS.search(words):
        return _no(f"its command runs a router ({found[0].strip(' /')})")
    if container.init:
        return _by_content("an init container")
    if pod.labels.get(RUNTIME_LABEL) == RUNTIME and container.name == RUNTIME_CONTAINER:
        return _yes(f"label {RUNTIME_LABEL}={RUNTIME}")
    if found := COMMANDS.search(words):
        return _yes(f"its command has {found[0].strip(' /')}")
    if router := next((i for i in images if ROUTER_IMAGES.search(i)), None):
        return _no(f"image {router} is a router's")
    if image := next((i for i in images if IMAGES.search(i)), None):
        return _yes(f"image {image}")
    for key, value in LABELS:
        if pod.labels.get(key) == value and _is_main(pod, container):
            return _yes(f"label {key}={value}")
    return _by_content("neither its command nor its image nor a label tells")


def has_gpu(container: PodContainer) -> bool:
    """Whether it asks for a GPU: without one it is not SGLang's fault to lose any. A claim may be of other devices."""
    asked = any(k.startswith(GPU_LIMIT) and v not in ("", "0") for k, v in container.limits.items())
    return asked or bool(container.claims) or any(GPU_LIMIT in d.resource for d in container.devices)


def service_of(pod: Pod) -> Service | None:
    """LLMKube's InferenceService by its label. KServe and OME have a kind of the same name and other labels."""
    name = pod.labels.get(SERVICE_LABEL, "")
    if not name or not pod.namespace:
        return None
    return Service(
        group=SERVICE_GROUP,
        api_version=SERVICE_API_VERSION,
        kind="InferenceService",
        namespace=pod.namespace,
        name=name,
    )


def _own_word(pod: Pod, container: PodContainer) -> Reading | None:
    """What the pod's author said with our own key; a label goes before an annotation."""
    word = _said(pod, WATCH_KEY).strip().lower()
    if word not in ("true", "false"):
        return None
    named = _said(pod, CONTAINER_KEY).strip()
    if named and named != container.name:
        if word == "false":
            return None
        return _no(f"{CONTAINER_KEY} names {named}") if pod.container(named) is not None else None
    if word == "false":
        return _no(f"{WATCH_KEY} is false")
    if not named and (container.init or container.name in SIDECARS):
        return None
    return _yes(f"{WATCH_KEY} is true")


def _said(pod: Pod, key: str) -> str:
    return _first(key, pod.labels, pod.annotations)


def _first(key: str, *places: Mapping[str, str]) -> str:
    return next((place[key] for place in places if key in place), "")


def _is_main(pod: Pod, container: PodContainer) -> bool:
    """Whether a label of the pod can mean this container: the one with GPUs, else the only one that is no sidecar."""
    candidates = [c for c in pod.containers if not c.init and c.name not in SIDECARS]
    with_gpu = [c.name for c in candidates if has_gpu(c)]
    return container.name in with_gpu if with_gpu else [c.name for c in candidates] == [container.name]


def _yes(why: str) -> Reading:
    return Reading(answer=Answer.YES, why=why)


def _no(why: str) -> Reading:
    return Reading(answer=Answer.NO, why=why)


def _by_content(why: str) -> Reading:
    return Reading(answer=Answer.BY_CONTENT, why=why)

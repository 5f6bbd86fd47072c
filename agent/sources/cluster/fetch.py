"""Fetches a pod, its containers' logs and its node with the user's own rights, for `faultline explain --pod`.

It reads only, and decides nothing: what could not be fetched is told in words, for the caller to pass on. Every text
is bounded; of a longer log the end is kept, where the failure is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.kube.client import Json, KubeClient, KubeError, RefusedError

LOG_BYTES = 4 << 20
"""The most bytes of one log that are kept: its last ones."""

SENT_BYTES = 64 << 20
"""The most bytes of one log that are read. The kubelet keeps 10 MiB of the present file unless told otherwise."""

LOG_SECONDS = 60.0
"""The most seconds that one log may take."""

CONTAINERS = 32
"""Containers of one pod whose logs are fetched."""

PAGE, PAGES = 500, 100
"""Nodes of one answer, and how many answers are asked for at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedLog:
    """The log of one instance of a container; `cut` where its beginning was left out."""

    container: str
    previous: bool
    text: bytes
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What could be had. `node` is None where it could not; `missing` says why, a line for each thing."""

    pod: Json
    node: Json | None = None
    logs: tuple[FetchedLog, ...] = ()
    missing: tuple[str, ...] = ()


async def fetch(client: KubeClient, *, namespace: str, name: str, container: str = "") -> Fetched:
    """The pod with its logs and its node. Raises KubeError where the pod itself cannot be had; ValueError where it
    has no container of the name given."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    pod = await client.get(path)
    wanted = [c for c in _containers(pod) if not container or c[0] == container]
    if container and not wanted:
        raise ValueError(f"pod {namespace}/{name} has no container {container!r}")
    missing: list[str] = []
    logs: list[FetchedLog] = []
    if len(wanted) > CONTAINERS:
        missing.append(f"logs of {len(wanted) - CONTAINERS} further containers were not fetched")
    for own, restarted in wanted[:CONTAINERS]:
        for previous in (True, False) if restarted else (False,):
            try:
                logs.append(await _log(client, path, own, previous=previous))
            except KubeError as error:
                which = "previous log" if previous else "log"
                missing.append(f"{which} of container {own}: {told(error)}")
    node = None
    node_name = _map(pod.get("spec")).get("nodeName")
    if isinstance(node_name, str) and node_name:
        try:
            node = await client.get(f"/api/v1/nodes/{node_name}")
        except KubeError as error:
            missing.append(f"node {node_name}: {told(error)}")
    else:
        missing.append("node: the pod is on none yet")
    return Fetched(pod=pod, node=node, logs=tuple(logs), missing=tuple(missing))


async def all_nodes(client: KubeClient) -> AsyncIterator[Json]:
    """Every node, page by page. Raises KubeError; a page token that ran out ends the list as the server words it."""
    params = {"limit": str(PAGE)}
    for _ in range(PAGES):
        page = await client.get("/api/v1/nodes", params=params)
        for node in _maps(page.get("items")):
            yield dict(node)
        following = _map(page.get("metadata")).get("continue")
        if not isinstance(following, str) or not following:
            return
        params = {"limit": str(PAGE), "continue": following}


def told(error: KubeError) -> str:
    """The error in words for a person: what the server said, without the path."""
    if isinstance(error, RefusedError):
        return f"{error.message or error.reason} ({error.status})"
    return str(error)


async def _log(client: KubeClient, path: str, container: str, *, previous: bool) -> FetchedLog:
    # limitBytes counts from the log's beginning, and the failure stands at its end: only a guard here.
    params = {"container": container, "timestamps": "false", "limitBytes": str(SENT_BYTES)}
    if previous:
        params["previous"] = "true"
    kept: deque[bytes] = deque()
    size, cut = 0, False
    async with client.stream("GET", f"{path}/log", params=params, accept="*/*", deadline=LOG_SECONDS) as response:
        read = 0
        async for part in response.content.iter_any():
            kept.append(part)
            size, read = size + len(part), read + len(part)
            while size - len(kept[0]) >= LOG_BYTES:
                size, cut = size - len(kept.popleft()), True
            if read >= SENT_BYTES:
                break
    text = b"".join(kept)
    if len(text) > LOG_BYTES:
        text, cut = text[-LOG_BYTES:], True
    if cut:
        text = text.partition(b"\n")[2] or text  # the first line is a part of one
    return FetchedLog(container=container, previous=previous, text=text, cut=cut)


def _containers(pod: Json) -> Iterator[tuple[str, bool]]:
    """Each container's name, and whether an instance before its present one ended."""
    status = _map(pod.get("status"))
    restarted = set()
    for kind in ("initContainerStatuses", "containerStatuses"):
        for said in _maps(status.get(kind)):
            count = said.get("restartCount")
            if (isinstance(count, int) and count > 0) or _map(said.get("lastState")).get("terminated"):
                restarted.add(said.get("name"))
    for kind in ("initContainers", "containers"):
        for spec in _maps(_map(pod.get("spec")).get(kind)):
            if isinstance(name := spec.get("name"), str) and name:
                yield name, name in restarted


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> Iterator[Mapping[str, Any]]:
    return (item for item in (value if isinstance(value, list) else ()) if isinstance(item, Mapping))

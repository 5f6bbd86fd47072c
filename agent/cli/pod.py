"""What `faultline explain --pod` hands in: a pod's logs, its state and its node's, fetched with the user's rights."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.cli import Unusable
from agent.detect.objects import (
    CONDITION,
    FAULT_KEY,
    faults_on_node,
    held_by_pod,
    last_words,
    ref_of,
    restarts_of,
)
from agent.detect.recognise import recognise
from agent.kube import KubeClient, KubeError, LoginError, RefusedError, login
from agent.model import Allocation
from agent.sources.cluster.fetch import Fetched, fetch, told
from agent.sources.handed import Handed, UnusableInput, handed_text

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Inputs as if handed in; `checked` belongs into each verdict, `missing` (a part of it) to standard error."""

    inputs: Sequence[Handed]
    held: Sequence[Allocation]
    checked: Sequence[str]
    missing: Sequence[str]


def ask(pod: str, *, container: str, kubeconfig: str, context: str) -> Asked:
    """Fetches what there is. Raises Unusable where the pod itself cannot be had."""
    namespace, slash, name = pod.rpartition("/")
    if not _NAME.match(name) or (slash and not _NAME.match(namespace)):
        raise Unusable(f"--pod {pod}: give NAMESPACE/NAME, or NAME in the namespace of your context")
    return handed_in(
        asyncio.run(_fetch(namespace, name, container=container, kubeconfig=kubeconfig, context=context)),
        container=container,
    )


async def _fetch(namespace: str, name: str, *, container: str, kubeconfig: str, context: str) -> Fetched:
    try:
        way = await login(kubeconfig=kubeconfig, context=context)
        async with KubeClient(way) as client:
            space = namespace or way.namespace or "default"
            try:
                return await fetch(client, namespace=space, name=name, container=container)
            except RefusedError as error:
                cure = {
                    401: "log in again",
                    403: "you need `get` on pods and pods/log in this namespace",
                    404: f"see `kubectl get pods -n {space}`",
                }.get(error.status, "")
                raise Unusable(f"pod {space}/{name}: {told(error)}" + (f"; {cure}" if cure else "")) from None
    except (LoginError, KubeError, ValueError) as error:
        raise Unusable(str(error)) from None


def handed_in(fetched: Fetched, *, container: str = "") -> Asked:
    """The fetched texts as inputs: each instance's log with its last words, the pod's state, the node's."""
    pod = fetched.pod
    meta = pod.get("metadata") if isinstance(pod.get("metadata"), Mapping) else {}
    assert isinstance(meta, Mapping)
    own = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
    missing = list(fetched.missing)
    words = {key: text for key, text in last_words(pod).items() if not container or key[0] == container}
    logs = {(log.container, log.previous): log for log in fetched.logs}
    inputs: list[Handed] = []
    # The earlier instance first: a crash loop is then one failure that came twice.
    for key in sorted({*logs, *words}, key=lambda k: (k[0], not k[1])):
        name, previous = key
        title = f"{own}/{name}" + (" (previous)" if previous else "")
        log = logs.get(key)
        text = log.text if log is not None else b""
        if log is not None and log.cut:
            missing.append(f"{title}: only the last {len(text) >> 20} MiB of its log were read")
        said = "\n".join(line for line in words.get(key, "").splitlines() if line.encode() not in text)
        if said:
            text = text.rstrip(b"\n") + b"\n" * bool(text) + said.encode("utf-8", "replace") + b"\n"
        if not text:
            continue
        ref = ref_of(meta, name, max(restarts_of(pod, name) - previous, 0))
        kind = "device-plugin" if recognise(text, "") == "device-plugin" else "container"
        try:
            inputs.append(handed_text(title, text, kind=kind, container=ref))
        except UnusableInput as error:
            missing.append(str(error))
    inputs.append(handed_text(f"pod {own}", _json(_without_last_words(pod))))
    notes: list[str] = []
    if fetched.node is not None:
        node_name, note = _about(fetched.node)
        inputs.append(handed_text(f"node {node_name}", _json({"kind": "Node", **fetched.node})))
        notes.append(note)
    missing.append("the node's kernel log cannot be fetched this way: hand it in beside --pod, or ask its agent")
    held = [a for a in held_by_pod(pod) if not container or a.container.container == container]
    return Asked(inputs=inputs, held=held, checked=(*notes, *missing), missing=missing)


def _without_last_words(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The pod without its containers' status: those words are handed in with the containers' logs."""
    status = pod.get("status")
    kept = {k: v for k, v in status.items() if not k.endswith("ontainerStatuses")} if isinstance(status, dict) else {}
    return {"kind": "Pod", **pod, "status": kept}


def _json(obj: Mapping[str, Any]) -> bytes:
    ordered = {"apiVersion": "v1", **{k: v for k, v in obj.items() if k != "apiVersion"}}
    return json.dumps(ordered, ensure_ascii=True).encode()


def _about(node: Mapping[str, Any]) -> tuple[str, str]:
    """The node's name, and what its agent says of it."""
    meta = node.get("metadata")
    name = str(meta.get("name", "")) if isinstance(meta, Mapping) else ""
    faults = faults_on_node(node)
    if faults:
        told_of = ", ".join(f"{f.value} on {f.pci or f.uuid or 'the node'}" for f in faults)
        return name, f"node {name}: its agent reports {told_of} ({FAULT_KEY})"
    status = node.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, Mapping) and condition.get("type") == CONDITION:
            return name, f"node {name}: its agent says {CONDITION}={condition.get('status')}, {condition.get('reason')}"
    return name, f"node {name}: no agent reports on its GPUs (no condition {CONDITION}), so they are not cleared"

"""Withholds one GPU by a DeviceTaintRule, where DRA serves it. Never selects more than one device of this node.

Driver, pool and device are always set: the API takes an empty selector for every device of the cluster.
Only rules with our labels, our key and this node's device are ever changed or deleted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from agent.kube.client import Json, KubeClient, Patch, RefusedError
from agent.model import GpuRef, parse_pci
from agent.pods import moment
from agent.respond.means import Held, Reach, WithholdError
from agent.slices import SliceDevice, of_gpu

GROUP = "/apis/resource.k8s.io"
VERSIONS = ("v1", "v1beta2")
KEY = "faultline.dev/gpu-fault"
NODE_LABEL = "faultline.dev/node"
KIND_LABEL = "faultline.dev/gpu-fault"
PCI, UUID, FAULT, WHY, NODE = (f"faultline.dev/{n}" for n in ("pci", "uuid", "fault", "why", "node-name"))
EFFECT = "NoSchedule"
WHY_LIMIT = 1000
TRIES = 5

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.A)
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.A)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.A)


def label_value(text: str) -> str:
    """The text as a label's value: what is not allowed becomes ``-``; never empty."""
    cut = re.sub(r"[^A-Za-z0-9_.-]", "-", text, flags=re.A)[:63].strip("-_.")
    return cut or "fault"


def node_hash(node: str) -> str:
    return hashlib.sha256(node.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def node_label(node: str) -> str:
    """The node's name where a label can hold it, else its hash."""
    return node if _LABEL.fullmatch(node) else node_hash(node)


def rule_for(device: SliceDevice, *, node: str, uid: str, value: str, why: str, fault: str, version: str) -> Json:
    """The object to send. Raises WithholdError where it would not name exactly one device."""
    if not (
        _SUBDOMAIN.fullmatch(device.driver)
        and len(device.driver) <= 63
        and all(_SUBDOMAIN.fullmatch(part) for part in device.pool.split("/"))
        and len(device.pool) <= 253
        and _DNS_LABEL.fullmatch(device.device)
    ):
        raise WithholdError(f"no rule without a whole selector: {device.driver!r}, {device.pool!r}, {device.device!r}")
    if not uid:
        raise WithholdError(f"node {node} has no uid")
    notes = {PCI: device.pci or "", UUID: device.uuid or "", FAULT: fault, WHY: why[:WHY_LIMIT], NODE: node}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": f"faultline-{node_hash(node)}-{device.device}",
            "labels": {NODE_LABEL: node_label(node), KIND_LABEL: "device"},
            "annotations": notes,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}],
        },
        "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.device},
            "taint": {"key": KEY, "value": label_value(value), "effect": EFFECT},
        },
    }


class DeviceTaint:
    """The means ``device``. ``devices`` gives what the slices held last, ``KnownDevices.devices``."""

    name: Literal["device"] = "device"

    def __init__(
        self, client: KubeClient, *, node: str, devices: Callable[[], tuple[SliceDevice, ...]], driver: str
    ) -> None:
        self._client, self._node, self._devices, self._driver = client, node, devices, driver
        self._version: str | None = None
        """None: not asked yet. Empty: asked, not served."""

    async def discover(self, *, again: bool = False) -> str:
        """The served version of the rules' API, empty where there is none. The answer is kept."""
        if self._version is not None and not again:
            return self._version
        found = ""
        for version in VERSIONS:
            try:
                listed = await self._client.get(f"{GROUP}/{version}")
            except RefusedError as error:
                if error.status != 404:
                    raise
                continue
            if any(_map(r).get("name") == "devicetaintrules" for r in listed.get("resources") or ()):
                found = version
                break
        self._version = found
        return found

    def reach(self, gpu: GpuRef) -> Reach:
        if not gpu.known:
            return Reach(can=False, why="the GPU is known by neither address nor UUID")
        if self._version is None:
            return Reach(can=False, why="whether the API server has DeviceTaintRules is not known yet")
        if not self._version:
            return Reach(can=False, why="the API server has no DeviceTaintRules")
        devices = self._of(gpu)
        if not devices:
            return Reach(can=False, why=f"no device of {self._driver} on this node is this GPU")
        if all(d.withheld for d in devices):
            taint = devices[0].withheld[0]
            said = f"{taint.key}={taint.value}:{taint.effect}"
            return Reach(can=False, already=True, why=f"already withheld by the driver: {said}")
        names = ", ".join(d.device for d in devices)
        return Reach(can=True, why=f"{names} of {self._driver}")

    def _of(self, gpu: GpuRef) -> tuple[SliceDevice, ...]:
        return of_gpu((d for d in self._devices() if d.driver == self._driver), gpu)

    async def withhold(self, gpu: GpuRef, *, value: str, why: str, fault: str) -> tuple[Held, ...]:
        version = await self.discover()
        reach = self.reach(gpu)
        if reach.already:
            return ()
        if not reach.can:
            raise WithholdError(reach.why)
        # Freshly: with the uid of a node that has registered anew since, the rule is garbage-collected at once.
        node = await self._client.get(f"/api/v1/nodes/{self._node}")
        uid = str(_map(node.get("metadata")).get("uid") or "")
        wanted = [
            rule_for(d, node=self._node, uid=uid, value=value, why=why, fault=fault, version=version)
            for d in self._of(gpu)
            if not d.withheld
        ]
        return tuple([self._held(await self._put(rule)) for rule in wanted])

    async def _put(self, rule: Json) -> Json:
        """Create it, or bring the one that is there to the same; what there is in the end."""
        name = rule["metadata"]["name"]
        for attempt in range(TRIES):
            try:
                return await self._client.create(self._path(), rule)
            except RefusedError as error:
                if error.status != 409:
                    raise
            try:
                found = await self._client.get(self._path(name))
                if not self._ours(found):
                    raise WithholdError(f"DeviceTaintRule {name} is not ours")
                if _same(found, rule):
                    return found
                meta = rule["metadata"]
                change = {
                    "metadata": {
                        "resourceVersion": _map(found.get("metadata")).get("resourceVersion"),
                        "labels": meta["labels"],
                        "annotations": meta["annotations"],
                        "ownerReferences": meta["ownerReferences"],
                    },
                    "spec": rule["spec"],
                }
                return await self._client.patch(self._path(name), change, kind=Patch.MERGE)
            except RefusedError as error:  # changed (409) or deleted (404) in between: look again
                if error.status not in (404, 409) or attempt == TRIES - 1:
                    raise
        raise WithholdError(f"DeviceTaintRule {name} is created and deleted by someone else all the time")

    async def release(self, handle: str) -> tuple[Held, ...]:
        gone = []
        for found in await self._list():
            held = self._held(found)
            if handle and handle in (held.handle, held.fault) and await self._delete(found):
                gone.append(held)
        return tuple(gone)

    async def _delete(self, found: Json) -> bool:
        name = str(_map(found.get("metadata")).get("name"))
        for attempt in range(TRIES):
            meta = _map(found.get("metadata"))
            body = {"preconditions": {"uid": meta.get("uid"), "resourceVersion": meta.get("resourceVersion")}}
            try:
                await self._client.delete(self._path(name), body=body)
                return True
            except RefusedError as error:
                if error.status == 404:
                    return False
                if error.status != 409 or attempt == TRIES - 1:
                    raise
            try:
                found = await self._client.get(self._path(name))
            except RefusedError as error:
                if error.status == 404:
                    return False
                raise
            if not self._ours(found):  # somebody made it his own in between
                return False
        return False

    async def held(self) -> tuple[Held, ...]:
        return tuple(self._held(found) for found in await self._list())

    async def _list(self) -> list[Json]:
        if not await self.discover():
            return []
        selector = f"{NODE_LABEL}={node_label(self._node)},{KIND_LABEL}=device"
        listed = await self._client.get(self._path(), params={"labelSelector": selector})
        return [r for r in listed.get("items") or () if self._ours(r)]

    def _path(self, name: str = "") -> str:
        return f"{GROUP}/{self._version}/devicetaintrules" + (f"/{name}" if name else "")

    def _ours(self, found: object) -> bool:
        """Our name, label and key, and one device of this node's: by its name's hash, its owner or its note."""
        rule = _map(found)
        meta, spec = _map(rule.get("metadata")), _map(rule.get("spec"))
        selector = _map(spec.get("deviceSelector"))
        labels = _map(meta.get("labels"))
        return (
            labels.get(NODE_LABEL) == node_label(self._node)
            and labels.get(KIND_LABEL) == "device"
            and _map(spec.get("taint")).get("key") == KEY
            and selector.get("driver") == self._driver
            and bool(selector.get("device"))
            and selector.get("pool") in self._pools()
            and meta.get("name") == f"faultline-{node_hash(self._node)}-{selector.get('device')}"
        )

    def _pools(self) -> set[str]:
        """This node's pools: the driver names its pool for the node, which holds while no slice was seen yet."""
        return {self._node} | {d.pool for d in self._devices() if d.driver == self._driver}

    def _held(self, rule: Json) -> Held:
        meta = _map(rule.get("metadata"))
        notes, taint = _map(meta.get("annotations")), _map(_map(rule.get("spec")).get("taint"))
        return Held(
            means=self.name,
            handle=str(meta.get("name") or ""),
            gpu=GpuRef(pci=parse_pci(str(notes.get(PCI) or "")), uuid=str(notes.get(UUID) or "") or None),
            fault=str(notes.get(FAULT) or ""),
            value=str(taint.get("value") or ""),
            why=str(notes.get(WHY) or ""),
            since=moment(taint.get("timeAdded")),
        )


def _same(found: Json, rule: Json) -> bool:
    """The same but for what the server adds (``timeAdded``) and notes of others."""
    there, want = _map(found.get("metadata")), rule["metadata"]
    spec = dict(_map(found.get("spec")))
    spec["taint"] = {k: v for k, v in _map(spec.get("taint")).items() if k != "timeAdded"}
    return (
        spec == rule["spec"]
        and all(_map(there.get("annotations")).get(k) == v for k, v in want["annotations"].items())
        and [_map(o).get("uid") for o in there.get("ownerReferences") or ()] == [want["ownerReferences"][0]["uid"]]
    )


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

"""A rule for one device: what is sent, what is never touched, and what happens between two requests.

The same against a real API server is in ``tests/cluster``; here is what no healthy server can be made to do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.client import KubeClient, RefusedError
from agent.model import GpuRef, PciAddress
from agent.respond import device_taint
from agent.respond.device_taint import DeviceTaint, label_value, node_hash, node_label, rule_for
from agent.respond.means import WithholdError
from agent.slices import SliceDevice, SliceTaint

GPU = GpuRef(pci=PciAddress("0000:65:00"), uuid="GPU-1")
NODE = "gpu-1"
API = "/apis/resource.k8s.io"
RULES = f"{API}/v1/devicetaintrules"
DRIVER = "gpu.nvidia.com"


def device(
    name: str = "gpu-3",
    *,
    driver: str = DRIVER,
    pool: str = NODE,
    uuid: str = "GPU-1",
    taints: tuple[SliceTaint, ...] = (),
) -> SliceDevice:
    return SliceDevice(driver=driver, pool=pool, device=name, pci=GPU.pci, uuid=uuid, taints=taints)


BUSY = SliceTaint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule")
PART = SliceDevice(driver=DRIVER, pool=NODE, device="mig-0", uuid="MIG-1", parent="GPU-1")


def refused(status: int) -> RefusedError:
    return RefusedError("x", status=status, reason="Test", message="")


class Server:
    """The rules of an API server as far as they matter here; ``before`` runs once before a request of its method."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions or ("v1",)
        self.rules: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.before: list[tuple[str, Callable[[], None]]] = []
        self.node: dict[str, Any] = {"metadata": {"name": NODE, "uid": "node-uid"}}
        self.count = 0

    def _request(self, method: str, path: str) -> None:
        self.asked.append((method, path))
        for entry in self.before:
            if entry[0] == method:
                self.before.remove(entry)
                entry[1]()
                break

    def put(self, rule: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        stored = copy.deepcopy(rule)
        meta = stored["metadata"]
        meta |= {"uid": meta.get("uid") or f"uid-{self.count}", "resourceVersion": str(self.count)}
        stored["spec"]["taint"].setdefault("timeAdded", "2026-12-01T05:00:00Z")
        self.rules[meta["name"]] = stored
        return copy.deepcopy(stored)

    async def get(self, path: str, *, params: dict[str, str] | None = None) -> dict[str, Any]:
        self._request("GET", path)
        if path == f"/api/v1/nodes/{NODE}":
            return self.node
        base, _, last = path.rpartition("/")
        if base == API:
            if last not in self.versions and f"-{last}" not in self.versions:
                raise refused(404)
            served = [{"name": "resourceclaims"}] + [{"name": "devicetaintrules"}] * (last in self.versions)
            return {"resources": served}
        if last == "devicetaintrules":
            return {"items": copy.deepcopy(list(self.rules.values())) or None}
        if last not in self.rules:
            raise refused(404)
        return copy.deepcopy(self.rules[last])

    async def create(self, path: str, rule: dict[str, Any]) -> dict[str, Any]:
        self._request("POST", path)
        if rule["metadata"]["name"] in self.rules:
            raise refused(409)
        return self.put(rule)

    async def patch(self, path: str, change: dict[str, Any], *, kind: object) -> dict[str, Any]:
        self._request("PATCH", path)
        found = self.rules.get(path.rpartition("/")[2])
        if found is None:
            raise refused(404)
        meta = dict(change["metadata"])
        if meta.pop("resourceVersion") != found["metadata"]["resourceVersion"]:
            raise refused(409)
        found["metadata"]["labels"] |= meta["labels"]
        found["metadata"]["annotations"] |= meta["annotations"]
        found["metadata"]["ownerReferences"] = meta["ownerReferences"]
        found["spec"]["deviceSelector"] |= change["spec"]["deviceSelector"]
        found["spec"]["taint"] |= change["spec"]["taint"]
        return self.put(found)

    async def delete(self, path: str, *, body: dict[str, Any]) -> dict[str, Any]:
        self._request("DELETE", path)
        found = self.rules.get(path.rpartition("/")[2])
        if found is None:
            raise refused(404)
        if any(found["metadata"][k] != v for k, v in body["preconditions"].items()):
            raise refused(409)
        return self.rules.pop(found["metadata"]["name"])

    def methods(self, *which: str) -> list[str]:
        return [m for m, _ in self.asked if m in which]


def means(server: Server, *devices: SliceDevice, node: str = NODE) -> DeviceTaint:
    return DeviceTaint(cast(KubeClient, server), node=node, devices=lambda: devices or (device(),), driver=DRIVER)


async def withhold(taint: DeviceTaint, *, value: str = "xid-79", fault: str = "f1") -> tuple[str, ...]:
    return tuple(h.handle for h in await taint.withhold(GPU, value=value, why="fell off the bus", fault=fault))


NAME = f"faultline-{node_hash(NODE)}-gpu-3"


async def test_what_is_sent_names_exactly_one_device() -> None:
    server = Server()
    assert await withhold(means(server)) == (NAME,)
    (rule,) = server.rules.values()
    assert rule["spec"] == {
        "deviceSelector": {"driver": DRIVER, "pool": NODE, "device": "gpu-3"},
        "taint": {"key": "faultline.dev/gpu-fault", "value": "xid-79", "effect": "NoSchedule",
                  "timeAdded": "2026-12-01T05:00:00Z"},
    }  # fmt: skip
    meta = rule["metadata"]
    assert meta["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid"}]
    assert meta["labels"] == {"faultline.dev/node": NODE, "faultline.dev/gpu-fault": "device"}
    (held,) = await means(server).held()
    assert (held.gpu, held.fault, held.value, held.why) == (GPU, "f1", "xid-79", "fell off the bus")
    assert held.since == 1796101200.0 and held.means == "device"


@pytest.mark.parametrize(
    "bad",
    [
        device(""), device("GPU_0"), device("-gpu"), device("a" * 64), device("a.b"), device("gpu-3\n"),
        device("gpu/3"), device(driver=""), device(driver="A"), device(driver="x" * 64), device(driver="a..b"),
        device(pool=""), device(pool="/a"), device(pool="a//b"), device(pool="a" * 254), device(pool="a b"),
    ],
)  # fmt: skip
def test_a_device_that_a_selector_cannot_name_gets_no_rule(bad: SliceDevice) -> None:
    with pytest.raises(WithholdError, match="whole selector"):
        rule_for(bad, node=NODE, uid="u", value="v", why="", fault="f", version="v1")


def test_without_the_nodes_uid_there_is_no_rule() -> None:
    with pytest.raises(WithholdError, match="has no uid"):
        rule_for(device(), node=NODE, uid="", value="v", why="", fault="f", version="v1")


@pytest.mark.parametrize("pool", ["gpu-1", "a/b/c", "10.0.0.1", "rack-1.example.com"])
def test_pools_of_many_forms_get_one(pool: str) -> None:
    rule = rule_for(device(pool=pool), node=NODE, uid="u", value="v", why="w" * 5000, fault="f", version="v1beta2")
    assert rule["spec"]["deviceSelector"]["pool"] == pool and rule["apiVersion"] == "resource.k8s.io/v1beta2"
    assert len(rule["metadata"]["annotations"]["faultline.dev/why"]) == device_taint.WHY_LIMIT


@pytest.mark.parametrize(
    ("text", "value"),
    [("xid-79", "xid-79"), ("xid 74/x", "xid-74-x"), ("", "fault"), ("---", "fault"), ("größe", "gr--e"),
     ("a" * 80, "a" * 63), ("a" * 62 + "-b", "a" * 62), ("0000:1a:00.0", "0000-1a-00.0")],
)  # fmt: skip
def test_label_values(text: str, value: str) -> None:
    assert label_value(text) == value


@given(st.text())
def test_any_text_becomes_a_label(text: str) -> None:
    for found in (label_value(text), node_label(text)):
        assert device_taint._LABEL.fullmatch(found)


def test_a_long_node_name_is_labelled_by_its_hash() -> None:
    assert node_label(NODE) == NODE
    long = "n" * 64
    assert node_label(long) == node_hash(long) != node_hash(NODE)


@pytest.mark.parametrize(
    ("versions", "served"),
    [(("v1",), "v1"), (("v1beta2",), "v1beta2"), (("v1", "v1beta2"), "v1"), (("-v1", "v1beta2"), "v1beta2"),
     (("-v1",), ""), (("v2",), "")],
)  # fmt: skip
async def test_which_version_is_spoken(versions: tuple[str, ...], served: str) -> None:
    """``-v1``: a version that is served without rules."""
    server = Server(*versions)
    taint = means(server)
    assert await taint.discover() == served
    asked = len(server.asked)
    assert await taint.discover() == served and len(server.asked) == asked, "the answer is kept"
    assert await taint.discover(again=True) == served and len(server.asked) > asked
    if not served:
        assert await taint.held() == () and await taint.release("f1") == ()
        with pytest.raises(WithholdError, match="no DeviceTaintRules"):
            await withhold(taint)
    assert server.methods("POST", "PATCH", "DELETE") == []


async def test_a_server_that_refuses_to_tell_its_versions_is_not_one_without() -> None:
    server = Server()

    def away() -> None:
        raise refused(503)

    server.before.append(("GET", away))
    taint = means(server)
    with pytest.raises(RefusedError):
        await taint.discover()
    assert "not known yet" in taint.reach(GPU).why
    assert await taint.discover() == "v1"


@pytest.mark.parametrize(
    ("devices", "gpu", "can", "already", "why"),
    [
        ((device(),), GPU, True, False, "gpu-3 of gpu.nvidia.com"),
        ((device(), PART), GPU, True, False, "gpu-3, mig-0"),
        ((device(taints=(BUSY,)), PART), GPU, True, False, "gpu-3, mig-0"),
        ((device(taints=(BUSY,)),), GPU, False, True, "gpu.nvidia.com/xid=79:NoSchedule"),
        ((device(taints=(SliceTaint(key="k", effect="None"),)),), GPU, True, False, "gpu-3"),
        ((device(driver="dra.net"),), GPU, False, False, "no device of gpu.nvidia.com"),
        ((device(uuid="GPU-9"),), GPU, False, False, "no device"),
        ((device(),), GpuRef(index=3), False, False, "neither address nor UUID"),
    ],
)
async def test_what_can_be_reached(
    devices: tuple[SliceDevice, ...], gpu: GpuRef, can: bool, already: bool, why: str
) -> None:
    taint = means(Server(), *devices)
    assert not taint.reach(gpu).can, "what the server serves is not known yet"
    await taint.discover()
    found = taint.reach(gpu)
    assert (found.can, found.already, why in found.why) == (can, already, True), found


async def test_of_a_gpu_in_parts_each_part_that_is_free_is_withheld() -> None:
    server = Server()
    assert await withhold(means(server, device(taints=(BUSY,)), PART)) == (f"faultline-{node_hash(NODE)}-mig-0",)
    assert await withhold(means(server, device(), PART)) == (NAME, f"faultline-{node_hash(NODE)}-mig-0")
    assert len(await means(server).release("f1")) == 2 and server.rules == {}


async def test_the_same_again_writes_nothing_and_another_fault_changes_it_in_place() -> None:
    server = Server()
    taint = means(server)
    await withhold(taint)
    server.asked.clear()
    await withhold(taint)
    assert server.methods("PATCH") == []
    await withhold(taint, value="xid-74", fault="f2")
    assert server.methods("PATCH") == ["PATCH"]
    (held,) = await taint.held()
    assert (held.value, held.fault) == ("xid-74", "f2")


async def test_a_rule_of_a_node_that_registered_anew_gets_its_new_owner() -> None:
    server = Server()
    await withhold(means(server))
    server.node = {"metadata": {"uid": "new-uid"}}
    await withhold(means(server))
    assert [o["uid"] for o in server.rules[NAME]["metadata"]["ownerReferences"]] == ["new-uid"]


def foreign(rule: dict[str, Any], change: str) -> None:
    """Makes a rule somebody else's in one way."""
    meta, spec = rule["metadata"], rule["spec"]
    match change:
        case "label":
            meta["labels"]["faultline.dev/gpu-fault"] = "mine"
        case "node":
            meta["labels"]["faultline.dev/node"] = "gpu-2"
        case "labels":
            meta["labels"] = None
        case "key":
            spec["taint"]["key"] = "example.com/mine"
        case "pool":
            spec["deviceSelector"]["pool"] = "gpu-2"
        case "driver":
            spec["deviceSelector"]["driver"] = "dra.net"
        case "device":
            spec["deviceSelector"]["device"] = "gpu-4"
        case "every device":
            spec["deviceSelector"] = {}
        case "spec":
            rule["spec"] = {"taint": {"key": "faultline.dev/gpu-fault"}}


CHANGES = ["label", "node", "labels", "key", "pool", "driver", "device", "every device", "spec"]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_rule_that_is_not_ours_in_any_way_is_never_changed_or_deleted(change: str) -> None:
    server = Server()
    taint = means(server)
    await withhold(taint)
    foreign(server.rules[NAME], change)
    before = copy.deepcopy(server.rules)
    assert await taint.held() == ()
    assert await taint.release(NAME) == () and await taint.release("f1") == ()
    with pytest.raises(WithholdError, match="not ours"):
        await withhold(taint)
    assert server.rules == before


@pytest.mark.parametrize("handle", ["", "f2", "other", NAME + "x"])
async def test_a_release_of_something_else_takes_nothing_back(handle: str) -> None:
    server = Server()
    await withhold(means(server))
    assert await means(server).release(handle) == () and NAME in server.rules


async def test_a_rule_without_a_fault_is_not_released_by_an_empty_name() -> None:
    server = Server()
    await withhold(means(server), fault="")
    assert await means(server).release("") == () and NAME in server.rules
    (gone,) = await means(server).release(NAME)
    assert gone.handle == NAME


async def test_rules_are_found_while_no_slice_was_seen_yet() -> None:
    """After a kubelet's start there are none; the rule is ours all the same."""
    server = Server()
    await withhold(means(server))
    blind = DeviceTaint(cast(KubeClient, server), node=NODE, devices=lambda: (), driver=DRIVER)
    assert [h.handle for h in await blind.held()] == [NAME]
    assert [h.handle for h in await blind.release("f1")] == [NAME]


async def test_another_nodes_agent_does_not_see_it() -> None:
    server = Server()
    await withhold(means(server))
    other = DeviceTaint(cast(KubeClient, server), node="gpu-2", devices=lambda: (), driver=DRIVER)
    assert await other.held() == () and await other.release("f1") == ()


# What others do between two of our requests.


async def test_a_rule_that_changes_while_it_is_changed_is_looked_at_again() -> None:
    server = Server()
    taint = means(server)
    await withhold(taint)
    server.before.append(("PATCH", lambda: void(server.put(server.rules[NAME]))))
    await withhold(taint, value="xid-74")
    assert server.rules[NAME]["spec"]["taint"]["value"] == "xid-74"


async def test_a_rule_that_is_deleted_while_it_is_changed_is_made_again() -> None:
    server = Server()
    taint = means(server)
    await withhold(taint)
    server.before.append(("PATCH", lambda: void(server.rules.clear())))
    await withhold(taint, value="xid-74")
    assert server.rules[NAME]["spec"]["taint"]["value"] == "xid-74"


async def test_a_rule_that_becomes_somebody_elses_while_it_is_changed_stays_his() -> None:
    server = Server()
    taint = means(server)
    await withhold(taint)

    def taken() -> None:
        foreign(server.rules[NAME], "label")
        server.put(server.rules[NAME])

    server.before.append(("PATCH", taken))
    with pytest.raises(WithholdError, match="not ours"):
        await withhold(taint, value="xid-74")
    assert server.rules[NAME]["spec"]["taint"]["value"] == "xid-79"
    server.rules[NAME]["metadata"]["labels"]["faultline.dev/gpu-fault"] = "device"
    server.before.append(("DELETE", taken))
    assert await taint.release("f1") == () and NAME in server.rules


async def test_a_rule_that_changes_or_goes_while_it_is_deleted() -> None:
    server = Server()
    taint = means(server)
    await withhold(taint)
    server.before.append(("DELETE", lambda: void(server.put(server.rules[NAME]))))
    assert [h.handle for h in await taint.release("f1")] == [NAME] and server.rules == {}
    await withhold(taint)
    server.before.append(("DELETE", lambda: void(server.rules.clear())))
    assert await taint.release("f1") == (), "somebody else took it away"


async def test_who_never_lets_go_is_left_alone_after_some_tries() -> None:
    server = Server()
    taint = means(server)
    await withhold(taint)
    touch = [(method, lambda: void(server.put(server.rules[NAME]))) for method in ("PATCH", "DELETE")]
    server.before = touch * 50
    with pytest.raises(RefusedError):
        await withhold(taint, value="xid-74")
    with pytest.raises(RefusedError):
        await taint.release("f1")
    assert len(server.methods("PATCH")) == len(server.methods("DELETE")) == device_taint.TRIES


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("status", [403, 422, 500])
async def test_a_refusal_is_the_callers_to_judge(method: str, status: int) -> None:
    server = Server()
    taint = means(server)

    def refuse() -> None:
        raise refused(status)

    if method != "POST":
        await withhold(taint)
    server.before.append((method, refuse))
    with pytest.raises(RefusedError) as caught:
        await (taint.release("f1") if method == "DELETE" else withhold(taint, value="xid-74"))
    assert caught.value.status == status and server.methods(method) == [method], "not tried again"


def void(_: object) -> None:
    """Takes a value where none is wanted."""

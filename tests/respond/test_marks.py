"""The marks on the Node object: what is there and what should be in, one PATCH out."""

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.model import Action, Component, Fault, GpuRef, Plan, Scope, Severity, parse_pci
from agent.respond.marks import (
    ANNOTATION_BYTES,
    CONDITION,
    KEY,
    MANAGER,
    RELEASE,
    Mark,
    NodeView,
    Record,
    adopted,
    condition_patch,
    mark_for,
    node_patch,
    record_of,
)

NOW = 1_780_000_000.0
FOREIGN = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
OURS = {"key": KEY, "value": "xid-79", "effect": "NoSchedule"}


def fault(name: str = "fault-1", *, action: Action = Action.TAINT, seen: float = NOW, value: str = "xid-79") -> Fault:
    return Fault(
        id=name, scope=Scope.GPU, gpu=GpuRef(pci=parse_pci("0000:5d:00"), uuid="GPU-4"), cause="xid/79", title="Xid 79",
        severity=Severity.FATAL, recovery="reboot_node", component=Component.GPU, action=action, value=value,
        xids=(79,), first_seen=seen, last_seen=seen, why="Xid 79 is fatal",
    )  # fmt: skip


def node(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}, "spec": spec}


def applied(obj: dict[str, Any], patch: dict[str, Any] | None) -> dict[str, Any]:
    """A strategic merge as the API server does it for the fields that we send."""
    done: dict[str, Any] = json.loads(json.dumps(obj))
    for part, changes in (patch or {}).items():
        target = done.setdefault(part, {})
        for key, value in changes.items():
            if key == "resourceVersion":
                assert value == target[key], "made from the object that it changes"
            elif key in ("labels", "annotations"):
                merged = target.get(key, {}) | value
                target[key] = {k: v for k, v in merged.items() if v is not None}
            elif value is None:
                target.pop(key, None)
            else:
                target[key] = value
    return done


def carry(obj: dict[str, Any], mark: Mark, *, now: float = NOW) -> dict[str, Any]:
    done = applied(obj, node_patch(NodeView.of(obj), mark, now=now, boot="b1"))
    again = node_patch(NodeView.of(done), mark, now=now + 1000, boot="b1")
    assert again is None, "what is right already is not written again"
    return done


TAINTED = Mark(means="node", value="xid-79", faults=(fault(),))
CORDONED = Mark(means="cordon", value="xid-79", faults=(fault(action=Action.CORDON),))
NOTHING = Mark()


def test_a_taint_its_label_and_its_annotation_are_one_patch_and_fall_together() -> None:
    done = carry(node(taints=[FOREIGN]), TAINTED)
    assert done["spec"] == {"taints": [FOREIGN, OURS]}
    assert done["metadata"]["labels"] == {"a": "b", KEY: "node"}
    told = json.loads(done["metadata"]["annotations"][KEY])
    assert told["faults"][0]["gpu"] == {"pci": "0000:5d:00", "uuid": "GPU-4"} and told["cordoned"] is False
    back = carry(done, NOTHING)
    assert back["spec"] == {"taints": [FOREIGN]}
    assert back["metadata"]["labels"] == {"a": "b"} and back["metadata"]["annotations"] == {}


def test_a_node_without_a_taints_field_gets_one_and_loses_it_again() -> None:
    done = carry(node(), TAINTED)
    assert done["spec"]["taints"] == [OURS]
    assert carry(done, NOTHING)["spec"] == {}


@given(
    st.lists(
        st.fixed_dictionaries({
            "key": st.sampled_from(["a/b", "c", KEY]), "effect": st.sampled_from(["NoExecute", "PreferNoSchedule"]),
            "value": st.text(max_size=3),
        }),
        max_size=64,
    ),
    st.integers(0, 64),
    st.booleans(),
)  # fmt: skip
def test_foreign_taints_stay_as_they_are_and_where_they_are(foreign: list[dict], at: int, there: bool) -> None:
    before = [*foreign[:at], *([OURS | {"value": "old"}] if there else []), *foreign[at:]]
    done = carry(node(taints=before), TAINTED)
    assert [t for t in done["spec"]["taints"] if t != OURS] == foreign
    back = carry(done, NOTHING)
    assert back["spec"].get("taints", []) == foreign


def test_our_cordon_is_recorded_and_only_ours_is_lifted() -> None:
    done = carry(node(), CORDONED)
    assert done["spec"]["unschedulable"] is True and done["spec"]["taints"] == [OURS]
    assert record_of(done["metadata"]["annotations"]).cordoned  # type: ignore[union-attr]
    assert "unschedulable" not in carry(done, NOTHING)["spec"]

    persons = carry(node(unschedulable=True), CORDONED)
    assert not record_of(persons["metadata"]["annotations"]).cordoned  # type: ignore[union-attr]
    assert carry(persons, NOTHING)["spec"] == {"unschedulable": True}, "a person's cordon stays"


def test_a_persons_uncordon_is_respected_until_another_fault_asks_for_it() -> None:
    done = carry(node(), CORDONED)
    del done["spec"]["unschedulable"]
    left = carry(done, CORDONED)
    assert "unschedulable" not in left["spec"] and left["spec"]["taints"] == [OURS]
    assert record_of(left["metadata"]["annotations"]).respected == ("fault-1",)  # type: ignore[union-attr]
    second = replace(CORDONED, faults=(*CORDONED.faults, fault("fault-2", action=Action.CORDON)))
    assert carry(left, second)["spec"]["unschedulable"] is True


def test_a_cordon_without_our_annotation_is_never_lifted() -> None:
    assert carry(node(unschedulable=True, taints=[OURS]), NOTHING)["spec"] == {"unschedulable": True}


def owned(obj: dict[str, Any], *managers: str) -> dict[str, Any]:
    """The node as the API server tells who set ``spec.unschedulable``."""
    taints = {"manager": "kubelet", "fieldsV1": {"f:spec": {"f:taints": {}}}}
    fields = [{"manager": m, "operation": "Update", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}} for m in managers]
    return obj | {"metadata": obj["metadata"] | {"managedFields": [taints, *fields]}}


def test_a_persons_cordon_that_took_the_place_of_ours_unseen_is_not_lifted() -> None:
    done = carry(node(), CORDONED)
    theirs = owned(done, "kubectl-cordon")
    assert carry(theirs, NOTHING)["spec"] == {"unschedulable": True}
    kept = carry(theirs, CORDONED)
    record = record_of(kept["metadata"]["annotations"])
    assert record is not None and not record.cordoned
    lifted = kept | {"spec": {k: v for k, v in kept["spec"].items() if k != "unschedulable"}}
    assert "unschedulable" not in carry(owned(lifted), CORDONED)["spec"], "and a person's uncordon of it is respected"
    assert carry(owned(done, MANAGER, "kubectl"), NOTHING)["spec"] == {"unschedulable": True}, "who shares it has a say"


def test_our_cordon_is_lifted_by_its_owner_even_where_our_annotation_was_deleted() -> None:
    done = carry(node(), CORDONED)
    del done["metadata"]["annotations"][KEY]
    assert carry(owned(done, MANAGER), NOTHING)["spec"] == {}
    again = record_of(carry(owned(done, MANAGER), CORDONED)["metadata"]["annotations"])
    assert again is not None and again.cordoned


@given(st.recursive(st.none() | st.text(max_size=3), lambda c: st.lists(c, max_size=3) | st.dictionaries(
    st.sampled_from(["manager", "fieldsV1", "f:spec", "f:unschedulable"]), c, max_size=4)))  # fmt: skip
def test_owners_of_any_form_are_read(fields: Any) -> None:
    obj = node(unschedulable=True)
    obj["metadata"]["managedFields"] = fields
    assert NodeView.of(obj).unschedulable


def test_a_milder_mark_lifts_the_cordon_and_keeps_when_it_began() -> None:
    done = carry(node(), CORDONED)
    milder = carry(done, TAINTED, now=NOW + 500)
    assert "unschedulable" not in milder["spec"] and milder["metadata"]["labels"][KEY] == "node"
    record = record_of(milder["metadata"]["annotations"])
    assert record is not None and record.since == NOW


def test_the_release_annotation_goes_with_the_mark() -> None:
    done = carry(node(), TAINTED)
    done["metadata"]["annotations"][RELEASE] = "all"
    patch = node_patch(NodeView.of(done), NOTHING, now=NOW, boot="b1", released=True)
    assert applied(done, patch)["metadata"]["annotations"] == {}


def test_the_annotation_stays_small_and_says_how_much_it_leaves_out() -> None:
    many = tuple(replace(fault(f"fault-{i}"), why="x" * 5000) for i in range(200))
    done = carry(node(), Mark(means="node", value="xid-79", faults=many))
    text = done["metadata"]["annotations"][KEY]
    assert len(text) <= ANNOTATION_BYTES
    told = json.loads(text)
    assert len(told["faults"]) + told["more"] == 200


def test_an_agent_that_lost_its_state_takes_the_faults_up_from_the_mark() -> None:
    done = carry(node(), CORDONED)
    record = record_of(done["metadata"]["annotations"])
    assert record is not None
    (found,) = adopted(record, now=NOW)
    assert (found.id, found.gpu, found.xids, found.recovery, found.action) == (
        "fault-1", fault().gpu, (79,), "reboot_node", Action.CORDON,
    )  # fmt: skip
    assert found.accuses
    again = mark_for([Plan(action=found.action, target="", why="", fault=found.id, means="cordon")], {found.id: found})
    assert carry(done, again)["spec"] == done["spec"], "the mark stands as it stood"


@given(
    st.one_of(
        st.text(),
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda c: (
                st.lists(c)
                | st.dictionaries(
                    st.sampled_from(["v", "since", "faults", "gpu", "xids", "fault", "more", "uncordoned", "scope"]), c
                )
            ),
        ).map(json.dumps),
    )
)
def test_any_annotation_can_be_read(text: str) -> None:
    record = record_of({KEY: text})
    assert isinstance(record, Record)
    adopted(record, now=NOW)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda c: (
            st.lists(c)
            | st.dictionaries(
                st.sampled_from(["metadata", "spec", "status", "taints", "labels", "annotations", "conditions", "key"]),
                c,
            )
        ),
    )
)
def test_any_object_can_be_looked_at(obj: Any) -> None:
    view = NodeView.of(obj if isinstance(obj, dict) else {})
    condition_patch(view, (), now=NOW, heartbeat=60)


def condition(faults: list[Fault], *, was: dict[str, Any] | None = None, now: float = NOW, blind: str = "") -> Any:
    view = NodeView.of({"status": {"conditions": [{"type": "Ready"}] + ([was] if was else [])}})
    body = condition_patch(view, faults, now=now, heartbeat=1800, blind=blind)
    return None if body is None else body["status"]["conditions"][0]


def test_the_condition_is_there_and_false_when_all_is_well_and_is_not_rewritten() -> None:
    first = condition([])
    assert (first["type"], first["status"], first["reason"]) == (CONDITION, "False", "NoGpuFault")
    assert condition([], was=first, now=NOW + 1799) is None
    beat = condition([], was=first, now=NOW + 1801)
    assert beat["lastHeartbeatTime"] != first["lastHeartbeatTime"]
    assert beat["lastTransitionTime"] == first["lastTransitionTime"], "a heartbeat is no transition"


def test_the_condition_tells_the_fault_at_once_and_when_it_began() -> None:
    healthy = condition([])
    sick = condition([fault()], was=healthy, now=NOW + 5)
    assert (sick["status"], sick["reason"]) == ("True", "Xid79") and "0000:5d:00: Xid 79" in sick["message"]
    assert sick["lastTransitionTime"] != healthy["lastTransitionTime"]


def test_blind_is_neither_sick_nor_healthy() -> None:
    assert condition([], blind="permission denied")["status"] == "Unknown"
    assert condition([fault()], blind="permission denied")["status"] == "True"

"""A pod of any JSON: what is absent or of another type counts as absent, and nothing stops the agent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pods import DeviceHealth, Exit, Pod, PodContainer, moment, pod_of

META = {"name": "p", "namespace": "n", "uid": "u"}


def of(*, spec: object = None, status: object = None, **meta: object) -> Pod:
    found = pod_of({"metadata": META | meta, "spec": spec, "status": status})
    assert found is not None
    return found


def container(spec: dict[str, Any], status: dict[str, Any] | None = None) -> PodContainer:
    said = {"containerStatuses": [{"name": "c"} | status]} if status is not None else None
    (found,) = of(spec={"containers": [{"name": "c"} | spec]}, status=said).containers
    return found


@pytest.mark.parametrize(
    "obj", [None, 5, "x", [], {}, {"metadata": []}, {"metadata": {"name": "p"}}, {"metadata": {"uid": "u"}},
            {"metadata": {"name": 5, "uid": "u"}}],
)  # fmt: skip
def test_what_names_no_pod(obj: object) -> None:
    assert pod_of(obj) is None


def test_a_bare_pod_has_nothing_but_its_name() -> None:
    assert pod_of({"metadata": META}) == Pod(namespace="n", name="p", uid="u")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2026-11-30T21:05:09Z", 1796072709.0),
        ("2026-11-30T21:05:09.250000Z", 1796072709.25),
        ("2026-11-30T22:05:09+01:00", 1796072709.0),
        ("2026-11-30T21:05:09", None),  # without a zone it is no time of the API's
        ("yesterday", None), ("", None), (None, None), (5, None), ("9999-99-99T00:00:00Z", None),
    ],
)  # fmt: skip
def test_moments(value: object, seconds: float | None) -> None:
    assert moment(value) == seconds


@pytest.mark.parametrize(
    ("spec", "status", "found"),
    [
        ({}, {}, {}),
        ({"image": "i"}, {"image": "docker.io/i"}, {"image": "i", "resolved_image": "docker.io/i"}),
        ({"image": 5, "command": "x", "args": {}}, {}, {}),
        ({"command": ["a", 5, "b"], "args": [""]}, {}, {"command": ("a", "", "b"), "args": ("",)}),
        ({"resources": {"limits": {"nvidia.com/gpu": 2, "cpu": "1", "x": None}}}, {},
         {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}),
        ({"resources": {"claims": [{"name": "g"}, 5, {}]}}, {}, {"claims": ("g", "")}),
        ({}, {"containerID": "containerd://ab"}, {"id": "ab"}),
        ({}, {"containerID": "ab"}, {"id": ""}),
        ({}, {"restartCount": 3, "ready": True}, {"restarts": 3, "ready": True}),
        ({}, {"restartCount": True, "ready": "true"}, {}),
        ({}, {"state": {"running": {"startedAt": "2026-11-30T21:05:09Z"}}}, {"running_since": 1796072709.0}),
        ({}, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, {}),
        # In a back-off the container stays terminated: this is how a crash is seen, with its own last words.
        ({}, {"state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "m"}}},
         {"ended": Exit(code=1, reason="Error", message="m")}),
        ({}, {"lastState": {"terminated": {"exitCode": 137, "signal": 9, "finishedAt": "2026-11-30T21:05:09Z"}}},
         {"ended_before": Exit(code=137, signal=9, time=1796072709.0)}),
        ({}, {"state": {"terminated": {}}, "lastState": {"terminated": []}}, {}),
        ({}, {"allocatedResourcesStatus": [
            {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-1", "health": "Unhealthy"}, 5]},
            {"name": "claim:g", "resources": [{"resourceID": "d/p/x", "health": "Healthy", "message": "m"}]},
            {"name": "claim:h"}, None]},
         {"devices": (DeviceHealth(resource="nvidia.com/gpu", id="GPU-1", health="Unhealthy"),
                      DeviceHealth(resource="claim:g", id="d/p/x", health="Healthy", message="m"))}),
        ({}, {"allocatedResourcesStatus": [{"name": "r", "resources": [{"resourceID": "x"}]}]},
         {"devices": (DeviceHealth(resource="r", id="x", health="Unknown"),)}),
    ],
)  # fmt: skip
def test_what_is_known_of_a_container(spec: dict[str, Any], status: dict[str, Any], found: dict[str, Any]) -> None:
    assert container(spec, status) == PodContainer(name="c", **found)


@pytest.mark.parametrize(
    ("spec", "status", "claims"),
    [
        ([], {}, {}),
        ([{"name": "g", "resourceClaimTemplateName": "t"}], {}, {}),  # not made yet
        ([{"name": "g", "resourceClaimTemplateName": "t"}],
         {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "p-g-1"}]}, {"g": "p-g-1"}),
        ([{"name": "g", "resourceClaimName": "direct"}], {}, {"g": "direct"}),
        ([{"name": "g"}], {"resourceClaimStatuses": [{"name": "g"}, 5]}, {}),
        ([], {"extendedResourceClaimStatus": {"resourceClaimName": "p-extended"}}, {"": "p-extended"}),
        ([], {"extendedResourceClaimStatus": None}, {}),
    ],
)  # fmt: skip
def test_which_claims_are_a_pods(spec: list[object], status: dict[str, Any], claims: dict[str, str]) -> None:
    assert of(spec={"resourceClaims": spec}, status=status).claims == claims


def test_init_containers_come_first_with_their_own_status() -> None:
    found = of(
        spec={"containers": [{"name": "main"}], "initContainers": [{"name": "load"}]},
        status={
            "containerStatuses": [{"name": "main", "restartCount": 1}],
            "initContainerStatuses": [{"name": "load", "restartCount": 2}],
        },
    )
    assert [(c.name, c.init, c.restarts) for c in found.containers] == [("load", True, 2), ("main", False, 1)]
    assert found.container("main") is found.containers[1] and found.container("none") is None


@pytest.mark.parametrize(("deleted", "deleting"), [(None, False), ("", False), ("2026-11-30T21:05:09Z", True)])
def test_a_pod_that_is_being_deleted(deleted: object, deleting: bool) -> None:
    assert of(deletionTimestamp=deleted).deleting is deleting


KEYS = (
    "metadata spec status name namespace uid labels annotations ownerReferences creationTimestamp containers resources "
    "initContainers containerStatuses state lastState terminated running limits claims allocatedResourcesStatus "
    "command resourceClaims resourceClaimStatuses extendedResourceClaimStatus startedAt finishedAt restartCount "
    "exitCode"
).split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("2026-11-30T21:05:09Z"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(JSON, JSON, JSON)
def test_any_json_is_a_pod_or_none(meta: object, spec: object, status: object) -> None:
    pod_of(meta)
    found = pod_of({"metadata": (meta if isinstance(meta, dict) else {}) | META, "spec": spec, "status": status})
    assert found is not None and found.uid == "u"

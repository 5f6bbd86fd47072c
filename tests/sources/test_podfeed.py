"""The pods that are known, by uid and by name, whatever order a feed tells of them in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pods import Pod
from agent.sources.podfeed import KnownPods


def pod(uid: str, name: str = "chat-0", *, phase: str = "Running", namespace: str = "llm") -> Pod:
    return Pod(namespace=namespace, name=name, uid=uid, phase=phase)


def played(known: KnownPods, *steps: tuple[str, Pod]) -> list[str]:
    """What each step changed: `-` where nothing did."""
    changes = [known.seen(p) if kind == "seen" else known.gone(p) for kind, p in steps]
    return ["-" if c is None else f"{c.kind} {c.pod.uid} {c.pod.phase}" for c in changes]


A, B = pod("a"), pod("b")


@pytest.mark.parametrize(
    ("steps", "changes", "name"),
    [
        ([("seen", A)], ["ADDED a Running"], "a"),
        ([("seen", A), ("seen", A)], ["ADDED a Running", "-"], "a"),
        ([("seen", A), ("seen", replace(A, phase="Failed"))], ["ADDED a Running", "MODIFIED a Failed"], "a"),
        ([("gone", A)], ["-"], None),
        ([("seen", A), ("gone", replace(A, phase=""))], ["ADDED a Running", "DELETED a Running"], None),
        ([("seen", A), ("gone", A), ("gone", A)], ["ADDED a Running", "DELETED a Running", "-"], None),
        ([("seen", A), ("gone", A), ("seen", A)], ["ADDED a Running", "DELETED a Running", "ADDED a Running"], "a"),
        # A StatefulSet's pod that was deleted by force: its successor comes while the kubelet still ends it.
        ([("seen", A), ("seen", B)], ["ADDED a Running", "ADDED b Running"], "b"),
        ([("seen", A), ("seen", B), ("gone", A)], ["ADDED a Running", "ADDED b Running", "DELETED a Running"], "b"),
        ([("seen", A), ("seen", B), ("seen", replace(A, phase="Failed"))],
         ["ADDED a Running", "ADDED b Running", "MODIFIED a Failed"], "b"),
        ([("seen", A), ("seen", B), ("seen", replace(A, phase="Failed")), ("gone", A)],
         ["ADDED a Running", "ADDED b Running", "MODIFIED a Failed", "DELETED a Failed"], "b"),
        ([("seen", A), ("seen", B), ("gone", B)], ["ADDED a Running", "ADDED b Running", "DELETED b Running"], None),
        ([("seen", A), ("seen", B), ("gone", B), ("seen", replace(A, phase="Failed"))],
         ["ADDED a Running", "ADDED b Running", "DELETED b Running", "MODIFIED a Failed"], "a"),
    ],
)  # fmt: skip
def test_changes_and_who_has_the_name(steps: list[tuple[str, Pod]], changes: list[str], name: str | None) -> None:
    known = KnownPods()
    assert played(known, *steps) == changes
    assert known.uid_of("llm", "chat-0") == name
    assert known.uid_of("other", "chat-0") is None


def test_a_name_is_of_its_namespace() -> None:
    known = KnownPods()
    played(known, ("seen", pod("a")), ("seen", pod("b", namespace="other")))
    assert (known.uid_of("llm", "chat-0"), known.uid_of("other", "chat-0")) == ("a", "b")
    assert known.get("b") == pod("b", namespace="other") and known.get("c") is None and len(known) == 2


def test_who_is_missing() -> None:
    known = KnownPods()
    played(known, *(("seen", pod(uid, uid)) for uid in "abc"))
    assert [p.uid for p in known.missing(["b", "z"])] == ["a", "c"]
    assert known.missing("abc") == () and len(known.missing(())) == 3


def test_without_room_a_pod_is_told_and_counted_but_not_kept() -> None:
    known = KnownPods(limit=2)
    played(known, ("seen", pod("a", "a")), ("seen", pod("b", "b")))
    assert played(known, ("seen", pod("c", "c")), ("gone", pod("c", "c"))) == ["ADDED c Running", "-"]
    assert known.forgotten == 1 and known.uid_of("llm", "c") is None and len(known) == 2
    assert played(known, ("seen", pod("a", "a", phase="Failed"))) == ["MODIFIED a Failed"], "who is known stays so"
    assert played(known, ("gone", pod("b", "b")), ("seen", pod("c", "c"))) == ["DELETED b Running", "ADDED c Running"]
    assert known.uid_of("llm", "c") == "c"


def test_pods_may_come_and_go_while_they_are_gone_through() -> None:
    known = KnownPods()
    played(known, *(("seen", pod(uid, uid)) for uid in "abc"))
    for one in known:
        known.gone(one)
    assert len(known) == 0


STEPS = st.tuples(
    st.sampled_from(["seen", "gone"]),
    st.builds(pod, st.sampled_from("abc"), st.just("x"), phase=st.sampled_from(["Running", "Failed"])),
)


@given(st.lists(STEPS, max_size=20))
def test_a_name_leads_to_a_pod_that_is_known_and_changes_add_up(steps: list[tuple[str, Pod]]) -> None:
    known, there = KnownPods(), dict[str, Pod]()
    for kind, one in steps:
        change = known.seen(one) if kind == "seen" else known.gone(one)
        if change is None:
            continue
        if change.kind == "DELETED":
            assert there.pop(change.pod.uid) == change.pod
        else:
            assert (change.kind == "ADDED") == (change.pod.uid not in there)
            there[change.pod.uid] = change.pod
    assert {p.uid: p for p in known} == there
    named = known.uid_of("llm", "x")
    assert named is None or named in there

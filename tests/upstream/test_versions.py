"""Holds the order of SGLang's versions and the bounds of rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.upstream.versions import bounds_of, version_of, within


def test_post_releases_come_after_and_candidates_before() -> None:
    names = ["0.5.4rc1", "0.5.4", "0.5.4.post1", "0.5.4.post2", "0.5.10", "0.5.10.post1", "0.6"]
    assert sorted(names, key=version_of) == names
    assert version_of("v0.5.4") == version_of("0.5.4") and version_of("latest") < version_of("0.0.1")


@pytest.mark.parametrize(
    ("version", "bounds", "inside"),
    [
        ("0.5.15.post1", ">=0.5.15", True),
        ("0.5.15.post1", "<=0.5.15", False),
        ("0.5.20", ">=0.5.4,<0.5.20", False),
        ("0.5.4", "==0.5.4", True),
        ("0.5.4", "!=0.5.4", False),
        ("0.5.4", "", True),
        ("0.5.4", "about 0.5", False),
    ],
)
def test_bounds_hold_as_written(version: str, bounds: str, inside: bool) -> None:
    assert within(version, bounds) is inside


def test_bounds_are_as_wide_as_what_was_seen_and_open_at_the_newest() -> None:
    seen = ["0.5.23", "0.5.3", "0.5.10"]
    assert bounds_of(["0.5.10", "0.5.23"], seen) == ">=0.5.10"
    assert bounds_of(["0.5.10", "0.5.3"], seen) == ">=0.5.3,<=0.5.10"
    assert bounds_of([], seen) == ""


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_texts_are_ordered_without_an_exception(version: str, bounds: str) -> None:
    version_of(version)
    within(version, bounds)

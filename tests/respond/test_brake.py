"""The brake: how many nodes are marked already in, a reason or none out."""

import pytest

from agent.respond.brake import brake


def why(limit: str, *, others: int, gpu_nodes: int | None = None) -> str:
    marked = ["me", *(f"n{i}" for i in range(others))]
    return brake(limit, node="me", marked=marked, gpu_nodes=gpu_nodes, selector="gpu=yes")


@pytest.mark.parametrize(
    ("limit", "others", "gpu_nodes", "held"),
    [
        ("1", 0, None, False), ("1", 1, None, True), ("3", 2, None, False), ("3", 3, None, True),
        ("10%", 0, 4, False), ("10%", 1, 4, True), ("10%", 1, 20, False), ("10%", 2, 20, True), ("100%", 3, 4, False),
    ],
)  # fmt: skip
def test_a_number_and_a_share(limit: str, others: int, gpu_nodes: int | None, held: bool) -> None:
    assert bool(why(limit, others=others, gpu_nodes=gpu_nodes)) is held


@pytest.mark.parametrize("gpu_nodes", [None, 0])
def test_a_share_of_an_unknown_number_holds_back(gpu_nodes: int | None) -> None:
    assert "gpu=yes" in why("10%", others=0, gpu_nodes=gpu_nodes)

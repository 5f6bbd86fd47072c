"""What stands in several lines of a pasted document is joined; nothing is named that no line named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.detect.container import ContainerDetector, StreamState
from agent.detect.documents import SECTION_REACH
from agent.model import ContainerRef, Role, Signal
from agent.rulebook import load_rulebook

BOOK = load_rulebook()
DETECTOR = ContainerDetector(BOOK.rules)


def read(*blocks: str) -> list[Signal]:
    state, found = StreamState(), []
    for block in blocks:
        found += DETECTOR.signals(block.encode(), state=state, container=ContainerRef(file="x"), source="x")
    return found


def test_a_line_below_a_gpus_header_belongs_to_that_gpu() -> None:
    (signal,) = read("GPU 00000000:9A:00.0\n    GPU Recovery Action                   : Reset\n")
    assert (signal.rule, signal.gpu.pci) == ("nvidia-smi/recovery-reset", "0000:9a:00")


def test_the_nearest_header_counts_and_it_may_stand_in_an_earlier_block() -> None:
    (signal,) = read(
        "GPU 00000000:1A:00.0\nGPU 00000000:9A:00.0\n", "        Remapping Failure Occurred        : Yes\n"
    )
    assert signal.gpu.pci == "0000:9a:00"


def test_without_a_header_or_far_below_one_no_gpu_is_named() -> None:
    line = "        Remapping Failure Occurred        : Yes\n"
    (signal,) = read(line)
    assert not signal.gpu.known
    (signal,) = read("GPU 00000000:1A:00.0\n" + "x\n" * SECTION_REACH + line)
    assert not signal.gpu.known


def test_another_rules_line_below_a_header_names_no_gpu() -> None:
    found = read("GPU 00000000:1A:00.0\nRuntimeError: CUDA error: unspecified launch failure\n")
    assert [s.gpu.known for s in found] == [False]


def test_all_listed_gpus_are_one_fact() -> None:
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-aaaaaaaa-1111)\nGPU 1: NVIDIA H200 (UUID: GPU-bbbbbbbb-2222)\n"
    *_, last = read(listed)
    assert last.role is Role.CONTEXT
    assert last.fields == {"visible_gpus": "GPU-aaaaaaaa-1111 GPU-bbbbbbbb-2222", "gpu_model": "NVIDIA H200"}


def test_a_node_that_offers_fewer_gpus_than_it_has_is_told_in_either_order() -> None:
    for text in (
        "Capacity:\n  cpu: 8\n  nvidia.com/gpu:             8\nAllocatable:\n  nvidia.com/gpu:             7\n",
        '  allocatable:\n    nvidia.com/gpu: "7"\n  capacity:\n    nvidia.com/gpu: "8"\n',
    ):
        (signal,) = read(text)
        assert signal.rule == "kubernetes/gpus-withdrawn"
        assert signal.role is Role.SYMPTOM
        assert (signal.fields["capacity"], signal.fields["allocatable"]) == ("8", "7")


def test_equal_counts_other_resources_and_counts_outside_a_section_tell_nothing() -> None:
    assert read("Capacity:\n  nvidia.com/gpu:  8\nAllocatable:\n  nvidia.com/gpu:  8\n") == []
    assert read("Capacity:\n  nvidia.com/gpu:  8\nAllocatable:\n  nvidia.com/mig-1g.5gb:  7\n") == []
    assert read("  nvidia.com/gpu:  8\n  nvidia.com/gpu:  7\n") == []


def test_two_nodes_are_not_mixed() -> None:
    one = "Capacity:\n  nvidia.com/gpu:  8\nAllocatable:\n  nvidia.com/gpu:  8\n"
    other = "Capacity:\n  nvidia.com/gpu:  4\nAllocatable:\n  nvidia.com/gpu:  4\n"
    assert read(one + other) == []
    assert read(other + one) == []


@given(st.lists(st.sampled_from([
    "GPU 00000000:9A:00.0", "Capacity:", "Allocatable:", "  nvidia.com/gpu:  8", "  nvidia.com/gpu:  99999999999999",
    "    GPU Recovery Action                   : Reset", "GPU 0: NVIDIA H200 (UUID: GPU-aaaaaaaa-1111)", "", "\x00",
    "        Pending                           : Yes",
])))  # fmt: skip
def test_any_order_of_such_lines_is_read(lines: list[str]) -> None:
    for signal in read("\n".join(lines) + "\n"):
        assert signal.gpu.pci in (None, "0000:9a:00")

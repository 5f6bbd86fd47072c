"""Image against driver: the table of the packaged rules, what follows from facts, and what becomes of verdicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.detect.container import ContainerDetector, StreamState
from agent.detect.rules import Rule, RuleError
from agent.diagnose.diagnostician import Diagnostician
from agent.diagnose.image import Fit, ImageTable, derived, driver_fit, parse_table
from agent.diagnose.knowledge import Knowledge
from agent.model import Component, ContainerRef, Evidence, Role, Signal, Verdict
from agent.rulebook import load_rulebook

from .make import BUSY, pod, said, told

BOOK = load_rulebook()
RULES = {r.id: r for r in BOOK.rules}
PROC = Evidence(source="/proc/driver/nvidia", text="driver=570.86.15")


def diagnostician(*rules: Rule) -> Diagnostician:
    return Diagnostician(
        Knowledge.of(rules or BOOK.rules, lambda: BOOK.catalogue, BOOK.alternatives), images=lambda: BOOK.images
    )


def only(core: Diagnostician) -> Verdict:
    (verdict,) = core.verdicts
    return verdict


@pytest.mark.parametrize(
    ("cuda", "driver", "fit"),
    [
        ("12.9", "570.86.15", Fit.FITS),
        ("12.9", "580.178.04", Fit.FITS),
        ("12.9", "550.54.15", Fit.MINOR_COMPAT),
        ("12.8", "535.161.07", Fit.MINOR_COMPAT),
        ("12.9", "470.256.02", Fit.TOO_OLD),
        ("12.6", "535.161.07", Fit.FITS),
        ("12.6", "520.61.05", Fit.TOO_OLD),
        ("13.0", "575.51.03", Fit.TOO_OLD),
        ("13.0", "580.65.06", Fit.FITS),
        ("13.1", "580.65.06", Fit.FITS),
        ("13.0", "595.10", Fit.FITS),
        ("13.0", "580", Fit.FITS),
    ],
)
def test_each_cuda_has_its_floor(cuda: str, driver: str, fit: Fit) -> None:
    found = driver_fit(cuda, driver, BOOK.images.floors)
    assert found is not None and found.fit is fit


@pytest.mark.parametrize(
    ("cuda", "driver"), [("", "580.1"), ("12.9", ""), ("14.0", "580.1"), ("x", "y"), ("9.2", "390")]
)
def test_of_what_is_not_known_nothing_is_said(cuda: str, driver: str) -> None:
    assert driver_fit(cuda, driver, BOOK.images.floors) is None


@given(st.text(), st.text())
def test_any_versions_are_taken(cuda: str, driver: str) -> None:
    driver_fit(cuda, driver, BOOK.images.floors)
    derived({"cuda": cuda, "driver": driver, "cuda_tag": cuda, "gpu_model": driver, "gpu_arch": cuda}, BOOK.images)


@pytest.mark.parametrize(
    ("model", "arch"),
    [
        ("NVIDIA B200", "sm100"), ("NVIDIA GB200", "sm100"), ("NVIDIA B300 SXM6 AC", "sm100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm120"), ("NVIDIA H100 80GB HBM3", "sm90"),
        ("NVIDIA H200", "sm90"), ("NVIDIA H20", "sm90"), ("NVIDIA L40S", "sm89"), ("NVIDIA L4", "sm89"),
        ("NVIDIA A100-SXM4-80GB", "sm80"), ("NVIDIA GeForce RTX 5090", "sm120"), ("NVIDIA A10", None),
    ],
)  # fmt: skip
def test_a_gpus_model_tells_its_architecture(model: str, arch: str | None) -> None:
    assert derived({"gpu_model": model}, BOOK.images).get("gpu_arch") == arch


def test_what_the_log_said_of_the_architecture_is_not_overruled_by_the_model() -> None:
    assert "gpu_arch" not in derived({"gpu_model": "NVIDIA L4", "gpu_arch": "sm100"}, BOOK.images)


def test_the_table_names_only_rules_that_exist_and_facts_that_are_derived() -> None:
    for outcome in BOOK.images.outcomes:
        assert set(outcome.rules) <= RULES.keys(), outcome.rules
        assert set(outcome.when) <= {"driver_fit", "image_arch"}


def test_a_mistake_in_the_table_is_told_with_its_place() -> None:
    with pytest.raises(RuleError, match=r"x.yaml:4: floors.0.needs"):
        parse_table(
            b"schema: 1\nfloors:\n  - cuda: '12.0'\n    needs: new\n    wants: '1'\n    source: abc\n", file="x.yaml"
        )


@pytest.mark.parametrize(("cuda_tag", "driver", "rule"), [
    ("130", "570.86.15", "image/driver-too-old"),
    ("129", "550.54.15", "image/driver-below-branch"),
    ("129", "570.86.15", None),
    ("130", "580.178.04", None),
])  # fmt: skip
def test_a_mismatch_is_said_before_anything_failed(cuda_tag: str, driver: str, rule: str | None) -> None:
    core = diagnostician()
    core.node({"driver": driver}, evidence=PROC)
    core.apply([told({"cuda_tag": cuda_tag})])
    assert [v.rule for v in core.verdicts] == ([rule] if rule else [])
    if rule is not None:
        verdict = only(core)
        assert verdict.component is Component.DRIVER and driver in verdict.cause and "nothing has failed" in verdict.why


def test_it_is_said_too_when_the_driver_becomes_known_last() -> None:
    core = diagnostician()
    core.apply([told({"cuda": "13.0"})])
    assert core.verdicts == ()
    changes = core.node({"driver": "570.86.15"}, evidence=PROC, time=7.0)
    assert [v.rule for v in changes.verdicts.values()] == ["image/driver-too-old"]
    assert only(core).evidence == (PROC,)


def test_a_server_that_got_ready_takes_it_back() -> None:
    core = diagnostician()
    core.node({"driver": "570.86.15"}, evidence=PROC)
    core.apply([told({"cuda": "13.0"})])
    gone = only(core).id
    changes = core.apply([told({"ready": "yes"})])
    assert core.verdicts == () and core.failures == () and gone in changes.dropped
    assert core.facts(pod())["driver_fit"] == "runs"


def test_a_driver_that_was_updated_takes_it_back() -> None:
    core = diagnostician()
    core.node({"driver": "570.86.15"}, evidence=PROC)
    core.apply([told({"cuda": "13.0"})])
    core.node({"driver": "580.65.06"}, evidence=PROC)
    assert core.verdicts == ()


def test_what_fails_after_it_is_the_failure() -> None:
    core = diagnostician()
    core.node({"driver": "570.86.15"}, evidence=PROC)
    core.apply([told({"cuda": "13.0"}), said(RULES["cuda/driver-too-old"])])
    verdict = only(core)
    assert verdict.rule == "cuda/driver-too-old"
    assert "CUDA 13.0, which needs a driver of branch 580; this node runs 570.86.15" in verdict.cause


@pytest.mark.parametrize(
    ("rule", "cuda", "driver", "arch", "component", "words"),
    [
        ("cuda/driver-too-old", "13.0", "570.86.15", "", Component.DRIVER, "needs a driver of branch 580"),
        ("cuda/driver-too-old", "12.9", "580.65.06", "", Component.IMAGE, "another driver library"),
        ("cuda/driver-mismatch", "13.0", "570.86.15", "", Component.IMAGE, "older than branch 580"),
        ("cuda/driver-mismatch", "12.9", "570.86.15", "", Component.DRIVER, ""),
        ("cuda/forward-compatibility", "12.9", "580.65.06", "", Component.IMAGE, "not needed"),
        ("cuda/forward-compatibility", "13.0", "570.86.15", "", Component.DRIVER, "too old for CUDA 13.0"),
        ("cuda/unsupported-ptx", "12.9", "550.54.15", "", Component.DRIVER, "branch 570"),
        ("cuda/unsupported-ptx", "12.9", "575.51.03", "", Component.IMAGE, "newer CUDA"),
        ("cuda/no-kernel-image", "12.6", "580.65.06", "sm100", Component.IMAGE, "cannot make code for sm100"),
        ("cuda/no-kernel-image", "12.9", "580.65.06", "sm100", Component.IMAGE, "built for other GPUs"),
    ],
)
def test_an_error_of_a_mismatch_ends_in_what_does_not_fit(
    rule: str, cuda: str, driver: str, arch: str, component: Component, words: str
) -> None:
    core = diagnostician()
    core.node({"driver": driver}, evidence=PROC)
    core.apply([told({"cuda": cuda, "gpu_arch": arch}), said(RULES[rule])])
    verdict = only(core)
    assert (verdict.rule, verdict.component) == (rule, component)
    assert words in verdict.cause and "unknown" not in verdict.cause
    assert verdict.fix, "what the rule says to do stays"


@pytest.mark.parametrize("rule", ["cuda/driver-too-old", "cuda/driver-mismatch", "cuda/forward-compatibility",
                                  "cuda/no-kernel-image", "cuda/unsupported-ptx"])  # fmt: skip
def test_without_facts_such_an_error_is_what_its_rule_says(rule: str) -> None:
    core = diagnostician()
    core.apply([said(RULES[rule])])
    assert only(core).component is RULES[rule].component


def test_facts_of_the_node_reach_every_container_and_only_such_facts() -> None:
    core = diagnostician()
    core.apply([told({"cuda": "12.9"}, by=pod("a")), told({"tp_size": "4"}, by=pod("b"))])
    core.node({"driver": "580.178.04", "tp_size": "8"}, evidence=PROC)
    assert core.facts(pod("a"))["driver_branch"] == "580"
    assert core.facts(pod("b")) == {"tp_size": "4", "driver": "580.178.04", "driver_branch": "580"}


def test_the_kernels_line_tells_the_driver() -> None:
    core = diagnostician()
    core.apply([told({"cuda": "13.0"})])
    line = Evidence(source="kernel log", text="NVRM: loading NVIDIA UNIX")
    core.apply([Signal(rule="kernel/driver-loaded", role=Role.CONTEXT, fields={"driver": "570.86.15"}, evidence=line)])
    assert only(core).rule == "image/driver-too-old"


def test_one_containers_words_about_the_driver_reach_no_other_on_a_node() -> None:
    core = diagnostician()
    core.apply([told({"driver": "400.1"}, by=pod("liar")), told({"cuda": "13.0"}, by=pod("a"))])
    assert core.verdicts == () and "driver" not in core.facts(pod("a"))


def test_the_nodes_own_word_wins_over_a_containers() -> None:
    core = diagnostician()
    core.node({"driver": "580.178.04"}, evidence=PROC)
    core.apply([told({"driver": "400.1", "cuda": "13.0"})])
    assert core.verdicts == ()


def test_facts_survive_a_restart_and_derived_ones_are_drawn_anew() -> None:
    core = diagnostician()
    core.node({"driver": "570.86.15"}, evidence=PROC)
    core.apply([told({"cuda": "13.0"}), said(RULES["cuda/driver-too-old"])])
    again = diagnostician()
    again.restore(faults=(), failures=core.failures)
    again.node({"driver": "580.65.06"}, evidence=PROC)
    assert again.facts(pod())["driver_fit"] == "fits"
    assert only(again).component is Component.IMAGE


def test_a_table_is_not_needed_where_no_such_fact_is_known() -> None:
    def fail() -> ImageTable:
        raise AssertionError("read for nothing")

    core = Diagnostician(Knowledge.of((BUSY,), lambda: BOOK.catalogue), images=fail)
    core.apply([told({"tp_size": "4"}), said(BUSY)])
    assert len(core.failures) == 1


def handed(name: str) -> ContainerRef:
    return ContainerRef(file=name)


def test_files_that_are_handed_in_together_speak_of_one_node_and_are_answered_once() -> None:
    for order in (1, -1):
        core = diagnostician()
        texts = [told({"driver": "570.86.15"}, by=handed("smi")), told({"cuda_tag": "130"}, by=handed("describe"))]
        core.apply(texts[::order])
        assert [(v.rule, str(v.container)) for v in core.verdicts] == [("image/driver-too-old", "describe")]


def test_files_about_two_nodes_tell_nothing_of_a_third_ones_driver() -> None:
    core = diagnostician()
    core.apply([told({"driver": "570.86.15"}, by=handed("a")), told({"driver": "580.65.06"}, by=handed("b"))])
    core.apply([told({"cuda": "13.0"}, by=handed("c"))])
    assert core.verdicts == ()


def test_an_error_is_worded_with_what_another_file_says_and_comes_before_advice() -> None:
    core = diagnostician()
    core.apply([told({"cuda_tag": "130"}, by=handed("describe")), said(RULES["cuda/driver-too-old"], by=handed("log"))])
    core.apply([told({"driver": "570.86.15"}, by=handed("smi"))])
    assert [v.rule for v in core.verdicts] == ["cuda/driver-too-old", "image/driver-too-old"]
    assert "this node runs 570.86.15" in core.verdicts[0].cause


def test_taking_one_piece_of_advice_back_leaves_the_other_as_the_first() -> None:
    core = diagnostician()
    core.node({"driver": "570.86.15"}, evidence=PROC)
    core.apply([told({"cuda": "13.0"}), told({"kv_scales": "none"})])
    assert [v.rule for v in core.verdicts] == ["image/driver-too-old", "sglang/fp8-kv-without-scales"]
    core.apply([told({"ready": "yes"})])
    assert [v.rule for v in core.verdicts] == ["sglang/fp8-kv-without-scales"]
    assert len(core.failures) == 1 and core.failures[0].signals == 1


def test_a_list_of_gpus_handed_in_beside_a_log_tells_the_architecture() -> None:
    detector = ContainerDetector(BOOK.rules)

    def read(name: str, text: str) -> list[Signal]:
        return detector.signals(text.encode(), state=StreamState(), container=handed(name), source=name)

    core = diagnostician()
    listed = "GPU 0: NVIDIA B200 (UUID: GPU-0a1b2c3d-1111-2222-3333-444455556666)\n"
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    core.apply([*read("log", "CUDA Version 12.6.3\n" + error), *read("smi", listed)])
    assert [v.rule for v in core.verdicts] == ["cuda/no-kernel-image"]
    assert core.verdicts[0].cause.startswith("The image is built with CUDA 12.6, which cannot make code for sm100")

"""The packs of CUDA, PyTorch, NCCL, Kubernetes, host and model hold to their word, and stay quiet on other lines."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.detect.causes import Alternative, hinted, parse_causes
from agent.detect.framing import message_of
from agent.detect.rules import CAPTURE_TIMEOUT, Rule, RuleError, parse_rules, render
from agent.model import Action, Component, Role
from agent.rulebook import load_rulebook

ROOT = Path(__file__).resolve().parents[2]
AREAS = ("cuda", "torch", "nccl", "kubernetes", "host", "model")
FILES = sorted(file for area in AREAS for file in (ROOT / "rules" / area).glob("*.yaml"))
CAUSES = ROOT / "rules" / "causes" / "error-46.yaml"
DATA = Path(__file__).resolve().parents[1] / "data" / "rules"


def _rules() -> tuple[Rule, ...]:
    return tuple(rule for file in FILES for rule in parse_rules(file.read_bytes(), file=file.name))


def _causes() -> tuple[Alternative, ...]:
    return parse_causes(CAUSES.read_bytes(), file=CAUSES.name)


RULES = _rules()
BY_ID = {rule.id: rule for rule in RULES}
LEFT_OUT = (Role.ADVICE, Role.UNCLAIMED)
WHOLE = tuple(r for r in load_rulebook().rules if r.reads != "kernel" and r.role not in LEFT_OUT)


def _matching(line: str, *, among: tuple[Rule, ...] = WHOLE) -> dict[str, dict[str, str]]:
    message = message_of(line)
    found = {rule.id: rule.capture_fields(message) for rule in among}
    return {id_: fields for id_, fields in found.items() if fields is not None}


def _lines(name: str) -> list[tuple[str, str, dict[str, str]]]:
    data = yaml.safe_load((DATA / name).read_text())
    return [(entry["line"], entry["rule"], entry.get("fields", {})) for entry in data["lines"]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_file_loads_and_its_examples_hold(file: Path) -> None:
    assert parse_rules(file.read_bytes(), file=file.name, thorough=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_the_ids_of_a_file_begin_with_its_folder(file: Path) -> None:
    assert {rule.id.split("/")[0] for rule in parse_rules(file.read_bytes(), file=file.name)} == {file.parent.name}


def test_no_id_is_given_twice() -> None:
    assert len(BY_ID) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_line_of_an_example_is_recognised_by_at_most_one_rule_and_the_example_by_its_own(rule: Rule) -> None:
    for example in rule.examples.match:
        hits = [set(_matching(line)) for line in example.splitlines()]
        assert all(len(hit) <= 1 for hit in hits), (example, hits)
        assert {rule.id} in hits, (example, hits)
        if len(hits) == 1:
            assert hits == [{rule.id}]


@pytest.mark.parametrize(("line", "rule", "fields"), _lines("real-lines.yaml") + _lines("headed-lines.yaml"))
def test_a_real_line_is_recognised_as_what_it_is(line: str, rule: str, fields: dict[str, str]) -> None:
    found = _matching(line)
    assert set(found) == ({rule} if rule else set())
    if rule:
        assert fields.items() <= found[rule].items()


@pytest.mark.parametrize("line", yaml.safe_load((DATA / "quoted-lines.yaml").read_text())["lines"])
def test_a_quoted_error_or_an_ordinary_line_matches_nothing(line: str) -> None:
    assert _matching(line, among=tuple(rule for rule in WHOLE if rule.role is not Role.CONTEXT)) == {}


@pytest.mark.parametrize(
    "story", yaml.safe_load((DATA / "stories.yaml").read_text())["stories"], ids=lambda s: s["name"]
)
def test_the_lines_of_a_story_give_just_these_rules(story: dict[str, object]) -> None:
    found: dict[str, None] = {}
    for line in str(story["log"]).splitlines():
        found.update(dict.fromkeys(_matching(line)))
    assert list(found) == story["rules"]


def test_a_busy_device_is_left_undecided_and_suspects_gpu_fabric_and_node() -> None:
    rule = BY_ID["cuda/device-busy"]
    assert (rule.role, rule.component) == (Role.SYMPTOM, Component.UNDECIDED)
    assert set(rule.suspects) == {"gpu", "fabric", "node"}


def test_no_rule_for_a_container_asks_for_more_than_advice() -> None:
    assert {rule.warrants for rule in RULES} <= {Action.NONE, Action.ADVISE}


def test_only_memory_errors_advise_to_lower_the_memory_fraction() -> None:
    advising = {r.id for r in RULES for s in r.fix if "--mem-fraction-static" in s.say}
    assert advising == {
        "cuda/out-of-memory", "cuda/cublas-failed",
        "torch/out-of-memory", "torch/out-of-memory-beside-other-process",
    }  # fmt: skip


def test_every_fix_and_check_is_a_sentence_for_a_person() -> None:
    for rule in RULES:
        for step in rule.fix:
            assert step.say[0].isupper() and step.say.rstrip("`")[-1] in ".)", (rule.id, step.say)


def test_texts_render_without_the_captures_too() -> None:
    for rule in RULES:
        for text in (rule.cause, *(step.say for step in rule.fix)):
            assert "{" not in render(text, {}).replace("{captures}", "")


def test_every_alternative_that_a_rule_names_is_in_the_cause_file_and_each_is_named() -> None:
    named = {id_ for rule in RULES for id_ in rule.alternatives}
    assert named == {alternative.id for alternative in _causes()}


def test_the_sharing_causes_speak_of_compute_mode_mps_replicas_and_mig() -> None:
    sharing = [a for a in _causes() if a.component is Component.SHARING]
    said = " ".join(text for a in sharing for text in (a.title, a.cause, *a.check, *(s.say for s in a.fix)))
    assert all(word in said for word in ("compute mode", "MPS", "replicas", "MIG"))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("version: v1\nsharing:\n  mps:\n    resources:\n    - name: nvidia.com/gpu\n", "mps-replicas"),
        ("|   0  Tesla K40m          On   | 0000:04:00.0     Off |\n|      0%   E. Process |", "compute-mode"),
        ("  Device 0: GRID A100D-16C, compute capability 8.0, VMM: no", "vgpu-licence"),
        ("GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-2)", "mig-layout"),
        ("Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)", "gpu-needs-reset"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver-reload"),
    ],
)  # fmt: skip
def test_a_hint_in_any_text_makes_its_cause_likely(text: str, cause: str) -> None:
    assert f"causes/{cause}" in [alternative.id for alternative, _ in hinted(_causes(), text)]


def test_the_plain_error_hints_at_no_cause() -> None:
    log = (
        "Traceback (most recent call last):\n"
        "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available.\n"
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
        "Search for `cudaErrorDevicesUnavailable' in https://docs.nvidia.com/cuda/ for more information.\n"
    )
    assert hinted(_causes(), log) == ()


def test_a_cause_file_with_an_id_twice_is_refused_by_name() -> None:
    data = yaml.safe_load(CAUSES.read_text())
    data["alternatives"].append(data["alternatives"][0])
    with pytest.raises(RuleError, match="causes/gpu-needs-reset is there twice"):
        parse_causes(yaml.safe_dump(data).encode(), file="x.yaml")


@given(st.text(max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_text_is_taken_without_an_exception(text: str) -> None:
    _matching(text)


def test_no_capture_needs_its_time_limit_on_a_long_hostile_line() -> None:
    tails = (
        "a " * 8000,
        "x: " * 5000,
        "Process 1 has 1.00 GiB memory in use. " * 400,
        "failed: [" * 2000,
        "1.2:3 " * 2500,
    )
    for rule in RULES:
        for literal in rule.literals[:2]:
            for tail in tails:
                for line in (literal + tail, tail + literal, "RuntimeError: " + literal + tail):
                    began = time.thread_time()
                    rule.capture_fields(line)
                    assert time.thread_time() - began < CAPTURE_TIMEOUT, rule.id

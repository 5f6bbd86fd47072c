"""Each failure of LLMKube's page on SGLang and Blackwell: log and faulty manifest in, recommended manifest out."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli.explain import command
from agent.detect.recognise import recognise
from agent.explain import explain
from agent.model import Change, Remedy, Verdict
from agent.respond.fields import Field, FieldTable
from agent.respond.manifest import ManifestError, json_patch, known_from, masked, merge_patch, service_in
from agent.respond.remedy import apply, command_line, dress, fitting, outline_for, patch_for
from agent.rulebook import load_rulebook
from agent.sources.handed import open_handed

DATA = Path(__file__).parent.parent / "data"
BOOK = load_rulebook()
TABLE: FieldTable = BOOK.field_table
LOGS = {
    "slow": "10-qwen35-default-triton-on-sm100.patched.log",
    "flash_attn": "argparse-attention-backend.log",
    "decode": "linear-attn-decode-needs-bf16.log",
    "prefill": "linear-attn-prefill-needs-cuda13.log",
    "busy": "05-busy-unavailable-in-scheduler.injected.log",
}


def verdict_of(name: str) -> Verdict:
    explanation = explain(open_handed((str(DATA / "sglang" / LOGS[name]),), stdin=None, recognise=recognise), BOOK)
    return explanation.verdicts[0]


def manifest(name: str) -> dict[str, Any]:
    return dict(service_in((DATA / "llmkube" / f"{name}.yaml").read_bytes(), table=TABLE))


def remedy(*changes: tuple[str, str, str | None]) -> Remedy:
    return Remedy(say="Do it.", changes=tuple(Change(verb=v, name=n, value=x) for v, n, x in changes))


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, written from its text and not from the code under test."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


def operated(target: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902, as far as `add`, `remove`, `replace` and `test` go."""
    out = copy.deepcopy(target)
    for step in operations:
        *way, last = [p.replace("~1", "/").replace("~0", "~") for p in step["path"].split("/")[1:]]
        at = out
        for key in way:
            at = at[int(key)] if isinstance(at, list) else at[key]
        if isinstance(at, list):
            i = int(last)
            if step["op"] == "test":
                assert at[i] == step["value"]
            elif step["op"] == "remove":
                del at[i]
            elif step["op"] == "add":
                at.insert(i, step["value"])
            else:
                at[i] = step["value"]
        elif step["op"] == "test":
            assert at[last] == step["value"]
        elif step["op"] == "remove":
            del at[last]
        else:
            at[last] = step["value"]
    return out


def from_command(line: str) -> tuple[list[str], Any]:
    words = shlex.split(line)
    return words[:-1], json.loads(words[-1])


B200 = {"nvidia.com/gpu.product": "NVIDIA-B200"}
CU130 = "lmsysorg/sglang:v0.5.15.post1-cu130"
PREFILL = ["--linear-attn-prefill-backend", "flashinfer"]
PAGE = [
    # log, manifest, way (from 1), the spec that the page recommends beside what the manifest had, standing
    ("slow", "slow-default", 1, {"sglangConfig": {"attentionBackend": "flashinfer"}}, "measured"),
    ("slow", "slow-default", 2,
     {"sglangConfig": {"attentionBackend": "flashinfer"}, "image": CU130, "extraArgs": PREFILL}, "documented"),
    ("slow", "slow-default", 3, {"extraArgs": ["--mamba-radix-cache-strategy", "extra_buffer"]}, "untried"),
    ("slow", "slow-default", 4, {"sglangConfig": {"attentionBackend": "trtllm_mha"}}, "untried"),
    ("slow", "slow-default", 6,
     {"extraArgs": ["--mamba-ssm-dtype", "bfloat16", "--linear-attn-decode-backend", "flashinfer"]}, "untried"),
    ("slow", "slow-default", 7, {"sglangConfig": {"kvCacheDtype": "fp8_e4m3"}}, "untried"),
    ("decode", "decode-needs-bf16", 1,
     {"extraArgs": ["--linear-attn-backend=flashinfer", "--enable-metrics-for-all-schedulers",
                    "--mamba-ssm-dtype", "bfloat16"]}, "untried"),
    ("decode", "decode-needs-bf16", 2,
     {"extraArgs": ["--enable-metrics-for-all-schedulers", *PREFILL], "image": CU130}, "measured"),
    ("prefill", "prefill-needs-cuda13", 1, {"image": CU130}, "measured"),
    ("flash_attn", "flash-attn", 1, {"sglangConfig": {"attentionBackend": "fa3", "memFractionStatic": 0.85}},
     "documented"),
    ("flash_attn", "flash-attn", 2, {"sglangConfig": {"attentionBackend": "trtllm_mha", "memFractionStatic": 0.85}},
     "documented"),
    ("flash_attn", "flash-attn", 3, {"sglangConfig": {"attentionBackend": "flashinfer", "memFractionStatic": 0.85}},
     "measured"),
    ("flash_attn", "flash-attn", 4, {"sglangConfig": {"memFractionStatic": 0.85}}, "documented"),
]  # fmt: skip


@pytest.mark.parametrize(("log", "name", "way", "changed", "standing"), PAGE)
def test_the_printed_patch_makes_the_manifest_that_the_page_recommends(
    log: str, name: str, way: int, changed: dict[str, Any], standing: str
) -> None:
    result = CliRunner().invoke(
        command,
        [str(DATA / "sglang" / LOGS[log]), "--manifest", str(DATA / "llmkube" / f"{name}.yaml"), "--way", str(way)],
    )
    assert result.exit_code == 1, result.output
    before = manifest(name)
    wanted = {**before, "spec": {**before["spec"], **changed}}
    lines = result.output.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  Patch "))
    end = next(i for i, line in enumerate(lines) if line.startswith("  Apply "))
    assert lines[start].endswith(f"way {way}, {standing}")
    printed = yaml.safe_load("\n".join(line[11:] for line in lines[start + 1 : end]))
    words, body = from_command(lines[end][11:])
    assert words == [
        "kubectl", "patch", "inferenceservice.inference.llmkube.dev", before["metadata"]["name"], "-n", "llm",
        "--type", "merge", "-p",
    ]  # fmt: skip
    assert printed == body
    assert merged(before, printed) == wanted
    verdict = verdict_of(log)
    assert apply(before, verdict.remedies[way - 1], table=TABLE) == wanted


def test_the_slow_default_is_first_answered_with_what_was_measured() -> None:
    verdict = verdict_of("slow")
    assert [r.standing for r in verdict.remedies] == [
        "measured", "documented", "untried", "untried", "untried", "untried", "untried", "untried",
    ]  # fmt: skip
    assert "75.8 s" in verdict.remedies[0].say and "29.2 s" in verdict.remedies[0].say
    shown = dress(verdict, table=TABLE, facts={}, manifest=manifest("slow-default"))
    assert shown is not None and shown.way == 0 and shown.flags == "set --attention-backend flashinfer"


def test_a_manifest_that_has_the_first_way_already_gets_the_next() -> None:
    held = apply(manifest("slow-default"), verdict_of("slow").remedies[0], table=TABLE)
    shown = dress(verdict_of("slow"), table=TABLE, facts={}, manifest=held)
    assert shown is not None and shown.way == 1 and shown.patch is not None
    assert any("branch 580" in note for note in shown.patch.notes)
    assert any(TABLE.default_image in note for note in shown.patch.notes)


def test_the_images_version_leaves_out_what_that_version_refuses() -> None:
    newer = manifest("slow-default")
    newer["spec"]["image"] = "lmsysorg/sglang:v0.5.18-cu129"
    assert known_from(newer, table=TABLE) == {"sglang_version": "0.5.18", "cuda": "12.9"}
    shown = dress(verdict_of("slow"), table=TABLE, facts={}, manifest=newer)
    assert shown is not None and shown.flags == "set --mamba-radix-cache-strategy extra_buffer"


def test_an_unknown_version_is_said_to_be_unknown_where_it_matters() -> None:
    says = [r.say for r in verdict_of("slow").remedies]
    assert all("the version of this run is not known" in say for say in says)
    assert not any("not known" in r.say for r in verdict_of("prefill").remedies)


def test_flash_attn_is_answered_by_the_gpu_and_left_out_where_no_gpu_is_known() -> None:
    verdict = verdict_of("flash_attn")
    on_b200 = dress(verdict, table=TABLE, facts={}, manifest=manifest("flash-attn"))
    assert on_b200 is not None and on_b200.flags == "set --attention-backend trtllm_mha"
    assert on_b200.patch is not None and any("0.9.19" in note for note in on_b200.patch.notes)
    hopper = dress(verdict, table=TABLE, facts={"gpu_arch": "sm90"}, manifest=manifest("flash-attn"))
    assert hopper is not None and hopper.flags == "set --attention-backend fa3"
    unknown = dress(verdict, table=TABLE, facts={})
    assert unknown is not None and unknown.flags == "remove --attention-backend"


def test_busy_is_no_backend_problem_and_gets_no_patch() -> None:
    verdict = verdict_of("busy")
    assert verdict.rule == "cuda/device-busy"
    assert dress(verdict, table=TABLE, facts={}, manifest=manifest("slow-default")) is None
    path = str(DATA / "llmkube" / "slow-default.yaml")
    result = CliRunner().invoke(command, [str(DATA / "sglang" / LOGS["busy"]), "--manifest", path])
    assert result.exit_code == 1 and "kubectl patch" not in result.output and "  Flags" not in result.output


def test_remedies_and_patch_are_in_the_json() -> None:
    log, path = str(DATA / "sglang" / LOGS["prefill"]), str(DATA / "llmkube" / "prefill-needs-cuda13.yaml")
    plain = json.loads(CliRunner().invoke(command, [log, "--format", "json"]).output)["verdicts"][0]
    assert plain["remedies"][0]["changes"][2] == {"verb": "image_tag", "name": "-cu130", "value": None}
    assert plain["way"] == 1 and "an image whose tag has -cu130" in plain["flags"] and "patch" not in plain
    shown = json.loads(CliRunner().invoke(command, [log, "--format", "json", "--manifest", path]).output)
    assert shown["verdicts"][0]["patch"]["merge"] == {"spec": {"image": CU130}}


def test_no_rendered_remedy_holds_a_brace_or_an_untrue_value() -> None:
    for log in LOGS:
        for r in verdict_of(log).remedies:
            assert "{" not in r.say
            assert all("{" not in (c.value or "") and c.value != "unknown" for c in r.changes)


EXAMPLES: dict[str, list[str]] = {
    "sglangConfig.chatTemplate": ["/templates/a.jinja"],
    "sglangConfig.quantization": ["fp8"],
    "sglangConfig.loraAdapters": ["sql=/adapters/sql", "law=/adapters/law"],
    "sglangConfig.loraTargetModules": ["q_proj", "v_proj"],
    "sglangConfig.speculative.draftModelPath": ["/models/draft"],
    "bindAddress": ["0.0.0.0"],
}


@pytest.mark.parametrize("field", TABLE.typed, ids=lambda f: f.field)
def test_every_typed_field_round_trips(field: Field) -> None:
    words = EXAMPLES.get(field.field) or (
        [] if field.type == "bool" else [field.values[-1]] if field.values else
        [str(field.min if field.type == "float" else int(field.min or 0))] if field.type in ("int", "float") else
        ["flashinfer"]
    )  # fmt: skip
    before = manifest("slow-default")
    if field.switched_by:
        before["spec"]["sglangConfig"] = {"speculative": {"enabled": True}}
    # The flag is there already, under each of its names and in both forms: extraArgs come last and would win.
    for name in field.flags:
        stale = [[name, *words]] if not words else [[name, "other"], [f"{name}=other"]]
        for args in stale:
            spec = {**before["spec"], "extraArgs": ["--a", "1", *args, "--b"]}
            after = apply(
                {**before, "spec": spec}, remedy(("set_flag", name, " ".join(words) or None)), table=TABLE
            )["spec"]  # fmt: skip
            at: Any = after
            for key in field.field.split("."):
                at = at[key]
            assert field.words_of(at) == [field.flags[0], *words]
            assert field.value_of(" ".join(words) or None) == at
            assert after["extraArgs"] == ["--a", "1", "--b"]
            dropped = apply({**before, "spec": after}, remedy(("drop_flag", name, None)), table=TABLE)["spec"]
            inner: Any = dropped
            for key in field.field.split("."):
                inner = inner.get(key) if isinstance(inner, dict) else None
            assert inner is None


@pytest.mark.parametrize(
    ("flag", "value", "path"),
    [("--chunked-prefill-size", "-1", "chunkedPrefillSize"), ("--reasoning-parser", "glm45", "reasoningParser"),
     ("--speculative-algorithm", "NGRAM", "speculative"), ("--speculative-eagle-topk", "1", "speculative"),
     ("--mem-fraction-static", "nan", "memFractionStatic")],
)  # fmt: skip
def test_a_value_that_the_field_refuses_goes_to_extra_args(flag: str, value: str, path: str) -> None:
    spec = apply(manifest("slow-default"), remedy(("set_flag", flag, value)), table=TABLE)["spec"]
    assert spec["extraArgs"] == [flag, value]
    assert path not in spec.get("sglangConfig", {})


def test_a_kv_cache_type_outside_the_enumeration_goes_to_the_custom_field_which_wins() -> None:
    held = apply(manifest("slow-default"), remedy(("set_flag", "--kv-cache-dtype", "bfloat16")), table=TABLE)
    assert held["spec"]["sglangConfig"] == {"kvCacheCustomDtype": "bfloat16"}
    back = apply(held, remedy(("set_flag", "--kv-cache-dtype", "fp8_e4m3")), table=TABLE)
    assert back["spec"]["sglangConfig"] == {"kvCacheDtype": "fp8_e4m3"}


@pytest.mark.parametrize(
    ("args", "after"),
    [
        (["--x", "1", "--page-size", "1", "--y"], ["--x", "1", "--page-size", "64", "--y"]),
        (["--page-size=1", "--y"], ["--page-size=64", "--y"]),
        (["--page-size 1", "--y"], ["--page-size", "64", "--y"]),
        (["--page-size", "1", "--page-size=2"], ["--page-size=64"]),
        ([], ["--page-size", "64"]),
        (["--page-sizes", "3"], ["--page-sizes", "3", "--page-size", "64"]),
    ],
)
def test_a_flag_without_a_field_is_replaced_in_its_place_and_form(args: list[str], after: list[str]) -> None:
    before = manifest("slow-default")
    before["spec"]["extraArgs"] = args
    assert apply(before, remedy(("set_flag", "--page-size", "64")), table=TABLE)["spec"]["extraArgs"] == after


def test_an_older_name_of_a_flag_is_removed_with_it() -> None:
    before = manifest("slow-default")
    before["spec"]["extraArgs"] = ["--mamba-scheduler-strategy", "no_buffer", "--tp-size", "2"]
    change = remedy(("set_flag", "--mamba-radix-cache-strategy", "extra_buffer"), ("set_flag", "--tp", "4"))
    spec = apply(before, change, table=TABLE)["spec"]
    assert spec["extraArgs"] == ["--mamba-radix-cache-strategy", "extra_buffer"]
    assert spec["sglangConfig"] == {"tensorParallelSize": 4}


def test_another_runtime_does_not_read_the_typed_fields() -> None:
    before = manifest("slow-default")
    before["spec"]["runtime"] = "generic"
    spec = apply(before, remedy(("set_flag", "--attention-backend", "triton")), table=TABLE)["spec"]
    assert "sglangConfig" not in spec and spec["extraArgs"] == ["--attention-backend", "triton"]


@pytest.mark.parametrize(
    ("image", "after"),
    [
        ("lmsysorg/sglang:v0.5.15.post1-cu129", "lmsysorg/sglang:v0.5.15.post1-cu130"),
        ("r.local:5000/m/lmsysorg/sglang:v0.5.19-cu129-amd64", "r.local:5000/m/lmsysorg/sglang:v0.5.19-cu130-amd64"),
        ("lmsysorg/sglang:v0.5.19", "lmsysorg/sglang:v0.5.19-cu130"),
        ("lmsysorg/sglang:latest", None),
        ("r.local:5000/sglang", None),
        ("lmsysorg/sglang:v0.5.19-cu129@sha256:0123", None),
        ("acme/llm:2024-build7", None),
    ],
)
def test_the_image_keeps_registry_and_release(image: str, after: str | None) -> None:
    before = manifest("slow-default")
    before["spec"]["image"] = image
    patch = patch_for(before, remedy(("image_tag", "-cu130", None)), table=TABLE)
    assert patch.document == ({"spec": {"image": after}} if after else {})
    assert bool(patch.choices) is (after is None)


def test_what_a_person_must_choose_is_not_patched() -> None:
    before = manifest("flash-attn")
    patch = patch_for(
        before,
        remedy(
            ("lower", "--mem-fraction-static", None), ("set_flag", "--tokenizer-path", None),
            ("set_env", "HF_TOKEN", None), ("set_env", "HF_TOKEN", "hf_AbCdEfGhIjKlMnOp"),
            ("pod", "volumes[dshm].emptyDir.medium", "Memory"), ("image_tag", "newer", None),
        ),
        table=TABLE,
    )  # fmt: skip
    assert not patch.document and not patch.operations and not patch.command
    assert len(patch.choices) == 6 and "now 0.85" in patch.choices[0] and "hfTokenSecretRef" in patch.choices[2]


def test_a_value_is_only_lowered_when_it_is_higher() -> None:
    change = remedy(("lower", "--mem-fraction-static", "0.9"))
    assert apply(manifest("flash-attn"), change, table=TABLE) == manifest("flash-attn")
    change = remedy(("lower", "--mem-fraction-static", "0.8"))
    assert apply(manifest("flash-attn"), change, table=TABLE)["spec"]["sglangConfig"]["memFractionStatic"] == 0.8


def test_a_secret_in_a_list_that_must_be_whole_turns_the_patch_into_single_operations() -> None:
    before = manifest("with-secrets")
    change = remedy(
        ("drop_flag", "--linear-attn-backend", None), ("set_flag", "--linear-attn-prefill-backend", "flashinfer"),
        ("set_env", "NCCL_DEBUG", "INFO"), ("image_tag", "-cu130", None),
    )  # fmt: skip
    patch = patch_for(before, change, table=TABLE)
    words, body = from_command(patch.command)
    assert words[-3:] == ["--type", "json", "-p"] and words[3] == "guarded"
    assert operated(before, body) == apply(before, change, table=TABLE)
    verdict = verdict_of("decode")
    shown = dress(verdict, table=TABLE, facts={}, manifest=before, way=1)
    told = json.dumps([dict(o) for o in patch.operations]) + patch.as_yaml() + patch.command + str(shown)
    for secret in ("s3cretvalue", "an0thersecret", "hf_AbCd"):
        assert secret not in told
    assert shown is not None and any("[redacted]" in line for line in shown.diff)


def test_a_secret_that_is_removed_is_not_shown_either() -> None:
    before = manifest("with-secrets")
    change = remedy(("drop_flag", "--api-key", None), ("drop_env", "HF_TOKEN", None))
    patch = patch_for(before, change, table=TABLE)
    assert operated(before, from_command(patch.command)[1]) == apply(before, change, table=TABLE)
    assert "s3cretvalue" not in str(patch) and "hf_AbCd" not in str(patch)


def test_without_a_manifest_lists_are_told_and_never_patched() -> None:
    prefill = outline_for(verdict_of("slow").remedies[1], table=TABLE)
    assert prefill.document["spec"]["image"] == CU130 and prefill.add_args == tuple(PREFILL) and not prefill.command
    first = outline_for(verdict_of("slow").remedies[0], table=TABLE)
    assert from_command(first.command)[1] == {"spec": {"sglangConfig": {"attentionBackend": "flashinfer"}}}
    unset = outline_for(verdict_of("flash_attn").remedies[3], table=TABLE)
    assert unset.document == {"spec": {"sglangConfig": {"attentionBackend": None}}}
    assert "--attention-backend" in unset.remove_args


def test_the_flags_line_quotes_what_a_shell_would_read() -> None:
    line = command_line(remedy(("set_flag", "--chat-template", "a b;c"), ("set_flag", "--tp", None)), table=TABLE).line
    assert line == "set --chat-template 'a b;c' --tp <value>"


def test_only_one_service_of_this_group_is_taken() -> None:
    text = (DATA / "llmkube" / "flash-attn.yaml").read_text()
    other = text.replace("inference.llmkube.dev/v1alpha1", "serving.kserve.io/v1beta1")
    assert service_in(f"{other}---\n{text}".encode(), table=TABLE)["apiVersion"].startswith("inference.llmkube.dev")
    for wrong in (other, f"{text}---\n{text}", "a: [", "a: &a [*a]", "", "[1, 2]", "kind: InferenceService"):
        with pytest.raises(ManifestError):
            service_in(wrong.encode(), table=TABLE)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_service_or_refused(text: bytes) -> None:
    try:
        service_in(text, table=TABLE)
    except ManifestError:
        pass


WORDS = st.text(st.characters(categories=["L", "N"], include_characters="_=/. "), min_size=1, max_size=8)
FLAGS = st.sampled_from(
    ["--attention-backend", "--page-size", "--tp", "--tp-size", "--kv-cache-dtype", "--disable-radix-cache",
     "--speculative-algorithm", "--lora-paths", "--mamba-ssm-dtype", "--foo-bar"]
)  # fmt: skip
ARGS = st.lists(
    st.one_of(
        st.tuples(FLAGS),
        st.tuples(FLAGS, WORDS),
        st.tuples(FLAGS, WORDS, WORDS),
        st.builds(lambda f, w: (f"{f}={w}",), FLAGS, WORDS),
    ),
    max_size=6,
).map(lambda groups: [word for group in groups for word in group])
PLAIN = st.recursive(
    st.one_of(st.integers(), st.booleans(), WORDS),
    lambda inner: st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
SPECS = st.fixed_dictionaries(
    {"runtime": st.sampled_from(["sglang", "generic"]), "other": PLAIN},
    optional={
        "extraArgs": ARGS,
        "command": ARGS,
        "image": st.sampled_from(["lmsysorg/sglang:v0.5.15-cu129", "x", ""]),
        "env": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["A", "B"]), "value": WORDS}), max_size=3),
        "sglangConfig": st.dictionaries(
            st.sampled_from(["attentionBackend", "logLevel", "kvCacheDtype", "speculative"]), PLAIN, max_size=3
        ),
    },
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("set_flag"), FLAGS, st.sampled_from(["64", "flashinfer", "EAGLE", "a=/b"])),
        st.tuples(st.just("drop_flag"), FLAGS, st.none()),
        st.tuples(st.sampled_from(["set_env", "drop_env"]), st.sampled_from(["A", "B", "C"]), st.just("1")),
        st.tuples(st.just("image_tag"), st.sampled_from(["-cu130", "newer"]), st.none()),
    ),
    max_size=4,
)


def flag_groups(words: list[str]) -> list[tuple[str, ...]]:
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return [tuple(g) for g in groups]


@settings(max_examples=300, deadline=None)
@given(SPECS, CHANGES)
def test_apply_keeps_everything_that_it_does_not_change(spec: dict[str, Any], changes: list[Any]) -> None:
    before = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "spec": spec}
    untouched = copy.deepcopy(before)
    change = remedy(*changes)
    after = apply(before, change, table=TABLE)
    assert before == untouched
    assert after["spec"]["other"] == spec["other"] and after["spec"]["runtime"] == spec["runtime"]
    touched = {name for verb, flag, _ in changes if "flag" in verb for name in TABLE.names_of(flag)}

    def kept(side: dict[str, Any]) -> list[tuple[str, ...]]:
        groups = flag_groups(side.get("extraArgs", []))
        return [g for g in groups if g[0].partition("=")[0].partition(" ")[0] not in touched]

    assert kept(after["spec"]) == kept(spec)
    names = {name for verb, name, _ in changes if "env" in verb}
    assert [e for e in after["spec"].get("env", []) if e["name"] not in names] == [
        e for e in spec.get("env", []) if e["name"] not in names
    ]
    assert merged(before, merge_patch(before, after)) == after
    assert operated(before, json_patch(before, after)) == after
    assert apply(after, change, table=TABLE) == apply(apply(after, change, table=TABLE), change, table=TABLE)
    patch_for(before, change, table=TABLE)
    masked(before)


def test_a_change_without_a_value_for_this_run_fits_last() -> None:
    ways = [Remedy(say="Look."), remedy(("drop_flag", "--x", None))]
    assert fitting(ways, {}) == (1,)

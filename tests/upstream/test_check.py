"""Runs `rules check --sglang` on a made-up SGLang of three files, as a folder and as a wheel; needs no real one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.cli.rules import command
from agent.upstream.areas import listened
from agent.upstream.tree import NotSGLangError, read_tree
from tests.sglang.propose_versions import rewritten

SERVER_ARGS = """
class ServerArgs:
    def check(self):
        if self.swa:
            raise ValueError("--swa-full-tokens-ratio should be in range (0, 1.0].")
        if self.odd:
            raise ValueError(f"--odd-flag {self.odd} is one that no rule knows.")
        if self.dtype:
            raise ValueError("--linear-attn-decode-backend flashinfer on SM100+ requires "
                             f"--mamba-ssm-dtype bfloat16, got {self.dtype!r}")

def register_resolution_hook(name):
    raise ValueError(f"the hook {name} is not one that can be replaced")
"""
FILES = {
    "sglang/srt/server_args.py": SERVER_ARGS,
    "sglang/srt/broken.py": "def (:",
    "sglang/version.py": '__version__ = "0.5.15.post1"\n',
    "other/srt/unrelated.py": 'raise ValueError("--swa-prefix-tails should be a non-negative integer.")\n',
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def wheel_of(tree: Path) -> Path:
    path = tree / "sglang-0.5.15.post1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
        archive.writestr("sglang-0.5.15.post1.dist-info/METADATA", "Name: sglang\nVersion: 0.5.15.post1\n")
    return path


def check(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["check", *arguments])


def test_the_version_is_read_from_a_folder_and_from_a_wheels_metadata(tree: Path) -> None:
    assert read_tree(tree, wanted=listened).version == "0.5.15.post1"
    found = read_tree(wheel_of(tree), wanted=listened)
    assert found.version == "0.5.15.post1" and set(found.files) == {"srt/server_args.py", "srt/broken.py"}


def test_coverage_places_and_missing_rules_are_told(tree: Path) -> None:
    told = json.loads(check("--sglang", str(tree), "--format", "json").stdout)
    version = told["versions"]["0.5.15.post1"]
    assert (version["covered"], version["checks"], version["internal"]) == (2, 3, 1)
    rules = {rule["id"]: rule for rule in told["rules"]}
    assert rules["sglang/swa-cache-ratio"]["places"] == {"0.5.15.post1": "srt/server_args.py:5"}
    assert rules["sglang/linear-attn-decode-needs-bf16"]["places"] == {"0.5.15.post1": "srt/server_args.py:9"}
    missing = [c["text"] for c in version["all"] if c["counts"] and not c["rules"]]
    assert missing == ["--odd-flag {} is one that no rule knows."]


def test_a_rule_that_claims_the_version_but_is_not_there_is_stale(tree: Path) -> None:
    told = json.loads(check("--sglang", str(tree), "--format", "json").stdout)
    assert "sglang/trtllm-mla-needs-blackwell" in told["stale"]
    assert "sglang/swa-cache-ratio" not in told["stale"]


def test_the_status_is_1_for_stale_rules_and_2_for_what_is_no_sglang(tree: Path) -> None:
    assert check("--sglang", str(tree)).exit_code == 1
    assert check("--sglang", str(tree / "other")).exit_code == 2
    assert check("--sglang", str(tree / "none.whl")).exit_code == 2
    (tree / "bad.whl").write_bytes(b"PK no archive")
    with pytest.raises(NotSGLangError):
        read_tree(tree / "bad.whl", wanted=listened)


def test_several_versions_stand_in_columns_in_their_order(tree: Path) -> None:
    newer = tree / "newer"
    (newer / "sglang/srt").mkdir(parents=True)
    (newer / "sglang/srt/server_args.py").write_text("x = 1\n")
    (newer / "sglang/_version.py").write_text("__version__ = version = '0.5.23'\n")
    text = check("--sglang", str(newer), "--sglang", str(wheel_of(tree))).stdout
    header = next(line for line in text.splitlines() if line.startswith("RULE") and "VERSIONS" in line)
    assert header.split() == ["RULE", "VERSIONS", "0.5.15.post1", "0.5.23"]
    row = next(line for line in text.splitlines() if line.startswith("sglang/swa-cache-ratio") and ".py" in line)
    assert row.split()[-2:] == ["srt/server_args.py:5", "-"]


def test_the_page_has_the_coverage_and_every_rule_in_tables(tree: Path) -> None:
    page = check("--sglang", str(tree), "--format", "markdown").stdout
    assert "| 0.5.15.post1 | 3 | 2 | 66.7 % |" in page
    assert "`--odd-flag {} is one that no rule knows.`" in page
    rows = [line for line in page.splitlines() if line.startswith("| `sglang/swa-cache-ratio`")]
    assert any(row.endswith("| srt/server_args.py:5 |") for row in rows)


def test_a_file_that_cannot_be_parsed_is_named(tree: Path) -> None:
    assert "cannot parse srt/broken.py" in check("--sglang", str(tree)).stderr


def test_only_versions_lines_change_when_bounds_are_written() -> None:
    text = (
        "schema: 1\nrules:\n  - id: a/one\n    title: One\n    versions: '>=0.5.3'\n    literals:\n      - text\n"
        "  - id: a/two\n    title: Two\n    literals: [other text]\n  - id: a/three\n    versions: '>=1'\n"
    )
    new = rewritten(text, {"a/one": ">=0.5.4", "a/two": ">=0.5.9"})
    assert new == text.replace("'>=0.5.3'", "'>=0.5.4'").replace(
        "    literals: [other", "    versions: '>=0.5.9'\n    literals: [other"
    )


def test_a_versions_line_that_stands_after_the_literals_is_changed_where_it_is() -> None:
    text = "rules:\n  - id: a/one\n    literals: [text]\n    versions: '>=1'\n  - id: a/two\n    literals: [other]\n"
    assert rewritten(text, {"a/one": ">=2"}) == text.replace(">=1", ">=2")
    assert rewritten("schema: 1\nrules: []\n", {"a/one": ">=2"}) == "schema: 1\nrules: []\n"

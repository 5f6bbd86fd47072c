"""The documentation against the code: tables, links, commands, examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from agent.cli import group
from agent.detect.causes import Alternative, parse_causes
from agent.detect.clashes import rule_clashes
from agent.detect.rules import Change, FaultSpec, FixStep, Rule, parse_rules
from agent.diagnose.image import Architecture, Floor, Outcome
from agent.model import Action, Component, Confidence, Fault, Role, Severity, Verdict
from agent.report.events import Reason
from agent.rulebook import load_rulebook
from tests.regenerate_docs import DOCS, EVENTS, PARTS, ROOT, explained, refused_document, regenerated

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]

every_page = pytest.mark.parametrize("page", PAGES, ids=IDS)


@every_page
def test_generated_parts_are_what_the_code_gives(page: Path) -> None:
    text = page.read_text()
    assert text == regenerated(text), "run: python -m tests.regenerate_docs"


def test_every_generated_part_stands_on_a_page() -> None:
    used: set[str] = set()
    for page in PAGES:
        regenerated(page.read_text(), used=used)
    assert used == set(PARTS)


def test_a_table_that_was_edited_by_hand_is_noticed() -> None:
    text = (DOCS / "metrics.md").read_text()
    edited = text.replace("faultline_faults_open` | gauge", "faultline_faults_open` | counter")
    assert edited != text and regenerated(edited) == text


def test_every_event_reason_is_described() -> None:
    assert set(EVENTS) == set(Reason)


# -- links


def _headings(text: str) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", _without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def _without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def dead_links(page: Path, text: str) -> list[str]:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_blocks(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        there = file == page or file.exists()
        if not there or (anchor and anchor not in _headings(text if file == page else file.read_text())):
            dead.append(target)
    # Files of this repository that are named in prose.
    for name in re.findall(r"`((?:agent|docs|rules|tests|manifests)/[\w./-]+)`", text):
        if not (ROOT / name).exists():
            dead.append(name)
    return dead


@every_page
def test_no_link_is_dead(page: Path) -> None:
    assert dead_links(page, page.read_text()) == []


def test_a_dead_link_is_noticed() -> None:
    text = "# Here\n[a](nowhere.md) [b](#here) [c](#there) [d](README.md#the-words) [e](README.md#x) `agent/no.py`"
    assert dead_links(DOCS / "x.md", text) == ["nowhere.md", "#there", "README.md#x", "agent/no.py"]


# -- commands


def _command_lines(text: str) -> Iterator[str]:
    """What stands after `faultline` in shell blocks, plain blocks and inline code."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in ("", "sh", "bash", "console", "shell"):
            for line in block.splitlines():
                yield from re.findall(r"(?:^|[\s(])faultline[ ]+([^|;)<>#&]+)", line)
    yield from re.findall(r"`faultline[ ]+([^`|;)<>#&]+)`", _without_blocks(text))


def wrong_commands(text: str) -> list[str]:
    wrong = []
    for line in _command_lines(text):
        words = line.split()
        command: click.Command = group
        context = click.Context(group, info_name="faultline")
        while words and isinstance(command, click.Group) and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            if found is None:
                break
            command, words = found, words[1:]
        if isinstance(command, click.Group) and words and not words[0].startswith("-"):
            wrong.append(f"faultline {line.strip()}: no command {words[0]}")
            continue
        known = {name for p in command.get_params(context) for name in (*p.opts, *p.secondary_opts)}
        for flag in (word.partition("=")[0].rstrip(",.:") for word in words if word.startswith("-") and word != "-"):
            if flag not in known:
                wrong.append(f"faultline {line.strip()}: no flag {flag}")
    return wrong


@every_page
def test_every_command_and_flag_exists(page: Path) -> None:
    assert wrong_commands(page.read_text()) == []


def test_a_wrong_command_or_flag_is_noticed() -> None:
    text = (
        "```sh\nkubectl logs P | faultline explian\nfaultline explain - --fromat json\nfaultline rules check x\n"
        "ssh N faultline rules chekc\nfaultline run --mode observe\n```\nand `faultline xid 79 --json`"
    )
    assert [found.rpartition(": ")[2] for found in wrong_commands(text)] == [
        "no command explian", "no flag --fromat", "no command chekc", "no flag --json",
    ]  # fmt: skip


def test_commands_are_found_at_all() -> None:
    assert sum(len(list(_command_lines(page.read_text()))) for page in PAGES) > 20


# -- examples and lists of fields


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def test_every_rule_file_on_the_page_passes_the_thorough_check_and_clashes_with_no_packaged_rule() -> None:
    packaged = load_rulebook()
    rules: list[Rule] = []
    causes: list[Alternative] = []
    for block in _blocks("writing-rules.md", "yaml"):
        if "\nrules:" in block:
            rules += parse_rules(block.encode(), file="writing-rules.md", thorough=True)
        else:
            causes += parse_causes(block.encode(), file="writing-rules.md")
    assert len(rules) == 2 and len(causes) == 1
    assert list(rule_clashes(rules, among=[*packaged.rules, *rules])) == []
    for rule in rules:
        assert rule.fault is None or rule.fault.recovery in packaged.catalogue.recoveries


def _section(page: str, heading: str) -> str:
    text = (DOCS / page).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no heading {heading!r}"
    return found[2]


def _named(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("The fields of a rule", Rule),
        ("Fix steps", FixStep),
        ("A change", Change),
        ("Kernel rules", FaultSpec),
        ("Cause files", Alternative),
        ("The table of images and drivers", Floor),
        ("The table of images and drivers", Architecture),
        ("The table of images and drivers", Outcome),
    ],
)
def test_writing_rules_names_every_field(heading: str, kind: Any) -> None:
    assert set(kind.__struct_fields__) - _named(_section("writing-rules.md", heading)) == set()


def test_writing_rules_names_every_role() -> None:
    assert {role.value for role in Role} <= _named(_section("writing-rules.md", "Roles"))


def test_the_words_name_every_value_of_the_closed_lists() -> None:
    named = _named(_section("README.md", "The words"))
    for words in (Component, Confidence, Severity, Action):
        assert {word.value for word in words} - named == set()


def test_evidence_explains_every_word_of_confidence() -> None:
    assert {word.value for word in Confidence} <= _named(_section("evidence.md", "Confidence"))


def test_the_contract_of_explain_is_described_field_by_field() -> None:
    found = explained(pod="RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n", k=_XID)
    remedied = refused_document()["verdicts"][0]
    for heading, keys in (
        ("The document", set(found)),
        ("A fault", set(found["faults"][0])),
        ("A verdict", set(found["verdicts"][0]) | set(remedied)),
        ("Context and inputs", set(found["context"]) | set(found["inputs"][0])),
    ):
        assert keys - _named(_section("api.md", heading)) == set(), heading
    assert set(remedied["remedies"][0]) - set(re.findall(r'[`"](\w+)[`"]', _section("api.md", "A remedy"))) == set()


_XID = "[  100.500000] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


def test_the_examples_of_the_api_show_every_field() -> None:
    documents = {d.get("kind"): d for d in map(json.loads, _blocks("api.md", "json"))}
    assert set(documents["FaultList"]["items"][0]) == {f.name for f in fields(Fault)}
    assert set(documents["VerdictList"]["items"][0]) == {f.name for f in fields(Verdict)}


def test_every_path_of_the_server_has_a_section() -> None:
    served = set(re.findall(r'add_get\("(/[\w/]*)"', (ROOT / "agent/report/http.py").read_text()))
    served |= {f"/api/v1/{k}" for k in re.findall(r'\("(\w+)", "\w+List"', (ROOT / "agent/report/http.py").read_text())}
    told = set(re.findall(r"^### GET (/\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    assert len(served) > 9 and served - {"/"} == told


def test_the_exit_status_of_every_command_is_told() -> None:
    section = _section("api.md", "Exit status")
    context = click.Context(group, info_name="faultline")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        names = [f"{name} {sub}" for sub in command.commands] if isinstance(command, click.Group) else [name]
        assert all(f"`faultline {each}`" in section for each in names), names

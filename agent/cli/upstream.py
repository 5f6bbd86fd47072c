"""The part of `faultline rules check` that holds the rules against SGLang's source, which it reads and never runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from agent.cli import Unusable
from agent.detect.rules import Rule
from agent.upstream.areas import listened
from agent.upstream.compare import Survey, compare, survey
from agent.upstream.table import as_json, as_markdown, as_text
from agent.upstream.tree import NotSGLangError, read_tree
from agent.upstream.versions import version_of


def surveys(paths: Iterable[Path]) -> Iterator[Survey]:
    """The texts of each path's SGLang, with those of Python's argparse, which refuses for it. Raises NotSGLangError."""
    argparse_source = Path(argparse.__file__).read_bytes()
    for path in paths:
        tree = read_tree(path, wanted=listened)
        yield survey(tree.version, {**tree.files, "python/argparse.py": argparse_source})


def check_against(rules: Sequence[Rule], paths: Sequence[Path], *, form: str, least: float) -> int:
    """Print how the rules stand in these versions; 0 when they hold, 1 when one is stale or coverage is too low."""
    try:
        found = sorted(surveys(paths), key=lambda s: version_of(s.version))
    except NotSGLangError as error:
        raise Unusable(str(error)) from None
    for one in found:
        for file in one.unread[:3]:
            click.echo(f"faultline: SGLang {one.version}: {file} is no Python that this interpreter reads", err=True)
    compared = compare(rules, found)
    show = {"json": as_json, "markdown": as_markdown, "text": as_text}[form]
    click.echo(show(compared), nl=False)
    covered = all(have >= least * total for have, total in map(compared.coverage, compared.versions))
    return 0 if covered and not compared.stale else 1

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


def surveys(paths: Iterable[Path]) -> Iterator[Survey]:
    """The texts of each path's SGLang, with those of Python's argparse, which refuses for it. Raises NotSGLangError."""
    argparse_source = Path(argparse.__file__).read_bytes()
    for path in paths:
        tree = read_tree(path, wanted=listened)
        found = survey(tree.version, {**tree.files, "python/argparse.py": argparse_source})
        for file in found.unread[:3]:
            click.echo(f"faultline: SGLang {found.version}: this interpreter cannot parse {file}", err=True)
        yield found


def check_against(rules: Sequence[Rule], paths: Sequence[Path], *, form: str, least: float) -> int:
    """Print how the rules stand in these versions; 0 when they hold, 1 when one is stale or coverage is too low."""
    try:
        compared = compare(rules, surveys(paths))
    except NotSGLangError as error:
        raise Unusable(str(error)) from None
    show = {"json": as_json, "markdown": as_markdown, "text": as_text}[form]
    click.echo(show(compared), nl=False)
    covered = all(have >= least * total for have, total in map(compared.coverage, compared.versions))
    return 0 if covered and not compared.stale else 1

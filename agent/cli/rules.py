"""`faultline rules`: what Faultline knows, rule by rule, and whether your own files are right."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from agent.cli import Unusable

FOLDERS = click.option(
    "--rules", "folders", multiple=True, type=click.Path(path_type=Path), help="A folder of your own rules, after ours."
)


@click.group("rules")
def command() -> None:
    """List, show and check the rules.

    \b
    Examples:
      faultline rules list cuda
      faultline rules show cuda/device-busy
      faultline rules check ./my-rules
    """


@command.command("list")
@click.argument("prefix", default="")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@FOLDERS
def list_rules(prefix: str, form: str, folders: tuple[Path, ...]) -> None:
    """List the rules whose id begins with PREFIX (all)."""
    from agent.detect.rules import RuleError
    from agent.report.terminal import table
    from agent.rulebook import load_rulebook

    try:
        book = load_rulebook(folders)
    except RuleError as error:
        raise Unusable(str(error)) from None
    found = sorted((r for r in book.rules if r.id.startswith(prefix)), key=lambda r: r.id)
    if not found:
        raise Unusable(f"no rule begins with {prefix!r}; `faultline rules list` shows all {len(book.rules)}")
    if form == "json":
        shown = ("id", "title", "role", "component", "versions")
        click.echo(
            msgspec.json.encode([{k: getattr(r, k) for k in shown} | {"file": book.origins[r.id]} for r in found])
        )
        return
    rows = ((r.id, r.role.value, r.component.value, r.versions or "any", r.title) for r in found)
    click.echo(table(("ID", "ROLE", "COMPONENT", "VERSIONS", "TITLE"), rows), nl=False)


@command.command("show")
@click.argument("rule_id")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@FOLDERS
def show(rule_id: str, form: str, folders: tuple[Path, ...]) -> None:
    """Show everything about one rule."""
    import difflib

    import yaml

    from agent.detect.rules import RuleError
    from agent.rulebook import load_rulebook

    try:
        book = load_rulebook(folders)
    except RuleError as error:
        raise Unusable(str(error)) from None
    known = {r.id: r for r in book.rules} | {a.id: a for a in book.alternatives}
    rule = known.get(rule_id)
    if rule is None:
        near = difflib.get_close_matches(rule_id, known, n=3, cutoff=0.5)
        raise Unusable(f"no rule {rule_id!r}" + (f"; near: {', '.join(near)}" if near else ""))
    plain = {k: v for k, v in msgspec.to_builtins(rule).items() if v not in ("", (), [], {}, None)}
    if form == "json":
        click.echo(msgspec.json.encode({**plain, "file": book.origins[rule_id]}))
        return
    click.echo(click.style(f"# {book.origins[rule_id]}", fg="cyan"))
    click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110), nl=False)


@command.command("check")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--sglang",
    "trees",
    multiple=True,
    type=click.Path(path_type=Path),
    help="An SGLang wheel or unpacked source to hold the rules against; several times for several versions.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="With --sglang: how to print the result.",
)
@click.option(
    "--least",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="With --sglang: the share of argument checks that must have a rule.",
)
def check(folders: tuple[Path, ...], trees: tuple[Path, ...], form: str, least: float) -> None:
    """Check rule files: form, expressions, templates and every example. Without FOLDERS the packaged ones.

    With --sglang the rules are held against SGLang's own source instead, which is read and never run: where each
    rule's text stands, which rules are stale (they claim a version that does not print their text), and which
    argument checks have no rule.

    \b
    Exit status:
      0  all right
      1  a rule also matches another's example; with --sglang: a rule is stale, or too few checks have a rule
      2  a file, wheel or folder cannot be used

    \b
    Examples:
      faultline rules check ./my-rules
      faultline rules check --sglang sglang-0.5.15.post1-py3-none-any.whl --sglang ./sglang/python
    """
    from agent.detect.clashes import rule_clashes
    from agent.detect.rules import RuleError
    from agent.rulebook import load_rulebook

    try:
        book = load_rulebook(folders, thorough=not trees)
        book.catalogue.check()
    except RuleError as error:
        raise Unusable(str(error)) from None
    if trees:
        from agent.cli.upstream import check_against

        raise SystemExit(check_against(book.rules, trees, form=form, least=least))
    mine = [r for r in book.rules if not folders or any(Path(book.origins[r.id]).is_relative_to(f) for f in folders)]
    clashes = [
        f"{book.origins[c.rule.id]}: {c.rule.id}: its example {c.line[:100]!r} also matches {c.other.id}"
        for c in rule_clashes(mine, among=book.rules)
    ]
    for text in clashes:
        click.echo(text, err=True)
    click.echo(
        f"{len(mine)} rules in order, {len(book.alternatives)} causes, {sum(1 for _ in book.catalogue)} Xid codes."
    )
    if clashes:
        raise SystemExit(1)

"""Finds the texts that a Python file can print: parses it, never imports or runs it, and knows no rule.

A text is its fixed pieces with a hole between each two: ``f"page {p} is bad"`` is ``("page ", " is bad")``. Implicit
concatenation is joined by the parser; ``+``, ``%``, ``.format`` and names bound to strings nearby are followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["raise", "assert", "parser.error", "log"]

REFUSALS = frozenset({
    "ValueError", "AssertionError", "RuntimeError", "NotImplementedError", "TypeError", "ImportError", "KeyError",
    "OSError", "FileNotFoundError", "Exception", "ArgumentTypeError", "ArgumentError", "AttributeError",
})  # fmt: skip
"""Exceptions whose text is meant for the person who started the server."""

LOGGED = frozenset({"error", "warning", "critical", "exception"})

MIN_LETTERS = 8
"""Letters that the fixed pieces of a text must have together, else nobody can know it by them."""

_FOLLOWED = 6
"""Names followed one after another while a text is put together; more is a program, not a text."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text with holes. `pieces` has one more item than there are holes; items may be empty."""

    pieces: tuple[str, ...]

    def filled(self, value: str) -> str:
        """The text with every hole filled by `value`."""
        return value.join(self.pieces)

    @property
    def known(self) -> bool:
        """True when the fixed pieces are enough to know the text by."""
        return sum(c.isalpha() for piece in self.pieces for c in piece) >= MIN_LETTERS

    def __str__(self) -> str:
        return self.filled("{}")


@dataclass(frozen=True, slots=True)
class Check:
    """One place where a file refuses something."""

    kind: Kind
    exception: str
    """Type raised; empty for a log line."""
    text: Text
    line: int
    """1-based."""
    function: str
    """Dotted name of the function around it; empty at module level."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A string of a file and where it stands."""

    text: Text
    line: int


def parse(source: bytes) -> ast.Module | None:
    """The file's tree; None where it is no Python that this interpreter reads."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def strings_of(tree: ast.Module) -> list[Spoken]:
    """Every string of a file, those of docstrings too; format holes of each kind are holes."""
    found: list[Spoken] = []
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            found.extend(Spoken(text, node.lineno) for text in _texts(node, {}))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            percents = _holes(node.value, _PERCENT) if "%" in node.value else (node.value,)
            found.append(Spoken(Text(percents), node.lineno))
            if "{" in node.value:
                found.append(Spoken(Text(_holes(node.value, _BRACES)), node.lineno))
    return found


def checks_of(tree: ast.Module, source: bytes) -> list[Check]:
    """The refusals of a file in the order of their lines; texts without enough fixed letters are there too.

    An assertion without a message is known by its source line: that is what a traceback shows of it.
    """
    module = _bindings(tree)
    lines = source.split(b"\n")
    return [
        check if check.kind != "assert" or check.text.pieces != ("",) else replace(check, text=_bare(lines, check.line))
        for check in sorted(_walk(tree, "", module), key=lambda check: check.line)
    ]


def _bare(lines: list[bytes], number: int) -> Text:
    line = lines[number - 1].decode("utf-8", "replace").strip() if 0 < number <= len(lines) else ""
    return Text((line,))


def _walk(scope: ast.AST, name: str, names: Mapping[str, list[ast.expr]]) -> Iterator[Check]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = dict(names)
            if not isinstance(node, ast.ClassDef):
                inner |= _bindings(node)
            yield from _walk(node, f"{name}.{node.name}" if name else node.name, inner)
            continue
        yield from _checks(node, name, names)
        yield from _walk(node, name, names)


def _checks(node: ast.AST, function: str, names: Mapping[str, list[ast.expr]]) -> Iterator[Check]:
    def found(kind: Kind, exception: str, told: ast.expr | None, line: int) -> Iterator[Check]:
        for text in _texts(told, names) if told is not None else [Text(("",))]:
            yield Check(kind, exception, text, line, function)

    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        exception = _last_name(node.exc.func)
        if exception in REFUSALS:
            told = node.exc.args
            # ArgumentError(action, message)
            which = 1 if exception == "ArgumentError" and len(told) > 1 else 0
            yield from found("raise", exception, told[which] if told else None, node.lineno)
    elif isinstance(node, ast.Assert):
        yield from found("assert", "AssertionError", node.msg, node.lineno)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        owner = _last_name(node.func.value)
        if node.func.attr == "error" and owner.endswith("parser"):
            yield from found("parser.error", "SystemExit", node.args[0], node.lineno)
        elif node.func.attr in LOGGED and owner in ("logger", "logging", "log"):
            yield from found("log", "", node.args[0], node.lineno)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _bindings(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """Names bound to expressions directly in this scope, each with all of its values."""
    bound: dict[str, list[ast.expr]] = {}
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            bound.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            bound.setdefault(node.target.id, []).append(node.value)
        stack.extend(ast.iter_child_nodes(node))
    return bound


_PERCENT = re.compile(r"%(?:\(\w+\))?[-#0 +]*\d*(?:\.\d+)?[srdifgxXeEc]")
_BRACES = re.compile(r"\{[^{}]*\}")
_Pieces = tuple[str, ...]
_HOLE: _Pieces = ("", "")


def _holes(text: str, form: re.Pattern[str]) -> _Pieces:
    return tuple(form.split(text))


def _texts(node: ast.expr, names: Mapping[str, list[ast.expr]]) -> list[Text]:
    return [Text(pieces) for pieces in dict.fromkeys(_pieces(node, names, _FOLLOWED))]


def _pieces(node: ast.expr, names: Mapping[str, list[ast.expr]], depth: int) -> list[_Pieces]:
    """Every way to read an expression as a text; a value that is not known here is a hole."""
    match node:
        case ast.Constant(value=value):
            return [(str(value),)]
        case ast.JoinedStr(values=values):
            return _joined([_pieces(v, names, depth) for v in values])
        case ast.FormattedValue(value=ast.Name(id=name)) if depth and _is_text(names.get(name, ())):
            return [p for value in names[name] for p in _pieces(value, names, depth - 1)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined([_pieces(left, names, depth), _pieces(right, names, depth)])
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return [_holes(text, _PERCENT)]
        case ast.Call(func=ast.Attribute(value=inner, attr="format")):
            return [_split_again(p, _BRACES) for p in _pieces(inner, names, depth)]
        case ast.Call(func=ast.Attribute(value=inner, attr="strip")) | ast.Call(func=ast.Name(id="str"), args=[inner]):
            return _pieces(inner, names, depth)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(glue)), attr="join"), args=[ast.List(elts=items)]
        ):
            between: list[_Pieces] = [(glue,)]
            parts = [_pieces(item, names, depth) for item in items]
            return _joined([p for part in parts for p in (part, between)][:-1])
        case ast.IfExp(body=body, orelse=orelse):
            return [*_pieces(body, names, depth), *_pieces(orelse, names, depth)]
        case ast.Name(id=name) if depth and names.get(name):
            return [p for value in names[name] for p in _pieces(value, names, depth - 1)]
    return [_HOLE]


def _is_text(values: object) -> bool:
    return (
        isinstance(values, list)
        and bool(values)
        and all(
            isinstance(v, ast.JoinedStr) or (isinstance(v, ast.Constant) and isinstance(v.value, str)) for v in values
        )
    )


_MOST_READINGS = 16


def _joined(parts: list[list[_Pieces]]) -> list[_Pieces]:
    whole: list[_Pieces] = [("",)]
    for part in parts:
        whole = [(*head[:-1], head[-1] + tail[0], *tail[1:]) for head in whole for tail in part][:_MOST_READINGS]
    return whole


def _split_again(pieces: _Pieces, form: re.Pattern[str]) -> _Pieces:
    return tuple(piece for whole in pieces for piece in form.split(whole))

"""Holds the reading of Python files to small made-up ones."""

from __future__ import annotations

from textwrap import dedent

from hypothesis import given
from hypothesis import strategies as st

from agent.upstream.texts import Check, Text, checks_of, parse, strings_of


def checks(source: str) -> list[Check]:
    text = dedent(source).encode()
    tree = parse(text)
    assert tree is not None
    return checks_of(tree, text)


def said(source: str) -> list[str]:
    return [str(check.text) for check in checks(source)]


def test_implicit_concatenation_and_f_strings_become_pieces_and_holes() -> None:
    [check] = checks(
        """
        class Args:
            def check(self):
                if self.page > 1:
                    raise ValueError("page size " f"{self.page} is not "
                                     "supported by " + self.backend)
        """
    )
    assert check.text == Text(("page size ", " is not supported by ", ""))
    assert (check.kind, check.exception, check.line, check.function) == ("raise", "ValueError", 5, "Args.check")


def test_asserts_parser_errors_and_log_lines_are_found() -> None:
    found = checks(
        """
        def check(args, parser):
            assert args.a, "--a must be given"
            assert args.b, f"--b is {args.b!r}, not positive"
            parser.error("--c cannot be empty")
            logger.warning("--d is deprecated, use %s", args.e)
        """
    )
    assert [(c.kind, str(c.text)) for c in found] == [
        ("assert", "--a must be given"),
        ("assert", "--b is {}, not positive"),
        ("parser.error", "--c cannot be empty"),
        ("log", "--d is deprecated, use %s"),
    ]


def test_an_assertion_without_a_message_is_known_by_its_source_line() -> None:
    assert said("def f(self):\n    assert self.tp_size % self.dp_size == 0\n") == [
        "assert self.tp_size % self.dp_size == 0"
    ]


def test_a_message_put_together_before_is_followed_by_name() -> None:
    assert said(
        """
        HINT = "Use --page-size 64."
        def f(x):
            message = f"{x} does not fit. {HINT}"
            raise RuntimeError(message)
        """
    ) == ["{} does not fit. Use --page-size 64."]


def test_each_branch_of_a_choice_is_a_text_of_its_own() -> None:
    assert said('def f(x):\n    raise ValueError("too small a value" if x else "too large a value")\n') == [
        "too small a value",
        "too large a value",
    ]


def test_percent_and_format_make_holes() -> None:
    assert said('def f(x):\n    raise ValueError("bad value %d here" % x)\n') == ["bad value {} here"]
    assert said('def f(x):\n    raise ValueError("bad value {} here".format(x))\n') == ["bad value {} here"]


def test_what_cannot_be_known_is_one_hole() -> None:
    [check] = checks("def f(x):\n    raise ValueError(x.why())\n")
    assert check.text.pieces == ("", "") and not check.text.known


def test_a_name_that_is_bound_to_itself_ends() -> None:
    assert len(said('def f():\n    m = m\n    m = "again and again" + m\n    raise ValueError(m)\n')) >= 1


def test_a_file_is_never_run() -> None:
    assert parse(b"raise SystemExit('ran')\nimport nothing_of_this_name\n") is not None


def test_a_string_outside_of_checks_is_found_with_its_line() -> None:
    tree = parse(b'x = 1\nlogger.info(f"ready after {x} s")\n')
    assert tree is not None
    assert [(str(s.text), s.line) for s in strings_of(tree)] == [("ready after {} s", 2)]


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_without_an_exception(source: bytes) -> None:
    tree = parse(source)
    if tree is not None:
        strings_of(tree)
        checks_of(tree, source)

"""Text of others, made safe to show: nothing acts on a terminal, nothing grows beyond its bytes."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.text import cut, duration, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("CUDA error: größe 7 µm 日本 😀", "CUDA error: größe 7 µm 日本 😀"),
        ("a\tb", "a b"),
        ("a\nb\r\n", "a\\nb\\x0d\\n"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066a\u2069\u200b\ufeff", "\\u2066a\\u2069\\u200b\\ufeff"),
        ("a\u2028b\u2029c\x85d", "a\\u2028b\\u2029c\\x85d"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_could_act_on_a_terminal_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(alphabet=st.characters(), max_size=60))
def test_any_text_becomes_one_line_without_control(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert not [c for c in shown if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI")]
    assert printable(shown) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("", 0, ""),
        ("abc", 3, "abc"),
        ("abcdef", 5, "ab…"),
        ("ab def", 6, "ab def"),
        ("ab defg", 6, "ab…"),  # no space before the ellipsis
        ("abcdef", 3, "…"),
        ("abcdef", 2, "ab"),
        ("abcdef", 0, ""),
        ("ééé", 6, "ééé"),
        ("éééé", 6, "é…"),
        ("é" * 4, 1, ""),
        ("\udcff", 10, "?"),
    ],
)
def test_text_is_cut_at_bytes_between_characters(text: str, limit: int, kept: str) -> None:
    assert cut(text, limit) == kept


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "<invalid>"), (-0.5, "0s"), (0, "0s"), (119.9, "119s"), (120, "2m"), (130, "2m10s"), (599, "9m59s"),
        (600, "10m"), (10_799, "179m"), (10_800, "3h"), (11_100, "3h5m"), (28_799, "7h59m"), (28_800, "8h"),
        (172_799, "47h"), (172_800, "2d"), (187_200, "2d4h"), (691_200, "8d"), (63_072_000, "2y"),
        (64_800_000, "2y20d"), (252_288_000, "8y"), (float("nan"), "<invalid>"), (float("inf"), "<invalid>"),
    ],
)  # fmt: skip
def test_ages(seconds: float, words: str) -> None:
    assert duration(seconds) == words

"""Edits a list of command-line words (`extraArgs`, a container's args). Knows no flag by name; evaluates nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def value_of(words: Sequence[str], flags: Collection[str]) -> str | None:
    """The value of a flag (any of its names) as it is in force: the last one wins. "" for a switch, None if absent."""
    at = spans(words, flags)
    if not at:
        return None
    start, end = at[-1]
    _, parted, rest = _split(words[start])
    return " ".join([rest] * bool(parted) + list(words[start + 1 : end]))


def without(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """The words without a flag, in whatever form it is there: `--x y`, `--x=y`, or both in one word."""
    gone = {i for start, end in spans(words, flags) for i in range(start, end)}
    return [word for i, word in enumerate(words) if i not in gone]


def with_flag(words: Sequence[str], flags: Sequence[str], *values: str) -> list[str]:
    """The words with a flag set: in place of the occurrence in force and in its form, else at the end.

    `flags` are its names, the one to write first; no `values` write a switch. Every other occurrence is removed: it
    would be read as one more value, or win over this one.
    """
    at = spans(words, flags)
    fresh = [flags[0], *values]
    if not at:
        return [*words, *fresh]
    start, end = at[-1]
    if len(values) == 1 and _split(words[start])[1] == "=":
        fresh = [f"{flags[0]}={values[0]}"]
    return [*without(words[:start], flags), *fresh, *words[end:]]


def spans(words: Sequence[str], flags: Collection[str]) -> list[tuple[int, int]]:
    """Where a flag stands, values included: a value lasts until the next word that begins with two dashes."""
    found = []
    i = 0
    while i < len(words):
        head, parted, _ = _split(words[i])
        end = i + 1
        if head in flags:
            if parted != "=":
                while end < len(words) and not words[end].startswith("--"):
                    end += 1
            found.append((i, end))
        i = end
    return found


def _split(word: str) -> tuple[str, str, str]:
    """Flag, what parts it from its value (`=`, a blank, or nothing), value."""
    if not word.startswith("--"):
        return "", "", word
    for i, char in enumerate(word):
        if char in "= ":
            return word[:i], char, word[i + 1 :].strip()
    return word, "", ""

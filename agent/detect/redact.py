"""Removes secrets from text before it is stored or shown; must never fail, whatever the text."""

from __future__ import annotations

import re

REDACTED = "[redacted]"
"""What stands where a secret was."""

# A quote may be escaped (JSON inside a string), and missing at the end (a line that was cut).
_QUOTED = (
    r"""[bru]?(?:\\+"[^"\\]*(?:\\+"|$)|\\+'[^'\\]*(?:\\+'|$)|"(?:[^"\\]|\\.)*(?:"|\\?$)|'(?:[^'\\]|\\.)*(?:'|\\?$))"""
)
_SEP = r"""\\{0,3}["']?\s{0,4}[:=]\s{0,4}"""
_NOTHING = r"(?:None|null|nil|True|False|true|false)(?![\w-])"
_OPEN = r"""[\[{(]\\{0,3}['"{\[]|\[redacted\]"""
_BARE = r"""[^\s,;&)}\]'"\\][^\s,;&)}\]'"]*"""

_STRONG = (
    r"api[_-]?keys?|admin[_-]?key|passw(?:or)?d|passphrase|secrets?(?:[_-](?:access[_-])?key)?|access[_-]?key(?:[_-]id)?|private[_-]?key"
    r"|credentials?|watermark[_-]key(?:[_-]b)?|account[_-]?key|shared[_-]?key|(?<=[a-z0-9])_key(?:_[ab])?"
)
_NAMED = re.compile(
    rf"(?P<name>(?:{_STRONG}){_SEP})(?!{_NOTHING}|{_OPEN}|expected one argument)"
    rf"(?:(?P<quoted>{_QUOTED})|(?P<bare>{_BARE}))",
    re.IGNORECASE,
)
# `token` is also the unit of all that a language model does: a number, a tag or a short word after it is no secret.
_TOKEN = re.compile(
    rf"(?P<name>(?<![a-z])token{_SEP})(?!{_NOTHING}|{_OPEN}|-?\d+(?:\.\d+)?(?![\w.-])|['\"]?<)"
    rf"(?:(?P<quoted>{_QUOTED})|(?P<bare>(?<==){_BARE}|[\w.~+/=-]{{16,}}))",
    re.IGNORECASE,
)
_PROSE = (
    r"(?:is|to|or|and|with|without|for|when|the|a|requires?|must|was|set|from|in|if|of|on|not|flag|option|argument)"
    r"(?![\w-])"
)
_SECRET_FLAGS = (
    "api-key",
    "token",
    "password",
    "secret",
    "passphrase",
    "access-key",
    "watermark-key",
    "watermark-key-b",
)
# The word with the flag is read once, from its start, and only then looked at from its end: a line of dashes would
# else be read again from each of them. No possessive quantifier: `re` of Python before 3.11.5 gets them wrong.
_FLAG = re.compile(
    r"(?P<name>(?<![a-z0-9-])(?=[a-z0-9-]*?--)[a-z0-9-]+"
    rf"(?:{'|'.join(f'(?<=-{name})' for name in _SECRET_FLAGS)})"
    r"(?:=|['\"]?\s{0,4},\s{0,4}['\"]?|\s{1,4})['\"]?)"
    rf"(?!-|\[redacted\]|{_NOTHING}|{_PROSE}|-?\d+(?:\.\d+)?(?![\w.-]))(?P<bare>[^\s'\",\]]+)",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(
    rf"(?P<name>authorization{_SEP}\\{{0,3}}[\"']?(?:(?:bearer|basic|token|digest|negotiate)\s{{1,4}})?)"
    r"(?!\[redacted\]|(?:bearer|basic|token|digest|negotiate)(?![\w-]))(?P<bare>[^\s'\",;\\\]]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"(?P<name>\bbearer\s{1,4}['\"]?)(?!(?:auth\w*|tokens?|schemes?|credentials?|headers?|challenge|key)(?![\w-]))"
    r"(?P<bare>[A-Za-z0-9._~+/=-]{8,})",
    re.IGNORECASE,
)
_URL = re.compile(r"(?P<name>(?<=[a-z0-9+.-])://)(?!\[redacted\]@)(?P<bare>[^\s/'\"?#]+)(?=@)", re.IGNORECASE)
_QUERY = re.compile(
    r"(?P<name>[?&](?:x-amz-(?:signature|credential|security-token)|sig|signature|key|auth|pwd)=)(?!\[redacted\])(?P<bare>[^&\s'\"]+)",
    re.IGNORECASE,
)
_SHAPES = re.compile(
    r"(?<![\w-])(?:hf_(?:(?=[a-z]{0,40}[A-Z0-9])[A-Za-z0-9]{8,}|[A-Za-z0-9]{20,})|sk-[A-Za-z0-9_-]{8,}|nvapi-[\w-]{8,}|glpat-[\w-]{8,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|xox[abprs]-[\w-]{8,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)

# The words (lower case) without which an expression cannot match: looking for them is far cheaper than matching,
# and nearly all lines hold none.
_PATTERNS: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    (("authorization",), _AUTHORIZATION),
    (("@",), _URL),
    (("--",), _FLAG),
    (("key", "pass", "secret", "credential"), _NAMED),
    (("token",), _TOKEN),
    (("bearer",), _BEARER),
    (("?", "&"), _QUERY),
)
_SHAPE_WORDS = ("hf_", "sk-", "nvapi-", "glpat-", "gh", "xox", "akia", "asia", "aiza", "eyj")


def _cover(found: re.Match[str]) -> str:
    groups = found.groupdict()
    quoted = groups.get("quoted")
    if quoted is None:
        return f"{groups['name']}{REDACTED}"
    start = re.match(r"[bru]?\\*['\"]", quoted, re.IGNORECASE)
    assert start is not None
    mark = start[0].lstrip("bruBRU")
    closed = len(quoted) >= len(start[0]) + len(mark) and quoted.endswith(mark)
    return f"{groups['name']}{start[0]}{REDACTED}{mark if closed else ''}"


def redact(text: str) -> str:
    """The text with keys, passwords, tokens, credentials in URLs and the like replaced by `REDACTED`.

    Takes any text; a second call changes nothing more. It rather hides too much than too little, except that a word
    such as `token` in front of a number stays, since batch lines are full of them.
    """
    low = text.lower()
    for words, pattern in _PATTERNS:
        if any(word in low for word in words):
            text = pattern.sub(_cover, text)
    if any(word in low for word in _SHAPE_WORDS):
        text = _SHAPES.sub(REDACTED, text)
    return text

"""Reads the `server_args=` line of a log into plain values; evaluates nothing, and lets no secret out.

Two shapes exist: the repr of a dataclass, `ServerArgs(k=v, ...)`, up to SGLang 0.5.18, and a dict, `{'k': v}`, later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agent.detect.redact import REDACTED, redact

SIZE_LIMIT = 256 * 1024
"""Characters of one line that are read; real lines have about 20 000."""

STRAY_QUOTES = 16
"""Quotes without an end that are read over (`it's`); each costs a look at the rest of the line."""

DEPTH_LIMIT = 16
"""How deep lists and dicts may nest; deeper values come as text."""

TRUNCATED = "truncated"
"""The key that is added, with the value True, when the line ended before its closing bracket."""

_SECRET_NAME = re.compile(
    r"api_?key|passw(?:or)?d|passphrase|secret|credential|authorization|private_?key|access_?key|(?:^|_)(?:key|keys|key_[ab]|token)$",
    re.IGNORECASE,
)

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*")
_QUOTE = re.compile(r"[bBrRuU]{0,2}['\"]")
_STRING = re.compile(r"""[bBrRuU]{0,2}(?:'([^'\\]*(?:\\.[^'\\]*)*)'|"([^"\\]*(?:\\.[^"\\]*)*)")""", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?=\s{0,4}[,)\]}:])")
_WORD = re.compile(r"(?:True|False|None|true|false|null)(?=\s{0,4}[,)\]}:])")
_WORDS: Mapping[str, bool | None] = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip
_RAW_STEP = re.compile(r"""[^'"()\[\]{}<>,\\]+|.""", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
# Nearly all fields are of these forms: one match for the whole field keeps a 20 kB line to a few milliseconds.
_SIMPLE = r"(?:'([^'\\]*)'|(None|True|False)|(-?\d{1,18})|(-?\d{1,18}\.\d{1,20}))"
_SIMPLE_FIELDS: Mapping[str, re.Pattern[str]] = {
    ")": re.compile(rf"([A-Za-z_]\w*)={_SIMPLE}(?:, |(?=\)))"),
    "}": re.compile(rf"'(\w+)': {_SIMPLE}(?:, |(?=\}}))"),
}
_INTEGERS = re.compile(r"\[(-?\d{1,18}(?:, -?\d{1,18})*)\]")
_START = re.compile(r"(?:server_args=)\s*(?=ServerArgs\(|\{)")
_CLOSERS = {"(": ")", "[": "]", "{": "}", "<": ">"}


class _TextEndError(Exception):
    """The text ended inside a value."""


def _unescape(body: str) -> str:
    if "\\" not in body:
        return body

    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
            # Half a surrogate pair cannot be written as UTF-8, and what is no character cannot be made one.
            return chr(number) if number < 0xD800 or 0xDFFF < number < 0x110000 else "\N{REPLACEMENT CHARACTER}"
        return _ESCAPES.get(code, code)

    return _ESCAPE.sub(one, body)


class _Reader:
    """One pass over the text. `at` is the position of the next character to read."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at, self.stray = text, at, 0

    def space(self) -> str:
        """Skips blanks; the character that comes next, "" at the end."""
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def string(self) -> re.Match[str] | None:
        """A whole string literal here, or None."""
        if _QUOTE.match(self.text, self.at) is None:
            return None
        found = _STRING.match(self.text, self.at)
        if found is None:
            self.stray += 1
            if self.stray > STRAY_QUOTES:
                raise _TextEndError
        return found

    def value(self, depth: int) -> object:
        start = self.at
        got = self._plain(depth)
        if self.space() in (",", ")", "]", "}", ":"):
            return got
        # Not a value by itself (`'a' 'b'`, `5 GiB`): the whole is taken as text.
        self.at = start
        return self.raw()

    def _plain(self, depth: int) -> object:
        text = self.text
        first = text[self.at : self.at + 1]
        if string := self.string():
            self.at = string.end()
            return _unescape(string[1] if string[1] is not None else string[2])
        if word := _WORD.match(text, self.at):
            self.at = word.end()
            return _WORDS[word[0]]
        if number := _NUMBER.match(text, self.at):
            self.at = number.end()
            return _number(number[0])
        if first == "[" and (integers := _INTEGERS.match(text, self.at)):
            self.at = integers.end()
            return [int(one) for one in integers[1].split(", ")]
        if depth < DEPTH_LIMIT and first == "{":
            return self.braces(depth + 1)
        if depth < DEPTH_LIMIT and first in ("[", "("):
            self.at += 1
            return self.items(_CLOSERS[first], depth + 1, [])
        return self.raw()

    def items(self, closer: str, depth: int, items: list[object]) -> list[object]:
        while True:
            following = self.space()
            if following == closer:
                self.at += 1
                return items
            if following == ",":
                self.at += 1
                continue
            if following == "":
                raise _TextEndError
            before = self.at
            items.append(self.value(depth))
            if self.at == before:
                self.at += 1

    def braces(self, depth: int) -> dict[str, object] | list[object]:
        """A dict; a set comes as a list."""
        self.at += 1
        pairs: dict[str, object] = {}
        while True:
            following = self.space()
            if following == "}":
                self.at += 1
                return pairs
            if following == ",":
                self.at += 1
                continue
            if following == "":
                raise _TextEndError
            before = self.at
            key = self.value(depth)
            if self.space() == ":":
                self.at += 1
                self.space()
                pairs[key if isinstance(key, str) else str(key)] = self.value(depth)
            elif not pairs:
                return self.items("}", depth, [key])
            if self.at == before:
                self.at += 1

    def raw(self) -> str:
        """Text up to the comma or bracket that belongs to what surrounds it; brackets and quotes inside balance."""
        start, open_ = self.at, list[str]()
        count = dict.fromkeys(_CLOSERS.values(), 0)  # of `open_`: looking through it for each step would take too long
        while True:
            if string := self.string():
                self.at = string.end()
                continue
            step = _RAW_STEP.match(self.text, self.at)
            if step is None:
                raise _TextEndError
            char = step[0]
            if char in _CLOSERS:
                open_.append(_CLOSERS[char])
                count[_CLOSERS[char]] += 1
            elif count.get(char):
                # What was opened since and not closed was no bracket (a `<` that is a sign).
                closed = ""
                while closed != char:
                    closed = open_.pop()
                    count[closed] -= 1
            elif char in (")", "]", "}") and len(open_) == count[">"]:
                return self.text[start : self.at].strip()
            elif char == "," and not open_:
                return self.text[start : self.at].strip()
            self.at = step.end()


def _number(text: str) -> int | float | str:
    if len(text) > 40:
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if abs(number) < 1e300 else text


def parse_server_args(text: str) -> dict[str, object] | None:
    """The arguments of a `server_args=` line, of `ServerArgs(...)` or of a dict's text; None where it is neither.

    Values are str, int, float, bool, None, lists and dicts with str keys. What is no literal (an object's or a
    dataclass's repr, `inf`) comes as text. A line that was cut gives the fields that were complete, and
    `TRUNCATED: True`. Secrets read `REDACTED`. Takes any text and never raises.
    """
    cut = len(text) > SIZE_LIMIT
    if cut:
        text = text[:SIZE_LIMIT]
    start = 0
    if found := _START.search(text):
        start = found.end()
    reader = _Reader(text, start)
    reader.space()
    if text.startswith("ServerArgs(", reader.at):
        reader.at += len("ServerArgs(")
        args, complete = _fields(reader, ")")
    elif text.startswith("{", reader.at):
        reader.at += 1
        args, complete = _fields(reader, "}")
        if not args:
            return None
    else:
        return None
    clean = without_secrets(args)
    if cut or not complete:
        clean[TRUNCATED] = True
    return clean


def _fields(reader: _Reader, closer: str) -> tuple[dict[str, object], bool]:
    """The fields up to the closing bracket, and whether it was reached."""
    args: dict[str, object] = {}
    simple = _SIMPLE_FIELDS[closer]
    while True:
        while field := simple.match(reader.text, reader.at):
            name, text, word, integer, decimal = field.groups()
            args[name] = (
                text if text is not None else _WORDS[word] if word else int(integer) if integer else float(decimal)
            )
            reader.at = field.end()
        following = reader.space()
        if following == closer:
            return args, True
        if following == "":
            return args, False
        if following == ",":
            reader.at += 1
            continue
        before = reader.at
        try:
            if closer == ")":
                named = _NAME.match(reader.text, reader.at)
                if named is None:
                    reader.raw()
                else:
                    reader.at = named.end()
                    args[named[1]] = reader.value(0)
            else:
                key = reader.value(0)
                if reader.space() == ":":
                    reader.at += 1
                    reader.space()
                    args[key if isinstance(key, str) else str(key)] = reader.value(0)
        except _TextEndError:
            return args, False
        if reader.at == before:
            reader.at += 1


def without_secrets(args: Mapping[str, object]) -> dict[str, object]:
    """The same fields with every secret replaced; also for `/server_info`, whose values are the same."""
    return {key: _clean(value, secret=_SECRET_NAME.search(key) is not None) for key, value in args.items()}


def _clean(value: object, *, secret: bool) -> object:
    if isinstance(value, str):
        if secret and value:
            return REDACTED
        return redact(value)
    if isinstance(value, Mapping):
        return {
            redact(str(key)): _clean(one, secret=secret or _SECRET_NAME.search(str(key)) is not None)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean(one, secret=secret) for one in value]
    return value


_FACT_FIELDS = (
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "page_size", "kv_cache_dtype",
    "quantization", "quantization_param_path", "mamba_ssm_dtype", "mamba_radix_cache_strategy", "mamba_backend",
    "uses_mamba_radix_cache", "linear_attn_backend", "linear_attn_decode_backend", "linear_attn_prefill_backend",
    "disable_radix_cache", "disable_overlap_schedule", "speculative_algorithm", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "moe_runner_backend", "moe_a2a_backend", "tp_size", "dp_size", "attn_dp_size",
    "pp_size", "ep_size", "nnodes", "node_rank", "enable_dp_attention", "base_gpu_id", "gpu_id_step",
    "mem_fraction_static", "max_running_requests", "max_mamba_cache_size", "chunked_prefill_size",
    "context_length", "device", "dtype", "load_format", "model_path", "served_model_name", "host", "port",
    "enable_metrics", "enable_hierarchical_cache", "enable_hisparse", "disaggregation_mode", "is_embedding",
)  # fmt: skip
"""Fields that are facts under their own names."""

_DECODE_GRAPH = re.compile(r"\bdecode=\w*\(backend=<?['\"]?(?:\w+\.)?(\w+)")
_PREFILL_GRAPH = re.compile(r"\bprefill=\w*\(backend=<?['\"]?(?:\w+\.)?(\w+)")


def facts_of(args: Mapping[str, object]) -> dict[str, str]:
    """What rules and templates may know of the arguments, as text: `yes`, `no`, `none`, numbers and names.

    Only fields that the line had are given. Beside the fields of the same name: `cuda_graph` and `cuda_graph_prefill`
    (the backend of the graphs, `disabled` when off) and `api_key` (`yes` when one is set).
    """
    facts = {name: _fact(args[name]) for name in _FACT_FIELDS if name in args}
    facts = {name: value for name, value in facts.items() if value}
    for fact, phase, pattern in (
        ("cuda_graph", "decode", _DECODE_GRAPH),
        ("cuda_graph_prefill", "prefill", _PREFILL_GRAPH),
    ):
        if backend := _graph_backend(args.get("cuda_graph_config"), phase, pattern):
            facts[fact] = backend
    if "cuda_graph" not in facts and isinstance(args.get("disable_cuda_graph"), bool):
        facts["cuda_graph"] = "disabled" if args["disable_cuda_graph"] else "full"
    if "api_key" in args:
        facts["api_key"] = "no" if args["api_key"] in (None, "") else "yes"
    return facts


def _graph_backend(config: object, phase: str, pattern: re.Pattern[str]) -> str:
    if isinstance(config, str):
        found = pattern.search(config)
        return found[1].lower() if found else ""
    if isinstance(config, Mapping):
        inner = config.get(phase)
        if isinstance(inner, Mapping):
            return _fact(inner.get("backend")) if inner.get("backend") is not None else ""
    return ""


def _fact(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return str(value)
    return value[:256] if isinstance(value, str) else ""

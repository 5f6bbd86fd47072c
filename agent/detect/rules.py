"""Rule files: YAML text in, checked rules out; a mistake is told with file, line and key. Reads no file itself.

One rule is everything about one failure: how its text is recognised, what it means, whose it is, what to change,
and examples that must and must not match.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import regex
from msgspec import Meta

from agent.model import Action, Component, Role, Scope, Severity

CAPTURE_TIMEOUT = 0.05
"""Seconds that one capture may take on one line. A rule that needs more is wrong: the line is counted and left."""

HEADS = (
    r"(?:"
    r"\((?:[\w:.-]+ )*pid=\d+(?:, ip=[\w.:]+)?\) |"  # a worker of ray or vLLM
    r"(?:ERROR|WARNING|CRITICAL|INFO) \d\d-\d\d [\d:]+ \[?[\w./-]+\.py:\d+\] |"  # vLLM
    r"[EWF]\d{4} [\d:.]+ +\d+ [\w./-]+:\d+\] |"  # glog, torchrun
    # tracing (TGI, Dynamo), loguru
    r"\d{4}-\d\d-\d\d[T ][\d:.,]+Z? +(?:\| )?(?:ERROR|WARN|WARNING)(?: \| \w+ \| | [\w.:]+: )|"
    r"\[(?:rank|default)?\d+\]:? ?(?!\[)|\[\d+,\d+\]<std(?:out|err)>: ?|"  # torchrun, mpirun
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - [\w.]+ - [A-Z]+ - |"  # Python's logging, of a program that starts SGLang
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z_]+\d+)*\] |"  # SGLang's own, behind another program's
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w.@-]+\[\d+\]: |"  # the journal's short form
    r"\s*what\(\): +|"  # an uncaught C++ exception
    r"\d{4}-\d\d-\d\d [\d:]+\.\d+: [EFW] \S+:\d+\] |"  # TensorFlow, XLA
    r"[\w./-]{1,200}\.(?:cuh?|cpp|cc|h|hpp|c)[@:(]\d+\)?: ?"  # a C++ program's own file and line
    r")*"
)
"""What other programs than SGLang put before their own text; SGLang's head is taken off before."""

EXCEPTION = (
    HEADS
    + r"(?:(?:[A-Za-z_]\w*\.)*(?!\d)\w*(?:Error|Exception|Exit|Interrupt|Warning|NotReady|Timeout): )?"
)  # fmt: skip
"""What may stand before the text of a rule anchored at ``exception``: a program's head, the type that Python prints."""


T = TypeVar("T")


class RuleError(ValueError):
    """A rule file that cannot be used. The text names the file, and the line and key where they are known."""

    def __init__(self, file: str, why: str, *, line: int | None = None, key: str = "") -> None:
        self.file, self.line, self.key, self.why = file, line, key, why
        where = f"{file}:{line}" if line else file
        super().__init__(f"{where}: {key}: {why}" if key else f"{where}: {why}")


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine-readable change; exactly one of the verbs is set. Values may hold ``{captures}``."""

    set_flag: str | None = None
    """A flag of ``sglang serve`` to add or replace; ``value`` is its value, none for a switch."""
    drop_flag: str | None = None
    lower: str | None = None
    """A flag whose value must come down (to ``value``, where that is known)."""
    higher: str | None = None
    set_env: str | None = None
    drop_env: str | None = None
    image_tag: str | None = None
    """What the image's tag must say: ``-cu130``, ``>=0.5.4``."""
    driver_branch: int | None = None
    """The lowest NVIDIA driver branch that works."""
    pod: str | None = None
    """A change of the pod's spec, in its field's name (``volumes[dshm].emptyDir.medium``)."""
    value: str | None = None

    @property
    def verb(self) -> str:
        named = [f for f in self.__struct_fields__ if f != "value" and getattr(self, f) is not None]
        return named[0] if len(named) == 1 else ""


class FixStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way out, in the order in which to try them."""

    say: Annotated[str, Meta(min_length=8)]
    """A sentence for a person, imperative, complete by itself. May hold ``{captures}``."""
    changes: tuple[Change, ...] = ()
    """The same as data: all of these together are this one way out."""
    standing: Literal["measured", "documented", "untried"] = "documented"
    source: str = ""
    versions: str = ""
    """SGLang versions this way holds for, when narrower than the rule's: ``>=0.5.4,<0.5.20``."""
    gpu_arch: tuple[str, ...] = ()
    """GPU architectures this way holds for, `*` wild: ``sm10*``; empty: any."""


class FaultSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a kernel line without an Xid number says of the hardware."""

    severity: Severity
    recovery: str = "none"
    scope: Scope = Scope.GPU
    xid: int | None = None
    """The Xid this line stands for, where it means the same."""
    taint: str = ""
    """The taint's value when no Xid is known: ``reset-required``."""


class Examples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts that hold the rule to its word; each may have several lines."""

    match: Annotated[tuple[str, ...], Meta(min_length=1)]
    no_match: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """One failure, known by its text."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*(?:/[a-z0-9]+(?:[-.][a-z0-9]+)*)+$")]
    title: Annotated[str, Meta(min_length=4, max_length=100)]
    literals: tuple[Annotated[str, Meta(min_length=4)], ...]
    """Fixed texts, any of which starts the capture. They alone are searched for in the whole log: choose rare ones."""
    examples: Examples
    source: Annotated[str, Meta(min_length=3)]
    """Where the text and its meaning were read."""
    role: Role = Role.CAUSE
    component: Component = Component.UNDECIDED
    reads: Literal["container", "kernel", "any"] = "container"
    capture: str = ""
    """A `regex` expression for the line's message; its named groups become fields. Empty: the literal is enough."""
    anchor: Literal["exception", "start", "anywhere"] = "exception"
    """Where in the message the expression must stand: after an optional exception type, at the start, or anywhere.
    Anything but `anywhere` keeps a quoted error (a prompt, a request log) from matching."""
    cause: str = ""
    """What is wrong, in plain words; may hold ``{captures}``."""
    fix: tuple[FixStep, ...] = ()
    check: tuple[str, ...] = ()
    """What a person should look at next, when the text alone does not settle it."""
    action: Action | None = None
    """The strongest action that the text alone warrants; `advise` for causes and symptoms, else `none`."""
    suspects: tuple[Scope, ...] = ()
    """Faults of these scopes may be the true cause: the failure is held against the ledger."""
    xids: tuple[int, ...] = ()
    """Xids that explain this failure without a sick GPU (31 beside error 700)."""
    alternatives: tuple[str, ...] = ()
    """Ids of causes to offer as possible when nothing settles it (`alternatives` of `rules/causes/`)."""
    versions: str = ""
    """SGLang versions whose text this is: ``>=0.5.4``; empty: any, or not SGLang's."""
    engine: str = ""
    """The program whose words these are (`sglang`); empty: CUDA's, NCCL's, the kernel's."""
    fault: FaultSpec | None = None
    facts: Mapping[str, str] = {}
    """Facts about the run that this line proves, besides its captures: ``gpu_arch: sm100``."""
    when: Mapping[str, tuple[str, ...]] = {}
    """Advice only: facts of the run that must all hold; each with its allowed values."""

    @cached_property
    def pattern(self) -> regex.Pattern[str] | None:
        """The compiled capture; None where the literal is enough. Raises `regex.error` for a bad expression."""
        if not self.capture:
            return None
        return regex.compile(EXCEPTION + self.capture if self.anchor == "exception" else self.capture)

    def capture_fields(self, message: str) -> dict[str, str] | None:
        """The fields of this rule in a message, or None where it is not this failure.

        Raises TimeoutError when the expression takes longer than CAPTURE_TIMEOUT on this line.
        """
        if not any(literal in message for literal in self.literals):
            return None
        pattern = self.pattern
        if pattern is None:
            if self.anchor == "anywhere":
                return {}
            head = message if self.anchor == "start" else _strip_exception(message)
            return {} if any(head.startswith(literal) for literal in self.literals) else None
        search = pattern.search if self.anchor == "anywhere" else pattern.match
        found = search(message, timeout=CAPTURE_TIMEOUT)
        return None if found is None else {k: v for k, v in found.groupdict().items() if v is not None}

    @property
    def warrants(self) -> Action:
        if self.action is not None:
            return self.action
        return Action.ADVISE if self.role in (Role.CAUSE, Role.SYMPTOM, Role.ADVICE) else Action.NONE


_EXCEPTION_HEAD = regex.compile(EXCEPTION)


def _strip_exception(message: str) -> str:
    head = _EXCEPTION_HEAD.match(message)
    return message[head.end() :] if head else message


class RuleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    rules: tuple[Rule, ...]


FACTS = frozenset({
    "sglang_version", "gpu_arch", "cuda", "driver", "architecture", "attention_backend", "page_size", "tp_size",
    "rank", "ready", "linear_attn_backend", "linear_attn_decode_backend", "linear_attn_prefill_backend",
    "speculative_algorithm", "mamba_ssm_dtype", "mamba_radix_cache_strategy", "kv_cache_dtype", "disable_radix_cache",
    "disable_overlap_schedule", "cuda_graph", "device", "disaggregation_mode", "is_embedding", "enable_hisparse",
    "deep_gemm", "driver_branch", "driver_needs", "driver_wants", "ttft_mean_seconds", "gen_throughput",
})  # fmt: skip
"""Names that a cause or a fix may use besides its rule's captures: what a log tells about its run."""


def parse_rules(text: bytes, *, file: str, thorough: bool = False) -> tuple[Rule, ...]:
    """The rules of one file.

    `thorough` compiles every expression and runs every example too (a user's file, `rules check`, the tests); without
    it only the form is checked, since the packaged rules are held by the tests. Raises RuleError.
    """
    rules = load_document(text, RuleFile, file=file).rules
    for i, rule in enumerate(rules):
        for key, why in _faults_of(rule, thorough=thorough):
            raise RuleError(file, f"{rule.id}: {why}", line=_line_of(text, ["rules", i, *key]), key=str(key[0]))
    return rules


def _faults_of(rule: Rule, *, thorough: bool) -> Iterable[tuple[list[str | int], str]]:
    if rule.role is Role.ADVICE:
        if not rule.when:
            yield ["id"], "advice needs `when`: the facts that must hold"
    elif not rule.literals:
        yield ["literals"], "needs at least one literal, else it can never match"
    if rule.fault is not None and rule.reads == "container":
        yield ["fault"], "only the kernel accuses a GPU: a rule with `fault` must have `reads: kernel`"
    if rule.role in (Role.CAUSE, Role.SYMPTOM, Role.ADVICE, Role.UNCLAIMED) and not rule.fix and not rule.check:
        yield ["id"], "needs `fix` or `check`: an explanation without a next step helps nobody"
    for i, step in enumerate(rule.fix):
        for j, change in enumerate(step.changes):
            if not change.verb:
                yield ["fix", i, "changes", j], "a change has exactly one verb (set_flag, drop_flag, lower, ...)"
    if not thorough:
        return
    try:
        groups = set(rule.pattern.groupindex) if rule.pattern else set()
    except regex.error as error:
        yield ["capture"], f"not a valid expression: {error}"
        return
    for key, template in _templates(rule):
        try:
            names = {name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(template) if name}
        except ValueError as error:
            yield key, f"not a valid template: {error}"
            continue
        for name in sorted(names - groups - FACTS):
            yield key, f"{{{name}}} is neither a capture of this rule nor a known fact ({', '.join(sorted(FACTS))})"
    if rule.role is Role.ADVICE:
        return
    for i, text in enumerate(rule.examples.match):
        if not any(matches(rule, line) for line in text.splitlines()):
            yield ["examples", "match", i], "this example does not match its own rule"
    for i, text in enumerate(rule.examples.no_match):
        if any(matches(rule, line) for line in text.splitlines()):
            yield ["examples", "no_match", i], "this example must not match, but does"


def matches(rule: Rule, line: str) -> bool:
    """True when the rule recognises this line of a log as it stands in a file."""
    from agent.detect.framing import message_of

    return rule.capture_fields(message_of(line)) is not None


def _templates(rule: Rule) -> Iterable[tuple[list[str | int], str]]:
    yield ["cause"], rule.cause
    for i, step in enumerate(rule.fix):
        yield ["fix", i, "say"], step.say
        for j, change in enumerate(step.changes):
            if change.value is not None:
                yield ["fix", i, "changes", j, "value"], change.value


NO_BUS = "<bus address>"
"""What an advice says in place of a GPU's address that is not known."""

_NAME = regex.compile(r"\{([a-z_][a-z0-9_]*)\}")


def render(template: str, fields: Mapping[str, str], *, known_only: bool = False) -> str:
    """A template with its captures filled in; a capture that the line did not have reads `unknown`.

    Total: braces that hold no name stay as they are. `known_only` also leaves names alone that `fields` does not have
    (commands for a shell are full of braces).
    """
    if "{" not in template:
        return template
    return _NAME.sub(lambda name: fields.get(name[1], name[0] if known_only else "unknown"), template)


def _line_of(text: bytes, path: Sequence[str | int]) -> int | None:
    """The 1-based line of a key, found by composing the document again (slow; only for a message)."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        return None
    line: int | None = None
    for step in path:
        if node is None:
            break
        line = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == step), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            break
    return line


_PATH = regex.compile(r" - at `\$(?P<path>.*)`\Z")
_UNKNOWN_FIELD = regex.compile(r"unknown field `(?P<key>.*)`\Z")
_STEP = regex.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")


def load_document(text: bytes, kind: type[T], *, file: str) -> T:
    """YAML text as a checked value of `kind`. Raises RuleError with the line and key of the first mistake."""
    import yaml  # 15 ms: only where no parsed rules are kept

    try:
        data: Any = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise RuleError(
            file, f"not valid YAML: {getattr(error, 'problem', error)}", line=mark.line + 1 if mark else None
        ) from None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise RuleError(file, f"not readable as YAML: {error}") from None
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        said = str(error)
        at = _PATH.search(said)
        path: list[str | int] = []
        for step in _STEP.finditer(at["path"]) if at else ():
            path.append(step["key"] if step["key"] is not None else int(step["index"]) if step["index"] != "..." else 0)
        why = said[: at.start()] if at else said
        if unknown := _UNKNOWN_FIELD.search(why):
            path.append(unknown["key"])
        key = ".".join(str(p) for p in path)
        raise RuleError(file, why, line=_line_of(text, path), key=key) from None

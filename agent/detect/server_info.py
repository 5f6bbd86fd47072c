"""What a running SGLang server's own pages say of it, as facts. Takes any bytes; lets no secret out; asks nobody."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from agent.detect.redact import redact
from agent.detect.server_args import facts_of, without_secrets
from agent.model import ContainerRef, Evidence, Role, Signal

INFO_RULE = "server/info"
"""The signal that carries what `/server_info` and `/model_info` said."""

FIGURES_RULE = "server/metrics"
"""The signal that carries figures of `/metrics`, as they were at its time."""

OVERRIDES = "_resolved_overrides"
"""Which of SGLang's own functions set which argument; not there before 0.5.15, perhaps not in later versions."""

_MARKS = frozenset({"attention_backend", "model_path", "tp_size"})
"""Arguments that every SGLang server has: a body without them is some other program's."""

_SHOWN = (
    "attention_backend",
    "page_size",
    "mamba_radix_cache_strategy",
    "linear_attn_backend",
    "speculative_algorithm",
)


def facts_of_info(body: bytes) -> dict[str, str] | None:
    """The facts of `/server_info` (or `/get_server_info`); None for a body that is not an SGLang server's.

    Beside the arguments (:func:`agent.detect.server_args.facts_of`): `sglang_version`, `ready`, and, where the server
    says who set them, `attention_backend_chosen_by` (`sglang`), `attention_backend_override` and `page_size_override`
    (the function's name).
    """
    info = _object(body)
    if info is None or not info.keys() >= _MARKS:
        return None
    clean = without_secrets(info)
    facts = facts_of(clean)
    if isinstance(version := clean.get("version"), str) and version:
        facts["sglang_version"] = version[:64]
    if clean.get("status") == "ready":
        facts["ready"] = "yes"
    for field, override in _overrides(clean):
        facts[f"{field}_override"] = override
        if field == "attention_backend":
            facts["attention_backend_chosen_by"] = "sglang"
    return facts


def _overrides(info: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else None
    entries = state.get(OVERRIDES) if isinstance(state, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], Mapping):
            for field in ("attention_backend", "page_size"):
                if field in entry[1]:
                    yield field, entry[0][:100]


def facts_of_model(body: bytes) -> dict[str, str]:
    """The facts of `/model_info`: `architecture`, where the version names it."""
    info = _object(body) or {}
    names = info.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    return {"architecture": first[:100]} if isinstance(first, str) and first.isidentifier() else {}


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# -- figures

_PREFIX = "sglang:"
_MEANS = {"time_to_first_token_seconds": "ttft", "inter_token_latency_seconds": "inter_token"}
"""Histograms of which count and mean are kept, and what they are called in facts."""

_SUMS = frozenset({"gen_throughput", "num_running_reqs", "num_queue_reqs"})
_LARGEST = frozenset({"token_usage", "page_size"})
_ONCE = frozenset({"cache_hit_rate", "spec_accept_length"})
"""Gauges that several schedulers report: added up, the largest taken, or given only where all agree."""

_LINES = 4096


def figures_of(text: str) -> dict[str, float]:
    """The few figures of `/metrics` that tell how fast a server is; a figure that is not there is left out.

    `ttft_count`, `ttft_mean_seconds`, `inter_token_mean_seconds`, `gen_throughput` (tokens/s), `num_running_reqs`,
    `num_queue_reqs`, `token_usage` (0 to 1), `page_size` (tokens), `cache_hit_rate`, `spec_accept_length`. Means are
    over the server's whole life.
    """
    values: dict[str, list[float]] = {}
    for name, value in _samples(text):
        values.setdefault(name, []).append(value)
    figures: dict[str, float] = {}
    for metric, short in _MEANS.items():
        count, total = sum(values.get(f"{metric}_count", ())), sum(values.get(f"{metric}_sum", ()))
        if count > 0 and total >= 0:
            figures[f"{short}_count"] = count
            figures[f"{short}_mean_seconds"] = total / count
    figures |= {name: sum(values[name]) for name in _SUMS if name in values}
    figures |= {name: max(values[name]) for name in _LARGEST if name in values}
    figures |= {name: values[name][0] for name in _ONCE if len(set(values.get(name, ()))) == 1}
    return figures


def _samples(text: str) -> Iterator[tuple[str, float]]:
    """Name (without `sglang:`) and value of each sample wanted. One line that cannot be read spoils no other."""
    wanted = {*_SUMS, *_LARGEST, *_ONCE, *(f"{m}_{part}" for m in _MEANS for part in ("sum", "count"))}
    taken = 0
    for line in text.split("\n"):
        if not line.startswith(_PREFIX):
            continue
        name = line[len(_PREFIX) :].partition("{")[0].split(" ", 1)[0]
        if name not in wanted:
            continue
        taken += 1
        if taken > _LINES:
            return
        try:
            # Line by line: as a whole, the page is refused for one bad line, and costs ten times as much.
            samples = [s for family in text_string_to_metric_families(line + "\n") for s in family.samples]
        except Exception:  # the parser raises ValueError, IndexError, KeyError and more, by where the line is bad
            continue
        for sample in samples:
            if math.isfinite(sample.value):
                yield name, sample.value


def facts_of_figures(figures: Mapping[str, float]) -> dict[str, str]:
    """Figures as facts: short decimal text."""
    return {name: f"{value:.4g}" if value < 1e6 else f"{value:.0f}" for name, value in figures.items()}


# -- signals


def server_signals(
    container: ContainerRef,
    *,
    source: str,
    time: float,
    info: bytes | None = None,
    model: bytes | None = None,
    metrics: bytes | None = None,
) -> list[Signal]:
    """What a server answered, as context of its container; `source` is the server's address, without a path."""
    signals: list[Signal] = []
    facts = facts_of_info(info) if info is not None else None
    if facts is not None:
        facts |= facts_of_model(model or b"")
        shown = [f"{name}={facts[name]}" for name in _SHOWN if name in facts]
        if override := facts.get("attention_backend_override"):
            shown.append(f"chosen by {override}")
        if version := facts.get("sglang_version"):
            shown.append(f"version {version}")
        signals.append(_signal(INFO_RULE, facts, shown, container, f"{source}/server_info", time))
    figures = figures_of(metrics.decode("utf-8", "replace")) if metrics is not None else {}
    if figures:
        signals.append(
            _signal(FIGURES_RULE, facts_of_figures(figures), _words(figures), container, f"{source}/metrics", time)
        )
    return signals


def _words(figures: Mapping[str, float]) -> list[str]:
    words = []
    if "ttft_mean_seconds" in figures:
        mean, count = figures["ttft_mean_seconds"], figures["ttft_count"]
        words.append(f"time to first token {mean:.3g} s, the mean of {count:.0f} requests")
    if "inter_token_mean_seconds" in figures:
        words.append(f"{figures['inter_token_mean_seconds'] * 1000:.3g} ms between tokens")
    if "gen_throughput" in figures:
        words.append(f"{figures['gen_throughput']:.4g} tokens/s now")
    return words


def _signal(
    rule: str, facts: dict[str, str], words: Iterable[str], container: ContainerRef, source: str, time: float
) -> Signal:
    text = redact(", ".join(words))
    return Signal(
        rule=rule,
        role=Role.CONTEXT,
        time=time,
        fields=facts,
        container=container,
        evidence=Evidence(source=source, text=text, time=time),
    )

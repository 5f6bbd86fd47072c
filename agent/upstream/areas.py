"""The lists of SGLang's files by what their refusals are; data only."""

from __future__ import annotations

from fnmatch import fnmatchcase

ARGUMENT_FILES = (
    "srt/server_args.py",
    "srt/arg_groups/*",
    "srt/configs/model_config.py",
    "srt/layers/attention/attention_registry.py",
    "srt/entrypoints/engine.py",
)
"""Where the command line, the environment and the model's configuration are held against each other. Coverage is
counted here."""

START_FILES = (
    "srt/model_executor/*",
    "srt/layers/attention/linear/*",
    "srt/layers/moe/utils.py",
    "srt/layers/quantization/__init__.py",
    "srt/model_loader/*",
    "srt/distributed/parallel_state.py",
    "srt/speculative/spec_info.py",
    "srt/utils/common.py",
)
"""Where a start fails later, in a scheduler's process: listed, not counted, for most of it is about requests."""

LISTENED_FILES = ("srt/*", "cli/*", "launch_server.py", "check_env.py", "utils.py")
"""Where a rule's text is looked for."""

INTERNAL = (
    "__setattr__", "__getattr__", "_invoke_provider", "apply_model_overrides", "assert_flag_parity",
    "collect_input_fields", "declare_resolution", "fallbacks_of", "finalize_cuda_graph_prefill_max_context",
    "get_global_server_args", "register_model_config_factory", "register_prefill_buffer_ceiling",
    "register_resolution_hook", "resolve_once", "run_post_process_pass", "validate_declarations",
)  # fmt: skip
"""Functions whose refusals are about SGLang's own programming (an undeclared field, an order of steps): no argument
of the person who starts the server leads there, so no advice can lead out. Counted apart."""


def area_of(path: str) -> str:
    """`arguments`, `start` or empty, for a path inside the package."""
    if any(fnmatchcase(path, pattern) for pattern in ARGUMENT_FILES):
        return "arguments"
    return "start" if any(fnmatchcase(path, pattern) for pattern in START_FILES) else ""


def listened(path: str) -> bool:
    """True for a file whose strings may reach a log."""
    return any(fnmatchcase(path, pattern) for pattern in LISTENED_FILES)

"""The options that `run`, `config` and `doctor` share: the settings file, and a flag for each setting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --config and a flag for every setting; the command gets `file` and `overrides` by key."""
    from agent.config import DEFAULT_FILE, keys

    names = {key.flag.lstrip("-").replace("-", "_"): key.name for key in keys()}

    @functools.wraps(function)
    def wrapped(config_file: Path | None, **given: Any) -> Any:
        overrides = {names[name]: given.pop(name) for name in list(given) if name in names}
        file = config_file or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
        return function(file=file, overrides={k: v for k, v in overrides.items() if v is not None}, **given)

    for key in reversed(keys()):
        wrapped = click.option(
            key.flag, key.flag.lstrip("-").replace("-", "_"), default=None, metavar="VALUE", help=key.description
        )(wrapped)
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        envvar="FAULTLINE_CONFIG",
        help=f"Settings file [default: {DEFAULT_FILE} where it exists].",
    )(wrapped)

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.gpus.driver import DriverSource, parse_model, parse_version

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.178.04  Release Build  (builder@example)  "
    "Mon Jun  2 13:13:04 UTC 2026\nGCC version:  gcc version 13.3.0\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\nGCC version:\n"
INFORMATION = "Model: \t\t {}\nIRQ:   \t\t 0\nGPU UUID: \t GPU-????????\nBus Location: \t 0000:65:00.0\n"


def node(root: Path, *models: str, version: str = OPEN) -> DriverSource:
    (root / "version").write_text(version)
    for n, model in enumerate(models):
        (root / "gpus" / f"0000:0{n}:00.0").mkdir(parents=True)
        (root / "gpus" / f"0000:0{n}:00.0" / "information").write_text(INFORMATION.format(model))
    return DriverSource(root)


def test_the_open_and_the_closed_driver_are_told_apart() -> None:
    opened, closed = parse_version(OPEN), parse_version(CLOSED)
    assert opened is not None and opened.facts == {"driver": "580.178.04", "driver_kind": "open"}
    assert closed is not None and closed.facts == {"driver": "535.161.07", "driver_kind": "closed"}


def test_the_model_is_told_where_all_gpus_have_one(tmp_path: Path) -> None:
    driver = node(tmp_path, "NVIDIA B200", "NVIDIA B200").read()
    assert driver is not None and driver.facts["gpu_model"] == "NVIDIA B200"


def test_two_models_on_a_node_are_none(tmp_path: Path) -> None:
    driver = node(tmp_path, "NVIDIA B200", "NVIDIA L4").read()
    assert driver is not None and "gpu_model" not in driver.facts


def test_a_node_without_the_driver_says_so(tmp_path: Path) -> None:
    source = DriverSource(tmp_path)
    assert source.read() is None and "No such file" in source.error


@pytest.mark.parametrize(
    "text", ["", "NVRM version: ", "NVIDIA UNIX Kernel Module  abc", "NVIDIA UNIX Kernel Module  1.2"]
)
def test_a_file_of_another_form_is_not_guessed_at(tmp_path: Path, text: str) -> None:
    source = node(tmp_path, version=text)
    assert source.read() is None and "not of the form" in source.error


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    parse_version(text)
    parse_model(text)
    parse_version("NVIDIA UNIX " + text)

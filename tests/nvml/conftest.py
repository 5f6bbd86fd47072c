"""The stand-ins, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvml import StandIn, build


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def standin(libraries: Path, tmp_path: Path) -> StandIn:
    return StandIn(libraries, tmp_path)

"""The tests of this folder that ask for ``api_server`` run against the newest and the oldest version."""

from __future__ import annotations

import pytest

from tests.cluster.server import ApiServer


@pytest.fixture(params=["newest", "oldest"])
def api_server(request: pytest.FixtureRequest) -> ApiServer:
    server: ApiServer = request.getfixturevalue(f"{request.param}_server")
    return server

"""What tests of several folders share: the real API server, a client of it, and a node object."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from agent.kube import KubeClient, login
from tests.cluster.build import DEFAULT_VERSION, BuildError
from tests.cluster.server import ApiServer


def running(version: str) -> Iterator[ApiServer]:
    """A started API server. Without Go a test is skipped, but never in CI."""
    try:
        server = ApiServer(version=version)
    except BuildError as error:
        if error.no_go and os.environ.get("CI", "").lower() not in ("1", "true"):
            pytest.skip(str(error))
        pytest.fail(str(error), pytrace=False)
    with server:
        yield server


@pytest.fixture(scope="session")
def newest_server() -> Iterator[ApiServer]:
    yield from running(DEFAULT_VERSION)


@pytest.fixture(scope="session")
def oldest_server() -> Iterator[ApiServer]:
    yield from running("1.34")


@pytest.fixture
def api_server(newest_server: ApiServer) -> ApiServer:
    """One real API server for the whole run: a test makes its own objects in it and leaves those of others alone.

    ``tests/cluster/conftest.py`` has one that gives the oldest version as well.
    """
    return newest_server


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[KubeClient]:
    """The administrator's client."""
    async with KubeClient(await login(kubeconfig=str(api_server.kubeconfig()))) as found:
        yield found


@pytest.fixture
async def node(api_server: ApiServer) -> AsyncIterator[str]:
    """The name of a fresh Node with eight GPUs, as a kubelet with a device plugin would report it."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    async with KubeClient(await login(kubeconfig=str(api_server.kubeconfig()))) as admin:
        await make_node(admin, name)
        yield name
        await admin.delete(f"/api/v1/nodes/{name}")


async def make_node(admin: KubeClient, name: str, *, gpus: int = 8) -> None:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}
    await admin.create(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    )
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    await admin.patch(f"/api/v1/nodes/{name}/status", {"status": status})

"""The client against a real API server: what each answer of it becomes."""

from agent.kube import KubeClient


async def test_get(client: KubeClient, node: str) -> None:
    found = await client.get(f"/api/v1/nodes/{node}")
    assert found["status"]["allocatable"]["nvidia.com/gpu"] == "8"

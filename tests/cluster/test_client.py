"""The client against a real API server, and against one that misbehaves: what each answer becomes."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.kube import KubeClient, LoginError, Patch, RefusedError, UnreachableError, login
from tests.cluster.answers import answering, login_to
from tests.cluster.server import ApiServer, free_ports


async def client_of(kubeconfig: Path, **kwargs: Any) -> KubeClient:
    return KubeClient(await login(kubeconfig=str(kubeconfig)), **kwargs)


async def refused(call: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await call
    return caught.value


async def unreachable(call: Any) -> str:
    with pytest.raises(UnreachableError) as caught:
        await call
    return str(caught.value)


async def test_get_and_list(client: KubeClient, node: str) -> None:
    found = await client.get(f"/api/v1/nodes/{node}")
    assert found["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    listed = await client.get("/api/v1/nodes", params={"fieldSelector": f"metadata.name={node}"})
    assert [item["metadata"]["uid"] for item in listed["items"]] == [found["metadata"]["uid"]]
    assert client.requests["GET", "200"] == 2


async def test_a_metadata_list_has_no_spec_and_an_empty_one_no_items(client: KubeClient, node: str) -> None:
    listed = await client.metadata("/api/v1/nodes", params={"labelSelector": f"kubernetes.io/hostname={node}"})
    assert listed["kind"] == "PartialObjectMetadataList"
    (item,) = listed["items"]
    assert item["metadata"]["name"] == node and "spec" not in item
    empty = await client.metadata("/api/v1/nodes", params={"labelSelector": "no=such"})
    assert not empty["items"]


async def test_create_patch_delete(client: KubeClient) -> None:
    name = f"node-{uuid.uuid4().hex[:8]}"
    made = await client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    taint = {"key": "faultline.dev/gpu-fault", "value": "xid-79", "effect": "NoSchedule"}
    body = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"taints": [taint]}}
    patched = await client.patch(f"/api/v1/nodes/{name}", body)
    assert taint in patched["spec"]["taints"]
    merged = await client.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, kind=Patch.MERGE)
    assert "taints" not in merged["spec"]
    operations = [{"op": "add", "path": "/metadata/annotations", "value": {"faultline.dev/x": "1"}}]
    annotated = await client.patch(f"/api/v1/nodes/{name}", operations, kind=Patch.JSON)
    assert annotated["metadata"]["annotations"] == {"faultline.dev/x": "1"}
    applied = await client.patch(
        f"/api/v1/nodes/{name}",
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"faultline.dev/y": "2"}}},
        kind=Patch.APPLY,
        params={"fieldManager": "faultline"},
    )
    assert applied["metadata"]["labels"]["faultline.dev/y"] == "2"
    assert (await client.delete(f"/api/v1/nodes/{name}"))["status"] == "Success"
    error = await refused(client.delete(f"/api/v1/nodes/{name}"))
    assert (error.status, error.reason, error.passing) == (404, "NotFound", False)


async def test_a_stale_version_is_a_conflict(client: KubeClient, node: str) -> None:
    path = f"/api/v1/nodes/{node}"
    version = (await client.get(path))["metadata"]["resourceVersion"]
    await client.patch(path, {"metadata": {"annotations": {"other": "writer"}}})
    for kind in (Patch.STRATEGIC, Patch.MERGE):
        body = {"metadata": {"resourceVersion": version, "annotations": {"mine": "1"}}}
        error = await refused(client.patch(path, body, kind=kind))
        assert (error.status, error.reason, error.passing) == (409, "Conflict", True)
        assert "the object has been modified" in error.message
    assert "mine" not in (await client.get(path))["metadata"]["annotations"]
    assert client.requests["PATCH", "409"] == 2


async def test_not_found(client: KubeClient) -> None:
    error = await refused(client.get("/api/v1/nodes/nope"))
    assert (error.status, error.reason, error.passing) == (404, "NotFound", False)
    assert str(error) == 'GET /api/v1/nodes/nope: 404 NotFound: nodes "nope" not found'
    error = await refused(client.get("/apis/resource.k8s.io/v1zz/devicetaintrules"))
    assert error.status == 404  # a group that is not served: text, no Status object


async def test_an_invalid_object_is_refused_for_good(client: KubeClient) -> None:
    error = await refused(client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {}}))
    assert (error.status, error.reason, error.passing) == (422, "Invalid", False)
    error = await refused(client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Pod"}))
    assert (error.status, error.reason, error.passing) == (400, "BadRequest", False)


async def test_a_user_without_rights_is_forbidden(api_server: ApiServer) -> None:
    async with await client_of(api_server.kubeconfig_for("nobody", ["strangers"])) as stranger:
        error = await refused(stranger.get("/api/v1/nodes"))
    assert (error.status, error.reason, error.passing) == (403, "Forbidden", False)
    assert 'User "nobody" cannot list resource "nodes"' in error.message


async def test_a_bad_token_is_unauthorized(api_server: ApiServer) -> None:
    async with await client_of(api_server.kubeconfig_with("not-a-token")) as stranger:
        error = await refused(stranger.get("/api/v1/nodes"))
    assert (error.status, error.reason) == (401, "Unauthorized")
    assert error.passing  # the kubelet writes a new token into the file


async def test_the_token_of_a_deleted_pod_is_unauthorized(api_server: ApiServer, client: KubeClient, node: str) -> None:
    token = api_server.service_account_token("faultline", "faultline", f"agent-{node}", node)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    async with await client_of(api_server.kubeconfig_with(token), name=node) as agent:
        who = (await agent.create(path, review))["status"]["userInfo"]
        assert who["username"] == "system:serviceaccount:faultline:faultline"
        assert who["extra"]["authentication.kubernetes.io/node-name"] == [node]
        assert who["extra"]["authentication.kubernetes.io/pod-name"] == [f"agent-{node}"]
        gone = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        await client.delete(f"/api/v1/namespaces/faultline/pods/agent-{node}", body=gone)
        async with asyncio.timeout(20):  # the answers about tokens are cached for up to 10 s
            while (error := await _refusal_of(agent, path, review)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert error.status == 401
    seen = {event["userAgent"] for event in api_server.audit(user="system:serviceaccount:faultline:faultline")}
    assert any(agent_name.startswith("faultline/") and agent_name.endswith(f"({node})") for agent_name in seen)


async def test_a_pods_own_login_follows_its_token(
    api_server: ApiServer, client: KubeClient, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet replaces the file long before the token in it ends."""
    module = importlib.import_module("agent.kube.login")
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path)
    shutil.copy(api_server.folder / "ca.crt", tmp_path)
    (tmp_path / "namespace").write_text("faultline\n")
    (tmp_path / "token").write_text("one-that-has-ended")
    way = await login(environ={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api_server.port)})
    assert (way.how, way.namespace) == ("in-cluster", "faultline")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    async with KubeClient(way, name=node) as agent:
        assert (await refused(agent.create(path, review))).status == 401
        (tmp_path / "token").write_text(api_server.service_account_token("faultline", "faultline", f"own-{node}", node))
        who = (await agent.create(path, review))["status"]["userInfo"]
        assert who["username"] == "system:serviceaccount:faultline:faultline"
        for broken in ("", None):
            (tmp_path / "token").unlink()
            if broken is not None:
                (tmp_path / "token").write_text(broken)
            assert "token" in await unreachable(agent.create(path, review))


async def test_a_pod_without_its_authority_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("agent.kube.login"), "SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "token").write_text("t")
    with pytest.raises(LoginError, match="No such file"):
        await login(environ={"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})


async def test_the_environments_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    async with KubeClient(login_to("http://192.0.2.1:80"), deadline=3) as client:
        assert str(port) in await unreachable(client.get("/api/v1/nodes"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    async def alive(_: web.Request) -> web.Response:
        return web.json_response({"kind": "NodeList"})

    async with answering(alive) as client:
        assert await client.get("/api/v1/nodes") == {"kind": "NodeList"}


async def _refusal_of(agent: KubeClient, path: str, body: dict[str, Any]) -> RefusedError | None:
    try:
        await agent.create(path, body)
    except RefusedError as error:
        return error
    return None


async def test_another_certificate_authority_is_not_trusted(api_server: ApiServer) -> None:
    wrong = api_server.kubeconfig_with("secret", authority=api_server.another_authority())
    before = api_server.audited()
    async with await client_of(wrong) as stranger:
        assert "CERTIFICATE_VERIFY_FAILED" in await unreachable(stranger.get("/api/v1/nodes"))
        assert stranger.requests == {("GET", "unreachable"): 1}
    assert not [event for event in api_server.audit(since=before) if event["requestURI"] == "/api/v1/nodes"]


async def test_an_authority_that_is_no_certificate(api_server: ApiServer, tmp_path: Path) -> None:
    garbage = tmp_path / "ca.crt"
    garbage.write_bytes(b"\x00garbage")
    with pytest.raises((LoginError, UnreachableError)):
        async with await client_of(api_server.kubeconfig_with("secret", authority=garbage)):
            pass


async def test_the_audit_log_holds_every_request(api_server: ApiServer, client: KubeClient, node: str) -> None:
    before = api_server.audited()
    await client.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {"seen": "1"}}})
    await refused(client.get(f"/api/v1/nodes/{node}/nope"))
    ours = [event for event in api_server.audit(user="admin", since=before) if node in event["requestURI"]]
    assert [(event["verb"], event["responseStatus"]["code"]) for event in ours] == [("patch", 200), ("get", 404)]
    assert ours[0]["requestObject"] == {"metadata": {"annotations": {"seen": "1"}}}


async def test_nothing_listens() -> None:
    (port,) = free_ports(1)
    async with KubeClient(login_to(f"http://127.0.0.1:{port}")) as client:
        text = await unreachable(client.get("/api/v1/nodes"))
    assert "GET /api/v1/nodes" in text and str(port) in text


@asynccontextmanager
async def mute(said: bytes, *, close: bool = False):  # type: ignore[no-untyped-def]
    """A client of a server that says so much and then nothing more; ``close`` ends the connection then."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        if not close:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with KubeClient(login_to(url), deadline=0.3) as client:
            yield client


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", HEAD, HEAD + b'{"items": ['])
async def test_a_server_that_stops_talking(said: bytes) -> None:
    async with mute(said) as client:
        assert "no answer within 0.3 s" in await unreachable(client.get("/api/v1/nodes"))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", HEAD, HEAD + b'{"items": [', b"\x16\x03\x01 not HTTP\r\n\r\n"])
async def test_a_connection_that_is_cut(said: bytes) -> None:
    async with mute(said, close=True) as client:
        await unreachable(client.get("/api/v1/nodes"))


async def test_a_closed_client() -> None:
    client = KubeClient(login_to("http://127.0.0.1:1"))
    await unreachable(client.get("/api/v1/nodes"))


STATUS = '{"kind":"Status","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":7}}'


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"Retry-After": "3"}, STATUS, 3.0),
        ({}, STATUS, 7.0),
        ({}, "slow down", None),
        ({"Retry-After": "1.5"}, "", 1.5),
        ({"Retry-After": "-1"}, "", 0.0),
        ({"Retry-After": "1e99"}, "", 3600.0),
        ({"Retry-After": "inf"}, "", 3600.0),
        ({"Retry-After": "nan"}, "", None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "", None),
        ({}, '{"details": {"retryAfterSeconds": [1]}}', None),
        ({}, '{"details": 5, "reason": {"a": 1}, "message": null}', None),
        ({}, "[]", None),
        ({}, "\xff", None),
        ({}, "[" * 20000, None),
    ],
)
async def test_the_wait_that_a_server_asks_for(headers: dict[str, str], body: str, seconds: float | None) -> None:
    asked = 0

    async def handler(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response(status=429, headers=headers, body=body.encode("latin-1"))

    async with answering(handler) as client:
        for call in (client.get("/x"), client.patch("/x", {}), client.create("/x", {}), client.delete("/x")):
            error = await refused(call)
            assert (error.status, error.passing, error.retry_after) == (429, True, seconds)
    assert asked == 4  # nothing is sent again by itself


async def test_whoever_retries_too_early_stays_refused() -> None:
    """A server that enforces what it asked for; the backoff keeps to it."""
    from agent.kube.backoff import Backoff

    now, free = 100.0, 107.0

    async def handler(_: web.Request) -> web.StreamResponse:
        if now < free:
            return web.Response(status=429, headers={"Retry-After": f"{free - now:g}"})
        return web.json_response({"items": []})

    backoff = Backoff(first=0.5, chance=lambda: 0.0)
    async with answering(handler) as client:
        error = await refused(client.get("/x"))
        now += backoff.failed(retry_after=error.retry_after)
        assert await client.get("/x") == {"items": []}


@pytest.mark.parametrize(
    ("status", "passing"),
    [(400, False), (408, True), (410, True), (418, False), (500, True), (502, True), (503, True), (504, True)],
)
async def test_a_proxy_in_between_answers_in_html(status: int, passing: bool) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text="<html>Bad Gateway</html>", content_type="text/html")

    async with answering(handler) as client:
        error = await refused(client.get("/x"))
    assert (error.status, error.passing, error.message) == (status, passing, "")


@pytest.mark.parametrize("body", ["<html>", "[]", '"x"', "null", "{", "[" * 100_000, "\udcff"])
async def test_an_answer_that_is_no_object(body: str) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body.encode("utf-8", "surrogateescape"))

    async with answering(handler) as client:
        await unreachable(client.get("/x"))


async def test_an_answer_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(text='{"a": "' + "x" * 5000 + '"}')

    async with answering(handler) as client:
        assert await client.text("/x", limit=9) == b'{"a": "xx'
        monkeypatch.setattr("agent.kube.client.ANSWER_BYTES", 1000)
        await unreachable(client.get("/x"))


async def test_an_error_of_who_reads_the_answer_stays_its_own(client: KubeClient) -> None:
    """A bug in the caller's code must not look as if the API server were away."""
    for error in (ValueError, KeyError, OSError):
        with pytest.raises(error, match="mine"):
            async with client.stream("GET", "/version", deadline=5):
                raise error("mine")

"""Events on a real API server: what is taken, and what kubectl shows of it."""

from __future__ import annotations

import asyncio
import re
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from agent.kube import KubeClient, Patch, RefusedError
from agent.report.event_body import event_body, event_name, event_path, series_body
from agent.report.events import ObjectRef, Report, fault_reports, verdict_reports
from agent.report.postman import Postman
from agent.report.reporter import REPORT
from agent.report.store import Store, encode
from tests.cluster.server import ApiServer
from tests.report.event_rules import problems
from tests.report.report_examples import FAULT, VERDICT
from tests.report.test_event_body import REPORTS


async def until_done(postman: Postman) -> None:
    """Runs it until nothing waits any more."""
    task = asyncio.create_task(postman.run())
    try:
        async with asyncio.timeout(30):
            await asyncio.sleep(0)
            while postman.pending and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_people_see_one_series_on_the_node_and_on_the_pod(
    api_server: ApiServer, client: KubeClient, node: str, tmp_path: Path
) -> None:
    namespace = f"events-{uuid.uuid4().hex[:6]}"
    api_server.namespace(namespace)
    pod = await client.create(
        f"/api/v1/namespaces/{namespace}/pods",
        {"metadata": {"name": "qwen-0"}, "spec": {"nodeName": node, "containers": [{"name": "sglang", "image": "x"}]}},
    )
    (fault,) = fault_reports(None, FAULT, node=node)
    assert VERDICT.container is not None
    container = replace(VERDICT.container, namespace=namespace, uid=pod["metadata"]["uid"])
    (failure,) = verdict_reports(None, replace(VERDICT, container=container), node=node)

    async def uid_of_node() -> str:
        return str((await client.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"])

    def postman(store: Store) -> Postman:
        return Postman(client, store=store, clock=lambda: 500.0, node=node, instance="agent-1", uid_of_node=uid_of_node)

    with Store.open(tmp_path) as store:
        for count in (1, 9):
            reports = [replace(r, count=count, last_seen=200.0 + count) for r in (fault, failure)]
            store.commit(put=[(REPORT, r.key, encode(r)) for r in reports])
            agent = postman(store)
            await until_done(agent)
            assert (agent.posted, agent.repeated, agent.dropped) == ((2, 0, 0) if count == 1 else (0, 2, 0))
        # A postman that has forgotten everything but the reports tells nothing twice.
        store.commit(drop=[("posted", r.key) for r in (fault, failure)])
        forgetful = postman(store)
        await until_done(forgetful)
        assert (forgetful.posted, forgetful.repeated, forgetful.dropped) == (0, 2, 0)

    of_node = api_server.kubectl("describe", "node", node)
    assert re.search(r"Warning\s+GpuFault\s+\S+ \(x9 over \S+\)\s+faultline.dev/agent\s+GPU 0000:5d:00", of_node), (
        of_node
    )
    of_pod = api_server.kubectl("describe", "pod", "qwen-0", "-n", namespace)
    assert re.search(
        r"BackendFailedOnFaultedGpu\s+\S+ \(x9 over \S+\)\s+faultline.dev/agent\s+spec.containers\{sglang\}: CUDA",
        of_pod,
    ), of_pod
    listed = api_server.kubectl("get", "events", "-n", namespace, "-o", "wide")
    assert len(listed.splitlines()) == 2
    assert re.search(r"Warning\s+BackendFailedOnFaultedGpu\s+pod/qwen-0\s+spec.containers\{sglang\}", listed), listed
    assert "faultline.dev/agent, agent-1" in listed


async def test_an_expired_event_is_made_anew(
    api_server: ApiServer, client: KubeClient, node: str, tmp_path: Path
) -> None:
    (fault,) = fault_reports(None, FAULT, node=node)
    with Store.open(tmp_path) as store:
        for count in (1, 3):
            postman = Postman(
                client, store=store, clock=lambda: 500.0, node=node, instance="agent-1", uid_of_node=_no_uid
            )
            postman.post(replace(fault, count=count))
            store.commit(put=[(REPORT, fault.key, encode(replace(fault, count=count)))])
            await until_done(postman)
            found = [
                e for e in (await client.get(event_path("default")))["items"] if e["regarding"]["name"] == node
            ]  # fmt: skip
            assert [e.get("series", {"count": 1})["count"] for e in found] == [count]
            await client.delete(event_path("default", found[0]["metadata"]["name"]))


async def _no_uid() -> str:
    return ""


async def test_an_event_on_a_custom_resource_needs_no_definition_of_it(client: KubeClient, node: str) -> None:
    (report,) = fault_reports(None, FAULT, node=node)
    service = ObjectRef(kind="InferenceService", name="qwen", namespace="default", uid="s-1")
    told = replace(report, regarding=service)
    body = event_body(told, name=event_name(told, node=node), instance="i", at=0.0)
    assert (await client.create(event_path("default"), body, params={"dryRun": "All"}))["regarding"]["uid"] == "s-1"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(report=REPORTS)
def test_whatever_a_report_holds_the_real_server_takes_it(api_server: ApiServer, report: Report) -> None:
    async def post() -> None:
        from agent.kube import login

        async with KubeClient(await login(kubeconfig=str(api_server.kubeconfig()))) as client:
            body = event_body(report, name=event_name(report, node="n"), instance="i", at=1.0)
            namespace = body["metadata"]["namespace"]
            if namespace != "default":
                api_server.namespace(namespace)
            await client.create(event_path(namespace), body, params={"dryRun": "All"})

    asyncio.run(post())


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("eventTime", None, 422),
        ("eventTime", "2026-11-30T12:00:00Z", 400),
        ("note", "x" * 1025, 422),
        ("action", "", 422),
        ("type", "Error", 422),
        ("reportingInstance", "x" * 129, 422),
        ("series", {"count": 1, "lastObservedTime": "2026-11-30T12:00:00.000000Z"}, 422),
        ("deprecatedCount", 1, 422),
    ],
)
async def test_the_rules_that_the_other_tests_hold_are_the_servers(
    client: KubeClient, node: str, field: str, value: object, code: int
) -> None:
    (report,) = fault_reports(None, FAULT, node=node)
    body = event_body(report, name=event_name(report, node=node), instance="i", at=0.0)
    assert problems(body) == []
    body[field] = value
    assert problems(body) != []
    with pytest.raises(RefusedError) as refused:
        await client.create(event_path("default"), body, params={"dryRun": "All"})
    assert refused.value.status == code


async def test_a_patch_of_what_is_not_there_is_not_found(client: KubeClient) -> None:
    with pytest.raises(RefusedError) as refused:
        await client.patch(event_path("default", "nope"), series_body(2, at=1.0), kind=Patch.MERGE)
    assert refused.value.status == 404

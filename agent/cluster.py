"""The agent's part that lives in a cluster: joins what is known here with what stands there. Holds no knowledge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from agent.config import Settings
from agent.kube import KubeClient, Login
from agent.kube.watch import Changed, Watch
from agent.model import Fault, Plan
from agent.pipeline import Pipeline
from agent.pods import Pod, pod_of
from agent.report.events import ObjectRef, Report
from agent.report.postman import Postman
from agent.report.reporter import Reporter
from agent.report.services import Services
from agent.report.store import Store
from agent.respond.marks import Mark, Record, adopted
from agent.respond.responder import Limits, Responder

log = logging.getLogger("faultline")


class Cluster:
    """Carries plans out and tells the cluster. One for each agent that has a login; detection never waits for it."""

    def __init__(
        self,
        login: Login,
        *,
        settings: Callable[[], Settings],
        node: str,
        boot: str,
        pipeline: Pipeline,
        reporter: Reporter,
        store: Store,
        clock: Callable[[], float],
        blind: Callable[[], str],
        settled: Callable[[], bool],
        release: Callable[[str], None],
    ) -> None:
        """`blind` says why the kernel log cannot be read; `settled` whether it was read to its end once."""
        self._settings, self._node, self._clock = settings, node, clock
        self._pipeline, self._reporter, self._store = pipeline, reporter, store
        self.blind, self.settled, self.release = blind, settled, release
        self.client = KubeClient(login, name=node, deadline=settings().cluster.deadline_seconds)
        self.responder = Responder(self.client, node=node, boot=boot, brain=self, limits=self._limits, clock=clock)
        self.node_watch = Watch(
            self.client, "/api/v1/nodes", params={"fieldSelector": f"metadata.name={node}"}, clock=clock
        )
        self.pod_watch = Watch(
            self.client, "/api/v1/pods", params={"fieldSelector": f"spec.nodeName={node}"}, clock=clock
        )
        self.pods: dict[str, Pod] = {}
        """The pods of this node, by uid."""
        self.on_pods: Callable[[], None] = lambda: None
        """Called after pods came, went, or were labelled anew."""
        self.standing: Record | None = None
        """The mark that stood on the node at the end of the last turn."""
        self.services = Services(self.client, labels_of=self._labels_of, clock=clock)
        self.postman = Postman(
            self.client,
            store=store,
            clock=clock,
            node=node,
            instance=settings().cluster.pod_name,
            uid_of_node=self._uid_of_node,
            service_of=self.services.of,
            reports=lambda: reporter.reports,
        )
        reporter.now_in(replace(reporter.situation, obstacle=""))

    async def run(self) -> None:
        """Runs until it is cancelled."""
        log.info("in the cluster by %s", self.client.how)
        async with self.client, asyncio.TaskGroup() as group:
            group.create_task(self.responder.run(), name="marks")
            group.create_task(self._follow_node(), name="node")
            group.create_task(self._follow_pods(), name="pods")
            if self._settings().cluster.events:
                group.create_task(self.postman.run(), name="events")

    def changed(self) -> None:
        """Faults or plans may have changed."""
        self.responder.wake()

    def told(self, report: Report) -> None:
        """An event, new or repeated."""
        if self._settings().cluster.events:
            self.postman.post(report)

    async def _uid_of_node(self) -> str:
        """Read freshly: a node that registers again has another uid, and events on the old one are not shown."""
        node = await self.client.get(self.responder.path)
        return str((node.get("metadata") or {}).get("uid") or "")

    async def _follow_node(self) -> None:
        async with aclosing(self.node_watch.changes()) as changes:
            async for change in changes:
                if isinstance(change, Changed):
                    if change.kind != "DELETED":
                        self.responder.observed(change.object)
                else:
                    for item in change.items:
                        self.responder.observed(item)

    async def _follow_pods(self) -> None:
        async with aclosing(self.pod_watch.changes()) as changes:
            async for change in changes:
                before = {uid: (p.labels, p.annotations) for uid, p in self.pods.items()}
                if isinstance(change, Changed):
                    if (pod := pod_of(change.object)) is not None:
                        if change.kind == "DELETED":
                            self.pods.pop(pod.uid, None)
                        else:
                            self.pods[pod.uid] = pod
                else:
                    self.pods = {pod.uid: pod for item in change.items if (pod := pod_of(item)) is not None}
                if before != {uid: (p.labels, p.annotations) for uid, p in self.pods.items()}:
                    self.on_pods()

    def _labels_of(self, pod: ObjectRef) -> Mapping[str, str] | None:
        known = self.pods.get(pod.uid)
        return known.labels if known is not None else None

    def _limits(self) -> Limits:
        now = self._settings()
        return Limits(
            max_marked=now.brake.max_marked, gpu_nodes=now.brake.gpu_nodes, heartbeat=now.cluster.heartbeat_seconds
        )

    # -- what the responder asks (agent.respond.responder.Brain)

    def faults(self) -> tuple[Fault, ...]:
        return self._pipeline.diagnostician.faults

    def plans(self) -> tuple[Plan, ...]:
        return tuple(self._reporter.plans.values())

    def braked(self, why: str) -> None:
        self._reporter.now_in(replace(self._reporter.situation, brake=why))

    def found(self, record: Record) -> None:
        self._pipeline.adopt(adopted(record, now=self._clock()))

    def marked(self, record: Record | None, mark: Mark) -> None:
        self.standing = record
        why = "; ".join(f.why for f in mark.faults)
        means, value, since = (record.means, record.value, record.since) if record is not None else ("", "", None)
        self._store.commit(put=self._reporter.marked(means, value, since=since, why=why))

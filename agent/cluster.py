"""The agent's part that lives in a cluster: joins what is known here with what stands there. Holds no knowledge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from agent.config import Settings
from agent.kube import KubeClient, Login, RefusedError
from agent.kube.watch import Changed, Watch
from agent.model import Fault, Plan
from agent.occupants import Occupants
from agent.pipeline import Pipeline
from agent.report.events import ObjectRef, Report, still_advertised_report
from agent.report.postman import Postman
from agent.report.reporter import Reporter
from agent.report.services import Services
from agent.report.store import Store
from agent.respond.circumstances import Circumstances, Known
from agent.respond.device_taint import DeviceTaint
from agent.respond.marks import Mark, NodeView, Record, adopted
from agent.respond.means import WithholdError
from agent.respond.responder import Limits, Responder
from agent.slices import KnownDevices
from agent.sources.cluster.slices import SliceSource
from agent.text import cut

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
        occupants: Callable[[], Occupants],
        says: Callable[[str], bool],
    ) -> None:
        """`blind` says why the kernel log cannot be read; `settled` whether it was read to its end once."""
        self._settings, self._node, self._clock = settings, node, clock
        self._pipeline, self._reporter, self._store = pipeline, reporter, store
        self.blind, self.settled, self.release = blind, settled, release
        self.client = KubeClient(login, name=node, deadline=settings().cluster.deadline_seconds)
        driver = settings().dra.driver
        self.devices = KnownDevices(driver=driver)
        self.slices = SliceSource(self.client, node=node, known=self.devices, clock=clock, on_change=self.changed)
        self.device_taint = DeviceTaint(self.client, node=node, devices=lambda: self.devices.devices, driver=driver)
        self._occupants = occupants
        self._circumstances = Circumstances(node=node, reach=self.device_taint.reach, says=says)
        self._withheld_devices: dict[str, str] | None = None
        """Faults for which a device taint of ours stands, and what it says; None until that was looked up."""
        self.responder = Responder(
            self.client,
            node=node,
            boot=boot,
            brain=self,
            limits=self._limits,
            clock=clock,
            devices=self._taint_devices,
        )
        self.node_watch = Watch(
            self.client, "/api/v1/nodes", params={"fieldSelector": f"metadata.name={node}"}, clock=clock
        )
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
        async with asyncio.TaskGroup() as group:
            group.create_task(self.responder.run(), name="marks")
            group.create_task(self._follow_node(), name="node")
            group.create_task(self.slices.run(), name="slices")
            if self._settings().cluster.events:
                group.create_task(self.postman.run(), name="events")

    def changed(self) -> None:
        """Faults, plans or devices may have changed."""
        self._look()
        self.responder.wake()

    def gpu_of(self, device: str) -> str:
        """The UUID (or address) of a DRA device ``<driver>/<pool>/<device>``; any other id as it is."""
        for known in self.devices.devices:
            if device == f"{known.driver}/{known.pool}/{known.device}":
                return known.parent or known.uuid or known.pci or device
        return device

    def _look(self) -> None:
        """What is known of the node now, for the plans; what is still offered is told."""
        node, now = self.responder.seen, self._clock()
        known = Known(
            pods=self._occupants().pods,
            capacity=node.capacity if node is not None else None,
            allocatable=node.allocatable if node is not None else None,
            allocatable_ids=self._occupants().allocatable(),
            devices=self.devices.offered,
        )
        situation, still = self._circumstances.look(
            self._reporter.situation,
            self.faults(),
            known,
            now=now,
            settle=self._settings().recovery.withdrawn_seconds,
        )
        self._reporter.now_in(situation)
        for offered in still:
            # At once it is offered always; the plugin has some seconds to take it back.
            first = offered.fault.first_seen
            if first is not None and now - first >= self._settings().recovery.withdrawn_seconds:
                report = still_advertised_report(offered.fault, node=self._node, why=offered.why, now=now)
                self._store.commit(put=self._reporter.once(report))

    async def _taint_devices(self, mark: Mark, node: NodeView) -> None:
        """Makes our device taints agree with the mark. Without the right to see them there are none of ours."""
        wanted = {p.fault: p for p in self.plans() if p.means == "device" and p.fault is not None}
        if self._withheld_devices is None:
            if self._settings().mode == "observe":
                return
            await self.device_taint.discover()
            try:
                self._withheld_devices = {h.fault: h.value for h in await self.device_taint.held()}
            except RefusedError as error:
                if error.status != 403:
                    raise
                self._withheld_devices = {}
            self.changed()
            return
        if self.settled():
            for fault_id in sorted(self._withheld_devices.keys() - wanted.keys()):
                if await self.device_taint.release(fault_id):
                    # Another fault of the same GPU may have shared that taint: set what is wanted again.
                    self._withheld_devices.clear()
                self._withheld_devices.pop(fault_id, None)
        for fault in mark.faults:
            if fault.id in wanted and self._withheld_devices.get(fault.id) != fault.value:
                why = cut(f"{fault.title}: {fault.why}", 500)
                try:
                    await self.device_taint.withhold(fault.gpu, value=fault.value, why=why, fault=fault.id)
                except WithholdError as error:
                    log.warning("%s is not withheld: %s", fault.gpu.pci or fault.gpu.uuid, error)
                    continue
                self._withheld_devices[fault.id] = fault.value

    def told(self, report: Report) -> None:
        """An event, new or repeated."""
        if self._settings().cluster.events:
            self.postman.post(report)

    def _labels_of(self, pod: ObjectRef) -> Mapping[str, str] | None:
        known = self._occupants().pods.get(pod.uid)
        return known.labels if known is not None else None

    def looked_at(self) -> None:
        """Pods or holders were looked at anew: time passed, or a pod was rejected."""
        before = self._reporter.situation
        self._look()
        if self._reporter.situation != before:
            self.responder.wake()

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

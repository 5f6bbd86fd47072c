"""The running agent: builds the parts, runs them in one TaskGroup, stops them in order. Holds no knowledge."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from asyncinotify import Inotify, Mask, Watch
from prometheus_client import CollectorRegistry

from agent import __version__
from agent.cluster import Cluster
from agent.config import Choice, Settings, changed
from agent.detect.rules import RuleError
from agent.diagnose.gpu_health import against
from agent.diagnose.placement import node_wide
from agent.diagnose.workload import Answer, runs_sglang
from agent.gpus import NodeGpus
from agent.kube import Login
from agent.memory import give_back
from agent.model import ContainerRef, Fault, Plan, Role, Verdict
from agent.occupants import Occupants
from agent.pipeline import DETECTOR, KERNEL, LOADED, LOGS, Pipeline
from agent.recovery import Holds, Recoveries
from agent.report import metrics as m
from agent.report.events import ObjectRef, Report, blind_report, node_ref
from agent.report.gpus import GpuStatus, gpu_statuses
from agent.report.http import StatusServer
from agent.report.reporter import REPORT, Reporter
from agent.report.status import Readiness, RuleStatus, SourceStatus
from agent.report.store import FAILURE, FAULT, Store, decode_all
from agent.report.telemetry import Telemetry
from agent.rulebook import Rulebook, load_rulebook
from agent.sources.cluster.pods import cluster_pods
from agent.sources.gpus.driver import DriverSource
from agent.sources.gpus.inventory import read_gpus
from agent.sources.gpus.nvml import LIBRARY_NOT_FOUND, NvmlSource
from agent.sources.gpus.probe import Probe
from agent.sources.kernel import KernelLogUnavailable, KernelSource, open_kernel_source, read_boot_id
from agent.sources.kubelet.addresses import PodAddresses
from agent.sources.kubelet.checkpoint import CheckpointSource
from agent.sources.kubelet.pods_api import PodsApi
from agent.sources.logs.follow import LogSource
from agent.sources.logs.present import present
from agent.sources.podfeed import PodFeed
from agent.sources.sglang import ServerClient, ServerSource

log = logging.getLogger("faultline")

KEPT = 2000
"""Failures and event series taken up from an earlier run at most."""

FLUSH_SECONDS = 5.0
"""A position that nothing was found up to is stored this much later at most."""

RETRY_SECONDS = 30.0
CATCH_UP_SECONDS = 1.0
"""A kernel log that gave nothing for this long after it was opened has been read to its end."""

LOGS_CURE = (
    "Mount the node's /var/log/pods read-only (and what its links lead to) for a user who may read it, "
    "or set logs.root to the kubelet's podLogsDir"
)

NVML_CURE = (
    "Look on the node whether `nvidia-smi` answers. A driver that hangs needs the GPU reset or the node rebooted; one "
    "that was updated needs its kernel module loaded anew"
)

ALLOCATION_SECONDS = 1.0
RELOAD_QUIET_SECONDS = 0.25


@dataclass(slots=True)
class _Blindness:
    why: str
    cure: str
    since: float
    count: int = 1


@dataclass(slots=True)
class _Watched:
    """What the sources' tasks hold, for the pages to look at."""

    kernel: KernelSource | None = None
    logs: LogSource | None = None
    allocations: CheckpointSource | None = None
    blind: dict[str, _Blindness] = field(default_factory=dict)
    read_once: set[str] = field(default_factory=set)
    kernel_before: Counter[str] = field(default_factory=Counter)
    """What earlier kernel sources of this run counted: one that is opened again begins at 0."""

    def take_kernel(self, source: KernelSource) -> None:
        self.kernel_before = self.kernel_counts()
        self.kernel = source

    def kernel_counts(self) -> Counter[str]:
        counts = Counter(self.kernel_before)
        if (kernel := self.kernel) is not None:
            counts.update(lost=kernel.lost, errors=kernel.errors + kernel.malformed, foreign=kernel.foreign)
        return counts


class App:
    """One agent. `run` returns when `stop` is set; it raises only what makes it impossible to go on."""

    def __init__(
        self,
        settings: Settings,
        *,
        reload: Callable[[], Settings] | None = None,
        watch: Sequence[Path] = (),
        sink: Callable[[Report], None] | None = None,
        clock: Callable[[], float] = time.time,
        boot_id: str | None = None,
        address_of: Callable[[ContainerRef], str | None] | None = None,
        applied: Callable[[Settings], None] = lambda _: None,
        login: Login | None = None,
    ) -> None:
        """`reload` gives the settings anew; `watch` are files whose change asks for that beside SIGHUP.

        `address_of` gives the IP address of a container's pod (default: from the kubelet's directory of pods); a server
        without one is not asked. `applied` is told the settings of each reload that was accepted. `login` is the way
        to the API server; without one nothing is told or changed there.
        """
        self._applied = applied
        self.settings, self._reload, self._watch = settings, reload, tuple(watch)
        self._clock, self._sink = clock, sink or _log_report
        self.node = settings.node_name or socket.gethostname()
        self._boot_id = boot_id or read_boot_id()
        self.book = _checked_rulebook(settings)
        self.store = Store.open(
            Path(settings.state_dir) if settings.state_dir else None,
            clock=clock,
            max_bytes=settings.limits.store_bytes,
        )
        self._metrics = m.Metrics(CollectorRegistry(), version=__version__, process=True)
        self.reporter = Reporter(
            node=self.node,
            mode=settings.mode,
            settle=settings.correlation.settle_seconds,
            clock=clock,
            role_of=self._role_of,
            sink=self._told,
        )
        self.telemetry = Telemetry(self._metrics, self.reporter, clock=clock)
        self.pipeline = Pipeline(
            self.book,
            store=self.store,
            listener=self.telemetry,
            clock=clock,
            boot_id=self._boot_id,
            window=settings.correlation.window_seconds,
            by_content=lambda c: self._choice(c) is Choice.BY_CONTENT,
            on_ready=lambda container, facts: self._servers.ready(container, facts) if settings.sglang.ask else None,
        )
        self._client = ServerClient(timeout=settings.sglang.timeout_seconds)
        self._servers = ServerSource(
            self._client,
            address_of=address_of or (PodAddresses(Path(settings.kubelet.pods)) if settings.kubelet.pods else _nowhere),
            port=settings.sglang.port,
            interval=settings.sglang.metrics_seconds,
            clock=clock,
        )
        self._watched = _Watched()
        if checkpoint := settings.kubelet.checkpoint:
            self._watched.allocations = CheckpointSource(Path(checkpoint))
        self.nvml = NvmlSource() if settings.gpus.nvml else None
        self._caught_up = False
        self.recoveries = Recoveries(
            self.pipeline,
            boot=self._boot_id,
            booted=clock() - time.clock_gettime(time.CLOCK_BOOTTIME),
            catalogue=lambda: self.book.catalogue,
            gpus=lambda: read_gpus(Path(self.settings.gpus.proc)) if self.settings.gpus.proc else None,
            states=self._read_nvml,
            probe=Probe().run if settings.recovery.probe else None,
            holds=lambda: Holds(self.settings.recovery.hold_seconds, self.settings.recovery.hold_limit_seconds),
            settled=lambda: self._caught_up,
            clock=clock,
        )
        self.cluster = (
            Cluster(
                login,
                settings=lambda: self.settings,
                node=self.node,
                boot=self._boot_id,
                pipeline=self.pipeline,
                reporter=self.reporter,
                store=self.store,
                clock=clock,
                blind=lambda: self._watched.blind["kernel"].why if "kernel" in self._watched.blind else "",
                settled=lambda: self._caught_up,
                release=self.recoveries.release,
                occupants=lambda: self.occupants,
                says=lambda message: node_wide(self.book.rules)(message),
            )
            if login is not None
            else None
        )
        self.telemetry.on_change = self._plans_changed
        cluster = self.cluster
        self.occupants = Occupants(
            feed=self._pod_feed(),
            socket=settings.kubelet.pod_resources,
            driver=settings.dra.driver,
            held=self.pipeline.held,
            resolve=cluster.gpu_of if cluster is not None else lambda device: device,
            on_pods=self._pods_changed,
            on_look=cluster.looked_at if cluster is not None else lambda: None,
            clock=clock,
        )
        self.started = asyncio.Event()
        """Set once the port is listened on."""
        self._wake = asyncio.Event()
        self._reload_asked = asyncio.Event()
        self._rules_dirs = settings.rules_dirs
        """The folders that were asked for last, also by a reload that was refused."""
        self._inotify: Inotify | None = None
        self._watches: dict[int, Watch] = {}
        self._folder_names: set[str] = set()
        self._flush_at: asyncio.TimerHandle | None = None
        self._allocations_at = float("-inf")
        self._server = StatusServer(self, address=settings.http.address, port=settings.http.port)
        self._in_force()

    # -- life

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set. Raises ListenError where the port cannot be had."""
        old = self._clock() - self.settings.limits.retention_seconds
        for kind in (FAILURE, REPORT):
            self.store.prune(kind, older_than=old, at_most=KEPT)
        # An open fault is kept however old it is: nobody has said that it is gone.
        still = [i for i, f in decode_all(self.store.load().faults, Fault)[0].items() if f.open]
        self.store.prune(FAULT, older_than=old, keep=still)
        if (there := present(Path(self.settings.logs.root))) is not None:
            # A quiet container keeps its place however long it says nothing.
            self.store.prune_positions(older_than=old, keep={KERNEL, *(LOGS + key for key in there)})
        self.store.prune_meta(f"{DETECTOR}/", keep={f"{DETECTOR}/{self._boot_id}"})
        self.store.prune_meta(f"{LOADED}/", keep={f"{LOADED}/{self._boot_id}"})
        if (source := self._watched.allocations) is not None and (held := source.read(now=self._clock())) is not None:
            # First, so that what is restored is judged with them; nothing of it is stored yet.
            self.pipeline.diagnostician.held(held)
        cursor, positions = self.pipeline.restore()
        snapshot = self.store.load()
        reports, _ = decode_all(snapshot.objects.get(REPORT, {}), Report)
        core = self.pipeline.diagnostician
        self.reporter.restore(faults=core.faults, verdicts=core.verdicts, series=reports)
        self.telemetry.known(core.faults, core.verdicts)
        for notice in self.store.notices:
            log.warning("%s", notice)
        if self.settings.state_dir and not self.store.durable:
            log.warning("nothing is kept across a restart: %s", self.store.error)
        self._read_driver()
        give_back()
        async with self._server, self._client, self.cluster.client if self.cluster is not None else nullcontext():
            self.started.set()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._follow_kernel(cursor), name="kernel log"),
                        group.create_task(self._follow_logs(positions), name="container logs"),
                        group.create_task(self._ask_servers(), name="servers"),
                        group.create_task(self._tell_what_settled(), name="settle"),
                        group.create_task(self._reload_when_asked(), name="reload"),
                        group.create_task(self._watch_files(), name="watch"),
                        group.create_task(self.recoveries.run(), name="recovery"),
                        group.create_task(self.occupants.run(), name="occupants"),
                        group.create_task(self._ask_nvml(), name="nvml"),
                    ]
                    if self.cluster is not None:
                        tasks.append(group.create_task(self.cluster.run(), name="cluster"))
                    await stop.wait()
                    for task in tasks:
                        task.cancel()
            finally:
                self._stopped()

    @property
    def port(self) -> int:
        """The port that is listened on (settings may ask for any free one)."""
        return self._server.port

    def ask_reload(self) -> None:
        """Reads settings and rules again, soon; what is wrong in them leaves the old ones in force."""
        self._reload_asked.set()

    def _stopped(self) -> None:
        if self._flush_at is not None:
            self._flush_at.cancel()
        for source in (self._watched.kernel, self._watched.logs):
            if source is not None:
                source.close()
        self.pipeline.flush()
        self.store.close()

    # -- sources

    async def _follow_kernel(self, cursor: object) -> None:
        settings = self.settings.kernel
        while True:
            try:
                source = open_kernel_source(
                    settings.path,
                    boot_id=self._boot_id,
                    after=cursor,  # type: ignore[arg-type]
                    interval=settings.interval,
                    accept_user_records=settings.accept_user_records,
                )
                self._watched.take_kernel(source)
                self._sees("kernel")
                opened, loop = self._clock(), asyncio.get_running_loop()
                caught_up = loop.call_later(CATCH_UP_SECONDS, self._kernel_caught_up)
                try:
                    async with aclosing(source.records()) as batches:
                        async for batch in batches:
                            self._take("kernel", partial(self.pipeline.kernel, batch, source.cursor))
                            caught_up.cancel()
                            if batch[-1].time >= opened:  # news: a log that is never silent has been caught up with
                                self._kernel_caught_up()
                            else:
                                caught_up = loop.call_later(CATCH_UP_SECONDS, self._kernel_caught_up)
                            cursor = source.cursor
                            self._worked()
                            await asyncio.sleep(0)
                finally:
                    caught_up.cancel()
                    source.close()
                return
            except KernelLogUnavailable as refused:
                self.pipeline.kernel_readable(False)
                self._is_blind("kernel", refused.why, refused.cure)
                await asyncio.sleep(RETRY_SECONDS)

    def _kernel_caught_up(self) -> None:
        """The kernel log was read to its end: from now on its silence means something."""
        self.pipeline.kernel_readable(True)
        if not self._caught_up:
            self._caught_up = True
            self._plans_changed()

    def _plans_changed(self) -> None:
        self.recoveries.wake()
        if self.cluster is not None:
            self.cluster.changed()

    async def _follow_logs(self, positions: object) -> None:
        settings = self.settings.logs
        source = LogSource(
            Path(settings.root),
            select=lambda c: self._choice(c) is not Choice.IGNORE,
            positions=positions,  # type: ignore[arg-type]
            back_read=settings.back_read_bytes,
            grace=settings.grace_seconds,
            poll=settings.poll_interval,
        )
        self._watched.logs = source
        self._look_at_logs()
        try:
            async with aclosing(source.chunks()) as chunks:
                async for chunk in chunks:
                    self._look_at_logs()
                    self._allocations()
                    self._take("logs", partial(self.pipeline.chunk, chunk))
                    self._worked()
        finally:
            source.close()

    def _choice(self, container: ContainerRef) -> Choice:
        """What the settings say of a container, with what the cluster says of its pod where that is known."""
        select, pod = self.settings.select, self.occupants.pods.get(container.uid)
        known = pod.container(container.container) if pod is not None else None
        if pod is None or known is None:
            return select.choose(container)
        if select.excludes(container, image=known.image):
            return Choice.IGNORE
        match runs_sglang(pod, known).answer:
            case Answer.YES:
                return Choice.FOLLOW
            case Answer.NO if not select.all:
                return Choice.IGNORE
        return select.choose(container, image=known.image, labels=pod.labels)

    def _pod_feed(self) -> PodFeed | None:
        """The kubelet's own where it serves one: no right in the cluster is needed. Else the API server's."""
        path = self.settings.kubelet.pods_api
        if path and Path(path).is_socket():
            return PodsApi(path)
        if self.cluster is not None:
            return cluster_pods(self.cluster.client, self.node, clock=self._clock)
        return None

    def _pods_changed(self) -> None:
        if self.cluster is not None:
            self.cluster.looked_at()
        if self._watched.logs is not None:
            self._watched.logs.reselect()

    def _look_at_logs(self) -> None:
        """Whether the logs can be read now; told when that changes."""
        if (source := self._watched.logs) is None:
            return
        known = "logs" in self._watched.blind
        if why := source.blind:
            if source.last_read is None:
                self._watched.read_once.discard("logs")
            if not known:
                self._is_blind("logs", why, LOGS_CURE)
        elif known or "logs" not in self._watched.read_once:
            self._sees("logs")

    def _read_driver(self) -> None:
        """Once: a driver that is loaded later says so in the kernel log."""
        if proc := self.settings.gpus.proc:
            source = DriverSource(Path(proc))
            if (driver := source.read()) is not None:
                self.pipeline.node(driver.facts, source=str(source.proc))
            else:
                log.info("the driver's version is not known yet: %s", source.error)

    async def _ask_nvml(self) -> None:
        """Now and then, for as long as the library is there."""
        try:
            while self.nvml is not None:
                await self._read_nvml()
                await asyncio.sleep(self.settings.gpus.nvml_seconds)
        finally:
            if self.nvml is not None:
                await self.nvml.close()

    async def _read_nvml(self) -> NodeGpus | None:
        """One look at the GPUs; None where they cannot be seen."""
        if (source := self.nvml) is None:
            return None
        found = await source.read()
        if found is not None and found.code == LIBRARY_NOT_FOUND:
            log.info("NVML is not here: the GPUs' health comes from the kernel log and the driver's files alone")
            self.nvml = None
            await source.close()
        elif source.error:
            self._is_blind("nvml", source.error, NVML_CURE)
        else:
            self._sees("nvml")
        if found is None or found.error:
            return None
        self.recoveries.told(found)
        return found

    async def _ask_servers(self) -> None:
        async with aclosing(self._servers.answers()) as answers:
            async for answered in answers:
                if answered.info is not None and not answered.info.ok:
                    where = f"{answered.container} ({answered.server.host}:{answered.server.port})"
                    log.info("the server of %s %s; its log has to do", where, answered.info.why)
                self.pipeline.server(answered)
                self._worked()

    def _take(self, source: str, work: Callable[[], None]) -> None:
        """Works on one batch. A mistake of ours in it must not end the agent, nor meet it again after a restart."""
        try:
            work()
        except Exception:
            self._metrics.add(m.INTERNAL_ERRORS, source=source)
            log.exception("a batch of %s was given up: a bug, please report it", source)

    def _allocations(self) -> None:
        """What containers hold, looked at before their text is judged, at most once a second."""
        source, now = self._watched.allocations, self._clock()
        if source is None or 0 <= now - self._allocations_at < ALLOCATION_SECONDS:
            return
        self._allocations_at = now
        held = source.read(now=now)
        if held is not None:
            self.pipeline.held(held)

    def _sees(self, source: str) -> None:
        if (over := self._watched.blind.pop(source, None)) is not None:
            log.info("%s can be read again after %.0f s", source, self._clock() - over.since)
        self._watched.read_once.add(source)
        self._metrics.set(m.SOURCE_BLIND, 0, source=source)

    def _is_blind(self, source: str, why: str, cure: str) -> None:
        known = self._watched.blind.get(source)
        blind = _Blindness(why, cure, self._clock()) if known is None else known
        blind.count += known is not None
        self._watched.blind[source] = blind
        self._metrics.set(m.SOURCE_BLIND, 1, source=source)
        report = blind_report(source, why=why, cure=cure, agent=self._own_pod(), at=blind.since, count=blind.count)
        self.store.commit(put=self.reporter.add(report))

    def _own_pod(self) -> ObjectRef:
        """What an event about this agent is about: its pod, where it was told which."""
        own = self.settings.cluster
        if not own.pod_name:
            return node_ref(self.node)
        return ObjectRef(kind="Pod", name=own.pod_name, namespace=own.pod_namespace, uid=own.pod_uid)

    def _worked(self) -> None:
        """After each batch: wake who waits for held-back verdicts, and see that positions get to disk."""
        self._wake.set()
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_at = None
        self.pipeline.flush()

    async def _tell_what_settled(self) -> None:
        while True:
            due = self.reporter.due()
            timeout = None if due is None else max(due - self._clock(), 0.01)
            # No wait_for: in Python 3.11 it forgets a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            self._wake.clear()
            if due is not None and due <= self._clock():
                self._allocations_at = float("-inf")
                self._allocations()
                self.store.commit(put=self.reporter.settled())

    # -- rules and settings

    async def _reload_when_asked(self) -> None:
        while True:
            await self._reload_asked.wait()
            await asyncio.sleep(RELOAD_QUIET_SECONDS)  # an editor writes in several steps
            self._reload_asked.clear()
            try:
                settings = self._reload() if self._reload else self.settings
                self._rules_dirs = settings.rules_dirs
                self._watch_again()  # before the files are read: a change after that is then seen
                book = await asyncio.to_thread(_checked_rulebook, settings)
            except (RuleError, ValueError, OSError) as mistake:
                self._metrics.add(m.RULES_RELOAD_ERRORS)
                log.error("reload refused, the rules and settings before it stay in force: %s", mistake)
                continue
            applied, waiting = changed(self.settings, settings)
            self.settings = settings
            self._applied(settings)
            self.reporter.change(mode=settings.mode, settle=settings.correlation.settle_seconds)
            self.pipeline.diagnostician.window = settings.correlation.window_seconds
            if book.digest != self.book.digest:
                self.book = book
                self.pipeline.learn(book)
            self._in_force()
            self._plans_changed()
            if self._watched.logs is not None:
                self._watched.logs.reselect()
            give_back()
            log.info("reloaded: %d rules in force; settings applied: %s", len(book.rules), ", ".join(applied) or "none")
            if waiting:
                log.warning("these settings take effect at a restart only: %s", ", ".join(waiting))

    async def _watch_files(self) -> None:
        """Asks for a reload when a rule folder or a settings file changes. Without inotify SIGHUP remains."""
        names = {"..data", *(p.name for p in self._watch)}
        try:
            with Inotify() as inotify:
                self._inotify = inotify
                self._watch_again()
                async for event in inotify:
                    # `..data` is what the kubelet swaps when a ConfigMap changes: the files themselves are links.
                    if (name := event.name) is not None and (
                        name.suffix == ".yaml" or name.name in names or name.name in self._folder_names
                    ):
                        self.ask_reload()
        except OSError as error:
            log.warning("rule folders are not watched (%s); send SIGHUP after an edit", error.strerror)
        finally:
            self._inotify = None

    def _watch_again(self) -> None:
        """Watches each folder of rules or settings and the nearest one above it, which shows that it comes or goes."""
        if self._inotify is None:
            return
        folders = {Path(p).absolute() for p in self._rules_dirs} | {p.absolute().parent for p in self._watch}
        self._folder_names = {part for folder in folders for part in folder.parts}
        wanted: set[Path] = set()
        for folder in folders:
            wanted.update(p for p in (folder, next(filter(os.path.isdir, folder.parents))) if os.path.isdir(p))
        change = Mask.CLOSE_WRITE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE | Mask.CREATE
        before, self._watches = self._watches, {}
        for path in wanted:
            try:
                watch = self._inotify.add_watch(path, change)
                self._watches[watch.wd] = watch
            except OSError as error:
                log.warning("%s is not watched (%s); send SIGHUP after an edit", path, error.strerror)
        for wd in before.keys() - self._watches.keys():
            with suppress(OSError):  # gone with its folder
                self._inotify.rm_watch(before[wd])

    def _in_force(self) -> None:
        self.telemetry.rules_in_force(self.book.rules, (e.code for e in self.book.catalogue))
        self._metrics.info(
            m.CONFIG,
            mode=self.settings.mode,
            accept_user_records=str(self.settings.kernel.accept_user_records).lower(),
        )

    def _told(self, report: Report) -> None:
        self._metrics.add(m.EVENTS, reason=report.reason)
        self._sink(report)
        if self.cluster is not None:
            self.cluster.told(report)

    def _role_of(self, rule_id: str) -> Role:
        rule = self.pipeline.diagnostician.knowledge.rules.get(rule_id)
        return rule.role if rule is not None else Role.CAUSE

    # -- what the pages ask (agent.report.status.State)

    @property
    def mode(self) -> str:
        return self.settings.mode

    def now(self) -> float:
        return self._clock()

    def faults(self) -> Sequence[Fault]:
        return self.pipeline.diagnostician.faults

    def failures(self) -> Sequence[object]:
        return self.pipeline.diagnostician.failures

    def verdicts(self) -> Sequence[Verdict]:
        return self.pipeline.diagnostician.verdicts

    def plans(self) -> Sequence[Plan]:
        return tuple(self.reporter.plans.values())

    def events(self) -> Sequence[Report]:
        return self.reporter.reports

    def sources(self) -> Sequence[SourceStatus]:
        self._look_at_logs()
        kernel, logs = self._watched.kernel, self._watched.logs
        return (
            self._source("kernel", kernel.kind if kernel else "", kernel),
            self._source("logs", (logs.polling or "inotify") if logs else "", logs),
        )

    def _source(self, name: str, how: str, source: KernelSource | LogSource | None) -> SourceStatus:
        blind, counts = self._watched.blind.get(name), self._watched.kernel_counts()
        return SourceStatus(
            name=name,
            state="blind" if blind else "reading" if name in self._watched.read_once else "starting",
            how=how,
            last_read=source.last_read if source else None,
            lost=counts["lost"] if name == "kernel" else source.lost if source else 0,
            errors=counts["errors"] if name == "kernel" else source.errors if source else 0,
            why=blind.why if blind else "",
            cure=blind.cure if blind else "",
        )

    def rules(self) -> Sequence[RuleStatus]:
        return tuple(
            RuleStatus(
                id=r.id,
                title=r.title,
                component=r.component.value,
                pack=r.id.split("/", 1)[0],
                hits=self.telemetry.hits[r.id],
            )
            for r in self.book.rules
        )

    def gpus(self) -> Sequence[GpuStatus]:
        proc = self.settings.gpus.proc
        last = self.nvml.last if self.nvml is not None and not self.nvml.error else None
        return gpu_statuses(read_gpus(Path(proc)) if proc else None, last or NodeGpus(at=self._clock()))

    def readiness(self) -> Readiness:
        waiting = [
            f"{s.name}: {s.why or 'not read yet'}" for s in self.sources() if s.name not in self._watched.read_once
        ]
        return Readiness(reasons=tuple(waiting))

    def metrics(self, accept: str) -> tuple[bytes, str]:
        self._measure()
        return self._metrics.exposition(accept)

    def samples(self) -> dict[str, float]:
        """Every metric of ours by name, for a comparison of two moments."""
        self._measure()
        return self._metrics.samples()

    def _measure(self) -> None:
        self._look_at_logs()
        kernel, logs, pipeline = self._watched.kernel, self._watched.logs, self.pipeline
        for name, source in (("kernel", kernel), ("logs", logs), ("servers", self._servers)):
            if source is not None:
                self._metrics.set(m.SOURCE_LAST_READ, source.last_read or 0, source=name)
        counts = self._watched.kernel_counts()
        for name, lost, errors in (
            ("kernel", counts["lost"], counts["errors"]),
            ("servers", self._servers.lost, self._servers.errors),
            *((("logs", logs.lost, logs.errors),) if logs is not None else ()),
        ):
            self._metrics.total(m.SOURCE_LOST, lost, source=name)
            self._metrics.total(m.SOURCE_ERRORS, errors, source=name)
        self._metrics.total(m.KERNEL_FOREIGN, counts["foreign"])
        if logs is not None:
            self._metrics.set(m.LOG_FILES, logs.followed)
        if (held := self._watched.allocations) is not None:
            self._metrics.total(m.SOURCE_ERRORS, held.errors, source="kubelet")
            self._metrics.set(m.SOURCE_BLIND, 1 if held.error else 0, source="kubelet")
        if (feed := self.occupants.feed) is not None:
            self._metrics.total(m.SOURCE_ERRORS, feed.errors, source="pods")
            self._metrics.set(m.SOURCE_BLIND, 1 if feed.error else 0, source="pods")
        if self.nvml is not None:
            self._measure_nvml(self.nvml)
        if self.cluster is not None:
            self._measure_cluster(self.cluster)
        self._metrics.total(m.LOG_BYTES, pipeline.log_bytes)
        self._metrics.total(m.CAPTURE_TIMEOUTS, pipeline.capture_timeouts)
        self._metrics.total(m.STORE_ERRORS, self.store.errors)
        self._metrics.set(m.STORE_DURABLE, 1 if self.store.durable else 0)
        self._metrics.set(m.STORE_PENDING, self.store.pending)
        self._metrics.total(m.STORE_DROPPED, self.store.dropped)

    def _measure_nvml(self, nvml: NvmlSource) -> None:
        self._metrics.total(m.SOURCE_ERRORS, nvml.errors, source="nvml")
        self._metrics.set(m.SOURCE_LAST_READ, nvml.last_read or 0, source="nvml")
        self._metrics.total(m.NVML_HANGS, nvml.hangs)
        self._metrics.set(m.NVML_STUCK, nvml.stuck)
        if nvml.last is not None:
            states = Counter("lost" if g.lost else "unwell" if against(g) else "ok" for g in nvml.last.gpus)
            for state in ("ok", "unwell", "lost"):
                extra = len(nvml.last.unnamed) if state == "lost" else 0
                self._metrics.set(m.GPUS, states[state] + extra, state=state)

    def _measure_cluster(self, cluster: Cluster) -> None:
        self._metrics.set(m.SOURCE_BLIND, 1 if cluster.responder.error else 0, source="cluster")
        self._metrics.total(m.SOURCE_ERRORS, cluster.responder.errors + cluster.postman.errors, source="cluster")
        self._metrics.set(m.EVENTS_PENDING, cluster.postman.pending)
        self._metrics.total(m.EVENTS_DROPPED, cluster.postman.dropped)
        stands = cluster.standing.means if cluster.standing is not None else ""
        for means in ("device", "node", "cordon"):
            self._metrics.set(m.MARK, 1 if means == stands else 0, means=means)
        counts: Counter[tuple[str, str]] = Counter()
        for (method, outcome), count in cluster.client.requests.items():
            counts[method, outcome if outcome == "unreachable" else f"{outcome[:1]}xx"] += count
        for (method, outcome), count in counts.items():
            self._metrics.total(m.API_REQUESTS, count, method=method, outcome=outcome)


def _checked_rulebook(settings: Settings) -> Rulebook:
    """The rules in force, with nothing left to be read later. Raises RuleError."""
    book = load_rulebook([Path(p) for p in settings.rules_dirs])
    book.check_tables()
    return book


def _nowhere(_container: ContainerRef) -> None:
    return None


def _log_report(report: Report) -> None:
    level = logging.WARNING if report.type == "Warning" else logging.INFO
    log.log(level, "%s %s: %s", report.reason.value, report.regarding, report.note)

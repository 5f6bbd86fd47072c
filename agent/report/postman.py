"""Takes reports to the API server as Events, in their order, each series as one Event. Never blocks who reports.

What was delivered is recorded in the store beside the reports themselves. The difference of the two is what is still
to be sent, so that an outage, a restart or a kill at any point loses nothing and tells nothing twice: an Event's name
follows from its series, and the server refuses the second one of a name.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from agent.kube import KubeClient, KubeError, Patch, RefusedError
from agent.kube.backoff import Backoff
from agent.report.event_body import event_body, event_name, event_path, series_body, service_report
from agent.report.events import ObjectRef, Report
from agent.report.reporter import REPORT
from agent.report.store import Store, decode_all, encode

log = logging.getLogger("faultline")

POSTED: Final = "posted"
"""The kind of object under which the store holds what was delivered."""

REFRESH_SECONDS = 300.0
"""A series that goes on is told its new count at most this often, after its first repeat."""

BURST = 25
REFILL_SECONDS = 6.0
"""As kubelet's own event limits: 25 at once, then one each 6 seconds. What is over waits."""

LIMIT = 5000
"""How many letters wait, and how many records are held; more than the reporter has series, with their services."""

PATIENCE = 5
"""How often one letter is tried that the server itself fails at, before the others go first."""

_SERVICE = "#service"
"""Ends the id of what is told on the service of a pod, beside what is told on the pod."""

Pause = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What the server holds of one series. An empty ``name``: it was decided that nothing is told there."""

    name: str = ""
    namespace: str = ""
    seen: int = 0
    """The report's count when it was last told; ``count`` is what the server was told, over all runs of the report."""
    count: int = 0
    last: float | None = None
    at: float = 0.0
    """When it was last sent (epoch seconds)."""
    series: bool = False
    """The server was told of a repeat."""
    generation: int = 0

    def fresh(self, report: Report) -> int:
        """How many occurrences the server was not told of."""
        if report.count > self.seen:
            return report.count - self.seen
        if report.last_seen is None or self.last is None or report.last_seen <= self.last:
            return 0
        return max(report.count, 1) if report.count < self.seen else 1  # a new run of the same series


@dataclass(slots=True, kw_only=True)
class _Letter:
    """One series on its way; a newer report takes the older one's place."""

    report: Report
    not_before: float = 0.0
    tries: int = 0


class Postman:
    """The queue of Events of one agent. `post` from the event loop's thread; `run` delivers until it is cancelled."""

    def __init__(
        self,
        client: KubeClient,
        *,
        store: Store,
        clock: Callable[[], float],
        node: str,
        instance: str,
        uid_of_node: Callable[[], Awaitable[str]],
        service_of: Callable[[ObjectRef], Awaitable[ObjectRef | None]] | None = None,
        reports: Callable[[], Iterable[Report]] | None = None,
        refresh: float = REFRESH_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Pause = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`instance` is the agent's pod, or its node. `clock` is the wall's, `monotonic` paces.

        `uid_of_node` gives this node's uid, freshly enough for a node that registered again; `service_of` the service
        that a pod belongs to. Both may raise KubeError. `reports` are looked through each `refresh` seconds for a
        count that nobody posted.
        """
        self._client, self._store, self._clock = client, store, clock
        self._node, self._instance = node, instance or node
        self._uid_of_node, self._service_of, self._reports = uid_of_node, service_of, reports
        self._refresh, self._monotonic, self._pause = refresh, monotonic, pause
        self._backoff = Backoff(first=1.0, chance=chance)
        self._letters: dict[str, _Letter] = {}
        self._records: dict[str, Posted] = {}
        self._sent: dict[str, float] = {}
        self._tokens, self._filled = float(BURST), monotonic()
        self._wake = asyncio.Event()
        self._complained: set[tuple[int, str]] = set()
        self.error = ""
        """Why nothing can be delivered now; empty while it can."""
        self.posted = 0
        self.repeated = 0
        """Events created, and updates of their counts."""
        self.errors = 0
        """Requests that brought no answer or an error that may pass."""
        self.dropped = 0
        """Events that were given up: refused for good, or one too many waiting."""

    @property
    def pending(self) -> int:
        """How many Events wait, those that wait for their next refresh included."""
        return len(self._letters)

    def post(self, report: Report) -> None:
        """Puts a report, or a newer state of one, in the queue."""
        self._enqueue(report.key, report)
        if self._has_service(report):
            self._enqueue(report.key + _SERVICE, report)
        self._wake.set()

    async def run(self) -> None:
        """Delivers until it is cancelled; begins with what an earlier run left."""
        self._restore()
        look = self._monotonic() + self._refresh
        while True:
            self._wake.clear()
            now = self._monotonic()
            if self._reports is not None and now >= look:
                look = now + self._refresh
                for report in self._reports():
                    self.post(report)
            key, due = self._next()
            if key is not None and due <= now:
                await self._deliver(key)
                continue
            wakes = [at for at in (due if key is not None else None, look if self._reports else None) if at is not None]
            await self._rest(min(wakes) - now if wakes else None)

    # -- the queue

    def _enqueue(self, key: str, report: Report) -> None:
        if (waiting := self._letters.get(key)) is not None:
            waiting.report = report
            return
        record = self._records.get(key)
        if record is not None and (not record.name or not record.fresh(report)):
            return
        self._letters[key] = _Letter(report=report)
        while len(self._letters) > LIMIT:
            self._lose(next(iter(self._letters)), 0, "more than can wait")

    def _has_service(self, report: Report) -> bool:
        return self._service_of is not None and report.key.startswith("verdict/") and report.regarding.kind == "Pod"

    def _next(self) -> tuple[str | None, float]:
        """The letter that goes next and when; one that is due stays before those behind it."""
        now, best, best_due = self._monotonic(), None, 0.0
        for key, letter in self._letters.items():
            due = self._due(key, letter)
            if due <= now:
                return key, due
            if best is None or due < best_due:
                best, best_due = key, due
        return best, best_due

    def _due(self, key: str, letter: _Letter) -> float:
        record = self._records.get(key)
        if record is None or not record.series:
            return letter.not_before
        return max(letter.not_before, self._sent.get(key, float("-inf")) + self._refresh)

    def _restore(self) -> None:
        """Finds in the store what was not delivered. What was posted before this is newer, and goes behind it."""
        objects = self._store.load().objects
        reports, _ = decode_all(objects.get(REPORT, {}), Report)
        records, bad = decode_all(objects.get(POSTED, {}), Posted)
        stale = {k for k in records if k.removesuffix(_SERVICE) not in reports and k not in self._letters} | {*bad}
        if stale:
            self._store.commit(drop=[(POSTED, key) for key in stale])
        self._records = {k: r for k, r in records.items() if k not in stale}
        now, wall = self._monotonic(), self._clock()
        # By the wall's clock, which may have moved: never longer than one period.
        self._sent = {k: now - min(max(wall - r.at, 0.0), self._refresh) for k, r in self._records.items()}
        newer, self._letters = self._letters, {}
        for report in sorted(reports.values(), key=lambda r: r.first_seen or 0.0):
            self.post(report)
        for letter in list(newer.values()):
            self.post(letter.report)

    # -- delivery

    async def _deliver(self, key: str) -> None:
        """One letter, or a wait until it may be tried again."""
        letter = self._letters[key]
        await self._token()  # first, so that what is sent is what is known then
        try:
            await self._send(key, letter, letter.report)
        except _AsideError:
            letter.not_before = self._monotonic() + min(2.0**letter.tries, self._backoff.limit)
        except RefusedError as error:
            await self._refused(key, letter, error)
        except KubeError as error:
            await self._away(error)
        except Exception:
            log.exception("an event was given up: a bug, please report it")
            self._lose(key, 0, "a bug")
        else:
            self.error = ""
            self._backoff.succeeded()
            letter.tries = 0
            # A newer report may have come meanwhile.
            record = self._records.get(key)
            if record is not None and (not record.name or not record.fresh(letter.report)):
                self._letters.pop(key, None)
            elif self._letters.get(key) is letter:
                self._letters[key] = self._letters.pop(key)

    async def _send(self, key: str, letter: _Letter, report: Report) -> None:
        """Brings the server's copy of one series up to this report."""
        record = self._records.get(key)
        told = report
        if record is None or not record.name:
            if key.endswith(_SERVICE):
                service = await self._service(letter)
                if service is None:
                    self._record(key, Posted(seen=report.count, last=report.last_seen))
                    return
                told = service_report(report, service)
            await self._create(key, report, told, generation=0, total=max(report.count, 1))
            return
        total = record.count + record.fresh(report)
        path = event_path(record.namespace, record.name)
        body = series_body(total, at=_latest(report.last_seen, record.last, self._clock()))
        if not body:  # once, and told
            self._record(key, replace(record, seen=report.count, last=report.last_seen))
            return
        self._take()
        try:
            await self._client.patch(path, body, kind=Patch.MERGE)
        except RefusedError as error:
            if error.status != 404:
                raise
            # Expired. Under another name: the old one may still be held by who does not delete at once.
            if key.endswith(_SERVICE):
                service = await self._service(letter)
                if service is None:
                    self._record(key, Posted(seen=report.count, last=report.last_seen))
                    return
                told = service_report(report, service)
            await self._create(key, report, told, generation=record.generation + 1, total=total)
            return
        self.repeated += 1
        self._record(key, replace(record, seen=report.count, count=total, last=report.last_seen, series=True))

    async def _create(self, key: str, report: Report, told: Report, *, generation: int, total: int) -> None:
        name = event_name(told, node=self._node, generation=generation)
        told = await self._with_node(told)
        body = event_body(told, name=name, instance=self._instance, at=self._clock(), count=total)
        namespace = body["metadata"]["namespace"]
        await self._token()
        self._take()
        record = Posted(
            name=name, namespace=namespace, seen=report.count, count=total, last=report.last_seen,
            series=total > 1, generation=generation,
        )  # fmt: skip
        try:
            await self._client.create(event_path(namespace), body)
        except RefusedError as error:
            if error.status != 409 or error.reason == "Conflict":
                raise
            # Told before a kill, and not recorded. Its count may be older than ours: tell that as well.
            if total > 1:
                record = replace(record, seen=report.count - 1, count=total - 1, last=None, series=False)
        else:
            self.posted += 1
        self._record(key, record)

    async def _with_node(self, told: Report) -> Report:
        """The report with this node's uid wherever it is named, without which `kubectl describe node` hides it."""
        regards = told.regarding.kind == "Node" and told.regarding.name == self._node and not told.regarding.uid
        relates = told.related is not None and told.related.kind == "Node" and told.related.name == self._node
        if not (regards or relates):
            return told
        try:
            uid = await self._uid_of_node()
        except RefusedError as error:
            if error.passing:
                raise
            uid = ""
        if regards:
            # kubelet's own habit, which `kubectl describe node` looks for too.
            told = replace(told, regarding=replace(told.regarding, uid=uid or self._node))
        if relates and told.related is not None:
            told = replace(told, related=replace(told.related, uid=uid))
        return told

    async def _service(self, letter: _Letter) -> ObjectRef | None:
        """The pod's service. While it cannot be had, only this letter waits, and not for ever."""
        assert self._service_of is not None
        try:
            return await self._service_of(letter.report.regarding)
        except KubeError as error:
            letter.tries += 1
            if not error.passing or letter.tries > PATIENCE:
                return None
            raise _AsideError(str(error)) from error

    def _take(self) -> None:
        self._tokens = max(self._tokens - 1.0, 0.0)

    async def _token(self) -> None:
        """Waits until one more Event may be written."""
        while True:
            now = self._monotonic()
            self._tokens = min(self._tokens + max(now - self._filled, 0.0) / REFILL_SECONDS, float(BURST))
            self._filled = now
            if self._tokens >= 1.0 - 1e-6:
                return
            await self._pause((1.0 - self._tokens) * REFILL_SECONDS)

    async def _refused(self, key: str, letter: _Letter, error: RefusedError) -> None:
        if not error.passing:
            self.error = ""
            self._backoff.succeeded()
            # Where rights are missing a person may give them and restart us: then it is tried once more.
            if error.status not in (401, 403):
                self._record(key, Posted(seen=letter.report.count, last=letter.report.last_seen))
            self._lose(key, error.status, error.reason, str(error))
            return
        if error.status >= 500 and error.status not in (503, 504) and error.retry_after is None:
            letter.tries += 1
            if letter.tries >= PATIENCE and len(self._letters) > 1:
                # It may be this one letter that the server fails at: a broken webhook of one namespace.
                self.errors += 1
                letter.not_before = self._monotonic() + self._backoff.limit
                self._letters[key] = self._letters.pop(key)
                return
        await self._away(error)

    async def _away(self, error: KubeError) -> None:
        self.errors += 1
        self.error = str(error)
        await self._pause(self._backoff.failed(retry_after=error.retry_after))

    def _lose(self, key: str, status: int, reason: str, why: str = "") -> None:
        self._letters.pop(key, None)
        self.dropped += 1
        if (status, reason) not in self._complained and len(self._complained) < 100:
            self._complained.add((status, reason))
            log.warning("an event cannot be told: %s; no more is said of this reason", why or reason)

    def _record(self, key: str, record: Posted) -> None:
        record = replace(record, at=self._clock())
        self._records.pop(key, None)
        self._records[key] = record
        self._sent[key] = self._monotonic()
        gone = list(self._records)[: max(len(self._records) - LIMIT, 0)]
        for old in gone:
            del self._records[old]
            self._sent.pop(old, None)
        self._store.commit(put=[(POSTED, key, encode(record))], drop=[(POSTED, old) for old in gone])

    async def _rest(self, seconds: float | None) -> None:
        """Waits until something is posted, or for so long."""
        tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(self._wake.wait())]
        if seconds is not None:
            tasks.append(asyncio.ensure_future(self._pause(max(seconds, 0.0))))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _AsideError(KubeError):
    """Only this letter waits; the others go on."""


def _latest(*times: float | None) -> float:
    """The newest of the report's and the record's time; the last one given only where both are missing."""
    *known, otherwise = times
    return max((t for t in known if t is not None), default=otherwise or 0.0)

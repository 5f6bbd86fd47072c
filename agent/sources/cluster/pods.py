"""The pods of this node from the API server: one watch, narrowed to the node. Reads; changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from agent.kube.client import KubeClient
from agent.kube.watch import Listed, Watch
from agent.pods import pod_of
from agent.sources.podfeed import KnownPods, PodChange

PATH = "/api/v1/pods"


class ClusterPods:
    """A feed of this node's pods. ``error`` says why it is blind now, empty while it is read."""

    def __init__(self, watch: Watch) -> None:
        self.known = KnownPods()
        self._listed = False
        self._watch = watch

    @property
    def error(self) -> str:
        return self._watch.error

    @property
    def errors(self) -> int:
        return self._watch.errors

    @property
    def synced(self) -> bool:
        return self._listed and not self._watch.error

    async def changes(self) -> AsyncIterator[PodChange]:
        """How the node's pods change, for ever; the watch begins anew after each error."""
        async for news in self._watch.changes():
            if isinstance(news, Listed):
                pods = [pod for item in news.items if (pod := pod_of(item)) is not None]
                for gone in self.known.missing(p.uid for p in pods):
                    if change := self.known.gone(gone):
                        yield change
                for pod in pods:
                    if change := self.known.seen(pod):
                        yield change
                self._listed = True
            elif (found := pod_of(news.object)) is not None:
                change = self.known.gone(found) if news.kind == "DELETED" else self.known.seen(found)
                if change:
                    yield change


def cluster_pods(client: KubeClient, node: str, *, clock: Callable[[], float]) -> ClusterPods:
    """The feed for one node."""
    return ClusterPods(Watch(client, PATH, params={"fieldSelector": f"spec.nodeName={node}"}, clock=clock))

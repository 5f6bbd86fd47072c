"""From a pod to the InferenceService that it serves: by its label, confirmed by one GET. Writes nothing.

KServe and OME have kinds of the same name; only the group that the label belongs to is asked, and its answer looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote

from agent.kube import KubeClient, RefusedError, UnreachableError
from agent.report.event_body import SERVICE_API
from agent.report.events import ObjectRef

SERVICE_LABEL = "inference.llmkube.dev/service"
CACHE_SECONDS = 600.0
"""A service that was deleted and made anew has another uid."""

CACHE_LIMIT = 500


class Services:
    """The services of this node's pods. One GET for each service in `CACHE_SECONDS`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        labels_of: Callable[[ObjectRef], Mapping[str, str] | None],
        clock: Callable[[], float],
    ) -> None:
        """`labels_of` gives a pod's labels by its namespace, name and uid; None while it is not known."""
        self._client, self._labels_of, self._clock = client, labels_of, clock
        self._cache: dict[tuple[str, str], tuple[float, ObjectRef | None]] = {}

    async def of(self, pod: ObjectRef) -> ObjectRef | None:
        """The pod's service; None where it has none, or none that we may see. Raises KubeError where that may pass."""
        labels = self._labels_of(pod)
        if labels is None:
            raise UnreachableError(f"pod {pod.namespace}/{pod.name} is not known yet")
        name = labels.get(SERVICE_LABEL)
        if not name or not pod.namespace:
            return None
        key, now = (pod.namespace, name), self._clock()
        if (known := self._cache.get(key)) is not None and 0 <= now - known[0] < CACHE_SECONDS:
            return known[1]
        found = await self._ask(*key)
        self._cache.pop(key, None)
        self._cache[key] = (now, found)
        while len(self._cache) > CACHE_LIMIT:
            del self._cache[next(iter(self._cache))]
        return found

    async def _ask(self, namespace: str, name: str) -> ObjectRef | None:
        where = f"/apis/{SERVICE_API}/namespaces/{quote(namespace, safe='')}/inferenceservices/{quote(name, safe='')}"
        try:
            found = await self._client.get(where)
        except RefusedError as error:
            if error.passing:
                raise
            return None
        meta = found.get("metadata")
        uid = meta.get("uid") if isinstance(meta, dict) else None
        version = found.get("apiVersion")
        group = SERVICE_API.partition("/")[0]
        if found.get("kind") != "InferenceService" or not isinstance(uid, str) or not uid:
            return None
        if not isinstance(version, str) or version.partition("/")[0] != group:
            return None
        return ObjectRef(kind="InferenceService", name=name, namespace=namespace, uid=uid, api_version=version)

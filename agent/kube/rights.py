"""Every right that the agent needs at the API server, by mode, as data. The manifests' RBAC rules say the same.

Asks and grants nothing: `faultline doctor` asks the server for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MODES = ("observe", "device", "taint", "cordon")
"""Mildest first; each allows those before it."""

_ALL = frozenset(MODES)
_DEVICE = frozenset(MODES[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource. `modes` are those that need it, `lost` is what is missing without it."""

    group: str
    resource: str
    verb: str
    modes: frozenset[str]
    lost: str
    subresource: str = ""

    @property
    def vital(self) -> bool:
        """True where the mode that asks for it is for nothing without it."""
        return "observe" not in self.modes

    @property
    def of(self) -> tuple[str, str]:
        """The API group and the resource as an RBAC rule names it."""
        return self.group, self.resource + (f"/{self.subresource}" if self.subresource else "")


def _rights(
    group: str, resource: str, verbs: str, modes: frozenset[str], lost: str, *, subresource: str = ""
) -> Iterator[Right]:
    for verb in verbs.split():
        yield Right(group=group, resource=resource, subresource=subresource, verb=verb, modes=modes, lost=lost)


RIGHTS: tuple[Right, ...] = (
    *_rights(
        "", "nodes", "get list watch", _ALL,
        "the node's own state (its taint, its boot, what it offers) and how many nodes are marked already: "
        "nothing is marked without it",
    ),
    *_rights(
        "", "nodes", "patch", _ALL,
        "the condition GpuFault on the node: `kubectl describe node` does not tell of a fault", subresource="status",
    ),
    *_rights(
        "", "pods", "list watch", _ALL,
        "names, owners and ends of pods where the kubelet does not tell them, and who still holds a faulted GPU",
    ),
    *_rights(
        "events.k8s.io", "events", "create patch", _ALL,
        "Kubernetes Events: `kubectl describe pod` does not tell why a backend failed",
    ),
    *_rights(
        "inference.llmkube.dev", "inferenceservices", "get", _ALL,
        "which InferenceService a failed pod belongs to, and the patch for it",
    ),
    *_rights(
        "resource.k8s.io", "resourceslices", "list watch", _ALL,
        "which DRA device a faulted GPU is: claims of it are not tied to a fault",
    ),
    *_rights(
        "resource.k8s.io", "devicetaintrules", "get list create patch delete", _DEVICE,
        "taints of single DRA devices: a faulted one is still given to new claims",
    ),
    *_rights(
        "", "nodes", "patch", _DEVICE,
        "the taint and the cordon of the node, and the label by which marked nodes are counted: a faulted GPU is still "
        "given to new pods",
    ),
)  # fmt: skip


def rights_of(mode: str, *, events: bool = True) -> tuple[Right, ...]:
    """What an agent in this mode needs; without `events` it writes none."""
    return tuple(r for r in RIGHTS if mode in r.modes and (events or r.resource != "events"))


def as_rules(rights: Iterable[Right]) -> list[dict[str, list[str]]]:
    """The rights as rules of a ClusterRole, one for each resource, in the order in which they come."""
    rules: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        verbs = rules.setdefault(right.of, [])
        if right.verb not in verbs:
            verbs.append(right.verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": verbs} for (group, resource), verbs in rules.items()
    ]

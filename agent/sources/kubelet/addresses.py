"""Where a pod is reached, from the hosts file that the kubelet writes for it. Reads one small file; asks nobody.

`/var/lib/kubelet/pods/<uid>/etc-hosts` ends with the pod's own addresses and name. A pod on the host's network has the
node's hosts file instead: its address is the node's, shared with others, and is not given.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from agent.model import ContainerRef

_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_MANAGED = "# Kubernetes-managed hosts file."
SIZE_LIMIT = 64 * 1024


def address_in(hosts: str, *, pod: str) -> str | None:
    """The first address that a kubelet's hosts file gives to the pod itself; None for any other file.

    A host name is cut at 63 characters, so that a longer pod name is known by its beginning. Loopback, link-local and
    multicast addresses are never given.
    """
    if not hosts.startswith(_MANAGED):
        return None
    for line in hosts.splitlines()[1:]:
        if line.startswith("# Entries added by HostAliases"):
            break  # what follows the pod's author wrote
        address, *names = line.partition("#")[0].split()[:8] or [""]
        if not any(n == pod or (len(n) >= 60 and pod.startswith(n)) for n in names):
            continue
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            continue
        if not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified):
            return str(ip)
    return None


class PodAddresses:
    """Addresses of this node's pods. `directory` is the kubelet's directory of pods."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, container: ContainerRef) -> str | None:
        """The address of a container's pod; None where it cannot be told."""
        if not _UID.match(container.uid):
            return None
        try:
            with (self._directory / container.uid / "etc-hosts").open(encoding="utf-8", errors="replace") as file:
                return address_in(file.read(SIZE_LIMIT), pod=container.pod)
        except OSError:
            return None

"""Says what an operator must grant so that the kernel log can be read. Pure: facts in, one instruction out."""

from __future__ import annotations

from dataclasses import dataclass

CAP_SYSLOG = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What this process is allowed, as far as the kernel log goes. ``capabilities``: the effective set, a bit mask."""

    euid: int
    capabilities: int
    user_namespace: bool
    """True inside a user namespace other than the machine's first: no capability held there counts for the log."""

    @property
    def holds_syslog(self) -> bool:
        return bool(self.capabilities >> CAP_SYSLOG & 1)


def cure_for(standing: Standing) -> str:
    """One instruction that makes syslog(2) (or, privileged, ``/dev/kmsg``) readable for a process of that standing."""
    if standing.user_namespace:
        return (
            "Run the pod in the node's user namespace (hostUsers: true, the default) as root with "
            "securityContext.capabilities.add: [SYSLOG]: inside a user namespace no capability opens the kernel log"
        )
    if not standing.holds_syslog and standing.euid != 0:
        return (
            f"Run the agent as root (runAsUser: 0, now {standing.euid}) with capabilities.add: [SYSLOG]; "
            "a process that is not root gets no added capability"
        )
    if not standing.holds_syslog:
        return (
            "Add securityContext.capabilities.add: [SYSLOG] (all others may be dropped), or set privileged: true for "
            "/dev/kmsg; a hostPath volume of /dev/kmsg alone does not open it"
        )
    return (
        "CAP_SYSLOG is held, so a seccomp profile, a security module or the sandbox refuses: allow syslog(2) in the "
        "profile (RuntimeDefault does), or set securityContext.privileged: true for /dev/kmsg"
    )

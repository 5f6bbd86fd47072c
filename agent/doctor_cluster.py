"""The doctor's checks of the cluster: the API server, each right of the mode, the kubelet's sockets. Changes nothing.

A SelfSubjectAccessReview is a POST, but stores nothing: the server answers whether the asker may do a thing.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from agent.config import Settings
from agent.doctor import Check, Status
from agent.kube import KubeClient, KubeError, Login, LoginError, RefusedError, login
from agent.kube.login import SERVICE_ACCOUNT
from agent.kube.rights import Right, as_rules, rights_of

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
AT_ONCE = 8
CONNECT_SECONDS = 2.0

_LOST = "Events, the condition GpuFault and every mark: what is found stays on this node (metrics, API, log)"
_GRANT_LOGIN = """\
serviceAccountName: faultline        # the pod's spec
automountServiceAccountToken: true"""
_GRANT_REACH = "let the agent's pod reach the API server: its NetworkPolicy (egress), the node's firewall, the CA"
_GRANT_SOCKET = """\
securityContext: {runAsUser: 0}    # the sockets belong to root
volumes:
  - name: %(name)s
    hostPath: {path: %(directory)s, type: Directory}
volumeMounts:
  - {name: %(name)s, mountPath: %(directory)s}    # the folder: a socket that is mounted itself dies with the kubelet"""

Connect = Callable[[str], None]


def connect(path: str) -> None:
    """Opens a connection to a UNIX socket and closes it. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.settimeout(CONNECT_SECONDS)
        unix.connect(path)


def in_a_cluster(settings: Settings, environ: Mapping[str, str]) -> bool:
    """True where an agent with these settings would use an API server."""
    return bool(settings.cluster.kubeconfig or environ.get("KUBERNETES_SERVICE_HOST"))


async def cluster_checks(
    settings: Settings, *, environ: Mapping[str, str] = os.environ, connect: Connect = connect
) -> list[Check]:
    """Every check of the cluster; where there is none, one check that says so."""
    sockets = [
        _socket(
            "pod-resources",
            settings.kubelet.pod_resources,
            lost="which container holds which GPU, at once: the kubelet's checkpoint is read instead, if it is there",
            connect=connect,
        ),
        _socket(
            "pods-api",
            settings.kubelet.pods_api,
            lost="nothing but cost: the pods of this node are watched at the API server instead",
            connect=connect,
            optional=True,
        ),
    ]
    found = [check for check in sockets if check is not None]
    if not in_a_cluster(settings, environ):
        seen = "no service account and no cluster.kubeconfig: the agent works without a cluster"
        return [Check(name="api-server", status="warn", seen=seen, lost=_LOST, grant=_GRANT_LOGIN), *found]
    if not settings.cluster.kubeconfig and not (SERVICE_ACCOUNT / "token").exists():
        seen = f"{SERVICE_ACCOUNT}/token is not there"
        return [Check(name="api-server", status="fail", seen=seen, lost=_LOST, grant=_GRANT_LOGIN), *found]
    try:
        way = await login(kubeconfig=settings.cluster.kubeconfig, context=settings.cluster.context, environ=environ)
    except LoginError as error:
        return [Check(name="api-server", status="fail", seen=str(error), lost=_LOST, grant=_GRANT_LOGIN), *found]
    return [*await _of_server(settings, way), *found]


async def _of_server(settings: Settings, way: Login) -> list[Check]:
    try:
        async with KubeClient(way, name=settings.node_name, deadline=settings.cluster.deadline_seconds) as client:
            # The first review is also the proof of the login: /version is told to anybody.
            rights = rights_of(settings.mode, events=settings.cluster.events)
            limit = asyncio.Semaphore(AT_ONCE)
            first = await _allowed(client, rights[0], limit)
            rest = await asyncio.gather(*(_allowed(client, right, limit) for right in rights[1:]))
    except RefusedError as error:
        grant = "roll the pod out again for a fresh token" if error.status == 401 else _GRANT_REACH
        return [Check(name="api-server", status="fail", seen=f"{way.how}: {error}", lost=_LOST, grant=grant)]
    except KubeError as error:
        return [Check(name="api-server", status="fail", seen=f"{way.how}: {error}", lost=_LOST, grant=_GRANT_REACH)]
    server = Check(name="api-server", status="ok", seen=f"{way.how}: answers, and knows who asks")
    return [server, *_rights_checks(settings.mode, dict(zip(rights, [first, *rest], strict=True)))]


async def _allowed(client: KubeClient, right: Right, limit: asyncio.Semaphore) -> bool:
    asked = {"group": right.group, "resource": right.resource, "verb": right.verb}
    if right.subresource:
        asked["subresource"] = right.subresource
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    async with limit:
        answer = await client.create(REVIEWS, body)
    status = answer.get("status")
    return isinstance(status, Mapping) and status.get("allowed") is True


def _rights_checks(mode: str, allowed: Mapping[Right, bool]) -> list[Check]:
    """One check for all that is granted, and one for each cost of what is not."""
    refused: dict[tuple[tuple[str, str], str], list[Right]] = {}
    for right, given in allowed.items():
        if not given:
            refused.setdefault((right.of, right.lost), []).append(right)
    if not refused:
        return [Check(name="rights", status="ok", seen=f"all {len(allowed)} that mode {mode} needs")]
    checks = []
    for (of, lost), rights in refused.items():
        status: Status = "fail" if any(r.vital for r in rights) else "warn"
        group, resource = of
        name = f"{resource}.{group}" if group else resource
        checks.append(
            Check(
                name="rights",
                status=status,
                seen=f"mode {mode}: may not {', '.join(r.verb for r in rights)} {name}",
                lost=lost,
                grant="rules:    # the agent's ClusterRole\n"
                + "\n".join(f"  - {_flow(rule)}" for rule in as_rules(rights)),
            )
        )
    return checks


def _flow(rule: Mapping[str, list[str]]) -> str:
    return "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in rule.items()) + "}"


def _socket(name: str, path: str, *, lost: str, connect: Connect, optional: bool = False) -> Check | None:
    if not path:
        return None
    try:
        connect(path)
        return Check(name=name, status="ok", seen=f"{path} answers")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
    if optional:
        # Not served by most kubelets yet: nothing that anybody must mend.
        return Check(name=name, status="ok", seen=f"{path}: {why}", lost=lost)
    grant = _GRANT_SOCKET % {"name": name, "directory": Path(path).parent}
    return Check(name=name, status="warn", seen=f"{path}: {why}", lost=lost, grant=grant)

"""How to reach the API server: the pod's own service account, or a kubeconfig. Sends nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes.aio.client.configuration import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class LoginError(Exception):
    """There is no way to the API server; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A way to the API server. ``how`` is for people: ``in-cluster``, or the kubeconfig's path and context."""

    configuration: Configuration
    how: str
    namespace: str = ""
    """The namespace of the service account, or of the kubeconfig's context."""


def in_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """True in a pod that was given a service account."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


async def login(*, kubeconfig: str = "", context: str = "", environ: Mapping[str, str] = os.environ) -> Login:
    """A login by the file given, else by the pod's service account, else by the user's kubeconfig.

    Raises LoginError where there is none, or where what is there cannot be used.
    """
    # Here, not at the top: the package costs 18 MiB, which an agent without an API server does not need.
    from kubernetes.aio import config
    from kubernetes.aio.client.configuration import Configuration

    configuration = type.__call__(Configuration)
    try:
        if not kubeconfig and in_cluster(environ):
            config.load_incluster_config(client_configuration=configuration)
            return Login(configuration=configuration, how="in-cluster", namespace=_namespace())
        named = kubeconfig or environ.get("KUBECONFIG", "") or "~/.kube/config"
        paths = [os.path.expanduser(path) for path in named.split(os.pathsep) if path]
        if not any(os.path.exists(path) for path in paths):
            raise LoginError(f"no service account and no kubeconfig ({named} is not there)")
        contexts, active = config.list_kube_config_contexts(config_file=os.pathsep.join(paths))
        chosen = next((c for c in contexts if c["name"] == context), None) if context else active
        if chosen is None:
            raise LoginError(f"{named}: there is no context {context!r}")
        await config.load_kube_config(
            config_file=os.pathsep.join(paths), context=context or None, client_configuration=configuration
        )
        where = f"{named} (context {chosen['name']})"
        return Login(configuration=configuration, how=where, namespace=chosen["context"].get("namespace", "default"))
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise LoginError(f"{kubeconfig or 'the login to the API server'}: {error}") from None


def _namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return ""

"""How to reach the API server: the pod's own service account, or a kubeconfig. Sends nothing."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes.aio.client.configuration import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class LoginError(Exception):
    """There is no way to the API server; the text says what is missing."""


async def _nobody() -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A way to the API server. ``how`` is for people: ``in-cluster``, or the kubeconfig's path and context."""

    server: str
    """``https://host:port``, and a path where the server is behind one."""
    how: str
    namespace: str = ""
    """The namespace of the service account, or of the kubeconfig's context."""
    tls: ssl.SSLContext | None = None
    """Whom to trust, and the client's own certificate."""
    server_name: str = ""
    """The name in the server's certificate, where it is not that of ``server``."""
    proxy: str = ""
    authorization: Callable[[], Awaitable[str]] = _nobody
    """The header ``Authorization``, asked before each request, since tokens are replaced; may raise OSError."""


def in_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """True in a pod that was given a service account."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


async def login(*, kubeconfig: str = "", context: str = "", environ: Mapping[str, str] = os.environ) -> Login:
    """A login by the file given, else by the pod's service account, else by the user's kubeconfig.

    Raises LoginError where there is none, or where what is there cannot be used.
    """
    if not kubeconfig and in_cluster(environ):
        return _by_service_account(environ, SERVICE_ACCOUNT)
    return await _by_kubeconfig(kubeconfig or environ.get("KUBECONFIG", "") or "~/.kube/config", context)


def _by_service_account(environ: Mapping[str, str], account: Path) -> Login:
    # Not by the Kubernetes package: importing it costs 17 MiB for as long as the agent lives.
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT") or "443"

    async def token() -> str:
        text = (account / "token").read_text(encoding="ascii").strip()  # the kubelet replaces it each hour
        if not text:
            raise OSError(f"{account / 'token'} is empty")
        return f"Bearer {text}"

    try:
        namespace = account / "namespace"
        return Login(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            how="in-cluster",
            namespace=namespace.read_text().strip() if namespace.exists() else "",
            tls=_trusting(ca_file=str(account / "ca.crt")),
            authorization=token,
        )
    except (OSError, ValueError) as error:
        raise LoginError(f"the service account in {account}: {error}") from None


async def _by_kubeconfig(named: str, context: str) -> Login:
    from kubernetes.aio import config
    from kubernetes.aio.client.configuration import Configuration

    paths = [os.path.expanduser(path) for path in named.split(os.pathsep) if path]
    if not any(os.path.exists(path) for path in paths):
        raise LoginError(f"no service account and no kubeconfig ({named} is not there)")
    configuration = type.__call__(Configuration)
    try:
        contexts, active = config.list_kube_config_contexts(config_file=os.pathsep.join(paths))
        chosen = next((c for c in contexts if c["name"] == context), None) if context else active
        if chosen is None:
            raise LoginError(f"{named}: there is no context {context!r}")
        await config.load_kube_config(
            config_file=os.pathsep.join(paths), context=context or None, client_configuration=configuration
        )
        return Login(
            server=configuration.host.rstrip("/"),
            how=f"{named} (context {chosen['name']})",
            namespace=chosen["context"].get("namespace", "default"),
            tls=_tls_of(configuration) if configuration.host.startswith("https") else None,
            server_name=configuration.tls_server_name or "",
            proxy=configuration.proxy or "",
            authorization=_token_of(configuration),
        )
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise LoginError(f"{named}: {error}") from None


def _token_of(configuration: Configuration) -> Callable[[], Awaitable[str]]:
    from kubernetes.aio.config import ConfigException

    async def token() -> str:
        try:
            return await configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        except ConfigException as error:  # the program that makes tokens failed
            raise OSError(str(error)) from None

    return token


def _tls_of(configuration: Configuration) -> ssl.SSLContext:
    context = _trusting(ca_file=configuration.ssl_ca_cert, ca=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _trusting(*, ca_file: str | None, ca: str | bytes | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file, cadata=ca)
    # Python 3.13 asks for extensions that the authorities of many clusters lack; kubectl does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context

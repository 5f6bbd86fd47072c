"""etcd and a real kube-apiserver on free loopback ports, with their own CA; both end with the tests.

No controller-manager, no scheduler, no kubelet (``node.py`` has them): what they would do (a namespace's ``default``
account, the status of a node or pod, garbage collection) a test does itself.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import http.client
import itertools
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from tests.cluster.build import API_SERVERS, DEFAULT_VERSION, ETCD_SERVER, KUBECTL, build
from tests.cluster.process import STOP_SECONDS, ClusterError, Process, tail
from tests.cluster.room import SERVICE_ADDRESS, Room

Json = dict[str, Any]

READY_SECONDS = 60.0

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
"""

CERTIFICATE = """\
[req]
prompt = no
distinguished_name = subject
x509_extensions = extensions
string_mask = utf8only
[subject]
{subject}
[extensions]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{extensions}
"""


class ApiServer:
    """One API server with its etcd. Use as a context manager, or by :meth:`start` and :meth:`stop`."""

    def __init__(self, *, version: str = DEFAULT_VERSION, room: Room | None = None) -> None:
        """``version`` is a minor version of ``build.API_SERVERS``. Builds what is not built yet; starts nothing.

        In a room it listens on the port and, among others, the address of the service ``kubernetes``, so that pods
        find it without a proxy.
        """
        self.version = version
        self.room = room
        self.port = 0
        self.folder = Path()
        self._programs = {"etcd": build(ETCD_SERVER), "api": build(API_SERVERS[version]), "kubectl": build(KUBECTL)}
        self._etcd: Process | None = None
        self._api: Process | None = None
        self._etcd_ports = (0, 0)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts both and returns when the API server is ready."""
        self.folder = Path(tempfile.mkdtemp(prefix="faultline-cluster-"))
        atexit.register(self.stop)
        try:
            self._authority()
            for attempt in range(3):
                # Another process may take a port between its choice here and its use there: then choose again.
                self.port, *etcd = free_ports(3) if self.room is None else (443, 2379, 2380)
                self._etcd_ports = (etcd[0], etcd[1])
                self._kubeconfig("admin", _held(self.folder / "admin.crt", self.folder / "admin.key"))
                try:
                    self.start_etcd()
                    self.start_api()
                    return
                except ClusterError as error:
                    self.stop_api()
                    self.stop_etcd()
                    shutil.rmtree(self.folder / "etcd", ignore_errors=True)
                    if attempt == 2 or "address already in use" not in str(error):
                        raise
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends both and removes the folder. More than once is fine."""
        self.stop_api()
        self.stop_etcd()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.stop)

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        self._etcd = Process(
            [
                str(self._programs["etcd"]), "--name=test", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync",
                f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=test={peer}", "--log-level=warn",
            ],
            log=self.folder / "etcd.log",
            room=self.room,
        )  # fmt: skip

    def start_api(self) -> None:
        """Starts the API server on the port that it had before; what etcd holds is there again."""
        at = self.folder
        self._api = Process(
            [
                str(self._programs["api"]), f"--etcd-servers=http://127.0.0.1:{self._etcd_ports[0]}",
                f"--bind-address={'127.0.0.1' if self.room is None else '0.0.0.0'}", f"--secure-port={self.port}",
                "--advertise-address=127.0.0.1", "--kubelet-preferred-address-types=InternalIP",
                f"--kubelet-client-certificate={at / 'admin.crt'}", f"--kubelet-client-key={at / 'admin.key'}",
                "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-account-key-file={at / 'accounts.key'}",
                f"--service-account-signing-key-file={at / 'accounts.key'}",
                f"--client-ca-file={at / 'ca.crt'}", f"--tls-cert-file={at / 'server.crt'}",
                f"--tls-private-key-file={at / 'server.key'}", f"--cert-dir={at / 'made'}",
                "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true", "--audit-log-mode=blocking", "--profiling=false",
                f"--audit-policy-file={at / 'audit-policy.yaml'}", f"--audit-log-path={at / 'audit.log'}",
            ],
            log=at / "api.log",
            room=self.room,
        )  # fmt: skip
        self._ready()

    def stop_api(self, *, kill: bool = False) -> None:
        """Ends the API server and leaves etcd. ``kill`` is a crash; else it first waits for open watches."""
        if self._api is not None:
            self._api.end(patience=0.0 if kill else STOP_SECONDS)
            self._api = None

    def stop_etcd(self) -> None:
        if self._etcd is not None:
            self._etcd.end()
            self._etcd = None

    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "admin.kubeconfig"

    def kubeconfig_for(self, user: str, groups: Iterable[str] = ()) -> Path:
        """A kubeconfig with that user's certificate: ``system:node:<name>`` in ``system:nodes`` is a kubelet."""
        name = f"user-{next(self._numbers)}"
        subject = "\n".join([f"CN = {user}", *(f"{n}.O = {group}" for n, group in enumerate(groups))])
        certificate, key = self._certificate(name, subject, "extendedKeyUsage = clientAuth")
        return self._kubeconfig(name, _held(certificate, key))

    def kubeconfig_with(self, token: str, *, authority: Path | None = None) -> Path:
        """A kubeconfig with a bearer token; ``authority`` is another CA's file than the server's."""
        return self._kubeconfig(f"token-{next(self._numbers)}", {"token": token}, authority=authority)

    def another_authority(self) -> Path:
        """The certificate of a CA that did not sign the server's."""
        return self._certificate(f"stranger-{next(self._numbers)}", "CN = stranger", "basicConstraints = CA:TRUE")[0]

    def namespace(self, name: str) -> None:
        """A namespace with the ``default`` account that the controller-manager would make. There already is fine."""
        self._apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}},
        )

    def service_account_token(self, namespace: str, name: str, pod: str, node: str, *, seconds: int = 3600) -> str:
        """A token as the kubelet mounts it into that pod on that node. Makes what is missing, except the node."""
        self.namespace(namespace)
        self._apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
        if not self.kubectl("get", "pod", pod, "-n", namespace, "--ignore-not-found", "-o", "name"):
            spec = {"nodeName": node, "serviceAccountName": name, "containers": [{"name": "main", "image": "none"}]}
            metadata = {"name": pod, "namespace": namespace}
            self._apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}", f"--duration={seconds}s")
        return self.kubectl("create", "token", name, "-n", namespace, *bound).strip()

    def kubectl(self, *args: str, stdin: str = "", kubeconfig: Path | None = None) -> str:
        """What kubectl prints; the administrator's unless told. Raises ClusterError with what it says on a failure."""
        done = subprocess.run(
            [*self.kubectl_command(kubeconfig), *args],
            input=stdin,
            env=os.environ | {"HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(args)}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def kubectl_command(self, kubeconfig: Path | None = None) -> list[str]:
        """How kubectl is run against this server; the administrator's unless told."""
        command = [str(self._programs["kubectl"]), "--kubeconfig", str(kubeconfig or self.kubeconfig())]
        return command if self.room is None else self.room.command(command)

    def audit(self, *, user: str = "", since: int = 0) -> list[Json]:
        """Every request that was answered so far, oldest first, as audit.k8s.io/v1 events.

        A watch is there once when it begins and once when it ends; a write has its ``requestObject``. ``user`` keeps
        one user's; ``since`` (from :meth:`audited`) leaves out what was before.
        """
        lines = (self.folder / "audit.log").read_bytes().splitlines(keepends=True)
        events: list[Json] = [json.loads(line) for line in lines[since:] if line.endswith(b"\n")]
        return [event for event in events if not user or event["user"].get("username") == user]

    def audited(self) -> int:
        """How many events the audit log holds: what ``audit(since=)`` takes."""
        return len((self.folder / "audit.log").read_bytes().splitlines())

    def log(self) -> str:
        """The API server's own log, for a failed test's message."""
        return tail(self.folder / "api.log")

    def _apply(self, *objects: Json) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(items))

    def _authority(self) -> None:
        (self.folder / "audit-policy.yaml").write_text(AUDIT_POLICY)
        usage = "keyUsage = critical, keyCertSign, cRLSign"
        self._certificate("ca", "CN = faultline-tests", f"basicConstraints = critical, CA:TRUE\n{usage}", signed=False)
        names = f"subjectAltName = IP:127.0.0.1, IP:{SERVICE_ADDRESS}, DNS:localhost, DNS:kubernetes.default.svc"
        self._certificate("server", "CN = kube-apiserver", f"extendedKeyUsage = serverAuth\n{names}")
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(self.folder / "accounts.key"))
        self._certificate("admin", "CN = admin\n0.O = system:masters", "extendedKeyUsage = clientAuth")

    def _certificate(self, name: str, subject: str, extensions: str, *, signed: bool = True) -> tuple[Path, Path]:
        if signed and "CA:TRUE" not in extensions:
            extensions = f"basicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature\n{extensions}"
        else:
            signed = False
        told, certificate, key = (self.folder / f"{name}{end}" for end in (".cnf", ".crt", ".key"))
        told.write_text(CERTIFICATE.format(subject=subject, extensions=extensions))
        signer = ["-CA", str(self.folder / "ca.crt"), "-CAkey", str(self.folder / "ca.key")] if signed else []
        _openssl(
            "req", "-x509", "-config", str(told), "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-out", str(certificate), "-keyout", str(key), *signer,
        )  # fmt: skip
        return certificate, key

    def _kubeconfig(self, name: str, user: Json, *, authority: Path | None = None) -> Path:
        cluster = {
            "server": self.url,
            "certificate-authority-data": _base64(authority or self.folder / "ca.crt"),
        }
        path = self.folder / f"{name}.kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def _ready(self) -> None:
        """Waits for /readyz and for the namespaces that the API server makes itself a moment later."""
        deadline = time.monotonic() + READY_SECONDS
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        context.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
        for path in ("/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"):
            while not self._answers(path, context):
                for process in (self._etcd, self._api):
                    if process is None or process.ended():
                        name = process.log if process else self.folder
                        raise ClusterError(f"{name.name}: ended at once: {tail(name) if process else ''}")
                if time.monotonic() > deadline:
                    raise ClusterError(f"the API server is not ready after {READY_SECONDS:g} s: {self.log()}")
                time.sleep(0.05)

    def _answers(self, path: str, context: ssl.SSLContext) -> bool:
        if self.room is not None:
            try:
                return bool(self.kubectl("get", "--raw", path))
            except ClusterError:
                return False
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=2, context=context)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _openssl(*args: str) -> None:
    try:
        done = subprocess.run(["openssl", *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ClusterError("the test cluster's certificates are made by openssl, which is not installed") from None
    if done.returncode != 0:
        raise ClusterError(f"openssl {args[0]}: {done.stderr.strip()[-1000:]}")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _held(certificate: Path, key: Path) -> Json:
    return {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}

"""The Kubernetes API server: login, requests with deadlines, watches. Knows no GPU and decides nothing."""

from agent.kube.client import KubeClient, KubeError, Patch, RefusedError, UnreachableError
from agent.kube.login import Login, LoginError, in_cluster, login

__all__ = [
    "KubeClient",
    "KubeError",
    "Login",
    "LoginError",
    "Patch",
    "RefusedError",
    "UnreachableError",
    "in_cluster",
    "login",
]

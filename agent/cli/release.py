"""`faultline release`: a person says that a fault is over. Sets one annotation; the agent there does the rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from agent.cli import Unusable

if TYPE_CHECKING:
    from agent.kube import KubeClient

POLL_SECONDS = 1.0


@click.command("release")
@click.argument("target")
@click.option("--node", default="", help="Node of the GPU. Default: the only node that is marked.")
@click.option("--kubeconfig", default="", help="Login. Default: as kubectl finds it.")
@click.option("--context", default="", help="Context of the kubeconfig.")
@click.option("--wait", type=click.FloatRange(min=0), default=0.0, help="Seconds to wait until the agent obeyed.")
@click.option("--dry-run", is_flag=True, help="Only say what would be set.")
def command(target: str, node: str, kubeconfig: str, context: str, wait: float, dry_run: bool) -> None:
    """Tell the agent that a fault is over, so that its mark falls.

    TARGET is a GPU's PCI address or UUID, a fault's id, a comma-separated list of these, `all` (with --node), or a
    node's name, which means all faults of that node. A fault that shows again is marked again.

    \b
    Examples:
      faultline release gpu-node-1
      faultline release 0000:5d:00 --node gpu-node-1 --wait 60
      faultline release GPU-44444444-aaaa-bbbb-cccc-000000000005 --dry-run

    Exit status: 0 set (and obeyed, with --wait), 1 not obeyed in time, 2 unusable call, or the API server refused.
    """
    import asyncio

    from agent.kube import KubeClient, KubeError, LoginError, login

    async def work() -> bool:
        async with KubeClient(await login(kubeconfig=kubeconfig, context=context), name="release") as client:
            return await _release(client, target, node=node, wait=wait, dry_run=dry_run)

    try:
        obeyed = asyncio.run(work())
    except (LoginError, KubeError) as error:
        raise Unusable(str(error)) from None
    raise SystemExit(0 if obeyed else 1)


async def _release(client: KubeClient, target: str, *, node: str, wait: float, dry_run: bool) -> bool:
    from agent.kube import Patch
    from agent.respond.marks import RELEASE

    asked = ",".join(target.replace(",", " ").split())
    if not asked:
        raise Unusable("TARGET is empty: name a GPU, a fault, a node or `all`")
    if not node and asked.lower() == "all":
        raise Unusable("`all` needs --node: faults of several nodes are never released at once")
    if not node and not _names_a_gpu(asked):
        asked, node = "all", asked
    node = node or await _only_marked(client)
    path = _path(node)
    if dry_run:
        await client.get(path)
        click.echo(f"would annotate node {node} with {RELEASE}={asked}")
        return True
    before = _annotation(await client.get(path), RELEASE)
    words = dict.fromkeys([*before.replace(",", " ").split(), *asked.split(",")])  # one that waits is not overwritten
    body = {"metadata": {"annotations": {RELEASE: ",".join(words)}}}
    await client.patch(path, body, kind=Patch.MERGE)
    click.echo(f"node {node}: release of {asked} asked for")
    return not wait or await _obeyed(client, path, RELEASE, wait=wait)


async def _obeyed(client: KubeClient, path: str, key: str, *, wait: float) -> bool:
    import asyncio

    from agent.kube import KubeError

    end, last = time.monotonic() + wait, ""
    while True:
        try:
            if not _annotation(await client.get(path), key):
                click.echo("the agent took it up")
                return True
            last = ""
        except KubeError as error:
            if not error.passing:
                raise
            last = f" ({error})"
        if (left := end - time.monotonic()) <= 0:
            click.echo(f"not taken up within {wait:g} s: is the agent running on that node?{last}", err=True)
            return False
        await asyncio.sleep(min(POLL_SECONDS, left))


async def _only_marked(client: KubeClient) -> str:
    from agent.respond.marks import KEY

    listed = await client.metadata("/api/v1/nodes", params={"labelSelector": KEY})
    names = [str((item.get("metadata") or {}).get("name") or "") for item in listed.get("items") or []]
    if len(names) == 1:
        return names[0]
    found = "no node is marked" if not names else f"{len(names)} nodes are marked ({', '.join(names[:10])})"
    raise Unusable(f"{found}: name the node with --node")


def _names_a_gpu(asked: str) -> bool:
    from agent.model import parse_pci

    return all(w.startswith(("GPU-", "fault-")) or parse_pci(w) is not None for w in asked.split(","))


def _path(node: str) -> str:
    import re

    if re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", node) is None:
        raise Unusable(f"{node!r} is neither a GPU, a fault nor a node's name")
    return f"/api/v1/nodes/{node}"


def _annotation(node: dict[str, Any], key: str) -> str:
    return str(((node.get("metadata") or {}).get("annotations") or {}).get(key) or "")

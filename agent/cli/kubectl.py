"""`kubectl faultline`: which nodes are marked, why and since when; and a pod explained. Reads only."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from agent.cli import Unusable

if TYPE_CHECKING:
    from agent.detect.marks import Mark

_LOGIN = (
    click.option("--kubeconfig", default="", help="The kubeconfig [default: as kubectl's]."),
    click.option("--context", default="", help="The kubeconfig's context."),
)


def _login(function: Any) -> Any:
    for option in reversed(_LOGIN):
        function = option(function)
    return function


@click.group(
    "faultline",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@_login
@click.pass_context
def group(ctx: click.Context, form: str, kubeconfig: str, context: str) -> None:
    """Which nodes Faultline has marked, and why a pod failed. Without a command: the nodes.

    \b
    Examples:
      kubectl faultline
      kubectl faultline nodes -o json
      kubectl faultline explain llm/chat-0
    """
    ctx.obj = {"kubeconfig": kubeconfig, "context": context}
    if ctx.invoked_subcommand is None:
        ctx.invoke(nodes, form=form, kubeconfig="", context="")


@group.command("nodes")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@_login
@click.pass_obj
def nodes(given: dict[str, str], form: str, kubeconfig: str, context: str) -> None:
    """The nodes that carry a mark: which GPUs, since when, why. Needs `list` on nodes.

    Exit status: 0 answered, whether any is marked or not; 2 the cluster could not be asked.
    """
    from agent.report.terminal import table

    marks = asyncio.run(_marks(kubeconfig=kubeconfig or given["kubeconfig"], context=context or given["context"]))
    if form == "json":
        click.echo(as_json(marks))
    elif not marks:
        click.echo("No node carries a mark of Faultline.", err=True)
    else:
        click.echo(table(("NODE", "MARK", "VALUE", "GPUS", "SINCE", "WHY"), rows(marks, now=time.time())), nl=False)


@group.command("explain")
@click.argument("pod", metavar="[NS/]POD")
@click.option("--container", "-c", default="", help="This container only.")
@click.option("--namespace", "-n", default="", help="The pod's namespace, where it is not in its name.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@_login
@click.pass_context
def explain(
    ctx: click.Context, pod: str, container: str, namespace: str, form: str, kubeconfig: str, context: str
) -> None:
    """Why a pod failed: `faultline explain --pod`, with its exit status."""
    from agent.cli.explain import command

    if namespace and "/" not in pod:
        pod = f"{namespace}/{pod}"
    ctx.invoke(
        command,
        pod=pod,
        container=container,
        form=form,
        kubeconfig=kubeconfig or ctx.obj["kubeconfig"],
        context=context or ctx.obj["context"],
    )


def main(argv: list[str] | None = None) -> Any:
    """The entry that kubectl finds as `kubectl-faultline` on the PATH."""
    return group.main(args=sys.argv[1:] if argv is None else argv, prog_name="kubectl faultline")


async def _marks(*, kubeconfig: str, context: str) -> list[Mark]:
    from agent.detect.marks import mark_of
    from agent.kube import KubeClient, KubeError, LoginError, RefusedError, login
    from agent.sources.cluster.fetch import all_nodes, told

    try:
        async with KubeClient(await login(kubeconfig=kubeconfig, context=context)) as client:
            return [mark for mark in [mark_of(node) async for node in all_nodes(client)] if mark is not None]
    except RefusedError as error:
        cure = "; you need `list` on nodes" if error.status == 403 else ""
        raise Unusable(f"the nodes: {told(error)}{cure}") from None
    except (LoginError, KubeError) as error:
        raise Unusable(str(error)) from None


def rows(marks: list[Mark], *, now: float) -> list[tuple[str, ...]]:
    """A line of the table for each node. A cordoned one says so beside its mark, as kubectl does."""
    return [
        (
            mark.node,
            (mark.mark or "-") + (",cordoned" if mark.cordoned else ""),
            mark.value or "-",
            ",".join(mark.gpus) or "-",
            age(mark.since, now=now),
            mark.why or "-",
        )
        for mark in sorted(marks, key=lambda m: m.node)
    ]


def age(since: float | None, *, now: float) -> str:
    """`42s`, `5m`, `3h`, `12d`, as kubectl writes ages; `-` where the time is not known."""
    if since is None:
        return "-"
    seconds = max(int(now - since), 0)
    for size, unit in ((86400 * 2, "d"), (3600 * 2, "h"), (60 * 2, "m")):
        if seconds >= size:
            return f"{seconds // (size // 2)}{unit}"
    return f"{seconds}s"


def as_json(marks: list[Mark]) -> bytes:
    import msgspec

    items = [
        {
            "node": m.node, "mark": m.mark, "value": m.value, "effect": m.effect, "cordoned": m.cordoned,
            "gpus": m.gpus, "since": m.since, "why": m.why,
            "faults": [
                {"gpu": {"pci": f.pci, "uuid": f.uuid or None}, "xids": f.xids, "value": f.value, "since": f.since,
                 "why": f.why}
                for f in m.faults
            ],
        }
        for m in sorted(marks, key=lambda m: m.node)
    ]  # fmt: skip
    return msgspec.json.encode({"apiVersion": "faultline.dev/v1", "kind": "MarkedNodes", "items": items})

"""`faultline explain`: logs in, the answer out."""

from __future__ import annotations

import sys
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli import Unusable

if TYPE_CHECKING:
    from agent.explain import Explanation
    from agent.respond.remedy import Dressing
    from agent.rulebook import Rulebook


@click.command("explain")
@click.argument("files", nargs=-1, metavar="[FILE...|-]")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--rules", "folders", multiple=True, type=click.Path(path_type=Path), help="A folder of your own rules.")
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The LLMKube InferenceService (YAML): shows what to patch in it.",
)
@click.option("--way", type=click.IntRange(min=1), help="Patch this way out of those under Do (default: the first).")
@click.option("--pod", metavar="[NS/]NAME", help="Fetch a pod's logs, its state and its node's, with your own rights.")
@click.option("--container", "-c", default="", help="With --pod: this container only.")
@click.option("--kubeconfig", default="", help="With --pod: the kubeconfig [default: as kubectl's].")
@click.option("--context", default="", help="With --pod: the kubeconfig's context.")
@click.option("--colour/--no-colour", default=None, help="Colour the text (default: on a terminal only).")
def command(
    files: tuple[str, ...],
    form: str,
    folders: tuple[Path, ...],
    manifest: Path | None,
    way: int | None,
    pod: str | None,
    container: str,
    kubeconfig: str,
    context: str,
    colour: bool | None,
) -> None:
    """Explain container logs, kernel logs, or both: what failed, whose it is, what to change.

    Any form is taken: files or standard input, `kubectl logs`, `dmesg`, the journal, syslog, raw /dev/kmsg records,
    gzip, colour codes, `kubectl describe`, `kubectl get events`, a pod or a node as YAML or JSON. Which is which is
    recognised by content. Hand in the kernel log of the node beside the container's log wherever you can: only it can
    accuse a GPU. With --pod the logs are fetched; files may be handed in beside it.

    \b
    Examples:
      faultline explain pod.log
      kubectl logs POD --previous | faultline explain
      faultline explain pod.log --manifest chat.yaml
      ssh NODE sudo dmesg | faultline explain - pod.log --format json
      faultline explain --pod llm/chat-0
      ssh NODE sudo dmesg | faultline explain --pod llm/chat-0 -

    Exit status: 0 nothing found, 1 something found, 2 the input or the call is unusable.
    """
    from agent.detect.recognise import recognise
    from agent.detect.rules import RuleError
    from agent.explain import as_json, explain
    from agent.rulebook import load_rulebook
    from agent.sources.handed import UnusableInput, open_handed

    if pod is None and (container or kubeconfig or context):
        raise Unusable("--container, --kubeconfig and --context belong to --pod")
    asked = None
    if pod is not None:
        from agent.cli.pod import ask

        asked = ask(pod, container=container, kubeconfig=kubeconfig, context=context)
        for note in asked.missing:
            click.echo(f"faultline: {note}", err=True)
    elif not files and (sys.stdin is None or sys.stdin.isatty()):
        raise Unusable("no input: name files, or pipe a log in (faultline explain --help shows examples)")
    try:
        book = load_rulebook(folders)
        with _Progress(sys.stderr.isatty() and form == "text") as progress:
            inputs = open_handed(
                files or (("-",) if asked is None else ()),
                stdin=sys.stdin.buffer if sys.stdin is not None else BytesIO(),
                recognise=recognise,
                on_progress=progress,
            )
            if asked is not None:
                explanation = explain(chain(asked.inputs, inputs), book, held=asked.held, on_progress=progress)
                explanation = explanation.with_checked(asked.checked)
            else:
                explanation = explain(inputs, book, on_progress=progress)
        dressed = _dressed(explanation, book, manifest, way)
    except (RuleError, UnusableInput) as error:
        raise Unusable(str(error)) from None
    if form == "json":
        click.echo(as_json(explanation, dressed=dressed))
    else:
        from agent.report.explanation import as_text

        click.echo(as_text(explanation, dressed=dressed, width=_width()), color=colour)
    sys.exit(1 if explanation.found else 0)


def _dressed(explanation: Explanation, book: Rulebook, manifest: Path | None, way: int | None) -> dict[str, Dressing]:
    """The remedy to show with each verdict, by the verdict's id."""
    if way is None and manifest is None and not any(r.changes for v in explanation.verdicts for r in v.remedies):
        return {}
    from agent.respond.manifest import SIZE_LIMIT, ManifestError, service_in
    from agent.respond.remedy import dress

    service = None
    if manifest is not None:
        try:
            with manifest.open("rb") as file:
                service = service_in(file.read(SIZE_LIMIT + 1), table=book.field_table)
        except OSError as error:
            raise Unusable(f"{manifest}: {error.strerror}") from None
        except ManifestError as error:
            raise Unusable(f"{manifest}: {error}") from None
    if way is not None and manifest is None:
        raise Unusable("--way chooses what to patch in a manifest: give --manifest too")
    at = None if way is None else way - 1
    most = max((len(v.remedies) for v in explanation.verdicts), default=0)
    if way is not None and way > most:
        raise Unusable(f"--way {way}: there are {most} ways" if most else f"--way {way}: there is nothing to patch")
    found = {
        v.id: dress(v, table=book.field_table, facts=explanation.facts, manifest=service, way=at)
        for v in explanation.verdicts
    }
    return {key: dressing for key, dressing in found.items() if dressing is not None}


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


class _Progress:
    """A bar on standard error, only on a terminal and only once an input is large enough to be waited for."""

    LARGE = 64 << 20

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._shown = -1

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, done: int, total: int | None) -> None:
        if not self._enabled or max(done, total or 0) < self.LARGE:
            return
        mib = done >> 20
        if mib // 16 == self._shown:
            return
        self._shown = mib // 16
        share = f"{100 * done // total:3d} % of {total >> 20} MiB" if total else f"{mib} MiB"
        sys.stderr.write(f"\rreading: {share} ")
        sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown >= 0:
            sys.stderr.write("\r\x1b[K")

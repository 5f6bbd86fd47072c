"""The status page as one plain HTML text. Pure; every value is escaped here, since log text is a tenant's text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from agent.model import Evidence, Fault, Plan, Severity, Verdict
from agent.report.events import Report
from agent.report.gpus import GpuStatus, use_of
from agent.report.status import SourceStatus, State
from agent.text import duration, printable

_STYLE = """
:root { color-scheme: light dark; --bad: #b3261e; --good: #1b6e3c; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-top: 1px solid var(--line); }
td { overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .25rem 0; unicode-bidi: isolate; }
.bad { color: var(--bad); } .good { color: var(--good); }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --good: #81c995; } }
@media (max-width: 40rem) { td, th { display: block; border-top: 0; padding: .1rem 0; } tr { display: block;
  border-top: 1px solid var(--line); padding: .5rem 0; } thead { display: none; } }
"""

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing but our own style: text that slipped through the escaping could still load and run nothing."""

_LINKS = ("faults", "failures", "verdicts", "plans", "events", "sources", "rules", "gpus")


def status_page(state: State) -> str:
    """The whole page for what is known now."""
    now = state.now()
    faults, verdicts = state.faults(), state.verdicts()
    sources, plans = state.sources(), state.plans()
    said, bad = headline(state.node, faults, verdicts, sources)
    links = [f'<a href="/api/v1/{name}">{name}</a>' for name in _LINKS]
    links += ['<a href="/metrics">metrics</a>', '<a href="/readyz">readiness</a>']
    parts = [
        f'<h1 class="{"bad" if bad else "good"}">{_text(said)}</h1>',
        f"<p>Mode {_text(state.mode)}. As of {_time(now)}.</p>",
        _section("Faults", "Object|What|Since|Last|Evidence", (_fault_row(f, now=now) for f in faults)),
        _section("Plan", "Action|Target|Why", (_plan_row(p) for p in plans)),
        _section("Verdicts", "Backend|Cause|What to do|Evidence", (_verdict_row(v, now=now) for v in verdicts)),
        _section("Events", "Last seen|Type|Reason|Object|Message", (_event_row(e, now=now) for e in state.events())),
        _section("GPUs", "Address|UUID|Model|State|Use", (_gpu_row(g) for g in state.gpus())),
        _section("Sources", "Source|State|Last read|Lost|Errors", (_source_row(s, now=now) for s in sources)),
        f"<p>As data: {', '.join(links)}</p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Faultline: {_text(state.node)}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def headline(
    node: str, faults: Sequence[Fault], verdicts: Sequence[Verdict], sources: Sequence[SourceStatus]
) -> tuple[str, bool]:
    """One sentence on the state of the node, and whether it is bad. Blindness never reads like health."""
    fatal = [f for f in faults if f.accuses]
    lesser = [f for f in faults if f.open and f.severity in (Severity.PENDING, Severity.DEGRADED, Severity.UNKNOWN)]
    blind = [s.name for s in sources if s.state == "blind"]
    waiting = [s.name for s in sources if s.state == "starting"]
    parts = []
    if fatal:
        gpus = sorted({f.gpu.pci for f in fatal if f.gpu.pci is not None})
        named = f" (GPU {', '.join(gpus)})" if gpus else ""
        parts.append(f"{_count(len(fatal), 'fault')} on {node}{named}: {fatal[0].title}")
    if lesser:
        parts.append(f"{_count(len(lesser), 'lesser fault')} on {node}: {lesser[0].title}")
    if blind:
        parts.append(f"blind: {', '.join(blind)} cannot be read")
    if not parts and waiting:
        return f"Not known yet: {', '.join(waiting)} not read on {node} so far.", True
    if parts:
        return "; ".join(parts) + ".", True
    told = f"; {_count(len(verdicts), 'failed or slow backend')} explained below" if verdicts else ""
    return f"No fault is known on {node}{told}.", False


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _text(text: object) -> str:
    return escape(printable(str(text)), quote=True)


def _time(at: float | None) -> str:
    if at is None:
        return "unknown"
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return "unknown"
    stamp = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    return f'<time datetime="{stamp}">{stamp}</time>'


def _ago(at: float | None, *, now: float) -> str:
    return "never" if at is None else f"{_text(duration(now - at))} ago"


def _section(title: str, header: str, rows: Iterable[Sequence[str]]) -> str:
    """A table under a heading; the cells are HTML already."""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    if not body:
        return f"<h2>{title}</h2>\n<p>None.</p>"
    head = "".join(f'<th scope="col">{name}</th>' for name in header.split("|"))
    return f"<h2>{title}</h2>\n<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _evidence(lines: Sequence[Evidence]) -> str:
    return "".join(
        f"<pre>{_text(e.source)}{f':{e.line}' if e.line is not None else ''}: {_text(e.text)}</pre>" for e in lines
    )


def _fault_row(fault: Fault, *, now: float) -> list[str]:
    where = fault.gpu.pci or fault.gpu.uuid or fault.scope.value
    xids = f" (Xid {', '.join(map(str, fault.xids))})" if fault.xids else ""
    state = "" if fault.open else " Cleared."
    what = f"<strong>{_text(fault.title)}</strong>{_text(xids)}: {_text(fault.severity)}.{state} {_text(fault.why)}"
    steps = "".join(f"<li>{_text(step)}</li>" for step in fault.fix)
    return [
        _text(where),
        what + (f"<ol>{steps}</ol>" if steps else ""),
        _time(fault.first_seen),
        _ago(fault.last_seen, now=now),
        _evidence(fault.evidence),
    ]


def _plan_row(plan: Plan) -> list[str]:
    withheld = f" (withheld: {_text(plan.withheld)})" if plan.withheld else ""
    return [f"{_text(plan.action)} {_text(plan.value)}{withheld}", _text(plan.target), _text(plan.why)]


def _verdict_row(verdict: Verdict, *, now: float) -> list[str]:
    steps = "".join(f"<li>{_text(step)}</li>" for step in verdict.fix)
    checked = "".join(f"<li>{_text(step)}</li>" for step in verdict.checked)
    seen = f" {verdict.count} times," if verdict.count > 1 else ""
    return [
        f"{_text(verdict.container or '')}<br>{seen} {_ago(verdict.last_seen, now=now)}",
        f"<strong>{_text(verdict.title)}</strong><br>{_text(verdict.cause)} ({_text(verdict.confidence)})<br>"
        f"{_text(verdict.why)}",
        (f"<ol>{steps}</ol>" if steps else "") + (f"<p>Checked:</p><ul>{checked}</ul>" if checked else ""),
        _evidence(verdict.evidence),
    ]


def _event_row(report: Report, *, now: float) -> list[str]:
    return [
        _ago(report.last_seen, now=now),
        _text(report.type),
        _text(report.reason),
        _text(report.regarding),
        _text(report.note),
    ]


def _source_row(source: SourceStatus, *, now: float) -> list[str]:
    why = f": {_text(source.why)} {_text(source.cure)}" if source.why else ""
    how = f" ({_text(source.how)})" if source.how else ""
    return [
        _text(source.name) + how,
        f'<span class="{"bad" if source.state == "blind" else "good"}">{_text(source.state)}</span>{why}',
        _ago(source.last_read, now=now),
        str(source.lost),
        str(source.errors),
    ]


def _gpu_row(gpu: GpuStatus) -> list[str]:
    said = "; ".join((*gpu.wrong, *gpu.notes)) or (
        "nothing speaks against it" if gpu.state is not None else "not known"
    )
    kind = "bad" if gpu.wrong else "good" if gpu.state is not None else ""
    return [
        _text(gpu.pci),
        _text(gpu.uuid or "not told"),
        _text(gpu.state.model if gpu.state is not None else ""),
        f'<span class="{kind}">{_text(said)}</span>',
        _text(use_of(gpu.state)),
    ]

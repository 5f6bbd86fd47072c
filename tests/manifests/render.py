"""Renders the chart and writes manifests/base and manifests/overlays from it. Never talks to a cluster.

``python -m tests.manifests.render --write`` writes; without ``--write`` it says what differs and ends with 1.
The chart is the only source: an overlay is what its rendering has different from the base, as JSON patches, so that
two overlays can be used together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
CHART = MANIFESTS / "chart" / "faultline"
NAMESPACE = "faultline"

OVERLAYS: dict[str, dict[str, Any]] = {
    "observe": {},
    "device": {"mode": "device"},
    "taint": {"mode": "taint"},
    "cordon": {"mode": "cordon"},
    "kmsg": {"kernelLog": {"privileged": True}},
}
"""Overlay -> the chart's values that it stands for."""

HELM_LABELS = ("app.kubernetes.io/managed-by", "helm.sh/chart")
HEAD = "# Generated from manifests/chart/faultline by `make manifests`. Change the chart, not this file.\n"

Json = dict[str, Any]


def render(values: Json | None = None, *, namespace: str = NAMESPACE, name: str = "faultline") -> list[Json]:
    """Every object of the chart, ordered by kind and name."""
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values or {}, name=name, namespace=namespace)
    found = [o for path, text in files.items() if path.endswith(".yaml") for o in yaml.safe_load_all(text) if o]
    return sorted(found, key=key)


def key(item: Json) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def without_helm(item: Any) -> Any:
    """The object without what only Helm says of it."""
    if isinstance(item, dict):
        return {k: without_helm(v) for k, v in item.items() if k not in HELM_LABELS}
    return [without_helm(v) for v in item] if isinstance(item, list) else item


def wanted(overlay: str) -> list[Json]:
    """What the overlay must come out as."""
    return [without_helm(item) for item in render({"namespace": {"create": True}, **OVERLAYS[overlay]})]


def difference(old: Any, new: Any, path: str = "") -> Iterator[Json]:
    """JSON patch operations from one to the other; lists are replaced whole."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield {"op": "replace", "path": path, "value": new}
        return
    for name in sorted(old.keys() | new.keys()):
        at = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in new:
            yield {"op": "remove", "path": at}
        elif name not in old:
            yield {"op": "add", "path": at, "value": new[name]}
        else:
            yield from difference(old[name], new[name], at)


def files() -> dict[str, str]:
    """Path below manifests/ -> text, for base and overlays."""
    base = {key(item): item for item in wanted("observe")}
    out = {"base/faultline.yaml": _dump_all(list(base.values()))}
    out["base/kustomization.yaml"] = _dump(_kustomization(resources=["faultline.yaml"]))
    for overlay in OVERLAYS:
        objects = {key(item): item for item in wanted(overlay)}
        more: Json = {"resources": ["../../base"]}
        if added := [item for at, item in objects.items() if at not in base]:
            out[f"overlays/{overlay}/more.yaml"] = _dump_all(added)
            more["resources"].append("more.yaml")
        patches = [
            {"target": {"kind": at[0], "name": at[1]}, "patch": yaml.safe_dump(operations, sort_keys=False, width=110)}
            for at, item in objects.items()
            if at in base and (operations := list(difference(base[at], item)))
        ]
        if missing := base.keys() - objects.keys():
            raise ValueError(f"overlay {overlay} lacks {sorted(missing)}")
        if patches:
            more["patches"] = patches
        out[f"overlays/{overlay}/kustomization.yaml"] = _dump(_kustomization(**more))
    return out


def _kustomization(**more: Any) -> Json:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **more}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a person can read them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dump(item: Json) -> str:
    return HEAD + yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=110)


def _dump_all(items: list[Json]) -> str:
    return HEAD + yaml.dump_all(items, Dumper=_Dumper, sort_keys=False, width=110)


def main(args: list[str]) -> int:
    new = files()
    there = {str(p.relative_to(MANIFESTS)) for d in ("base", "overlays") for p in (MANIFESTS / d).rglob("*.yaml")}
    differ = sorted(there - new.keys())
    for name, text in new.items():
        path = MANIFESTS / name
        if not path.exists() or path.read_text() != text:
            differ.append(name)
    if "--write" in args:
        for name in there - new.keys():
            (MANIFESTS / name).unlink()
        for name, text in new.items():
            (MANIFESTS / name).parent.mkdir(parents=True, exist_ok=True)
            (MANIFESTS / name).write_text(text)
        return 0
    for name in differ:
        print(f"manifests/{name}: not what the chart renders; run `make manifests`")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

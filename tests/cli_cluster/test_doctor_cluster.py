"""The doctor in a cluster: what is missing, what it costs, what grants it; against a small API server."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent import doctor_cluster
from agent.config import load_settings
from agent.doctor import Check, worst
from agent.doctor_cluster import REVIEWS, cluster_checks, connect
from agent.kube.rights import MODES, RIGHTS, as_rules, rights_of
from tests.cli_cluster.server import ApiServer, kubeconfig, refusal, serving


def review(*, refused: tuple[tuple[str, str], ...] = ()) -> Callable[[Any], Any]:
    """Answers every review; (resource or resource/subresource, verb) in `refused` are not allowed."""

    def answer(body: Any) -> Any:
        asked = body["spec"]["resourceAttributes"]
        name = asked["resource"] + ("/" + asked["subresource"] if "subresource" in asked else "")
        return 201, body | {"status": {"allowed": (name, asked["verb"]) not in refused}}

    return answer


def well(path: str) -> None:
    return None


def away(path: str) -> None:
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def checks(
    server: ApiServer, folder: Path, *, mode: str = "observe", connect: Callable[[str], None] = well, **environ: str
) -> list[Check]:
    own = {"FAULTLINE_MODE": mode, "FAULTLINE_CLUSTER_KUBECONFIG": kubeconfig(folder, server), **environ}
    return asyncio.run(cluster_checks(load_settings(environ=own).settings, environ={}, connect=connect))


@pytest.mark.parametrize("mode", MODES)
def test_every_right_of_the_mode_is_asked_for_once(mode: str, tmp_path: Path) -> None:
    with serving({REVIEWS: review()}) as server:
        found = checks(server, tmp_path, mode=mode)
    assert worst(found) == "ok", found
    assert all(not check.lost and not check.grant for check in found)
    assert [check.name for check in found] == ["api-server", "rights", "pod-resources", "pods-api"]
    asked = [body["spec"]["resourceAttributes"] for _, _, _, body in server.asked]
    seen = {(a["group"], a["resource"], a.get("subresource", ""), a["verb"]) for a in asked}
    assert seen == {(r.group, r.resource, r.subresource, r.verb) for r in rights_of(mode)}
    assert len(asked) == len(seen)
    assert {path for _, path, _, _ in server.asked} == {REVIEWS}


@pytest.mark.parametrize("right", RIGHTS, ids=lambda r: "-".join((*r.of, r.verb)))
def test_each_right_that_is_missing_tells_its_cost_and_its_cure(right: Any, tmp_path: Path) -> None:
    with serving({REVIEWS: review(refused=((right.of[1], right.verb),))}) as server:
        found = checks(server, tmp_path, mode="cordon")
    missing = [check for check in found if check.status != "ok"]
    assert [(c.name, c.lost) for c in missing] == [("rights", right.lost)]
    assert missing[0].status == ("fail" if right.vital else "warn")
    assert f"may not {right.verb} {right.of[1]}" in missing[0].seen
    rules = yaml.safe_load(missing[0].grant)["rules"]
    assert rules == [{"apiGroups": [right.group], "resources": [right.of[1]], "verbs": [right.verb]}]


def test_a_mode_asks_for_no_more_than_it_needs() -> None:
    assert not any(r.vital for r in rights_of("observe"))
    assert {r.of[1] for r in rights_of("device") if r.vital} == {"devicetaintrules", "nodes"}
    assert rights_of("taint") == rights_of("cordon") == RIGHTS
    assert not any(r.resource == "events" for r in rights_of("observe", events=False))
    assert {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]} in as_rules(RIGHTS)
    assert len({(*r.of, r.verb) for r in RIGHTS}) == len(RIGHTS)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal(401, "Unauthorized", "Unauthorized"), "401 Unauthorized"),
        (refusal(500, "InternalError", "etcd"), "500 InternalError"),
        ((200, b"<html>"), "not JSON"),
    ],
)
def test_a_server_that_does_not_answer_as_it_should(answer: Any, words: str, tmp_path: Path) -> None:
    with serving({REVIEWS: answer}) as server:
        found = checks(server, tmp_path)
    assert (found[0].name, found[0].status) == ("api-server", "fail")
    assert words in found[0].seen
    assert found[0].lost
    assert found[0].grant


@pytest.mark.parametrize("answer", [{}, {"status": None}, {"status": {"allowed": "yes"}}, {"status": []}])
def test_what_is_not_granted_in_so_many_words_is_missing(answer: Any, tmp_path: Path) -> None:
    with serving({REVIEWS: answer}) as server:
        assert worst(checks(server, tmp_path, mode="taint")) == "fail"


def test_a_server_that_is_away(tmp_path: Path) -> None:
    with serving({}) as server:
        pass
    found = checks(server, tmp_path)
    assert (found[0].name, found[0].status) == ("api-server", "fail")


def test_without_a_cluster_it_is_a_warning(tmp_path: Path) -> None:
    settings = load_settings(environ={}).settings
    found = asyncio.run(cluster_checks(settings, environ={}, connect=well))
    assert (found[0].name, found[0].status) == ("api-server", "warn")
    assert found[0].lost
    assert found[0].grant


def test_a_pod_without_its_token_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cluster, "SERVICE_ACCOUNT", tmp_path)
    settings = load_settings(environ={}).settings
    found = asyncio.run(cluster_checks(settings, environ={"KUBERNETES_SERVICE_HOST": "x"}, connect=well))
    assert (found[0].name, found[0].status) == ("api-server", "fail")
    assert "automountServiceAccountToken: true" in found[0].grant


def test_a_login_that_cannot_be_used_fails(tmp_path: Path) -> None:
    settings = load_settings(environ={"FAULTLINE_CLUSTER_KUBECONFIG": str(tmp_path / "none")}).settings
    found = asyncio.run(cluster_checks(settings, environ={}, connect=well))
    assert (found[0].name, found[0].status) == ("api-server", "fail")


def test_sockets_that_are_away(tmp_path: Path) -> None:
    with serving({REVIEWS: review()}) as server:
        found = {c.name: c for c in checks(server, tmp_path, connect=away)}
    assert found["pod-resources"].status == "warn"
    assert isinstance(yaml.safe_load(found["pod-resources"].grant), dict)
    assert found["pods-api"].status == "ok"
    assert found["pods-api"].lost
    with serving({REVIEWS: review()}) as server:
        off = {"FAULTLINE_KUBELET_POD_RESOURCES": "", "FAULTLINE_KUBELET_PODS_API": ""}
        assert len(checks(server, tmp_path, connect=away, **off)) == 2


def test_a_socket_is_really_connected_to(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with pytest.raises(FileNotFoundError):
        connect(path)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        with pytest.raises(ConnectionRefusedError):
            connect(path)
        unix.listen()
        connect(path)

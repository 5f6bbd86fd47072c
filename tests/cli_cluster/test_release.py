"""`faultline release` as a person meets it, against a small API server: what is set, what is refused, exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.cli import group

KEY = "faultline.dev/release"


class Api:
    def __init__(self, root: Path) -> None:
        self.marked = ["n1"]
        self.annotations: dict[str, str] = {}
        self.patches: list[Any] = []
        self.obeys, self.status = True, 200
        api = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status: int, body: Any) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self) -> None:
                if self.path.startswith("/api/v1/nodes?"):
                    self.answer(200, {"items": [{"metadata": {"name": n}} for n in api.marked]})
                elif self.path == "/api/v1/nodes/n1":
                    self.answer(200, {"metadata": {"name": "n1", "annotations": api.annotations}})
                else:
                    self.answer(404, {"reason": "NotFound", "message": "no such node"})

            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.patches.append(body)
                if not api.obeys:
                    api.annotations = body["metadata"]["annotations"]
                self.answer(api.status, {"reason": "Forbidden"} if api.status != 200 else {})

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.config = root / "kubeconfig"
        self.config.write_text(
            json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            })
        )  # fmt: skip

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(group, ["release", "--kubeconfig", str(self.config), *args])

    @property
    def asked(self) -> list[str]:
        return [p["metadata"]["annotations"][KEY] for p in self.patches]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    found = Api(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        (["n1"], "all"),
        (["all", "--node", "n1"], "all"),
        (["00000000:5D:00.0"], "00000000:5D:00.0"),
        (["GPU-5, fault-1", "--node", "n1", "--wait", "5"], "GPU-5,fault-1"),
    ],
)
def test_it_sets_the_annotation(api: Api, args: list[str], asked: str) -> None:
    done = api.run(*args)
    assert done.exit_code == 0 and api.asked == [asked], done.output


def test_a_dry_run_sets_nothing_and_a_release_that_waits_is_kept(api: Api) -> None:
    assert api.run("n1", "--dry-run").exit_code == 0 and api.asked == []
    api.annotations = {KEY: "fault-9"}
    assert api.run("fault-1").exit_code == 0 and api.asked == ["fault-9,fault-1"]


def test_one_that_no_agent_takes_up_ends_with_1(api: Api) -> None:
    api.obeys = False
    done = api.run("n1", "--wait", "0.01")
    assert done.exit_code == 1 and "is the agent running" in done.output


@pytest.mark.parametrize("args", [["all"], [" , "], ["No_Node"], ["../pods"], ["n2"]])
def test_what_cannot_be_meant_is_refused(api: Api, args: list[str]) -> None:
    done = api.run(*args)
    assert done.exit_code == 2 and "faultline: " in done.output and api.asked == []


def test_which_node_is_never_guessed_and_a_refusal_is_said(api: Api) -> None:
    api.marked = ["n1", "n3"]
    assert "2 nodes are marked" in api.run("fault-1").output
    api.marked = []
    assert "no node is marked" in api.run("fault-1").output and api.asked == []
    api.status = 403
    done = api.run("n1")
    assert done.exit_code == 2 and "403 Forbidden" in done.output

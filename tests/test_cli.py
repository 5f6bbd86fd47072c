"""The command as a user meets it: exit codes, messages, JSON, help."""

import gzip
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent import __version__
from agent.cli import COMMANDS, group

BUSY = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
XID = "[ 100.5] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
REFUSED = (
    "ValueError: --linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16, got None\n"
)


def run(*args: str, stdin: str | bytes = ""):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(group, list(args), input=stdin, prog_name="faultline")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "pod.log").write_text(BUSY)
    (tmp_path / "kmsg.txt").write_text(XID)
    return tmp_path


def test_the_version() -> None:
    assert __version__ in run("--version").output


@pytest.mark.parametrize("name", [*COMMANDS, "rules list", "rules show", "rules check"])
def test_every_command_has_help_with_what_it_does(name: str) -> None:
    done = run(*name.split(), "--help")
    assert done.exit_code == 0 and "Usage: faultline" in done.output
    if name in ("explain", "run", "xid", "doctor", "config", "completion", "demo", "rules"):
        assert "Examples:" in done.output


def test_a_misspelt_command_is_answered_with_the_near_one() -> None:
    done = run("explian")
    assert done.exit_code == 2 and "Did you mean 'explain'?" in done.output


def test_explain_says_something_found_with_exit_status_1_and_nothing_with_0(logs: Path, tmp_path: Path) -> None:
    assert run("explain", str(logs / "pod.log")).exit_code == 1
    (tmp_path / "fine.log").write_text("[2026-11-30 20:00:00] The server is fired up and ready to roll!\n")
    done = run("explain", str(tmp_path / "fine.log"))
    assert done.exit_code == 0 and "Nothing found" in done.output


def test_a_kernel_log_beside_the_pods_makes_it_the_gpus(logs: Path) -> None:
    done = run("explain", "--format", "json", str(logs / "pod.log"), str(logs / "kmsg.txt"))
    answer = json.loads(done.output)
    assert (answer["apiVersion"], answer["kind"], answer["action"]) == ("faultline.dev/v1", "Explanation", "cordon")
    (verdict,) = answer["verdicts"]
    assert verdict["component"] == "gpu" and verdict["gpu"]["pci"] == "0000:5d:00" and verdict["xids"] == [79]
    assert {(e["source"].rsplit("/", 1)[-1], e["line"]) for e in verdict["evidence"]} == {
        ("pod.log", 1),
        ("kmsg.txt", 1),
    }


def test_the_order_of_the_files_does_not_matter(logs: Path) -> None:
    files = [str(logs / "pod.log"), str(logs / "kmsg.txt")]
    one, two = (json.loads(run("explain", "--format", "json", *f).output) for f in (files, files[::-1]))
    assert one["verdicts"] == two["verdicts"] and one["faults"] == two["faults"]


def test_standard_input_and_gzip_are_taken(logs: Path, tmp_path: Path) -> None:
    assert run("explain", stdin=BUSY).exit_code == 1
    assert run("explain", "-", stdin=gzip.compress(BUSY.encode())).exit_code == 1
    (tmp_path / "pod.log.gz").write_bytes(gzip.compress(BUSY.encode()))
    assert run("explain", str(tmp_path / "pod.log.gz")).exit_code == 1


def test_an_xid_that_a_container_prints_accuses_nothing() -> None:
    text = "[2026-11-30 20:00:00] hello\n[2026-11-30 20:00:01] " + XID.split("] ", 1)[1] + BUSY
    answer = json.loads(run("explain", "--format", "json", stdin=text).output)
    assert answer["faults"] == [] and answer["action"] == "advise"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "none.log", ["none.log"]),
        (lambda p: p, ["folder"]),
        (lambda p: (p / "x.bin").write_bytes(b"\x7fELF" + bytes(range(256)) * 20) and p / "x.bin", ["x.bin"]),
    ],
    ids=["missing", "directory", "program"],
)
def test_unusable_input_is_one_line_with_the_file_and_exit_status_2(tmp_path: Path, make, words) -> None:  # type: ignore[no-untyped-def]
    done = run("explain", str(make(tmp_path)))
    assert done.exit_code == 2
    assert all(w in done.output for w in words) and "Traceback" not in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_line_numbers_of_a_large_log_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import agent.explain

    noise = "[2026-11-30 20:00:00] Decode batch, #running-req: 1\n"
    path = tmp_path / "large.log"
    path.write_text(noise * 5000 + REFUSED + noise * 5000)
    plain = json.loads(run("explain", "--format", "json", str(path)).output)
    monkeypatch.setattr(agent.explain, "LARGE", 1000)
    large = json.loads(run("explain", "--format", "json", str(path)).output)
    assert plain["verdicts"] == large["verdicts"]
    assert large["verdicts"][0]["evidence"][0]["line"] == 5001


def test_a_bad_rule_file_is_told_with_file_line_and_key(tmp_path: Path) -> None:
    bad = tmp_path / "mine.yaml"
    bad.write_text("schema: 1\nrules:\n  - id: my/rule\n    title: mine\n    literals: [abcd]\n    sauce: x\n")
    done = run("rules", "check", str(tmp_path))
    assert done.exit_code == 2 and f"{bad}:6" in done.output and "sauce" in done.output


def test_an_example_that_does_not_match_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "schema: 1\nrules:\n- id: my/rule\n  title: mine\n  literals: [some words]\n  check: [look]\n  source: mine\n"
        "  examples: {match: [other words]}\n"
    )
    done = run("rules", "check", str(tmp_path))
    assert done.exit_code == 2 and "does not match its own rule" in done.output


def test_a_rule_of_the_users_takes_the_place_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "schema: 1\nrules:\n- id: my/words\n  title: My own words\n  literals: [the flux capacitor]\n"
        "  component: config\n"
        "  check: [Look at the flux.]\n  source: mine\n  examples: {match: [the flux capacitor is off]}\n"
    )
    done = run("explain", "--rules", str(tmp_path), "--format", "json", stdin="the flux capacitor is off\n")
    assert json.loads(done.output)["verdicts"][0]["rule"] == "my/words"


def test_rules_are_listed_and_shown_and_an_unknown_one_is_answered() -> None:
    assert run("rules", "list").output.count("\n") > 200
    assert "literals" in run("rules", "show", "cuda/device-busy").output
    done = run("rules", "show", "cuda/device-bussy")
    assert done.exit_code == 2 and "cuda/device-busy" in done.output


def test_an_xid_is_explained_and_an_unknown_one_is_said_to_be_one() -> None:
    done = run("xid", "79")
    assert "fallen off the bus" in done.output and "reboot" in done.output
    assert json.loads(run("xid", "154", "--format", "json").output)["code"] == 154
    assert run("xid", "99999").exit_code == 2
    assert run("xid", "seventy").exit_code == 2


def test_the_settings_are_shown_with_where_they_come_from() -> None:
    rows = json.loads(run("config", "--format", "json", "--mode", "taint").output)
    mode = next(r for r in rows if r["key"] == "mode")
    assert (mode["value"], mode["origin"]) == ("taint", "flag")
    assert all(r["description"] for r in rows)
    done = run("config", "--mode", "destroy")
    assert done.exit_code == 2 and "mode" in done.output


def test_doctor_answers_in_json() -> None:
    answer = json.loads(run("doctor", "--format", "json", "--http-port", "0").output)
    assert answer["kind"] == "DoctorReport" and {c["name"] for c in answer["checks"]} >= {
        "kernel-log",
        "rules",
        "state-dir",
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    assert "_FAULTLINE_COMPLETE" in run("completion", shell).output


def test_a_port_in_use_is_one_line_with_the_cure_and_exit_status_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "agent", "run", "--http-address", "127.0.0.1", "--http-port", str(port),
             "--state-dir", str(tmp_path), "--logs-root", str(tmp_path)],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert str(port) in done.stderr and "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_failure_of_ours(logs: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m agent rules list | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.startswith("ID") and "Traceback" not in done.stderr


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_agent_ends_soon_after_sigterm_in_the_middle_of_a_reload_and_a_flood(tmp_path: Path) -> None:
    pod = tmp_path / "pods" / "ns_p_0c6f1a52-0000-0000-0000-000000000001" / "sglang"
    pod.mkdir(parents=True)
    (tmp_path / "kmsg").touch()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agent = subprocess.Popen(
        [sys.executable, "-m", "agent", "run", "--http-address", "127.0.0.1", "--http-port", str(port),
         "--state-dir", str(tmp_path / "state"), "--logs-root", str(tmp_path / "pods"),
         "--kernel-path", str(tmp_path / "kmsg")],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        limit = time.monotonic() + 20
        while not _listens(port) and agent.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)
        (pod / "0.log").write_text(f"2026-11-30T20:00:00.000000000Z stderr F {BUSY}" * 100_000)
        agent.send_signal(signal.SIGHUP)
        agent.send_signal(signal.SIGTERM)
        _, said = agent.communicate(timeout=2)
    finally:
        agent.kill()
        agent.communicate()
    assert agent.returncode == 0 and "Traceback" not in said, said

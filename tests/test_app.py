"""The running agent where something goes wrong: a mistake of its own, rules that change under it, a blind source."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.app import App
from agent.config import HttpSettings, KernelSettings, KubeletSettings, LogsSettings, SelectSettings, Settings
from agent.detect.rules import RuleError
from agent.model import Action
from agent.report.events import Reason, Report
from agent.report.store import Store
from agent.respond.policy import NO_CLUSTER
from agent.rulebook import load_rulebook
from agent.sources.kernel import open_kernel_source
from tests.test_story import until

BUSY = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
RULE = """schema: 1
rules:
- id: my/words
  title: My own words
  literals: [the flux capacitor]
  component: config
  check: [Look at the flux.]
  source: mine
  examples: {match: [the flux capacitor is off]}
"""


def settings(root: Path, **changes: object) -> Settings:
    (root / "pods").mkdir(exist_ok=True)
    (root / "kmsg").touch()
    values: dict[str, object] = {
        "node_name": "n1",
        "state_dir": str(root / "state"),
        "http": HttpSettings(address="127.0.0.1", port=0),
        "kernel": KernelSettings(path=str(root / "kmsg")),
        "logs": LogsSettings(root=str(root / "pods")),
        "kubelet": KubeletSettings(checkpoint="", pods=""),
        "select": SelectSettings(all=True),
    }
    return Settings(**(values | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def running(app: App) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(stop))
    await until(lambda: app.started.is_set() or task.done(), what="started")
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


def write(root: Path, text: str, *, pod: str = "p") -> None:
    folder = root / "pods" / f"ns_{pod}_0c6f1a52-0000-0000-0000-000000000001" / "sglang"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "0.log").open("a") as log:
        log.write(f"2026-11-30T20:00:00.000000000Z stderr F {text}\n")


def record(root: Path, seq: int, text: str) -> None:
    with (root / "kmsg").open("a") as feed:
        feed.write(f"4,{seq},{seq},-;{text}\n")


async def test_a_mistake_of_ours_in_one_batch_does_not_end_the_agent(tmp_path: Path) -> None:
    app = App(settings(tmp_path), sink=lambda _: None)
    inner = app.pipeline.chunk
    seen = 0

    def stumbling(chunk) -> None:  # type: ignore[no-untyped-def]
        nonlocal seen
        seen += 1
        if seen == 1:
            raise RuntimeError("a bug")
        inner(chunk)

    app.pipeline.chunk = stumbling  # type: ignore[method-assign]
    async with running(app):
        write(tmp_path, "first")
        await until(lambda: seen == 1, what="the bug is met")
        write(tmp_path, BUSY)
        await until(lambda: bool(app.failures()), what="the next batch is read")
        assert app.samples()['faultline_internal_errors_total{source="logs"}'] == 1


async def test_a_rule_that_is_added_explains_and_a_bad_one_is_refused_and_counted(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "mine.yaml").write_text(RULE)
    chosen = settings(tmp_path, rules_dirs=(str(rules),))
    app = App(chosen, reload=lambda: chosen, sink=lambda _: None)
    async with running(app):
        await until(lambda: any(r.id == "my/words" for r in app.rules()), what="the rule is in force")
        (rules / "mine.yaml").write_text(RULE.replace("title:", "titel:"))
        refused = "faultline_rules_reload_errors_total"
        await until(lambda: app.samples()[refused] >= 1, what="the bad file is refused")
        assert any(r.id == "my/words" for r in app.rules())
        (rules / "mine.yaml").write_text(RULE.replace("my/words", "my/other-words"))
        await until(lambda: any(r.id == "my/other-words" for r in app.rules()), what="the good file is taken")
        write(tmp_path, "the flux capacitor is off")
        await until(lambda: any(v.rule == "my/other-words" for v in app.verdicts()), what="it explains")


async def test_a_kernel_log_that_cannot_be_read_is_told_and_everything_else_goes_on(tmp_path: Path) -> None:
    told: list[Report] = []
    app = App(settings(tmp_path, kernel=KernelSettings(path=str(tmp_path / "none"))), sink=told.append)
    async with running(app):
        write(tmp_path, BUSY)
        await until(lambda: bool(app.failures()), what="the container log is read")
        assert [r.reason for r in told] == [Reason.SOURCE_BLIND]
        assert not app.readiness().ready and "kernel" in app.readiness().reasons[0]
        assert any("kernel log: not given" in line for v in app.verdicts() for line in v.checked)


async def test_a_folder_of_logs_that_appears_later_is_read(tmp_path: Path) -> None:
    app = App(
        settings(tmp_path, logs=LogsSettings(root=str(tmp_path / "late"), poll_interval=0.1)), sink=lambda _: None
    )
    async with running(app):
        assert not app.readiness().ready
        (tmp_path / "pods").rename(tmp_path / "late")
        folder = tmp_path / "late" / "ns_p_0c6f1a52-0000-0000-0000-000000000001" / "sglang"
        folder.mkdir(parents=True)
        (folder / "0.log").write_text(f"2026-11-30T20:00:00Z stderr F {BUSY}\n")
        await until(lambda: bool(app.failures()), what="it is read")
        assert app.readiness().ready or "kernel" in app.readiness().reasons[0]


async def test_a_changed_mode_makes_the_plans_anew(tmp_path: Path) -> None:
    modes = iter(["taint", "cordon"])
    app = App(settings(tmp_path), reload=lambda: settings(tmp_path, mode=next(modes)), sink=lambda _: None)
    async with running(app):
        record(tmp_path, 1, "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.")
        await until(lambda: bool(app.plans()), what="a plan is made")
        assert "mode is observe" in app.plans()[0].withheld
        app.ask_reload()
        # Xid 79 warrants a cordon; mode taint allows the taint, and only a cluster is wanting.
        await until(lambda: app.plans()[0].action is Action.TAINT, what="planned by the new mode")
        assert app.plans()[0].withheld == NO_CLUSTER


async def test_events_told_are_counted_by_reason(tmp_path: Path) -> None:
    app = App(settings(tmp_path), sink=lambda _: None)
    async with running(app):
        record(tmp_path, 1, "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.")
        await until(lambda: bool(app.events()), what="told")
        assert app.samples()['faultline_events_total{reason="GpuFault"}'] == 1


async def test_a_rule_folder_that_may_no_longer_be_entered_is_a_refused_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    chosen = settings(tmp_path, rules_dirs=(str(rules),))
    app = App(chosen, reload=lambda: chosen, sink=lambda _: None)
    whole = Path.is_dir

    def is_dir(path: Path) -> bool:
        if path == rules:
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path)

    async with running(app):
        monkeypatch.setattr(Path, "is_dir", is_dir)
        app.ask_reload()
        await until(lambda: app.samples()["faultline_rules_reload_errors_total"] == 1, what="refused")
        monkeypatch.undo()
        with pytest.raises(RuleError, match="no such folder"):
            load_rulebook([tmp_path / "none"])


async def test_the_tables_are_read_when_the_agent_starts_and_not_while_it_judges(tmp_path: Path) -> None:
    table = tmp_path / "rules" / "image" / "cuda-driver.yaml"
    table.parent.mkdir(parents=True)
    table.write_bytes(load_rulebook().image_file.read_bytes())
    chosen = settings(tmp_path, rules_dirs=(str(tmp_path / "rules"),))
    app = App(chosen, sink=lambda _: None)
    table.write_text("no table any more")
    assert app.book.images
    app.store.close()
    with pytest.raises(RuleError):
        App(chosen, sink=lambda _: None)


def test_a_table_that_is_swapped_between_two_looks_is_found_before_the_book_is_taken(tmp_path: Path) -> None:
    table = tmp_path / "rules" / "image" / "cuda-driver.yaml"
    table.parent.mkdir(parents=True)
    table.write_bytes(load_rulebook().image_file.read_bytes())
    book = load_rulebook([tmp_path / "rules"])
    table.unlink()
    with pytest.raises(RuleError, match="cannot be read"):
        book.check_tables()


async def test_stored_rows_of_another_shape_are_passed_over_and_told(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    with Store.open(Path(chosen.state_dir)) as store:
        store.commit(
            positions={"kernel": b"[1]", "log:a": b"{", "log:b": b"3", "log:c": b'{"dev": -1}'},
            meta={"kernel-detector/boot": b"7"},
        )
    app = App(chosen, sink=lambda _: None, boot_id="boot")
    assert app.pipeline.restore() == (None, {})
    assert len(app.store.notices) == 4
    async with running(app):
        pass


async def test_changes_that_the_store_gave_up_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "dropped", 7)
    app = App(settings(tmp_path), sink=lambda _: None)
    async with running(app):
        assert app.samples()["faultline_store_dropped_changes_total"] == 7


async def test_a_rule_folder_that_is_removed_made_anew_or_named_later_is_watched(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "deep" / "second"
    first.mkdir()
    chosen = [settings(tmp_path, rules_dirs=(str(first),))]
    app = App(chosen[0], reload=lambda: chosen[0], sink=lambda _: None)
    refused = "faultline_rules_reload_errors_total"

    def has(rule: str) -> bool:
        return any(r.id == rule for r in app.rules())

    async with running(app):
        await asyncio.sleep(0)
        first.rmdir()
        await until(lambda: app.samples()[refused] == 1, what="the missing folder is refused")
        first.mkdir()
        (first / "mine.yaml").write_text(RULE)
        await until(lambda: has("my/words"), what="the folder made anew is read")
        (first / "mine.yaml").write_text(RULE.replace("my/words", "my/others"))
        await until(lambda: has("my/others"), what="and watched")
        chosen[0] = settings(tmp_path, rules_dirs=(str(second),))
        app.ask_reload()
        await until(lambda: app.samples()[refused] >= 2, what="a folder that is not there yet is refused")
        second.mkdir(parents=True)
        (second / "mine.yaml").write_text(RULE)
        await until(lambda: has("my/words") and not has("my/others"), what="it is read once it is there")


async def test_settings_are_applied_only_once_the_reload_is_accepted(tmp_path: Path) -> None:
    applied: list[Settings] = []
    good = settings(tmp_path)
    given = iter([settings(tmp_path, rules_dirs=(str(tmp_path / "none"),)), good])
    app = App(good, reload=lambda: next(given), sink=lambda _: None, applied=applied.append)
    async with running(app):
        app.ask_reload()
        await until(lambda: app.samples()["faultline_rules_reload_errors_total"] == 1, what="refused")
        assert applied == []
        app.ask_reload()
        await until(lambda: applied == [good], what="accepted")


async def test_logs_that_go_blind_are_told_once_and_seen_again(tmp_path: Path) -> None:
    told: list[Report] = []
    app = App(settings(tmp_path, logs=LogsSettings(root=str(tmp_path / "pods"), poll_interval=0.1)), sink=told.append)
    async with running(app):
        await until(lambda: app.sources()[1].state == "reading", what="read")
        (tmp_path / "pods").rename(tmp_path / "away")
        for _ in range(3):
            assert app.samples()['faultline_source_blind{source="logs"}'] == 1
        assert app.sources()[1].state == "blind" and "is not there" in app.sources()[1].why
        assert [r.reason for r in told] == [Reason.SOURCE_BLIND]
        (tmp_path / "away").rename(tmp_path / "pods")
        assert app.sources()[1].state == "reading"


async def test_silence_of_the_kernel_counts_only_after_its_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.app.CATCH_UP_SECONDS", 0.2)
    app = App(settings(tmp_path), sink=lambda _: None)
    core, inner = app.pipeline.diagnostician, app.pipeline.kernel
    seen: list[bool] = []

    def slow(batch, cursor) -> None:  # type: ignore[no-untyped-def]
        seen.append(core.kernel_read)
        time.sleep(0.05)
        inner(batch, cursor)

    app.pipeline.kernel = slow  # type: ignore[method-assign]
    (tmp_path / "kmsg").write_text("".join(f"6,{i},{i},-;old\n" for i in range(256 * 10)))
    async with running(app):
        await until(lambda: core.kernel_read, what="the backlog is read")
    assert len(seen) == 10 and not any(seen)


async def test_malformed_kernel_records_are_errors_and_counts_survive_a_new_source(tmp_path: Path) -> None:
    app = App(settings(tmp_path), sink=lambda _: None)
    (tmp_path / "kmsg").write_text("no record\nnor this\n")
    async with running(app):
        errors = 'faultline_source_errors_total{source="kernel"}'
        await until(lambda: app.samples()[errors] == 2, what="counted")
        again = open_kernel_source(str(tmp_path / "kmsg"), boot_id="b")
        app._watched.take_kernel(again)
        again.errors = 3
        assert app.samples()[errors] == 5
        assert app.sources()[0].errors == 5
        again.close()


async def test_what_an_earlier_run_left_of_other_boots_and_lost_containers_is_dropped(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    write(tmp_path, "quiet")
    quiet = "log:ns/p/0c6f1a52-0000-0000-0000-000000000001/sglang"
    with Store.open(Path(chosen.state_dir), clock=lambda: 1000.0) as store:
        store.commit(
            positions={"log:gone": b"{}", quiet: b"{}"}, meta={"kernel-detector/old": b"{}", "kernel-detector/b": b"{}"}
        )
    app = App(chosen, sink=lambda _: None, boot_id="b")
    async with running(app):
        kept = app.store.load()
    assert "log:gone" not in kept.positions and quiet in kept.positions
    assert set(kept.meta) == {"kernel-detector/b"}


async def test_allocations_are_known_before_what_is_restored_is_judged(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "nvidia.com/gpu", "DeviceIDs": ["GPU-1"]}
    checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    app = App(settings(tmp_path, kubelet=KubeletSettings(checkpoint=str(checkpoint), pods="")), sink=lambda _: None)
    inner, known = app.pipeline.restore, []

    def restore():  # type: ignore[no-untyped-def]
        known.extend(app.pipeline.diagnostician._allocations)
        return inner()

    app.pipeline.restore = restore  # type: ignore[method-assign]
    async with running(app):
        pass
    assert len(known) == 1

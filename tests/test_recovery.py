"""Faults that end, through the pipeline and its store: proved by the node, released by a person, never while unread."""

from pathlib import Path
from typing import Any

import pytest

from agent.gpus import GpuProcess, GpuState, NodeGpus
from agent.model import Allocation, ContainerRef, Fault, parse_pci
from agent.pipeline import NullListener, Pipeline
from agent.recovery import Holds, Recoveries
from agent.report.store import Store, decode_all
from agent.rulebook import load_rulebook
from agent.sources.gpus.inventory import parse_uuid, read_gpus
from agent.sources.gpus.probe import Probed
from agent.sources.kernel import KernelRecord

UUID = "GPU-44444444-aaaa-bbbb-cccc-000000000005"
XID = "NVRM: Xid (PCI:0000:5d:00): 119, pid=1234, name=python3, Timeout after 6s of waiting for RPC response"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build  (builder@example)"


def information(root: Path, *, uuid: str = UUID) -> Path:
    folder = root / "proc" / "gpus" / "0000:5d:00.0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t 3\n")
    return root / "proc"


class Agent:
    """Pipeline, store and recoveries of one run, with a clock that only the test turns."""

    def __init__(self, root: Path, *, boot: str = "b1", now: float = 1000.0) -> None:
        self.now, self.settled, self.boot = now, True, boot
        self.nvml: NodeGpus | None = None
        self.store = Store.open(root / "state", clock=lambda: self.now, max_bytes=1 << 24)
        self.pipeline = Pipeline(
            load_rulebook([]),
            store=self.store,
            listener=NullListener(),
            clock=lambda: self.now,
            boot_id=boot,
            window=60,
        )
        self.cursor, _ = self.pipeline.restore()
        self.recoveries = Recoveries(
            self.pipeline, boot=boot, booted=now - 10, catalogue=lambda: self.pipeline.book.catalogue,
            gpus=lambda: read_gpus(root / "proc"), states=self.read, holds=lambda: Holds(600.0, 86400.0),
            settled=lambda: self.settled, clock=lambda: self.now,
        )  # fmt: skip

    async def read(self) -> NodeGpus | None:
        return self.nvml

    def record(self, seq: int, text: str) -> None:
        record = KernelRecord(seq=seq, usec=0, facility=0, level=4, text=text, boot_id=self.boot, time=self.now)
        self.pipeline.kernel([record], None)

    @property
    def faults(self) -> list[Fault]:
        return [f for f in self.pipeline.diagnostician.faults if f.accuses]


async def test_a_driver_loaded_anew_ends_a_fault_that_needed_a_reset_even_across_a_restart(tmp_path: Path) -> None:
    information(tmp_path)
    agent = Agent(tmp_path)
    assert await agent.recoveries.look() is None, "nothing is accused: no look"
    agent.record(1, f"NVRM: GPU at PCI:0000:5d:00: {UUID}")
    agent.record(2, XID)
    assert len(agent.faults) == 1 and agent.faults[0].recovery == "reset_gpu"
    await agent.recoveries.look()
    assert "was not reset" in agent.recoveries.states[agent.faults[0].id]
    agent.now = 2000.0
    agent.record(3, LOADED)
    agent.now = 2100.0
    await agent.recoveries.look()
    assert "hold time" in agent.recoveries.states[agent.faults[0].id]
    agent.pipeline.flush()
    agent.store.close()

    agent = Agent(tmp_path, now=2700.0)
    assert len(agent.faults) == 1
    agent.settled = False
    await agent.recoveries.look()
    assert agent.faults, "a log that was not read to its end may hold a newer record"
    agent.settled = True
    await agent.recoveries.look()
    assert agent.faults == []
    stored, _ = decode_all(agent.store.load().faults, Fault)
    assert [f.over for f in stored.values() if f.over] == [
        "the driver was loaded anew, and nothing was seen of it for 600 s"
    ]
    agent.store.close()


async def test_a_reboot_ends_it_when_the_gpu_came_back(tmp_path: Path) -> None:
    information(tmp_path)
    agent = Agent(tmp_path)
    agent.record(1, f"NVRM: GPU at PCI:0000:5d:00: {UUID}")
    agent.record(2, "NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=python3, GPU has fallen off the bus.")
    agent.store.close()
    gone = tmp_path / "proc" / "gpus" / "0000:5d:00.0" / "information"
    gone.unlink()
    gone.parent.rmdir()
    agent = Agent(tmp_path, boot="b2", now=9000.0)
    await agent.recoveries.look()
    assert "has not come back" in agent.recoveries.states[agent.faults[0].id]
    information(tmp_path)
    await agent.recoveries.look()
    assert "hold time" in agent.recoveries.states[agent.faults[0].id]
    agent.now = 9600.0
    await agent.recoveries.look()
    assert agent.faults == []
    agent.store.close()


async def test_another_card_in_its_place_ends_it_at_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.record(1, f"NVRM: GPU at PCI:0000:5d:00: {UUID}")
    agent.record(2, XID)
    information(tmp_path, uuid=UUID.replace("4444", "7777", 1))
    await agent.recoveries.look()
    assert agent.faults == []
    agent.store.close()


async def test_a_person_ends_it(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.record(2, XID)
    agent.recoveries.release("0000:99:00")
    assert agent.faults
    agent.recoveries.release("0000:5d:00.0")
    assert agent.faults == []
    agent.store.close()


@pytest.mark.parametrize(
    ("text", "uuid"),
    [
        (f"GPU UUID: \t {UUID}\n", UUID),
        ("GPU UUID: \t GPU-????????-????-????-????-????????????\n", ""),
        ("", ""),
        ("GPU UUID: \t GPU-1234\n", ""),
    ],
)
def test_a_uuid_that_the_driver_does_not_know_yet_is_none(text: str, uuid: str) -> None:
    assert parse_uuid(text) == uuid


def test_no_list_is_not_an_empty_list(tmp_path: Path) -> None:
    assert read_gpus(tmp_path / "none") is None
    (tmp_path / "gpus").mkdir()
    assert read_gpus(tmp_path) == {}


def state(at: float, **changes: Any) -> NodeGpus:
    pci = parse_pci("0000:5d:00")
    assert pci is not None
    return NodeGpus(at=at, gpus=(GpuState(pci=pci, uuid=UUID, **({"recovery_action": 0} | changes)),))


async def test_that_the_driver_asks_for_nothing_any_more_ends_a_fault_only_where_it_had_asked(tmp_path: Path) -> None:
    information(tmp_path)
    agent = Agent(tmp_path)
    agent.record(1, f"NVRM: GPU at PCI:0000:5d:00: {UUID}")
    agent.record(2, XID)
    agent.now, agent.nvml = 1100.0, state(1100.0)
    await agent.recoveries.look()
    agent.now, agent.nvml = 5000.0, state(5000.0)
    await agent.recoveries.look()
    assert len(agent.faults) == 1, "it never asked for anything: its silence is no proof"
    agent.now, agent.nvml = 6000.0, state(6000.0, recovery_action=1)
    await agent.recoveries.look()
    agent.now, agent.nvml = 7000.0, state(7000.0)
    await agent.recoveries.look()
    assert "asks for none now (NVML); quiet" in agent.recoveries.states[agent.faults[0].id]
    agent.now, agent.nvml = 7700.0, state(7700.0)
    await agent.recoveries.look()
    assert agent.faults == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"remap_pending": True}, "a memory row waits to be remapped"),
        ({"remap_failed": True}, "the card is to be replaced"),
        ({"recovery_action": 2}, "the driver asks for a reboot of the node"),
        ({"lost": "GPU is lost", "recovery_action": None}, "it does not answer: GPU is lost"),
        ({"channel_repair_pending": True}, "a memory channel waits"),
        ({"unrepairable_memory": True}, "cannot be repaired"),
    ],
)
async def test_what_nvml_says_against_a_gpu_keeps_its_fault_open(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    information(tmp_path)
    agent = Agent(tmp_path)
    agent.record(1, f"NVRM: GPU at PCI:0000:5d:00: {UUID}")
    agent.record(2, XID)
    agent.now = 2000.0
    agent.record(3, LOADED)
    agent.now, agent.nvml = 9000.0, state(9000.0, **changes)
    await agent.recoveries.look()
    assert "by NVML: " in agent.recoveries.states[agent.faults[0].id]
    assert says in agent.recoveries.states[agent.faults[0].id]
    agent.nvml = state(9001.0, recovery_action=None)  # a driver that does not know the field
    await agent.recoveries.look()
    assert agent.faults == []


async def ready_to_end(tmp_path: Path, probed: Probed, **changes: Any) -> tuple[Agent, list[str]]:
    """A fault whose other proofs are all there, and the UUIDs that were probed for it."""
    information(tmp_path)
    agent, asked = Agent(tmp_path), []

    async def probe(uuid: str) -> Probed:
        asked.append(uuid)
        return probed

    agent.recoveries._probe = probe
    agent.record(1, f"NVRM: GPU at PCI:0000:5d:00: {UUID}")
    agent.record(2, XID)
    agent.now = 2000.0
    agent.record(3, LOADED)
    agent.now, agent.nvml = 9000.0, state(9000.0, **({"processes": ()} | changes))
    return agent, asked


async def test_a_context_that_works_is_the_last_proof(tmp_path: Path) -> None:
    agent, asked = await ready_to_end(tmp_path, Probed(ok=True, ms=200.0))
    await agent.recoveries.look()
    assert agent.faults == [] and asked == [UUID]
    (over,) = (f.over for f in agent.pipeline.diagnostician.faults if not f.open)
    assert over.endswith("and a CUDA context was made on it in 200 ms, and memory written and read")


@pytest.mark.parametrize("ok", [False, None])
async def test_a_context_that_fails_or_cannot_be_tried_keeps_the_fault_open(tmp_path: Path, ok: bool | None) -> None:
    agent, asked = await ready_to_end(tmp_path, Probed(ok=ok, call="cuCtxCreate", name="busy", code=46))
    await agent.recoveries.look()
    assert asked == [UUID] and "but a CUDA context" in agent.recoveries.states[agent.faults[0].id]


async def test_nobodys_work_is_disturbed_by_a_probe(tmp_path: Path) -> None:
    agent, asked = await ready_to_end(tmp_path, Probed(ok=True), processes=None)
    await agent.recoveries.look()
    assert "NVML does not tell who uses it" in agent.recoveries.states[agent.faults[0].id]
    agent.nvml = None
    await agent.recoveries.look()
    assert len(agent.faults) == 1
    pod = ContainerRef(namespace="llm", pod="p", uid="u", container="sglang")
    agent.pipeline.held([Allocation(container=pod, devices=(UUID,), since=1.0)])
    agent.nvml = state(9000.0, processes=())
    await agent.recoveries.look()
    assert "llm/p/sglang holds it" in agent.recoveries.states[agent.faults[0].id]
    agent.nvml = state(9000.0, processes=(GpuProcess(pid=1),))
    await agent.recoveries.look()
    assert agent.faults == [] and asked == [], "a program computes on it: a context works"

"""The driver's list of GPUs: which are there, with which UUID, and when nothing is known at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.sources.gpus import inventory
from agent.sources.gpus.inventory import parse_uuid, read_gpus

UUID = "GPU-44444444-aaaa-bbbb-cccc-000000000005"
INFORMATION = """Model: \t\t NVIDIA H200
IRQ:   \t\t 312
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.c5.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t 0000:5d:00.0
Device Minor: \t 3
GPU Excluded:\t No
"""


@pytest.mark.parametrize(
    ("text", "uuid"),
    [
        (INFORMATION.format(uuid=UUID), UUID),
        (INFORMATION.format(uuid=UUID.upper()), UUID.upper()),
        (INFORMATION.format(uuid=UUID + "  "), UUID),
        (INFORMATION.format(uuid="GPU-????????-????-????-????-????????????"), ""),
        (INFORMATION.format(uuid=""), ""),
        (INFORMATION.format(uuid=UUID[:-1]), ""),
        (INFORMATION.format(uuid=UUID + "0"), ""),
        (f"Model: GPU UUID: {UUID}", ""),
        (f"GPU UUID:{UUID}", UUID),
        ("", ""),
        ("GPU UUID:" + " " * 100_000, ""),
    ],
)
def test_the_uuid_of_one_gpu(text: str, uuid: str) -> None:
    assert parse_uuid(text) == uuid


def gpu(proc: Path, folder: str, text: str | bytes | None) -> None:
    (proc / "gpus" / folder).mkdir(parents=True)
    if text is not None:
        data = text if isinstance(text, bytes) else text.encode()
        (proc / "gpus" / folder / "information").write_bytes(data)


@pytest.mark.parametrize(
    ("folders", "found"),
    [
        ({}, {}),
        ({"0000:5d:00.0": INFORMATION.format(uuid=UUID)}, {"0000:5d:00": UUID}),
        ({"0000:5d:00.0": "", "0000:01:00.0": INFORMATION.format(uuid=UUID)}, {"0000:01:00": UUID, "0000:5d:00": ""}),
        ({"0000:5D:00.0": b"\xff\xfe"}, {"0000:5d:00": ""}),
        ({"10000:5d:00.0": ""}, {"10000:5d:00": ""}),
        ({"power": None, "0000:5d:00.0": ""}, {"0000:5d:00": ""}),
        # A list that cannot be read whole would make the rest look gone.
        ({"0000:01:00.0": INFORMATION.format(uuid=UUID), "0000:5d:00.0": None}, None),
    ],
)
def test_which_gpus_the_driver_lists(
    tmp_path: Path, folders: dict[str, str | bytes | None], found: dict[str, str] | None
) -> None:
    (tmp_path / "gpus").mkdir()
    for name, text in folders.items():
        gpu(tmp_path, name, text)
    assert read_gpus(tmp_path) == found


def test_without_a_driver_nothing_is_known(tmp_path: Path) -> None:
    assert read_gpus(tmp_path) is None
    (tmp_path / "gpus").write_text("a file")
    assert read_gpus(tmp_path) is None


def test_the_list_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "_GPUS", 3)
    for n in range(8):
        gpu(tmp_path, f"0000:0{n}:00.0", "")
    assert list(read_gpus(tmp_path) or ()) == ["0000:00:00", "0000:01:00", "0000:02:00"]

"""What a person's release names: words in, open faults out, and the words that named none."""

from __future__ import annotations

import pytest

from agent.diagnose.release import released
from agent.model import Action, Component, Fault, GpuRef, PciAddress, Scope, Severity


def fault(name: str, *, pci: str | None, uuid: str | None = None, cleared: float | None = None) -> Fault:
    return Fault(
        id=name, scope=Scope.GPU, gpu=GpuRef(pci=None if pci is None else PciAddress(pci), uuid=uuid), cause="xid/79",
        title="", severity=Severity.FATAL, recovery="", component=Component.GPU, action=Action.TAINT, cleared=cleared,
    )  # fmt: skip


FAULTS = (
    fault("f1", pci="0000:5d:00", uuid="GPU-1"),
    fault("f2", pci="0000:5d:00", uuid="GPU-1"),
    fault("f3", pci="0001:5e:00"),
    fault("f4", pci=None),
    fault("over", pci="0000:6f:00", uuid="GPU-6", cleared=1.0),
)


@pytest.mark.parametrize(
    ("asked", "ids", "strange"),
    [
        ("all", ("f1", "f2", "f3", "f4"), ()),
        ("ALL", ("f1", "f2", "f3", "f4"), ()),
        ("", (), ()),
        (" , ,", (), ()),
        ("f1", ("f1",), ()),
        ("F1", (), ("F1",)),
        ("f4", ("f4",), ()),
        ("0000:5d:00", ("f1", "f2"), ()),
        ("00000000:5D:00.0", ("f1", "f2"), ()),
        ("PCI:0001:5e:00", ("f3",), ()),
        ("0002:5e:00", (), ("0002:5e:00",)),
        ("GPU-1", ("f1", "f2"), ()),
        ("GPU-2", (), ("GPU-2",)),
        ("f3,f1", ("f3", "f1"), ()),
        ("f3 , f1\nf3\t0001:5e:00", ("f3", "f1"), ()),
        ("all f3", ("f1", "f2", "f3", "f4"), ()),
        ("over", (), ("over",)),
        ("GPU-6 0000:6f:00", (), ("GPU-6", "0000:6f:00")),
        ("nope f1 what", ("f1",), ("nope", "what")),
        ("x" * 500, (), ("x" * 80,)),
        ("None", (), ("None",)),
    ],
)
def test_what_a_release_names(asked: str, ids: tuple[str, ...], strange: tuple[str, ...]) -> None:
    assert released(asked, FAULTS) == (ids, strange)


@pytest.mark.parametrize(("asked", "strange"), [("all", ("all",)), ("f1", ("f1",)), ("", ())])
def test_nothing_to_release(asked: str, strange: tuple[str, ...]) -> None:
    assert released(asked, [FAULTS[-1]]) == ((), strange)

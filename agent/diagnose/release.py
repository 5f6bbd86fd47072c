"""What a person's release names: the text of an annotation or a command in, the faults meant out. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.model import Fault, parse_pci

ALL = "all"


def released(asked: str, faults: Iterable[Fault]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ids of the open faults that `asked` names, and the words that name none.

    `asked` is ``all``, or PCI addresses in any spelling, UUIDs and fault ids, with commas or spaces between them.
    """
    known = [f for f in faults if f.open]
    meant: dict[str, None] = {}
    strange = []
    for word in asked.replace(",", " ").split():
        pci = parse_pci(word)
        hit = [
            f.id
            for f in known
            if word.lower() == ALL or word == f.id or word == f.gpu.uuid or (pci is not None and pci == f.gpu.pci)
        ]
        meant |= dict.fromkeys(hit)
        if not hit:
            strange.append(word[:80])
    return tuple(meant), tuple(strange)

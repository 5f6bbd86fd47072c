"""The grammar of the driver's numbered lines (Xid, SXid) and of what stands inside them. Never judges what one means.

Every parser is total: any text gives a value or None. Each reads from the left, anchored at the start of the message,
because a program's name stands in the middle of the line and its owner may choose it to look like anything. The name
ends at the first comma and blank; a name that holds those itself spills into `text`, so what is read out of `text` is
looked for from the right, where only the driver writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.model import PciAddress, parse_pci

_BUS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_CODE = r"(?P<code>[0-9]{1,9})(?:,|(?=\s)|\Z)\s*"

_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<pci>{_BUS})(?: GPU-I:(?P<gi>[0-9]{{1,4}})(?: GPU-CI:(?P<ci>[0-9]{{1,4}}))?)?\): {_CODE}"
)
_PID = re.compile(r"pid=(?:(?P<pid>[0-9]{1,10})|'?<unknown>'?)(?:, |,?\s*\Z)")
_NAME = re.compile(r"name=(?P<name>.*?)(?:, |,?\Z)", re.DOTALL)
_CAUSED_BY = re.compile(r"caused by previous Xid (?P<code>[0-9]{1,9})\.?\s*\Z")

_SXID = re.compile(rf"nvidia-nvswitch(?P<instance>[0-9]{{1,4}}): SXid \((?:PCI:)?(?P<pci>{_BUS})\): {_CODE}")
_SXID_WORD = re.compile(r"(?P<word>fatal|non-?fatal|correctable)\b,?\s*", re.IGNORECASE)
_SXID_LINK = re.compile(r"Link (?P<link>-?[0-9]{1,4})\b")
_SXID_DETAIL = re.compile(r"(?:Severity|Engine|Sub-engine|Data)\b")

_GPU_AT = re.compile(rf"NVRM: GPU at (?:PCI:)?(?P<pci>{_BUS}): (?P<uuid>GPU-[0-9a-fA-F]+(?:-[0-9a-fA-F]+)*)\s*\Z")

_RECOVERY = re.compile(
    r"GPU recovery action changed from (?P<old>0x[0-9a-fA-F]{1,8})\b[^\n]{0,80}? to (?P<new>0x[0-9a-fA-F]{1,8})\b"
)
_RECOVERY_HEAD = "GPU recovery action changed from "

_NVLINK5 = re.compile(
    r"(?P<unit>[A-Za-z][A-Za-z0-9_/]{0,63})\s+(?P<word>Fatal|Nonfatal)\b(?:\s+XC(?P<xc>[0-9]{1,2})\b)?"
    r"(?:\s+i(?P<injected>[0-9])\b)?(?:\s+Link\s+(?P<link>-?[0-9]{1,4})\b)?(?P<rest>[^\n]*)"
)
# A word at the very end of a line without its closing bracket may be cut: it counts only when it has all its digits.
_WORD = re.compile(r"0x([0-9a-fA-F]{1,8}(?=[\s,)])|[0-9a-fA-F]{8}\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class XidLine:
    """One Xid as the driver printed it. `mig_gi` and `mig_ci` are the MIG instance ids, None where none is named.

    `pid` counts in the host's namespace. `name` is the program's own word: show it, decide nothing by it.
    """

    pci: PciAddress
    mig_gi: int | None = None
    mig_ci: int | None = None
    code: int
    pid: int | None = None
    name: str | None = None
    text: str = ""
    caused_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SxidLine:
    """One switch error. `pci` is the switch's own address, never a GPU's; `detail` is true for the lines that only
    continue an error told before.

    `severity` is "fatal", "non-fatal", "correctable", or "" where the line has no such word.
    """

    pci: PciAddress
    instance: int
    code: int
    severity: str = ""
    link: int | None = None
    text: str = ""
    detail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkEvent:
    """The fields of an NVLink 5 line (Xid 144 to 150). `words` are as many of intrinfo, errorstatus and the four after
    them as the line still has; `link` is None where the line names none (`-1`)."""

    unit: str
    fatal: bool
    xc: int | None = None
    injected: bool = False
    link: int | None = None
    words: tuple[int, ...] = ()

    @property
    def intrinfo(self) -> int | None:
        return self.words[0] if self.words else None

    @property
    def errorstatus(self) -> int | None:
        return self.words[1] if len(self.words) > 1 else None


def parse_xid(message: str) -> XidLine | None:
    """The Xid that this kernel message reports, or None where it reports none. All driver branches' forms."""
    head = _XID.match(message)
    if head is None:
        return None
    pci = parse_pci(head["pci"])
    if pci is None:
        return None
    at, pid, name = head.end(), None, None
    if found := _PID.match(message, at):
        pid, at = _int(found["pid"]), found.end()
        if found := _NAME.match(message, at):
            name, at = found["name"], found.end()
    text = message[at:].strip()
    cause = _CAUSED_BY.search(text)
    return XidLine(
        pci=pci,
        mig_gi=_int(head["gi"]),
        mig_ci=_int(head["ci"]),
        code=int(head["code"]),
        pid=pid,
        name=None if name in (None, "", "<unknown>", "'<unknown>'") else name,
        text=text,
        caused_by=int(cause["code"]) if cause else None,
    )


def parse_sxid(message: str) -> SxidLine | None:
    """The switch error that this kernel message reports or continues, or None."""
    head = _SXID.match(message)
    if head is None:
        return None
    pci = parse_pci(head["pci"])
    if pci is None:
        return None
    text = message[head.end() :].strip()
    word = _SXID_WORD.match(text)
    link = _SXID_LINK.match(text, word.end() if word else 0)
    severity = word["word"].lower() if word else ""
    return SxidLine(
        pci=pci,
        instance=int(head["instance"]),
        code=int(head["code"]),
        severity="non-fatal" if severity == "nonfatal" else severity,
        link=int(link["link"]) if link else None,
        text=text,
        detail=word is None and _SXID_DETAIL.match(text) is not None,
    )


def parse_nvlink5(text: str) -> NvlinkEvent | None:
    """The fields of an NVLink 5 text (`XidLine.text` of 144 to 150), which may be cut off after the severity word."""
    found = None
    # A name that holds a comma leaves its rest in front of the unit: the last piece is the driver's.
    for piece in (text.rpartition(", ")[2], text):
        if found := _NVLINK5.search(piece):
            break
    if found is None:
        return None
    link = _int(found["link"])
    return NvlinkEvent(
        unit=found["unit"],
        fatal=found["word"] == "Fatal",
        xc=_int(found["xc"]),
        injected=found["injected"] not in (None, "0"),
        link=link if link is not None and link >= 0 else None,
        words=tuple(int(word, 16) for word in _WORD.findall(found["rest"])[:6]),
    )


def parse_recovery_action(text: str) -> tuple[int, int] | None:
    """The old and the new recovery action of an Xid 154, by value: the labels beside it differ between branches."""
    found = _RECOVERY.match(text, max(text.rfind(_RECOVERY_HEAD), 0))
    return (int(found["old"], 16), int(found["new"], 16)) if found else None


def parse_gpu_at(message: str) -> tuple[PciAddress, str] | None:
    """The bus address and the UUID of the line that precedes a GPU's first Xid, or None."""
    found = _GPU_AT.match(message)
    pci = parse_pci(found["pci"]) if found else None
    return (pci, found["uuid"]) if found and pci else None


def _int(text: str | None) -> int | None:
    return int(text) if text is not None else None

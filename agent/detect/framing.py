"""Takes a container log's line out of its envelopes (runtime, kubectl, compose, colour, SGLang's own head)."""

from __future__ import annotations

from typing import NamedTuple

import regex

_HEAD = regex.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d{3})?(?P<rank>(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+)*)\] "
)
_CRI = regex.compile(r"\d{4}-\d\d-\d\dT\S+ (?P<stream>stdout|stderr) (?P<tag>[PF])\S* ?")
_PREFIX = regex.compile(r"[\w.-]+ +\| ")


class Framed(NamedTuple):
    message: str
    time: float | None
    rank: str
    stream: str
    partial: bool


def frame(line: str) -> Framed:
    stream, partial = "", False
    if cri := _CRI.match(line):
        line, stream, partial = line[cri.end() :], cri["stream"], cri["tag"] == "P"
    if prefix := _PREFIX.match(line):
        line = line[prefix.end() :]
    rank = ""
    if head := _HEAD.match(line):
        line, rank = line[head.end() :], head["rank"].strip()
    return Framed(line, None, rank, stream, partial)


def message_of(line: str) -> str:
    return frame(line).message

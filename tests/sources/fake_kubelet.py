"""A kubelet's gRPC server on a unix socket, what it answers as bytes; and the bytes that a real one answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from agent.sources.kubelet.pod_resources import ALLOCATABLE, LIST
from agent.sources.kubelet.pods_api import WATCH

_DATA = json.loads((Path(__file__).parent.parent / "data" / "kubelet" / "recorded.json").read_text())

LISTED = bytes.fromhex(_DATA["list"])
"""Four pods: two GPUs of two NUMA nodes, a MIG part with two replicas of one GPU, DRA claims, and no GPU."""
ALLOCATABLE_ANSWER = bytes.fromhex(_DATA["allocatable"])
PODS: list[tuple[dict[str, Any], bytes]] = [(pod["json"], bytes.fromhex(pod["hex"])) for pod in _DATA["pods"]]
"""Each pod as the API's JSON and as the kubelet's protobuf."""
EVENTS = [bytes.fromhex(event) for event in _DATA["watch"]]
"""ADDED for each pod, INITIAL_SYNC_COMPLETE, and DELETED of the first."""

Behaviour = Callable[["Stream[bytes, bytes]"], Awaitable[None]]


def message(*fields: tuple[int, object]) -> bytes:
    """A protobuf message: ints as varints, texts and bytes with their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value & (1 << 64) - 1)
        else:
            data = value.encode() if isinstance(value, str) else value
            assert isinstance(data, bytes)
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def listed_of(*pods: tuple[str, str, Mapping[str, str]]) -> bytes:
    """A ListPodResourcesResponse: namespace, name and the device of each container."""
    return message(*(
        (1, message((1, name), (2, namespace), *(
            (3, message((1, container), (2, message((1, "nvidia.com/gpu"), (2, device)))))
            for container, device in devices.items()
        )))
        for namespace, name, devices in pods
    ))  # fmt: skip


def event(kind: int, pod: bytes = b"") -> bytes:
    return message((1, kind), (2, pod)) if pod else message((1, kind))


def pod_bytes(name: str, uid: str, *, phase: str = "Running", namespace: str = "llm") -> bytes:
    return message((1, message((1, name), (3, namespace), (5, uid))), (3, message((1, phase))))


class Raw(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


def says(*answers: bytes) -> Behaviour:
    """These answers, and the end."""

    async def behave(stream: Stream[bytes, bytes]) -> None:
        for answer in answers:
            await stream.send_message(answer)

    return behave


def refuses(status: Status, text: str = "", *, after: tuple[bytes, ...] = ()) -> Behaviour:
    async def behave(stream: Stream[bytes, bytes]) -> None:
        for answer in after:
            await stream.send_message(answer)
        raise GRPCError(status, text)

    return behave


class Hangs:
    """Gives ``first`` and then nothing, until the test lets it go on with ``then``."""

    def __init__(self, *first: bytes, then: tuple[bytes, ...] = ()) -> None:
        self.first, self.then = first, then
        self.reached, self.go_on, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, stream: Stream[bytes, bytes]) -> None:
        try:
            for answer in self.first:
                await stream.send_message(answer)
            self.reached.set()
            await self.go_on.wait()
            for answer in self.then:
                await stream.send_message(answer)
        finally:
            self.left.set()


async def cuts(stream: Stream[bytes, bytes]) -> None:
    """Breaks the connection off without an answer."""
    _transport(stream).abort()


def _transport(stream: Stream[bytes, bytes]) -> asyncio.Transport:
    transport: asyncio.Transport = stream._stream._transport
    return transport


class FakeKubelet:
    """Serves ``answers`` by method while it is entered; what is not in them then is not implemented."""

    def __init__(self, path: Path, answers: Mapping[str, Behaviour] | None = None) -> None:
        self.path = path
        self.answers: dict[str, Behaviour] = dict(answers or {})
        self.asked: list[tuple[str, bytes]] = []
        """Method and request of each call."""
        self._connections: list[asyncio.Transport] = []

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            LIST: Cardinality.UNARY_UNARY,
            ALLOCATABLE: Cardinality.UNARY_UNARY,
            WATCH: Cardinality.UNARY_STREAM,
        }
        return {method: Handler(self._serve(method), kind, bytes, bytes) for method, kind in methods.items()}

    def _serve(self, method: str) -> Behaviour:
        async def handle(stream: Stream[bytes, bytes]) -> None:
            self._connections.append(_transport(stream))
            request = await stream.recv_message()
            self.asked.append((method, request or b""))
            # In Go's words and form: grpclib's own refusal leaves out the content type.
            unknown = refuses(Status.UNIMPLEMENTED, f"unknown service {method.split('/')[1]}")
            await self.answers.get(method, unknown)(stream)

        return handle

    async def __aenter__(self) -> Self:
        self._server = Server([self], codec=Raw())
        self.path.unlink(missing_ok=True)  # as a kubelet does at its start
        await self._server.start(path=str(self.path))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.close()  # as the end of a process does; grpclib's server leaves them open
        await self._server.wait_closed()

"""A device plugin that offers ``nvidia.com/gpu``: the kubelet's gRPC API (deviceplugin/v1beta1), and no GPUs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from agent.sources.kubelet.wire import fields

RESOURCE = "nvidia.com/gpu"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
DEADLINE = 20.0
OPTIONS = b"\x10\x01"
"""DevicePluginOptions: GetPreferredAllocation is offered, as by NVIDIA's plugin."""


class Raw(CodecBase):
    """Messages are bytes already."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return bytes(data)


class DevicePlugin:
    """Devices of one resource, each with a health. Use as a context manager on a node that runs."""

    def __init__(self, folder: Path, devices: Iterable[str]) -> None:
        """``folder`` is the kubelet's ``device-plugins``; the devices are UUIDs, all of them healthy."""
        self._folder = folder
        self._health = dict.fromkeys(devices, HEALTHY)
        self.broken = ""
        """What every question for a preferred allocation is refused with; empty: answered. Set before a pod comes."""
        self.allocated: list[tuple[str, ...]] = []
        """What the kubelet asked to be given, oldest first."""
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        # In a thread of its own: the kubelet's calls are answered while the test waits for kubectl.
        self._thread = threading.Thread(target=self._loop.run_forever, name="device plugin", daemon=True)
        self._server: Server | None = None

    def __enter__(self) -> DevicePlugin:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)
        self._loop.close()

    def register_again(self) -> None:
        """As a plugin does when the kubelet was restarted: that one forgets all plugins and removes their sockets."""
        self._do(self._stop())
        self._do(self._start())

    def set_health(self, device: str, health: str) -> None:
        async def change() -> None:
            self._health[device] = health
            self._changed.set()

        self._do(change())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE)

    async def _start(self) -> None:
        socket = self._folder / "faultline-test.sock"
        socket.unlink(missing_ok=True)
        self._server = Server([self], codec=Raw())  # here, since it belongs to the loop that runs
        await self._server.start(path=str(socket))
        request = text(1, "v1beta1") + text(2, socket.name) + text(3, RESOURCE) + part(4, OPTIONS)
        channel = Channel(path=str(self._folder / "kubelet.sock"), codec=Raw())
        try:
            register = UnaryUnaryMethod[bytes, bytes](channel, "/v1beta1.Registration/Register", bytes, bytes)
            async with asyncio.timeout(DEADLINE):
                while not await self._accepted(register, request):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            channel.close()

    async def _accepted(self, register: UnaryUnaryMethod[bytes, bytes], request: bytes) -> bool:
        try:
            await register(request, timeout=DEADLINE)
        except GRPCError as error:
            if "already connected" not in (error.message or ""):
                raise
            return False  # the kubelet has not yet noticed that the plugin before this one is gone
        return True

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._changed.set()
            await self._server.wait_closed()

    def __mapping__(self) -> dict[str, Handler]:
        service = "/v1beta1.DevicePlugin"
        one, many = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        return {
            f"{service}/GetDevicePluginOptions": Handler(self._options, one, bytes, bytes),
            f"{service}/GetPreferredAllocation": Handler(self._prefer, one, bytes, bytes),
            f"{service}/ListAndWatch": Handler(self._list, many, bytes, bytes),
            f"{service}/Allocate": Handler(self._allocate, one, bytes, bytes),
            f"{service}/PreStartContainer": Handler(self._nothing, one, bytes, bytes),
        }

    async def _nothing(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        await stream.send_message(b"")

    async def _options(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        await stream.send_message(OPTIONS)

    async def _prefer(self, stream: Stream[bytes, bytes]) -> None:
        request = await stream.recv_message() or b""
        if self.broken:
            raise GRPCError(Status.UNKNOWN, self.broken)
        # ContainerPreferredAllocationRequest: 1 available, 2 must be there, 3 how many. No preference: the first ones.
        answers = b""
        for container in parts(request):
            told = list(fields(container))
            wanted = next((value for number, value in told if number == 3), 1)
            free = [value for number, value in told if number == 1 and isinstance(value, bytes)]
            assert isinstance(wanted, int)
            answers += part(1, b"".join(part(1, device) for device in free[:wanted]))
        await stream.send_message(answers)

    async def _list(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        while True:
            self._changed.clear()
            devices = (text(1, name) + text(2, health) for name, health in self._health.items())
            await stream.send_message(b"".join(part(1, device) for device in devices))
            await self._changed.wait()

    async def _allocate(self, stream: Stream[bytes, bytes]) -> None:
        answers = b""
        for container in parts(await stream.recv_message() or b""):
            devices = tuple(device.decode() for device in parts(container))
            self.allocated.append(devices)
            visible = text(1, "NVIDIA_VISIBLE_DEVICES") + text(2, ",".join(devices))
            answers += part(1, part(1, visible))
        await stream.send_message(answers)


def part(number: int, data: bytes) -> bytes:
    """One length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def text(number: int, value: str) -> bytes:
    return part(number, value.encode())


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def parts(data: bytes) -> Iterator[bytes]:
    """The length-delimited fields of a message."""
    return (value for _, value in fields(data) if isinstance(value, bytes))

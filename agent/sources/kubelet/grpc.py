"""One gRPC call to a unix socket: raw bytes in, raw bytes out. Knows no message; keeps no connection between calls.

A new connection for each call costs a millisecond and needs no care when the kubelet replaces its socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from agent.sources.kubelet.wire import SIZE_LIMIT

TIMEOUT_SECONDS = 5.0

Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""Socket, method and request in, answer out: what :func:`unary` is, and what a test gives in its place."""

Stream = Callable[[str, str, bytes], AsyncIterator[bytes]]
"""The same for many answers: what :func:`stream` is."""


class CallError(Exception):
    """A call that failed. ``cure`` says what to do, empty where there is nothing to do but wait."""

    def __init__(self, text: str, *, cure: str = "", missing: bool = False, unserved: bool = False) -> None:
        super().__init__(text)
        self.cure = cure
        self.missing = missing
        """There is no socket: the kubelet is down, does not serve it, or the directory is not mounted."""
        self.unserved = unserved
        """The kubelet answers, but has no such service or method: asking again does not help."""


class _Raw(CodecBase):
    """Messages are bytes already. A longer one than any kubelet sends is refused."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        if len(data) > SIZE_LIMIT:
            raise ValueError(f"an answer of more than {SIZE_LIMIT >> 20} MiB")
        return bytes(data)


async def unary(path: str, method: str, request: bytes = b"", *, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """The answer to one request, within ``timeout`` seconds from connecting on. Raises CallError."""
    channel = Channel(path=path, codec=_Raw())
    try:
        async with asyncio.timeout(timeout):
            answer = await UnaryUnaryMethod[bytes, bytes](channel, method, bytes, bytes)(request, timeout=timeout)
            return answer
    except Exception as error:
        raise failed(error, path, method) from None
    finally:
        channel.close()


async def stream(
    path: str, method: str, request: bytes = b"", *, timeout: float = TIMEOUT_SECONDS
) -> AsyncIterator[bytes]:
    """The answers to one request until the server ends them. Raises CallError.

    ``timeout`` is for the first answer: a stream without news may be silent for ever, one that never begins may not.
    """
    channel = Channel(path=path, codec=_Raw())
    try:
        async with UnaryStreamMethod[bytes, bytes](channel, method, bytes, bytes).open() as call:
            async with asyncio.timeout(timeout):
                await call.send_message(request, end=True)
                answer = await call.recv_message()
            while answer is not None:
                yield answer
                answer = await call.recv_message()
    except Exception as error:
        raise failed(error, path, method) from None
    finally:
        channel.close()


def failed(error: Exception, path: str, method: str) -> CallError:
    """What went wrong, in words and with its cure."""
    if isinstance(error, CallError):
        return error
    what = f"{path}: {method.rpartition('/')[2]}: "
    match error:
        case FileNotFoundError():
            cure = "mount the socket's directory from the host; where it is mounted, the kubelet is down or serves none"
            return CallError(f"{path} is not there", cure=cure, missing=True)
        case ConnectionRefusedError():
            return CallError(f"{path}: nobody listens", cure="see that the kubelet runs", missing=True)
        case PermissionError():
            return CallError(f"{path}: permission denied", cure="run as root; with SELinux, as a type that may connect")
        case TimeoutError():
            return CallError(f"{what}no answer in time", cure="see whether the kubelet is overloaded or hangs")
        case GRPCError(status=Status.UNIMPLEMENTED):
            return CallError(f"{what}not served by this kubelet", unserved=True)
        case GRPCError(status=Status.RESOURCE_EXHAUSTED):
            return CallError(
                f"{what}too many requests", cure="see who else asks: all clients share the kubelet's limit"
            )
        case GRPCError(status=status, message=message):
            return CallError(f"{what}{status.name} {message or ''}".rstrip())
        case StreamTerminatedError() | ConnectionError() | EOFError():
            return CallError(f"{what}the connection was cut")
        case OSError():
            return CallError(f"{path}: {error.strerror or error}")
        case ProtocolError() | AssertionError() | ValueError() | NotImplementedError():
            return CallError(f"{what}no gRPC answer: {error}", cure="see that this is the kubelet's own socket")
        case _:
            # What else the HTTP/2 layer raises for a peer that speaks something else is no reason to stop the agent.
            return CallError(f"{what}{type(error).__name__}: {error}", cure="see that this is the kubelet's own socket")

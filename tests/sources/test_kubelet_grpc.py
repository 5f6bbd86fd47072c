"""One gRPC call over a real unix socket: what comes back whole, and what each way to fail is called."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from agent.sources.kubelet import grpc
from agent.sources.kubelet.grpc import CallError, failed, stream, unary
from agent.sources.kubelet.pod_resources import LIST
from agent.sources.kubelet.pods_api import WATCH
from tests.sources.fake_kubelet import Behaviour, FakeKubelet, Hangs, cuts, refuses, says
from tests.sources.loop_clock import LoopClock

BIG = bytes(range(256)) * (5 << 12)
"""5 MiB: more than HTTP/2 sends before it is told to go on."""


@asynccontextmanager
async def raw(path: Path, answer: bytes) -> AsyncIterator[None]:
    """A server that takes what it is sent, answers with these bytes and hangs up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(talk, path):
        yield


async def failure(path: Path, *, method: str = LIST, timeout: float = 60.0) -> CallError:
    """How a call fails."""
    with pytest.raises(CallError) as caught:
        if method == WATCH:
            async for _ in stream(str(path), method, timeout=timeout):
                pass
        else:
            await unary(str(path), method, timeout=timeout)
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "k.sock"


@pytest.mark.parametrize("answer", [b"", b"x", b"\0\xff", BIG], ids=["empty", "one byte", "binary", "5 MiB"])
@pytest.mark.parametrize("request_", [b"", b"\x0a\x03abc"], ids=["no request", "request"])
async def test_request_and_answer_travel_as_they_are(path: Path, answer: bytes, request_: bytes) -> None:
    async with FakeKubelet(path, {LIST: says(answer)}) as kubelet:
        assert await unary(str(path), LIST, request_) == answer
    assert kubelet.asked == [(LIST, request_)]


async def test_every_answer_of_a_stream_comes_in_order_until_its_end(path: Path) -> None:
    answers = [b"", b"one", BIG, b"two"]
    async with FakeKubelet(path, {WATCH: says(*answers)}) as kubelet:
        assert [answer async for answer in stream(str(path), WATCH, b"q")] == answers
    assert kubelet.asked == [(WATCH, b"q")]


async def test_a_stream_without_an_answer_just_ends(path: Path) -> None:
    async with FakeKubelet(path, {WATCH: says()}):
        assert [answer async for answer in stream(str(path), WATCH)] == []


@pytest.mark.parametrize("method", [LIST, WATCH])
@pytest.mark.parametrize(
    ("behaviour", "words", "unserved"),
    [
        (None, "not served by this kubelet", True),
        (refuses(Status.UNIMPLEMENTED, "unknown service"), "not served by this kubelet", True),
        (refuses(Status.RESOURCE_EXHAUSTED, "rejected by rate limit"), "too many requests", False),
        (refuses(Status.UNKNOWN, "pod nope not found"), "UNKNOWN pod nope not found", False),
        (refuses(Status.INTERNAL), "INTERNAL", False),
        (refuses(Status.NOT_FOUND, "größe"), "NOT_FOUND größe", False),
        (cuts, "the connection was cut", False),
    ],
)
async def test_a_refusal_is_told_as_it_was_meant(
    path: Path, method: str, behaviour: Behaviour | None, words: str, unserved: bool
) -> None:
    async with FakeKubelet(path, {} if behaviour is None else {method: behaviour}):
        error = await failure(path, method=method)
    assert str(error) == f"{path}: {method.rpartition('/')[2]}: {words}"
    assert (error.unserved, error.missing) == (unserved, False)


@pytest.mark.parametrize("method", [LIST, WATCH])
async def test_a_socket_that_is_not_there_or_left_behind_is_missing(path: Path, method: str) -> None:
    error = await failure(path, method=method)
    assert str(error) == f"{path} is not there"
    assert error.missing and "mount" in error.cure and not error.unserved
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    error = await failure(path, method=method)
    assert str(error) == f"{path}: nobody listens"
    assert error.missing and "kubelet runs" in error.cure


@pytest.mark.parametrize("method", [LIST, WATCH])
async def test_a_path_that_is_no_socket_or_none_at_all_is_told(tmp_path: Path, method: str) -> None:
    (tmp_path / "file").write_text("x")
    assert (await failure(tmp_path / "file", method=method)).missing
    assert str(tmp_path) in str(await failure(tmp_path / "file" / "below", method=method))
    assert str(await failure(tmp_path / ("x" * 200), method=method))


@pytest.mark.parametrize("method", [LIST, WATCH])
@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"\0" * 100, b"\xff" * 100, b"SSH-2.0-x\r\n"],
)
async def test_a_server_that_speaks_something_else_is_an_error_and_no_crash(
    path: Path, method: str, answer: bytes
) -> None:
    async with raw(path, answer):
        error = await failure(path, method=method)
    assert str(error).startswith(f"{path}: ") and not error.unserved


@pytest.mark.parametrize("method", [LIST, WATCH])
async def test_a_longer_answer_than_any_kubelet_sends_is_refused(
    path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc, "SIZE_LIMIT", 1 << 20)
    async with FakeKubelet(path, {method: says(bytes(1 << 20))}):
        if method == LIST:
            assert len(await unary(str(path), method)) == 1 << 20
    async with FakeKubelet(path, {method: says(bytes((1 << 20) + 1))}):
        assert "an answer of more than 1 MiB" in str(await failure(path, method=method))


@pytest.mark.parametrize("method", [LIST, WATCH])
async def test_a_server_that_hangs_is_given_up_at_the_deadline_and_not_before(path: Path, method: str) -> None:
    hangs = Hangs()
    with LoopClock() as clock:
        async with FakeKubelet(path, {method: hangs}):
            call = asyncio.create_task(failure(path, method=method, timeout=1000.0))
            await hangs.reached.wait()
            await clock.forward(990.0)
            assert not call.done()
            await clock.forward(11.0)
            assert call.done()
            error = await call
            await hangs.left.wait()  # the server learns that nobody waits any more
    assert "no answer in time" in str(error) and "hangs" in error.cure and not error.missing


async def test_a_server_that_takes_the_connection_and_says_nothing_is_given_up(path: Path) -> None:
    taken = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.set()
        await reader.read()
        writer.close()

    with LoopClock() as clock:
        async with await asyncio.start_unix_server(silent, path):
            call = asyncio.create_task(failure(path, timeout=1000.0))
            await taken.wait()
            await clock.forward(1001.0)
            assert call.done()
            assert "no answer in time" in str(await call)


async def test_a_stream_that_has_begun_may_be_silent_for_days(path: Path) -> None:
    hangs = Hangs(b"first", then=(b"second",))
    with LoopClock() as clock:
        async with FakeKubelet(path, {WATCH: hangs}):
            answers = stream(str(path), WATCH, timeout=5.0)
            assert await anext(answers) == b"first"
            waiting = asyncio.ensure_future(anext(answers))
            await clock.forward(3 * 86400.0)
            assert not waiting.done()
            hangs.go_on.set()
            assert await waiting == b"second"
            with pytest.raises(StopAsyncIteration):
                await anext(answers)


async def test_a_stream_that_breaks_off_gives_what_came_before(path: Path) -> None:
    async with FakeKubelet(path, {WATCH: refuses(Status.UNAVAILABLE, "closing", after=(b"one",))}):
        answers = stream(str(path), WATCH)
        assert await anext(answers) == b"one"
        with pytest.raises(CallError, match="UNAVAILABLE closing"):
            await anext(answers)


async def test_who_stops_listening_ends_the_call_on_the_server_too(path: Path) -> None:
    hangs = Hangs(b"first")
    async with FakeKubelet(path, {WATCH: hangs}):
        answers = stream(str(path), WATCH)
        await anext(answers)
        await answers.aclose()  # type: ignore[attr-defined]
        await hangs.left.wait()


async def test_a_cancelled_call_is_cancelled_and_no_failure(path: Path) -> None:
    hangs = Hangs()
    async with FakeKubelet(path, {LIST: hangs}):
        call = asyncio.create_task(unary(str(path), LIST))
        await hangs.reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await hangs.left.wait()


async def test_the_socket_may_be_replaced_between_two_calls(path: Path) -> None:
    for answer in (b"before", b"after"):
        async with FakeKubelet(path, {LIST: says(answer)}):
            assert await unary(str(path), LIST) == answer
        assert (await failure(path)).missing


@pytest.mark.parametrize(
    ("error", "words", "cured"),
    [
        (PermissionError(13, "Permission denied"), "/s: permission denied", True),
        (OSError(24, "Too many open files"), "/s: Too many open files", False),
        (OSError("AF_UNIX path too long"), "/s: AF_UNIX path too long", False),
        (ConnectionResetError(), "/s: List: the connection was cut", False),
        (BrokenPipeError(), "/s: List: the connection was cut", False),
        (StreamTerminatedError("x"), "/s: List: the connection was cut", False),
        (EOFError(), "/s: List: the connection was cut", False),
        (ProtocolError("x"), "/s: List: no gRPC answer: x", True),
        (NotImplementedError("Compression not implemented"), "/s: List: no gRPC answer: Compression not", True),
        (GRPCError(Status.UNKNOWN, None), "/s: List: UNKNOWN", False),
        (KeyError("odd"), "/s: List: KeyError: 'odd'", True),
        (CallError("said already"), "said already", False),
    ],
)
def test_what_went_wrong_is_said_in_words(error: Exception, words: str, cured: bool) -> None:
    found = failed(error, "/s", LIST)
    assert str(found).startswith(words)
    assert bool(found.cure) is cured and not found.missing and not found.unserved

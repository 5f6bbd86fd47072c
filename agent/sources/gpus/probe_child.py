"""The active probe, as a program of its own: does a new CUDA context work on this one GPU?

`python -m agent.sources.gpus.probe_child GPU-...` makes a context by the driver's own library, writes a page of memory,
reads it back, and takes all of it down. One line of JSON says how it went. It needs some 500 MiB of the GPU's memory
for the moment, and may hang where the driver does: whoever starts it sets it a deadline.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

PAGE = 4096


class _FailedError(Exception):
    def __init__(self, call: str, code: int, name: str) -> None:
        self.call, self.code, self.name = call, code, name
        super().__init__(f"{call}: {name or code}")


def probe(uuid: str) -> dict[str, object]:
    """`ok`, how long it took in milliseconds, and where it failed: the call, CUDA's number and its name for it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    began = time.monotonic()
    said: dict[str, object] = {"ok": True}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"ok": None, "call": "dlopen", "code": None, "name": str(error)}
    try:
        _context(cuda)
    except _FailedError as failed:
        said = {"ok": False, "call": failed.call, "code": failed.code, "name": failed.name}
    return said | {"ms": round((time.monotonic() - began) * 1000, 1)}


def _context(cuda: ctypes.CDLL) -> None:
    def call(name: str, *args: object) -> None:
        code = getattr(cuda, name)(*args)
        if code != 0:
            said = ctypes.c_char_p()
            cuda.cuGetErrorName(code, ctypes.byref(said))
            raise _FailedError(name.partition("_")[0], code, (said.value or b"").decode())

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    try:
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(PAGE))
        sent = os.urandom(PAGE)
        back = ctypes.create_string_buffer(PAGE)
        call("cuMemcpyHtoD_v2", memory, sent, ctypes.c_size_t(PAGE))
        call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(PAGE))
        if back.raw != sent:
            raise _FailedError("compare", 0, "the page that was read is not the one that was written")
        call("cuMemFree_v2", memory)
    finally:
        cuda.cuCtxDestroy_v2(context)


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # the agent's death must end this process
    print(json.dumps(probe(sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()

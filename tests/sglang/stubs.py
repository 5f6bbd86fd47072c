"""Stands in for the GPU libraries that SGLang imports, so that its own argument checks run on any machine.

It answers what the checks ask of torch (a capability, a CUDA version, free memory) as told by the environment and must
never touch SGLang itself: what is refused, and in which words, is decided by the package as installed. Imported first
by the child processes of `provoke.py`.
"""

from __future__ import annotations

import abc
import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any
from unittest.mock import MagicMock

ABSENT = (
    "torch", "triton", "torchvision", "torchao", "torch_memory_saver", "sgl_kernel", "flashinfer",
    "flash_attn", "xgrammar", "outlines", "llguidance", "sgl_deep_gemm", "deep_gemm", "tilelang", "quack", "cutlass",
    "cuda", "compressed_tensors", "gguf", "decord", "av", "soundfile", "timm", "tvm_ffi", "kernels", "pynvml", "uvloop",
    "modelscope", "mistral_common", "openai", "openai_harmony", "anthropic", "sentencepiece", "tiktoken", "scipy",
    "blobfile", "datasets", "interegular", "watchfiles", "smg_grpc_servicer", "tokenspeed_mla", "grpc", "zstandard",
    "easydict",
)  # fmt: skip
"""Packages that need a GPU or are heavy; argument checks only import them."""


OTHER_DEVICES = frozenset({"npu", "hpu", "musa", "xpu", "mlu"})
"""Accelerators of other makers that torch has a module for where their plugin is installed."""


class _Anything(MagicMock):
    """A value that allows everything."""

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


class _AnyClass(abc.ABCMeta):
    """The type of the classes made up here: an attribute that is not there is anything."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name=name)


class _Made(metaclass=_AnyClass):
    """A class that can be made, called, subclassed and indexed in any way."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if args else None

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name=name)


class _Stub(types.ModuleType):
    """A module that has every name: a class for a capital letter, else something that can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in OTHER_DEVICES:
            raise AttributeError(name)
        value: Any = (
            _AnyClass(name, (_Made,), {"__module__": self.__name__}) if name[:1].isupper() else _Anything(name=name)
        )
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def _settle_transformers() -> None:
    """Have transformers look for the libraries while they are absent: it remembers, and goes on without them."""
    from transformers.utils import import_utils

    # A class whose library is absent raises when touched; registering with it at import must not.
    touched = import_utils.DummyObject.__getattribute__
    import_utils.DummyObject.__getattribute__ = lambda cls, name: (
        (lambda *_, **__: None) if name == "register" else touched(cls, name)
    )
    for name, look in vars(import_utils).items():
        if name.startswith("is_") and name.endswith("_available"):
            try:
                look()
            except Exception:
                continue  # some want an argument or a library; they are asked for nothing here


def install() -> None:
    """Put the stand-ins in place. FAKE_CAPABILITY is `10.0`, FAKE_CUDA `12.9`, FAKE_MEMORY_GB `180`."""
    _settle_transformers()
    sys.meta_path.insert(0, _Finder())
    import torch

    capability = tuple(int(n) for n in os.environ.get("FAKE_CAPABILITY", "10.0").split("."))
    memory = int(os.environ.get("FAKE_MEMORY_GB", "180")) << 30
    fake: Any = torch
    fake.__version__ = "2.11.0"
    fake.version.cuda = os.environ.get("FAKE_CUDA", "12.9")
    fake.version.hip = None
    fake.version.musa = None
    import torch.cuda
    import torch.library
    import triton

    library: Any = torch.library
    library.Library = _AnyClass("Library", (_Made,), {"m": types.SimpleNamespace(name="sglang")})
    library.infer_schema = lambda *_, **__: "() -> ()"
    target: Any = triton
    target.runtime.driver.active.get_current_target().backend = "cuda"
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 8
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: capability
    cuda.get_device_name = lambda *_: "NVIDIA B200" if capability[0] == 10 else "NVIDIA H100 80GB HBM3"
    cuda.mem_get_info = lambda *_: (memory, memory)
    fake.backends.mps.is_available = lambda: False

"""A GPU that computes nothing: passes at full model size on fake tensors, and a watcher that knows CUDA's rules.

FakeTensorMode gives every operation its shapes, refuses shapes and values that depend on data, and needs no memory.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from realrun.model.weights import library_config
from sim.costs.shapes import model as shape_of

MEMORY_BYTES = 80 << 30
ALLOCATES_ONLY = ("empty", "new_empty", "empty_like", "empty_strided")
ATTENTION = "_flash_attention_forward", "fwd", "varlen_fwd"
LAUNCHES = {**dict.fromkeys(ATTENTION, 2), "pad": 2}
"""Kernels of one call where it is not one: FlashAttention and the sum of its splits."""
WAITS = ("_local_scalar_dense", "item", "nonzero", "masked_select", "lift_fresh", "unique", "equal", "is_nonzero")


CUDA, META = 1, 14
"""Places of both in torch's list of kinds of devices."""


def _let_cuda_be_current() -> None:
    """A torch without CUDA knows nobody that makes a GPU the current one, and asks before it looks for fake tensors.

    The one that does nothing, of tensors without data, is put in its place. Where torch was built for CUDA and finds no
    GPU it has a call for that.
    """
    torch._C._ensureCUDADeviceGuardSet()
    core = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(core, "_ZN3c104impl26device_guard_impl_registryE")
    if not guards[CUDA]:
        guards[CUDA] = guards[META]


class _HostGenerator(torch.Generator):
    """Of any device: what is drawn with it is fake."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls)


@contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on "cuda" are fake ones of a GPU with MEMORY_BYTES free, also where torch has no CUDA."""
    _let_cuda_be_current()
    monkeypatch.setattr(torch, "Generator", _HostGenerator)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (MEMORY_BYTES, MEMORY_BYTES))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device=None: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        yield


def full_size(name: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A model of the table's dimensions on the fake GPU."""
    from transformers import AutoModelForCausalLM

    with unset_fake_temporarily(), torch.device("meta"):
        made = AutoModelForCausalLM.from_config(library_config(shape_of(name)), dtype=dtype)
    made = made.eval().requires_grad_(False).to_empty(device="cuda")
    made.tie_weights()
    return made


class Call(NamedTuple):
    """All calls of one operation together."""

    schema: str
    max_positional: int
    names: frozenset[str]


class Watcher(TorchDispatchMode):
    """Counts launches and memory, notes every call, and asserts that all of it could stand in a captured graph."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Call] = {}
        """By operation, as torch writes it: aten::add.Tensor."""
        self.launches: Counter[str] = Counter()
        self.max_bytes = self._bytes = 0
        """Most memory of what was made and not freed while watching."""
        self._known: set[int] = set()

    @property
    def num_launches(self) -> int:
        return self.launches.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        given = list(tensors((args, kwargs)))
        shared = {storage_of(tensor) for tensor in given}
        self._known |= shared
        for tensor in given:
            assert isinstance(tensor, FakeTensor), f"{func}: a tensor that is no GPU's"
            assert tensor.device.type == "cuda", f"{func} reads host memory"
            assert tensor.dtype is not torch.float64, f"{func} in double precision"
        assert name not in WAITS, f"{func} waits for the device"
        assert not func.name().startswith("aten::where.Scalar"), f"{func} copies its scalar to the device"
        out = func(*args, **kwargs)
        made = list(tensors(out))
        assert all(tensor.device.type == "cuda" for tensor in made), f"{func} writes host memory"
        known = self.calls.setdefault(func.name(), Call(str(func._schema), 0, frozenset()))
        most = max(known.max_positional, len(args))
        self.calls[func.name()] = known._replace(max_positional=most, names=known.names | set(kwargs))
        is_written = func._schema.is_mutable and name not in ATTENTION
        if is_written or (name not in ALLOCATES_ONLY and any(storage_of(tensor) not in shared for tensor in made)):
            self.launches[name] += LAUNCHES.get(name, 1)
        for tensor in made:
            self._count(tensor)
        return out

    def _count(self, tensor: FakeTensor) -> None:
        storage, key = tensor.untyped_storage(), storage_of(tensor)
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes()
        self._bytes += size
        self.max_bytes = max(self.max_bytes, self._bytes)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._bytes -= size


def storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def tensors(values: Any) -> Iterator[Any]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from tensors(tuple(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors(value)

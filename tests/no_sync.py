"""Fail on whatever would make the host wait for a device, also where the tests run on the CPU.

Three things wait on CUDA: reading a value into Python, operations whose output shape depends on values, and
copies between the host's pageable memory and the device. On the CPU all of them look free, so `no_sync`
watches the calls instead. `cuda_never_waits` asks the CUDA runtime itself, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# ATen operations that read values, or whose output shape is known only once values are.
_WAITING_OPERATIONS = frozenset(
    {
        "_local_scalar_dense",
        "_unique",
        "_unique2",
        "allclose",
        "argwhere",
        "bincount",
        "equal",
        "is_nonzero",
        "item",
        "masked_select",
        "nonzero",
        "nonzero_numpy",
        "unique_consecutive",
        "unique_dim",
        "unique_dim_consecutive",
    }
)
# Python calls that read a CPU tensor's memory without an ATen operation, so that nothing above sees them.
_READS: frozenset[Callable[..., Any]] = frozenset(
    {
        Tensor.__array__,
        Tensor.__bool__,
        Tensor.__contains__,
        Tensor.__float__,
        Tensor.__index__,
        Tensor.__int__,
        Tensor.cpu,
        Tensor.item,
        Tensor.numpy,
        Tensor.tolist,
    }
)
# Python calls that bring numbers to a device when they are given one.
_PLACING: frozenset[Callable[..., Any]] = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


class DeviceWaitError(AssertionError):
    """Something would have waited for the device."""


class _WatchedOperations(TorchDispatchMode):
    """Fails on waiting ATen operations and on tensors made of host data, whoever makes them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        options = kwargs or {}
        if name in _WAITING_OPERATIONS:
            raise DeviceWaitError(f"aten::{name} waits for the device")
        if name == "lift_fresh" and args[0].ndim:
            raise DeviceWaitError(f"a tensor of shape {tuple(args[0].shape)} is made of numbers on the host")
        if name == "repeat_interleave" and options.get("output_size") is None:
            raise DeviceWaitError("aten::repeat_interleave without output_size waits for the device")
        if name in ("index", "index_put", "index_put_") and _has_mask(args[1]):
            raise DeviceWaitError(f"aten::{name} with a mask waits for the device")
        return func(*args, **options)


class _WatchedCalls(TorchFunctionMode):
    """Fails on calls from Python that read values, or that bring Python's numbers to a device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            raise DeviceWaitError(f"Tensor.{func.__name__} waits for the device")
        options = kwargs or {}
        if func in _PLACING and options.get("device") is not None and not isinstance(args[0], Tensor):
            raise DeviceWaitError(f"torch.{func.__name__} copies a number from the host to the device")
        return func(*args, **options)


class LazyEvent:
    """The mark of a device that does nothing until somebody waits for it."""

    def __init__(self) -> None:
        self._passed = False

    def record(self, stream: object) -> None:
        self._passed = False

    def query(self) -> bool:
        return self._passed

    def synchronize(self) -> None:
        self._passed = True


@contextmanager
def no_sync() -> Iterator[None]:
    """Raise `DeviceWaitError` where the body would wait for a device. For any device, the CPU included.

    Tensors made of lists or arrays count as copies to the device, wherever they are made; single numbers do
    where they are made for a device. Code that uses no tensors of torch (numba, NumPy) is not seen.
    """
    with _WatchedOperations(), _WatchedCalls():
        yield


@contextmanager
def cuda_never_waits() -> Iterator[None]:
    """Raise RuntimeError where the body makes the host wait for the CUDA device."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _has_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)

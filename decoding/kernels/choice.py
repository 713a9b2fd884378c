"""Which backend runs the trie's hot loops."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

from decoding.errors import KernelsError
from decoding.kernels.contract import TrieKernels, TrieTables
from decoding.kernels.torch_kernels import TorchKernels

KERNEL_NAMES = ("auto", "numba", "torch")


def choose_kernels(device: torch.device, name: str = "auto") -> Callable[[TrieTables], TrieKernels]:
    """Return what makes a trie's kernels.

    Args:
        device: Of the trie.
        name: "numba": compiled loops, on the CPU only; "torch": tensor operations, on any device; "auto":
            numba on the CPU where it is installed, else torch.

    Raises:
        KernelsError: numba is asked for by name and not installed, or for another device.
        ValueError: there is no such backend.
    """
    if name not in KERNEL_NAMES:
        raise ValueError(f"kernels: expected one of {', '.join(KERNEL_NAMES)}, got {name!r}")
    installed = _numba_is_installed()
    if name == "numba":
        if device.type != "cpu":
            raise KernelsError(f"kernels: numba runs on the CPU only, and the trie is on {device}; use torch")
        if not installed:
            raise KernelsError(
                "kernels: numba is not installed; install generative-retrieval[numba], or use torch"
            )
    if name == "torch" or not installed or device.type != "cpu":
        return TorchKernels
    return _numba_kernels


def _numba_is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def _numba_kernels(tables: TrieTables) -> TrieKernels:
    # Imported on first use: numba takes half a second, which commands without a trie need not wait for.
    from decoding.kernels.numba_kernels import NumbaKernels

    kernels = NumbaKernels(tables)
    kernels.warm_up()
    return kernels

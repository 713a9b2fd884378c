"""Which backend runs the trie's hot loops."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable

import torch

from decoding.errors import KernelsError
from decoding.kernels.contract import TrieKernels, TrieTables
from decoding.kernels.torch_kernels import TorchKernels

logger = logging.getLogger(__name__)

KERNEL_NAMES = ("auto", "numba", "torch")


def choose_kernels(device: torch.device, name: str = "auto") -> Callable[[TrieTables], TrieKernels]:
    """Return what makes a trie's kernels.

    Args:
        device: Of the trie.
        name: "numba": compiled loops, on the CPU only; "torch": tensor operations, on any device; "auto":
            numba on the CPU where it is installed and works, else torch.

    Raises:
        KernelsError: numba is asked for by name and not installed, or for another device. What is returned
            raises it where numba is asked for by name and cannot compile.
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
    return _numba_kernels if name == "numba" else _numba_or_torch_kernels


def _numba_is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def _numba_or_torch_kernels(tables: TrieTables) -> TrieKernels:
    try:
        return _numba_kernels(tables)
    except KernelsError as error:
        logger.warning("%s; it is done without numba, which takes longer", error)
        return TorchKernels(tables)


def _numba_kernels(tables: TrieTables) -> TrieKernels:
    # Imported on first use: numba takes half a second, which commands without a trie need not wait for.
    try:
        from decoding.kernels.numba_kernels import NumbaKernels

        kernels = NumbaKernels(tables)
        kernels.warm_up()
    except Exception as error:  # an installation that does not fit together fails in ways of its own
        raise KernelsError(f"kernels: numba is installed but does not work: {error!r}") from error
    return kernels

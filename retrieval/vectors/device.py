"""Where an encoder may run: names that are none are refused before anything is read."""

from __future__ import annotations

import re

from retrieval.errors import InputError
from retrieval.vectors.methods import LEXICAL

_FIELD = "vector_device"
_NAME = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d{1,3})?")
_WITHOUT_MODEL = ("cpu", "auto")


def check_device_name(name: str) -> None:
    """Refuse what is no name of a device, on whatever machine.

    Raises:
        InputError: it is none.
    """
    if not _NAME.fullmatch(name):
        raise InputError(_FIELD, f"expected auto, cpu, cuda, cuda:N, mps, xpu or xpu:N, got {name!r}")


def check_device(method: str, name: str) -> None:
    """Refuse a device on which vectors cannot be made here.

    Args:
        method: What makes them; lexical vectors are made on the CPU.
        name: Of the device.

    Raises:
        InputError: it is no name of a device, there is no such device here, or lexical vectors are to be made
            on another than the CPU.
    """
    check_device_name(name)
    if name in _WITHOUT_MODEL:
        return
    if method == LEXICAL:
        raise InputError(_FIELD, f"lexical vectors need no model and are made on the CPU, got {name!r}")
    import torch  # takes seconds, and lexical vectors do without

    kind, _, number = name.partition(":")
    library = getattr(torch, kind)
    count = library.device_count() if library.is_available() else 0
    if int(number or 0) >= count:
        raise InputError(_FIELD, f"there is no device {name!r} here: of {kind} there are {count}")

"""Double precision from end to end, for comparisons that rounding must not blur."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Float64Throughout(TorchFunctionMode):
    """Turn the casts to float32 that norms, rotary embeddings and eager softmax hard-code into float64.

    Without it a float64 model of most architectures is only as exact as float32.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, with float64 wherever it names float32."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            return args[0].double()
        if func in (torch.Tensor.to, torch.nn.functional.softmax):
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def exactly(dtype: torch.dtype) -> AbstractContextManager[object]:
    """`Float64Throughout` for float64, nothing for other types."""
    return Float64Throughout() if dtype == torch.float64 else nullcontext()

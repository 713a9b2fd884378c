"""Measures how far two next-token distributions lie apart, and how far rounding may take them.

`exactly` runs comparisons of float64 models in double precision from end to end, which rounding must not
blur.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Largest |difference| of log-probabilities where rounding is fine enough to be told from a mistake.
_LARGEST = {torch.float64: 1e-9, torch.float32: 1e-4}

# In float32 a few badly conditioned branches may round ten times further, while all branches together differ
# by next to nothing. A misplaced position or mask moves that figure to 1e-3 and more.
_STRETCH = 10.0
_NEXT_TO_NOTHING = 1e-5

# |difference| / |log-probabilities about their mean|, Euclidean norms. Half precision kernels round
# differently for different batch shapes; a misplaced position or mask changes trained models by far more.
_RELATIVE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.03}


@dataclass(frozen=True, slots=True)
class Difference:
    """Log-probabilities of many branches compared with those expected. Sums of differences are differences.

    Attributes:
        branches: Distributions compared.
        largest: Largest |difference| of a log-probability; NaN when a NaN was met.
        squared: Sum of squared differences.
        spread: Sum of squares of what was expected, about the mean of every distribution.
        agreeing: Distributions with the same likeliest token.
    """

    branches: int = 0
    largest: float = 0.0
    squared: float = 0.0
    spread: float = 0.0
    agreeing: int = 0

    @classmethod
    def between(cls, got: Tensor, expected: Tensor) -> Difference:
        """Compare logits or log-probabilities, row by row. Shape of both: (n, V)."""
        got, expected = got.double().log_softmax(-1), expected.double().log_softmax(-1)
        if not len(got):
            return cls()
        apart = (got - expected).abs()
        return cls(
            branches=len(got),
            largest=float(apart.max()),
            squared=float(apart.square().sum()),
            spread=float((expected - expected.mean(-1, keepdim=True)).square().sum()),
            agreeing=int((got.argmax(-1) == expected.argmax(-1)).sum()),
        )

    def __add__(self, other: Difference) -> Difference:
        """Both taken together. NaN stays NaN."""
        largest = max(self.largest, other.largest)
        if math.isnan(self.largest) or math.isnan(other.largest):
            largest = math.nan
        return Difference(
            self.branches + other.branches,
            largest,
            self.squared + other.squared,
            self.spread + other.spread,
            self.agreeing + other.agreeing,
        )

    @property
    def relative(self) -> float:
        """Norm of the difference over the norm of what was expected about its mean; 0 for none at all."""
        if self.squared == 0.0:
            return 0.0
        return math.sqrt(self.squared / self.spread) if self.spread else math.inf


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What rounding explains.

    Attributes:
        allowed: Differences must stay below it.
        is_relative: Whether it bounds `Difference.relative`; otherwise `Difference.largest`.
        stretched: Bound on `Difference.largest` where `Difference.relative` is below 1e-5; None for none.
    """

    allowed: float
    is_relative: bool
    stretched: float | None = None

    @classmethod
    def relative(cls, dtype: torch.dtype) -> Tolerance:
        """A bound on the relative difference: what refuses a model when it is loaded."""
        return cls(_RELATIVE[dtype], is_relative=True)

    @classmethod
    def strict(cls, dtype: torch.dtype) -> Tolerance:
        """A bound on every single log-probability; half precision allows none, and gets the relative one."""
        if dtype not in _LARGEST:
            return cls.relative(dtype)
        allowed = _LARGEST[dtype]
        return cls(allowed, False, allowed * _STRETCH if dtype == torch.float32 else None)

    def measure(self, difference: Difference) -> float:
        """The figure of a difference that is bounded."""
        return difference.relative if self.is_relative else difference.largest

    def bound(self, difference: Difference) -> float:
        """The bound that a difference has to stay below."""
        if self.stretched is None or difference.largest < self.allowed:
            return self.allowed
        return self.stretched if difference.relative < _NEXT_TO_NOTHING else self.allowed

    def holds(self, difference: Difference) -> bool:
        """Whether rounding explains a difference. NaN is never explained."""
        return self.measure(difference) < self.bound(difference)


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

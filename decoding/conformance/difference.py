"""Measures the difference of next-token distributions, and bounds what rounding may cause."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Largest |difference| of log-probabilities, for types that round finely enough to tell it from a mistake.
_LARGEST = {torch.float64: 1e-9, torch.float32: 1e-4}

# In float32 a few badly conditioned branches may round ten times further while all branches together hardly
# differ. A misplaced position or mask moves the relative difference to 1e-3 and more.
_STRETCH = 10.0
_NEXT_TO_NOTHING = 1e-5

# |difference| / |log-probabilities about their mean|, Euclidean norms. Half precision kernels round
# differently for different batch shapes; a misplaced position or mask changes trained models by far more.
_RELATIVE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.03}


@dataclass(frozen=True, slots=True)
class Difference:
    """Log-probabilities of many branches compared with the expected ones. Differences add up."""

    branches: int = 0  # Distributions compared
    largest: float = 0.0  # Largest |difference| of a log-probability; NaN if one was met
    squared: float = 0.0  # Sum of squared differences
    spread: float = 0.0  # Sum of squares of the expected values, about the mean of every distribution
    agreeing: int = 0  # Distributions with the same likeliest token

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
        """Return the sum. NaN stays NaN."""
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
        """Norm of the difference over the norm of the expected values about their mean."""
        if self.squared == 0.0:
            return 0.0
        return math.sqrt(self.squared / self.spread) if self.spread else math.inf


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Bound on the differences that rounding explains."""

    allowed: float  # Differences must stay below it
    is_relative: bool  # Whether it bounds `Difference.relative`; otherwise `Difference.largest`
    # Bound on `Difference.largest` while `Difference.relative` is below 1e-5; None for none.
    stretched: float | None = None

    @classmethod
    def relative(cls, dtype: torch.dtype) -> Tolerance:
        """Return a bound on the relative difference, which decides about a model at loading."""
        return cls(_RELATIVE[dtype], is_relative=True)

    @classmethod
    def strict(cls, dtype: torch.dtype) -> Tolerance:
        """Return a bound on every log-probability; half precision gets the relative bound."""
        if dtype not in _LARGEST:
            return cls.relative(dtype)
        allowed = _LARGEST[dtype]
        return cls(allowed, False, allowed * _STRETCH if dtype == torch.float32 else None)

    def measure(self, difference: Difference) -> float:
        """Return the figure of a difference that is bounded."""
        return difference.relative if self.is_relative else difference.largest

    def bound(self, difference: Difference) -> float:
        """Return the bound for a difference."""
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
        """Call a torch function, with float64 wherever it names float32."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            return args[0].double()
        if func in (torch.Tensor.to, torch.nn.functional.softmax):
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def exactly(dtype: torch.dtype) -> AbstractContextManager[object]:
    """Return `Float64Throughout` for float64, so that rounding does not blur comparisons; else nothing."""
    return Float64Throughout() if dtype == torch.float64 else nullcontext()

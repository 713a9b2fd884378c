"""Bounds of histograms."""

from __future__ import annotations

_DIGITS = 6


def geometric(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Return `count` upper bounds, each `factor` times the one before.

    Raises:
        ValueError: they would not grow.
    """
    if first <= 0 or factor <= 1 or count < 1:
        raise ValueError(f"first > 0, factor > 1 and count >= 1 are expected, got {first}, {factor}, {count}")
    # Rounded, so that the text shows 0.0032 and no noise behind it.
    return tuple(float(f"{first * factor**i:.{_DIGITS}g}") for i in range(count))

"""How fast a device is: what a batch costs, and what each token of work costs on top of it."""

from __future__ import annotations

import math

_SMOOTHING = 0.2
# Work in one batch takes at most so many times what it takes in smaller ones.
_MAX_PER_TOKEN = 2.0


class Pace:
    """Learns from the batches that ran. Used on the event loop only.

    A single request takes far more time per token than a full batch: a speed in tokens per second that was
    seen with single requests would refuse a burst that full batches master. So batches are kept apart by
    size, a mean for each power of two of tokens, and a straight line through the means tells what a batch
    costs beside its tokens.
    """

    def __init__(self) -> None:
        self._means: dict[int, tuple[float, float]] = {}  # by size: tokens, seconds
        self._per_batch_s = 0.0
        self._per_token_s = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a batch.

        Args:
            tokens: Its work.
            seconds: How long it took.
        """
        size = max(1, tokens).bit_length()
        new = (float(max(1, tokens)), max(seconds, 1e-6))
        old = self._means.get(size, new)
        self._means[size] = (old[0] + _SMOOTHING * (new[0] - old[0]), old[1] + _SMOOTHING * (new[1] - old[1]))
        self._means = _plausible(self._means)
        self._per_batch_s, self._per_token_s = _line(list(self._means.values()))

    def seconds(self, tokens: int, batches: int) -> float:
        """Return how long work takes, seconds; 0 before any batch has run.

        Args:
            tokens: The work.
            batches: In how many batches it is done.
        """
        return batches * self._per_batch_s + tokens * self._per_token_s


def _plausible(means: dict[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
    """Return means none of which says that larger batches are far slower, token by token, than smaller ones.

    One odd batch, as of a machine that paged, would be believed for ever: who expects large batches to be
    slow refuses the requests that make the next one.
    """
    bounded: dict[int, tuple[float, float]] = {}
    per_token_s = math.inf
    for size, (tokens, seconds) in sorted(means.items()):
        bounded[size] = (tokens, min(seconds, _MAX_PER_TOKEN * per_token_s * tokens))
        per_token_s = min(per_token_s, seconds / tokens)
    return bounded


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of a least-squares line, neither of them negative."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    through_origin = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    if not spread:
        return 0.0, through_origin
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    intercept = mean_y - slope * mean_x
    if slope <= 0:  # the small batches were the slow ones: nothing is known of what tokens cost
        return 0.0, through_origin
    return (intercept, slope) if intercept >= 0 else (0.0, through_origin)

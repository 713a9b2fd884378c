"""Distance of results from a known law: Kullback-Leibler divergence beside its sampling error.

P is a target law over N rows and counts are of n results. KL(P || counts) is not zero even when results
follow P: its mean is about (N - 1) / 2n. How it scatters is found by drawing counts from P itself, again and
again (a parametric bootstrap). Half a result is added to every row, in measured and in drawn counts alike, so
that a row that never came out does not make the divergence infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import integrate, stats

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_BOOTSTRAP = 20_000


@dataclass(frozen=True, slots=True)
class Divergence:
    """A measured divergence beside that of as many results which follow P exactly."""

    kl: float  # KL(P || counts), in nats
    results: int
    expected: float  # mean of the others
    p_value: float  # share of the others that are at least as large, this one counted among them


def divergence(law: Array, counts: Counts, seed: int = 0) -> Divergence:
    """Compare counts of rows with the law they should follow. Both have one entry per row."""
    total = int(counts.sum())
    drawn = np.random.default_rng(seed).multinomial(total, law, size=_BOOTSTRAP)
    chance, measured = _kl(law, drawn), float(_kl(law, counts))
    p_value = (1 + int((chance >= measured).sum())) / (_BOOTSTRAP + 1)
    return Divergence(measured, total, float(chance.mean()), p_value)


def auc(above: Array, below: Array) -> float | None:
    """Return the probability that one of the first is larger than one of the second, ties counted half."""
    if not len(above) or not len(below):
        return None
    return float(stats.mannwhitneyu(above, below).statistic) / (len(above) * len(below))


def kl(law: Array, other: Array) -> float:
    """Return KL(law || other) of two laws."""
    return float((law * (np.log(law) - np.log(other))).sum())


def law_of_results(mass: float, target: Array, weights: Array, num_draws: int) -> Array:
    """Return the law of Algorithm 1's results, exactly, K = 1 being plain constrained sampling.

    The first phase gives the target with probability 1 - (1 - mass)^K. In the second, one of K draws is
    chosen by weight: a row of proposal probability q and weight x comes out with probability
    K q x E[1 / (x + Y)], Y the weight of K - 1 other draws, and E[1 / (x + Y)] is the integral of
    exp(-t x) phi(t)^(K - 1) over t > 0, phi being the Laplace transform of one draw's weight.

    The mass is P_L(S), the target P_S, `num_draws` K. All arrays have one entry per row.
    """
    proposal = mass * target / weights
    if num_draws == 1:
        return proposal
    scale = float(weights.max())
    others = weights / scale

    def integrand(s: float) -> Array:
        # t = s / (1 - s) maps (0, 1) to the half line; the last factor is dt/ds.
        t = s / (1.0 - s)
        phi = float((proposal * np.exp(-t * others)).sum())
        return np.exp(-t * others) * phi ** (num_draws - 1) / (1.0 - s) ** 2

    expected, _ = integrate.quad_vec(integrand, 0.0, 1.0 - 1e-12, epsabs=1e-12, epsrel=1e-9, limit=2000)
    chosen = num_draws * proposal * others * expected
    refused = (1.0 - mass) ** num_draws
    return (1.0 - refused) * target + refused * chosen / chosen.sum()


def _kl(law: Array, counts: Counts) -> Array:
    """Divergence of counts (…, N) from a law (N,)."""
    smoothed = counts + 0.5
    share = smoothed / smoothed.sum(axis=-1, keepdims=True)
    result: Array = (law * (np.log(law) - np.log(share))).sum(axis=-1)
    return result

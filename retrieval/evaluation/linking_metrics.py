"""Micro-averages of entity linking, as GERBIL's InKB, and what share of mentions is answered rightly.

The knowledge base is the index. InKB (Röder et al. 2018, GERBIL) leaves out what names nothing in the
knowledge base on both sides, in the labels and in the answers, and then counts matches:

- gold: mentions with a right answer in the index;
- predicted: mentions that are answered with an entity of the index. NO_MATCH is no prediction, and neither
  is a text that is no title;
- correct: mentions that are both, and the entity is a right one. The match is strong: mentions are given with
  their ends, so an answer belongs to one mention.

An entity named where the label is NIL, or where the index lacks the right answer, is thus a wrong prediction:
it lowers precision and not recall. Where every mention has its answer in the index and is answered with an
entity, precision, recall, F1 and accuracy are one number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from retrieval.evaluation.judged import JudgedRanking

Floats = npt.NDArray[np.float64]
MICRO_METRICS = ("F1(InKB)", "P(InKB)", "R(InKB)")


def inkb_counts(judged: Sequence[JudgedRanking]) -> Floats:
    """Return correct, predicted and gold of every mention, each 0 or 1. Shape: (n, 3)."""
    counts = [(j.is_hit and j.is_answerable, j.prediction is not None, j.is_answerable) for j in judged]
    return np.array(counts, dtype=np.float64).reshape(-1, 3)


def micro_average(name: str, sums: Floats) -> Floats:
    """Return a micro-average from sums of counts; 0 where nothing was predicted, or nothing was to be.

    Args:
        name: One of `MICRO_METRICS`.
        sums: Correct, predicted and gold. Shape: (..., 3).

    Returns:
        Shape: (...).
    """
    correct, predicted, gold = sums[..., 0], sums[..., 1], sums[..., 2]
    above, below = {
        "F1(InKB)": (2 * correct, predicted + gold),
        "P(InKB)": (correct, predicted),
        "R(InKB)": (correct, gold),
    }[name]
    return np.divide(above, below, out=np.zeros_like(below, dtype=np.float64), where=below > 0)


def accuracy(judged: Sequence[JudgedRanking]) -> Floats:
    """Return 1 where the first answer is right, 0 elsewhere.

    Where the index has no right answer, NO_MATCH is the right one; an error is none.
    """
    return np.array(
        [j.is_hit if j.is_answerable else not j.ranking.entities and j.ranking.error is None for j in judged],
        dtype=np.float64,
    )

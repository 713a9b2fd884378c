"""Made-up queries with candidates, for the tests of rankings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from genret.retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES
from genret.retrieval.ranking.fitting import RankedExample
from genret.retrieval.ranking.rankings import DEFAULT_RANKING, MODEL_LOGPROB, NO_MODEL, Rankings, softmax

# Weights that queries are drawn by.
TRUE_WEIGHTS = {
    "names.letters": 3.0,
    "names.likeness": 2.0,
    "names.length": -1.5,
    "texts.words": 0.7,
    "weight.weight": 0.5,
}


def true_weights(has_model: bool = False) -> np.ndarray:
    weights = np.zeros(len(FEATURES))
    for name, value in TRUE_WEIGHTS.items():
        weights[FEATURE_NUMBER[name]] = value
    weights[MODEL_LOGPROB] = 0.6 if has_model else 0.0
    return weights


def drawn_examples(
    count: int, seed: int = 0, candidates: int = 12, has_model: bool = False, nothing_share: float = 0.0
) -> list[RankedExample]:
    """Return queries whose right candidate is drawn by the true weights; of some it is taken out."""
    rng = np.random.default_rng(seed)
    weights = true_weights(has_model)
    examples = []
    for _ in range(count):
        features = np.zeros((candidates, len(FEATURES)), np.float32)
        for name in TRUE_WEIGHTS:
            features[:, FEATURE_NUMBER[name]] = rng.normal(0, 1.5, candidates)
        logprobs = rng.normal(-8, 3, candidates) if has_model else None
        table = features.astype(np.float64)
        if logprobs is not None:
            table[:, MODEL_LOGPROB] = logprobs
        right = np.zeros(candidates, np.bool_)
        right[rng.choice(candidates, p=softmax(table @ weights))] = True
        kept = np.ones(candidates, np.bool_)
        if rng.random() < nothing_share:
            kept = ~right
        examples.append(
            RankedExample(features[kept], right[kept], None if logprobs is None else logprobs[kept])
        )
    return examples


def write_rankings(folder: Path) -> Path:
    """Write a file of rankings; fitting one would take most of the time of a build."""
    file = folder / "rankings.json"
    file.write_bytes(Rankings().with_one(NO_MODEL, DEFAULT_RANKING).to_bytes())
    return file

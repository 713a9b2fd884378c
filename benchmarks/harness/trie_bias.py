"""The bias of constrained decoding that Theorem 2.1 speaks of, on a catalogue whose every law is a formula.

Three titles: B alone, A x and A y. Given a mass m = P_L(S), the model gives B, A x and A y the probabilities
0.6 m, 0.3 m and 0.1 m, and everything else, 1 - m, to texts that begin with A and are no titles: behind A,
300 wrong tokens, each more likely than y, and 1,000 unlikely ones. So P_S is (0.6, 0.3, 0.1) whatever m is.
Constrained decoding knows at its first step that A or B must come, and takes A with probability 1 - 0.6 m:
it writes B with 0.6 m. Its divergence from P_S is

    KL(P_S || P_CD) = 0.6 ln(1 / m) + 0.4 ln(0.4 / (1 - 0.6 m)) >= 0.6 ln(1 / (1 - p_b)) + 0.4 ln 0.4

with p_b = 1 - m, which grows without bound as the theorem says. Where y is not among the M likeliest tokens
behind A, a draw that verifies no others (`top_m`) never writes A y.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from genret.decoding.disc import DiscResult, disc
from genret.decoding.params import DiscParams
from genret.decoding.sequence_model import SequenceModel
from genret.decoding.trie.logits_processor import TitleTrieLogitsProcessor
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.evaluation.intervals import holm
from harness.divergence import Array, Counts, divergence, kl, law_of_results
from harness.report import shown

END = 0
A, B, X, Y, FIRST = 1, 2, 3, 4, 5
ROWS = [(A, X, END), (A, Y, END), (B, END)]
TARGET = np.array([0.3, 0.1, 0.6])  # P_S of the rows
_LIKELY, _UNLIKELY = 300, 1000  # wrong tokens behind A
_LIKELY_SHARE = 0.9  # of the probability of wrong tokens
MASSES = (0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
DRAWS = (1, 2, 4, 16, 64)
TOPS = (50, 100, 500, 1000)
TOP_MASS = 0.02  # P_L(S) at which M is looked at: y is then less likely than 300 wrong tokens
PROMPT = (1, 2, 1)
_ALPHA = 0.01  # of all tests together
_PER_QUERY = 100
_RESULTS_AT_ONCE = 20  # queries


class ThreeTitles:
    """Gives the three titles a probability together (`decoding.sequence_model.SequenceEngine`)."""

    vocab_size = FIRST + _LIKELY + _UNLIKELY
    device = torch.device("cpu")
    max_positions = 16

    def __init__(self, mass: float) -> None:
        behind_a = 1 - 0.6 * mass
        wrong = (1 - mass) / behind_a
        first, then, last = torch.zeros(3, self.vocab_size, dtype=torch.float64)
        first[A], first[B] = behind_a, 0.6 * mass
        then[X], then[Y] = 0.3 * mass / behind_a, 0.1 * mass / behind_a
        then[FIRST : FIRST + _LIKELY] = wrong * _LIKELY_SHARE / _LIKELY
        then[FIRST + _LIKELY :] = wrong * (1 - _LIKELY_SHARE) / _UNLIKELY
        last[END] = 1.0
        self._logits = torch.stack([first, then, last]).log()

    def next_logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Return logits behind `PROMPT` and what was written. Shape: (N, V), float64."""
        line = {(): 0, (A,): 1}
        return self._logits[[line.get(path[len(PROMPT) :], 2) for path in sequences]]


def formula(mass: float) -> float:
    """Return KL(P_S || P_CD) of constrained decoding, in nats."""
    return 0.6 * math.log(1 / mass) + 0.4 * math.log(0.4 / (1 - 0.6 * mass))


def floor(mass: float) -> float:
    """Return the bound of that form which Theorem 2.1 promises: it lies below for every mass."""
    return 0.6 * math.log(1 / mass) + 0.4 * math.log(0.4)


def exact_law(mass: float, num_draws: int, top_m: int | None = None) -> Array:
    """Return the law of DISC's results by Algorithm 1, over the rows; what is never verified has none."""
    valid = 0.4 * mass / (1 - 0.6 * mass)  # of x and y together, behind A; elsewhere nothing is left out
    weights = np.array([valid, valid, 1.0])
    seen = np.full(len(ROWS), True)
    if top_m is not None and 0.1 * mass / (1 - mass) < _LIKELY_SHARE / _LIKELY:
        seen[ROWS.index((A, Y, END))] = top_m > _LIKELY
    if seen.all():
        return law_of_results(mass, TARGET, weights, num_draws)
    weights[0] *= 0.3 / 0.4  # behind A only x is valid
    left, found = TARGET[seen], np.zeros(len(ROWS))
    found[seen] = law_of_results(mass * left.sum(), left / left.sum(), weights[seen], num_draws)
    return found


def drawn_by_disc(mass: float, results: int, **options: Any) -> Counts:
    """Count the rows that DISC returns."""
    model = SequenceModel(ThreeTitles(mass))
    trie = TitleTrie.from_rows(ROWS, model.vocab_size)
    queries = -(-results // _PER_QUERY)
    asked = [DiscParams(num_samples=_PER_QUERY, seed=seed, **options) for seed in range(queries)]
    rows: list[int] = []
    for first in range(0, queries, _RESULTS_AT_ONCE):
        batch = asked[first : first + _RESULTS_AT_ONCE]
        for result in disc(model.prefill([PROMPT] * len(batch)), trie, batch):
            assert isinstance(result, DiscResult)  # nothing is cancelled here
            rows += [sample.hypothesis.row for sample in result.samples]
    return np.bincount(rows, minlength=len(ROWS)).astype(np.int64)


def drawn_by_trie(mass: float, results: int, seed: int = 0) -> Counts:
    """Count the rows that sampling with the logits processor writes, token by token as `generate` does."""
    model, generator = ThreeTitles(mass), torch.Generator().manual_seed(seed)
    processor = TitleTrieLogitsProcessor(TitleTrie.from_rows(ROWS, model.vocab_size), len(PROMPT), END, 1)
    written = torch.tensor([PROMPT] * results)
    for _ in range(3):
        scores = processor(written, model.next_logits([tuple(row) for row in written.tolist()]).float())
        tokens = torch.multinomial(scores.softmax(-1), 1, generator=generator)
        written = torch.cat([written, tokens], dim=1)
    return np.bincount(processor.rows(written).numpy(), minlength=len(ROWS)).astype(np.int64)


def judged(p_values: dict[str, float]) -> dict[str, Any]:
    """Print and return the verdict of all tests together: of many at 95 %, some fail by chance."""
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    failed = [name for name, p in adjusted.items() if p < _ALPHA]
    verdict = {"tests": len(adjusted), "alpha": _ALPHA, "failed": failed}
    shown("together (Holm)", {**verdict, "smallest adjusted p": min(adjusted.values())})
    return {**verdict, "adjusted_p_values": adjusted}


def bias(results: int) -> dict[str, Any]:
    """Measure constrained decoding and DISC at several masses, and DISC with several M, beside exact laws."""
    tests: dict[str, float] = {}
    settings = [
        measured(f"{name} at {mass}", mass, 1 if k is None else k, results, tests, is_trie=k is None)
        for mass in MASSES
        for name, k in (("trie", None), *((f"K={k}", k) for k in DRAWS))
    ]
    tops = [
        measured(f"K={k}, M={top or 'all'}", TOP_MASS, k, results, tests, top_m=top)
        for k in (1, 4, 64)
        for top in (*TOPS, None)
    ]
    formulas = [{"mass": mass, "kl": formula(mass), "bound": floor(mass)} for mass in MASSES]
    return {"formula": formulas, "by_mass": settings, "by_top_m": tops, "together": judged(tests)}


def measured(
    name: str,
    mass: float,
    num_draws: int,
    results: int,
    tests: dict[str, float],
    *,
    is_trie: bool = False,
    top_m: int | None = None,
) -> dict[str, Any]:
    """Draw results, test them against their exact law, and tell how far law and results are from P_S."""
    exact = exact_law(mass, num_draws, top_m)
    counts = (
        drawn_by_trie(mass, results)
        if is_trie
        else drawn_by_disc(mass, results, num_draws=num_draws, top_m=top_m)
    )
    possible = exact > 0
    assert not counts[~possible].any(), name
    own = divergence(exact[possible], counts[possible])
    tests[f"results follow their exact law: {name}"] = own.p_value
    at_b = int(counts[ROWS.index((B, END))])
    low, high = stats.binomtest(at_b, int(counts.sum())).proportion_ci(method="wilson")
    figure = {
        "way": "trie" if is_trie else "disc",
        "mass": mass,
        "num_draws": num_draws,
        "top_m": top_m,
        "kl": kl(TARGET, exact) if possible.all() else math.inf,
        "total_variation": float(np.abs(exact - TARGET).sum() / 2),
        "measured_total_variation": float(np.abs(counts / counts.sum() - TARGET).sum() / 2),
        "share_of_b": float(exact[-1]),
        "measured_share_of_b": [at_b / counts.sum(), float(low), float(high)],
        "against_the_exact_law": asdict(own),
    }
    return shown(name, figure)

"""Looking at the M likeliest tokens only is biased, and is therefore nobody's default.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest
import torch

from genret.decoding.disc import disc
from genret.decoding.params import DiscParams
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.types import RetrieveRequest
from tests.disc_oracles import PROMPT, VOCAB, catalogue, target, true_mass
from tests.fakes import TableModel, chi_square

ALPHA = 1e-4
MODEL, ROWS = TableModel.random(VOCAB, 11), catalogue(0)


def accepted_rows_and_masses(**params) -> tuple[Counter, torch.Tensor]:
    all_params = [
        DiscParams(num_samples=250, num_draws=4, seed=seed, reject_early=False, **params)
        for seed in range(40)
    ]
    results = disc(MODEL.prefill([PROMPT] * 40), TitleTrie.from_rows(ROWS, VOCAB), all_params)
    rows = Counter(s.hypothesis.token_ids for r in results for s in r.samples if s.accepted)
    return rows, torch.tensor([r.mass for r in results], dtype=torch.float64)


@pytest.mark.statistical
def test_the_default_is_exact_where_the_top_m_is_biased():
    """The draws of `DiscParams()` as it is: whoever makes a top M its default fails here."""
    law, truth = target(MODEL, ROWS), true_mass(MODEL, ROWS)
    rows, masses = accepted_rows_and_masses()
    assert chi_square(rows, law) > ALPHA
    error = float(masses.std()) / math.sqrt(len(masses))
    assert abs(float(masses.mean()) - truth) < 4 * error
    rows, masses = accepted_rows_and_masses(top_m=2)
    assert chi_square(rows, law) < 1e-12
    error = float(masses.std()) / math.sqrt(len(masses))
    assert float(masses.mean()) < truth - 10 * error


@pytest.mark.parametrize("options", [DiscParams, RetrieveRequest])
def test_no_option_has_a_top_m_unless_it_is_asked_for(options):
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    assert defaults["top_m"] is None


def test_a_top_m_gives_no_upper_bound():
    """Tokens that it leaves out would be missing from the envelope."""
    params = DiscParams(num_draws=4, top_m=2)
    (result,) = disc(MODEL.prefill([PROMPT]), TitleTrie.from_rows(ROWS, VOCAB), [params])
    assert result.mass_upper == 1.0
    assert result.mass_lower <= true_mass(MODEL, ROWS) + 1e-6


def test_a_top_m_as_wide_as_the_vocabulary_weighs_exactly():
    params = DiscParams(num_samples=100, seed=3, top_m=VOCAB)
    (result,) = disc(MODEL.prefill([PROMPT]), TitleTrie.from_rows(ROWS, VOCAB), [params])
    assert {s.hypothesis.token_ids for s in result.samples} <= ROWS
    for s in result.samples:
        exact = math.log(MODEL.valid_masses(PROMPT, s.hypothesis.token_ids, ROWS))
        assert s.log_weight == pytest.approx(exact, abs=1e-5)

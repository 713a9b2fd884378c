"""The arithmetic of sampling without replacement: stable forms against plain ones, chunks, laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import decoding.disc.beam_proposer as gumbel_module
from decoding.constraints import Edges
from decoding.counter_rng import extend_key, hash_key, uniforms, uniforms_of
from decoding.disc.beam_proposer import (
    Branches,
    best_edges,
    condition_on_maximum,
    gumbels,
    log1m_exp,
    log_inclusion,
)

ALPHA = 1e-4
INF = math.inf


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.floats(-20, 20), min_size=1, max_size=8, unique=True),
    maximum=st.floats(-20, 20),
    padding=st.integers(0, 3),
)
def test_the_shift_is_the_plain_formula_where_that_is_representable(values, maximum, padding):
    """-log(exp(-T) - exp(-Z) + exp(-G)), Kool et al., algorithm 1."""
    largest = max(values)
    shifted = condition_on_maximum(row(*values, *[-INF] * padding), row(maximum)[0])[0]
    for before, after in zip(values, shifted.tolist(), strict=False):
        terms = [math.exp(-maximum), -math.exp(-largest), math.exp(-before)]
        plain = -math.log(math.fsum(terms))
        # What the plain formula loses by cancellation, relative to its result.
        lost = max(map(abs, terms)) / math.fsum(terms) * 1e-15
        assert after == pytest.approx(plain, abs=1e-9 + 4 * lost)
    assert shifted.max() == maximum
    assert shifted[len(values) :].tolist() == [-INF] * padding


def test_the_shift_keeps_the_order_and_survives_extremes():
    values = row(3.0, 3.0 - 1e-13, -700.0, 900.0, -1e5, -INF)
    for maximum in (-2e5, -800.0, 0.0, 40.0, 1e5):
        shifted = condition_on_maximum(values, row(maximum)[0])[0]
        assert shifted[3] == maximum
        assert shifted[5] == -INF
        assert not shifted.isnan().any()
        assert (shifted <= maximum).all()
        order = values[0].argsort(descending=True)
        assert (shifted[order].diff()[:-1] <= 0).all()
    assert condition_on_maximum(row(-5.0), row(7.0)[0]).tolist() == [[7.0]]


def test_inclusion_probabilities_are_precise_on_both_sides():
    gaps = [-30.0, -5.0, -0.4, 0.0, 0.4, 3.0, 6.0]
    zero = torch.zeros(len(gaps), dtype=torch.float64)
    values = log_inclusion(torch.tensor(gaps, dtype=torch.float64), zero).tolist()
    assert values == pytest.approx([math.log(-math.expm1(-math.exp(gap))) for gap in gaps], rel=1e-14)
    far = log_inclusion(row(-900.0, -45.0, 800.0)[0], torch.zeros(3).double()).tolist()
    assert far == [-900.0, -45.0, 0.0]
    assert log_inclusion(row(-3.0), row(-INF))[0].tolist() == [0.0]
    assert log1m_exp(row(0.0, -INF, -1e-20)).tolist() == [[-INF, 0.0, pytest.approx(math.log(1e-20))]]


@pytest.mark.statistical
def test_gumbels_have_their_law():
    u = uniforms(torch.tensor(3), torch.arange(100_000))
    assert stats.kstest(gumbels(u).numpy(), "gumbel_r").pvalue > ALPHA


def test_extended_keys_are_those_of_all_coordinates():
    seeds, last = torch.arange(-3, 4), torch.tensor([2**40, -1, 0, 1, 5, 7, 9])
    key = extend_key(hash_key(seeds, 1, 2), last, 8)
    assert torch.equal(uniforms_of(key), uniforms(seeds, 1, 2, last, 8))


def random_branches(num_nodes: int, num_branches: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 9, (num_nodes,), generator=generator)
    counts[0] = 300
    owner = torch.arange(num_nodes).repeat_interleave(counts)
    logprob = torch.randn(len(owner), generator=generator, dtype=torch.float64)
    token = torch.cat([torch.arange(count) for count in counts.tolist()])
    edges = Edges(owner, token, torch.arange(len(owner)), logprob)
    node = torch.randint(0, num_nodes, (num_branches,), generator=generator)
    numbers = torch.arange(num_branches)
    values = torch.randn(num_branches, generator=generator, dtype=torch.float64)
    return edges, counts, Branches(node, hash_key(numbers, 5), values, values + 1)


@pytest.mark.parametrize("cells", [1, 50, 1000])
@pytest.mark.parametrize("number", [1, 3, 12])
def test_edges_do_not_depend_on_chunks_or_on_other_branches(monkeypatch, cells, number):
    edges, counts, branches = random_branches(6, 40, 1)
    values, chosen = best_edges(edges, counts, branches, number)
    monkeypatch.setattr(gumbel_module, "_CHUNK_CELLS", cells)
    again = best_edges(edges, counts, branches, number)
    assert torch.equal(values, again[0])
    there = torch.isfinite(values)
    assert torch.equal(chosen[there], again[1][there])
    for i in range(len(branches.node)):
        alone = best_edges(edges, counts, Branches(*(column[i : i + 1] for column in branches)), number)
        assert torch.equal(alone[0][0], values[i])


def test_best_edges_are_the_largest_of_each_branch_in_order():
    edges, counts, branches = random_branches(6, 40, 2)
    every, _ = best_edges(edges, counts, branches, int(counts.max()))
    values, chosen = best_edges(edges, counts, branches, 4)
    assert torch.equal(values, every[:, :4])
    there = torch.isfinite(values)
    assert torch.equal(there.sum(dim=1), counts[branches.node].clamp(max=4))
    assert torch.equal(edges.owner[chosen][there], branches.node.unsqueeze(1).expand(-1, 4)[there])
    assert torch.equal(values[:, 0], branches.perturbed)  # the largest is the parent's own value
    assert all(
        len(set(row.tolist())) == 4 for row, all_there in zip(chosen, there.all(1), strict=True) if all_there
    )


@pytest.mark.statistical
def test_the_first_edge_is_a_categorical_draw():
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    n = 20_000
    edges = Edges(torch.zeros(4).long(), torch.arange(4), torch.arange(4), weights.log())
    zeros = torch.zeros(n, dtype=torch.float64)
    branches = Branches(zeros.long(), hash_key(torch.tensor(1), torch.arange(n)), zeros, zeros)
    _, chosen = best_edges(edges, torch.tensor([4]), branches, 1)
    counts = chosen[:, 0].bincount(minlength=4).numpy()
    assert stats.chisquare(counts, (weights * n).numpy()).pvalue > ALPHA

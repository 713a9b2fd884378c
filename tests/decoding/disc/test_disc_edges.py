"""DISC, plain and adaptive, where something is missing, broken, cancelled, or as large as it may be."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from decoding.cancellation import CancelToken
from decoding.disc import DiscResult, disc
from decoding.errors import DecodingCancelledError, InvalidLogitsError
from decoding.params import DiscParams
from decoding.trie.row_filter import FilteredTrie, RowFilter
from decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import END, PROMPT, VOCAB, catalogue, target, true_mass, unlikely
from tests.fakes import TableModel, chi_square, end_with

ALPHA = 1e-4


class _CancelsItself(CancelToken):
    """Cancels at its n-th poll."""

    def __init__(self, polls: int) -> None:
        super().__init__()
        self._left = polls

    def check(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.cancel()
        super().check()


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("polls", [0, 1, 4, 7, 11])
def test_a_query_cancelled_at_any_time_leaves_the_others_as_they_are(adaptive, polls):
    rows, model = catalogue(2), unlikely(2)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(num_samples=2, num_draws=6, seed=seed, adaptive=adaptive) for seed in range(3)]
    results = disc(
        model.prefill([PROMPT] * 3), trie, params, cancel=[None, _CancelsItself(polls), CancelToken()]
    )
    alone = [disc(model.prefill([PROMPT]), trie, [mine])[0] for mine in params]
    if isinstance(results[1], DiscResult):  # it was done before
        assert results[1].samples == alone[1].samples
        assert polls > 4
    else:
        assert isinstance(results[1], DecodingCancelledError)
    assert [results[query].samples for query in (0, 2)] == [alone[query].samples for query in (0, 2)]


@pytest.mark.statistical
def test_with_room_for_some_rows_the_others_are_outside_the_set():
    rows, model = catalogue(2), TableModel.random(VOCAB, 13)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(num_draws=30, seed=seed, adaptive=True) for seed in range(3000)]
    results = disc(model.prefill([PROMPT] * 3000), trie, params, room=[3] * 3000)
    short = {row for row in rows if len(row) <= 3}
    counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples if s.accepted)
    assert set(counts) <= short
    assert chi_square(counts, target(model, short)) > ALPHA
    truth = true_mass(model, short)
    assert all(r.mass_lower - 1e-6 <= truth <= r.mass_upper + 1e-6 for r in results)
    (none,) = disc(model.prefill([PROMPT]), trie, params[:1], room=[0])
    assert (none.samples, none.mass) == ((), 0.0)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("num_draws", [1, 3])
def test_a_query_without_rows_comes_back_empty_and_the_others_do_not(adaptive, num_draws):
    rows = sorted(catalogue(0))
    trie = TitleTrie.from_rows(rows, VOCAB)
    nothing = RowFilter.from_mask(np.zeros(len(rows), dtype=bool))
    one = RowFilter.from_mask(np.arange(len(rows)) == 2)
    constraint = FilteredTrie(trie, [nothing, None, one])
    params = [DiscParams(3, num_draws, seed=s, adaptive=adaptive) for s in range(3)]
    empty, whole, single = disc(TableModel.random(VOCAB, 1).prefill([PROMPT] * 3), constraint, params)
    assert (empty.samples, empty.mass, empty.mass_lower, empty.mass_upper) == ((), 0.0, 0.0, 0.0)
    assert len(whole.samples) == 3
    assert {s.hypothesis.token_ids for s in single.samples} == {rows[2]}


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param({(2, END)}, id="one title"),
        pytest.param({(END,)}, id="one title, nothing but its end"),
        pytest.param({(1,), (2,), (3,)}, id="one-token titles"),
        pytest.param(end_with([(1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)], END), id="prefixes of others"),
        pytest.param({(token,) for token in range(VOCAB)}, id="the whole vocabulary"),
        pytest.param(
            {(a, b) for a in range(1, VOCAB) for b in range(VOCAB)}, id="the whole vocabulary, again"
        ),
    ],
)
def test_sets_of_every_shape(adaptive, rows):
    model, trie = TableModel.random(VOCAB, 2), TitleTrie.from_rows(rows, VOCAB)
    params = DiscParams(num_samples=30, num_draws=8, seed=4, adaptive=adaptive)
    (result,) = disc(model.prefill([PROMPT]), trie, [params])
    assert len(result.samples) == 30  # more draws than titles
    assert {s.hypothesis.token_ids for s in result.samples} <= rows
    truth = true_mass(model, rows)
    assert result.mass_lower - 1e-6 <= truth <= result.mass_upper + 1e-6
    assert all(s.log_weight <= 0 for s in result.samples)


@pytest.mark.parametrize("adaptive", [False, True])
def test_no_titles_at_all(adaptive):
    (result,) = disc(
        TableModel.random(3, 1).prefill([(1,)]), TitleTrie.from_rows([], 3), [DiscParams(adaptive=adaptive)]
    )
    assert (result.samples, result.mass, result.mass_upper) == ((), 0.0, 0.0)


@pytest.mark.parametrize("adaptive", [False, True])
def test_valid_tokens_of_probability_zero_have_no_sample(adaptive):
    """At the root, and below it, where the way on is found closed by the first draw."""
    closed = torch.tensor([0.0, 0.0, -math.inf])
    for tables in ({(): closed}, {(): torch.zeros(3), (1,): closed}):
        model = TableModel(3, lambda _, written, tables=tables: tables[written])
        trie = TitleTrie.from_rows({(2, END)} if len(tables) == 1 else {(1, 2)}, 3)
        params = DiscParams(num_samples=2, num_draws=4, adaptive=adaptive, reject_early=False)
        (result,) = disc(model.prefill([(1,)]), trie, [params])
        assert (result.samples, result.mass, result.mass_lower) == ((), 0.0, 0.0)
        assert result.mass_upper == 0.0


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("depth", [0, 1])
def test_logits_that_are_no_numbers_are_an_error(adaptive, broken, depth):
    def function(_, written):
        return torch.tensor([0.0, broken if len(written) == depth else 0.0, 0.0])

    trie = TitleTrie.from_rows({(1, 2, END)}, 3)
    params = DiscParams(num_draws=2, adaptive=adaptive, reject_early=False)
    with pytest.raises(InvalidLogitsError, match="NaN or infinite"):
        disc(TableModel(3, function).prefill([(1,)]), trie, [params])


@pytest.mark.parametrize("num_params", [0, 1, 3])
def test_params_of_another_number_than_the_queries_are_refused(num_params):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    with pytest.raises(ValueError, match=f"params: expected one for each of .* 2 queries.* got {num_params}"):
        disc(TableModel.random(3, 1).prefill([(1,)] * 2), trie, [DiscParams()] * num_params)


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_most_draws_that_can_be_asked_for_and_results_of_one_draw_beside_them(adaptive):
    model, rows = TableModel.random(VOCAB, 3), catalogue(0)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(256, 32, seed=1, adaptive=adaptive), DiscParams(3, 1, seed=2, adaptive=adaptive)]
    many, single = disc(model.prefill([PROMPT] * 2), trie, params)
    assert (len(many.samples), len(single.samples)) == (256, 3)
    assert (single.num_draws, {s.num_draws for s in single.samples}) == (3, {1})
    assert 256 * 32 <= many.num_draws <= 2 * 256 * 32
    assert disc(model.prefill([PROMPT]), trie, params[1:])[0].samples == single.samples


@pytest.mark.parametrize("adaptive", [False, True])
def test_logits_that_break_in_the_second_phase_are_an_error(adaptive):
    """The prefix (4, 4, 4) is first entered by a fresh draw, at this seed; without the defect all is well."""
    trie = TitleTrie.from_rows(catalogue(2), VOCAB)
    params = [DiscParams(1, 2, seed=0, adaptive=adaptive)]

    def defective(_, written):
        late = written == (4, 4, 4) and not allowed
        return torch.full((VOCAB,), math.nan if late else 0.0)

    allowed = True
    (result,) = disc(TableModel(VOCAB, defective).prefill([PROMPT]), trie, params)
    assert result.num_draws == 4
    allowed = False
    with pytest.raises(InvalidLogitsError, match="NaN"):
        disc(TableModel(VOCAB, defective).prefill([PROMPT]), trie, params)

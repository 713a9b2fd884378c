"""Rows ranked by logprob / length ** length_penalty, by hand and by exhaustive scoring."""

from __future__ import annotations

import math

import pytest
import torch

from decoding.beam_search import BeamResult, beam_search
from decoding.constraints import Hypothesis
from decoding.params import MAX_LENGTH_PENALTY, BeamParams
from decoding.trie.title_trie import TitleTrie
from tests.beam_batches import LENGTH_PENALTIES, Batch
from tests.beam_oracles import Row, check_list, is_true_top_k, score, scores_of
from tests.fakes import TableModel

END, A, B, C = 0, 1, 2, 3


def by_probabilities(tables: dict[Row, dict[int, float]]) -> TableModel:
    """A model given by P(token | written); what is not named shares the rest of the mass with token 4."""

    def function(_: Row, written: Row) -> torch.Tensor:
        named = tables.get(written, {})
        probabilities = [named.get(token, 0.0) for token in (END, A, B, C)]
        return torch.tensor([*probabilities, 1.0 - sum(probabilities)], dtype=torch.float64).log().float()

    return TableModel(5, function)


# A short row of probability 1/4 and a long one of 1/16: which is better is a matter of the penalty.
SHORT, LONG = (A, END), (B, C, C, C, C, C, C, END)
CERTAIN_TAIL = {LONG[:depth]: {LONG[depth]: 1.0} for depth in range(1, len(LONG))}
TWO_ROWS = by_probabilities({(): {A: 0.25, B: 0.0625}, (A,): {END: 1.0}, **CERTAIN_TAIL})


def search(model: TableModel, rows: set[Row], params: BeamParams) -> BeamResult:
    trie = TitleTrie.from_rows(rows, model.vocab_size)
    (result,) = beam_search(model.prefill([(1,)]), trie, [params])
    assert isinstance(result, BeamResult)
    return result


@pytest.mark.parametrize(
    ("penalty", "best", "expected"),
    [
        (-1.0, SHORT, 2 * math.log(0.25)),
        (0.0, SHORT, math.log(0.25)),
        (0.5, LONG, math.log(0.0625) / math.sqrt(8)),
        (1.0, LONG, math.log(0.0625) / 8),
        (2.0, LONG, math.log(0.0625) / 64),
    ],
)
def test_a_penalty_above_zero_lets_the_long_row_win(penalty: float, best: Row, expected: float) -> None:
    result = search(TWO_ROWS, {SHORT, LONG}, BeamParams(k=1, length_penalty=penalty))
    (hypothesis,) = result.hypotheses
    assert hypothesis.token_ids == best
    assert hypothesis.score(penalty) == pytest.approx(expected, abs=1e-6)
    assert hypothesis.logprob == pytest.approx(math.log(0.25 if best == SHORT else 0.0625), abs=1e-6)
    assert result.certified


def test_the_search_stops_only_when_no_length_could_help() -> None:
    """The short row is done after two tokens; the long one has to be written for as long as it may win."""
    rows = {SHORT, LONG}
    nodes = {
        penalty: search(TWO_ROWS, rows, BeamParams(k=1, length_penalty=penalty)).num_nodes
        for penalty in (-1.0, 0.0, 0.5, 1.0)
    }
    assert nodes == {
        -1.0: 2,
        0.0: 2,
        0.5: len(SHORT) - 1 + len(LONG) - 1,
        1.0: len(SHORT) - 1 + len(LONG) - 1,
    }


def test_below_zero_a_short_row_stops_the_search_sooner() -> None:
    """A live prefix has at least one token more to write, which is counted against it."""
    # After two tokens: the row scores log(0.4) * 2 = -1.83, the prefix log(0.5) = -0.69 at depth 2.
    model = by_probabilities({(): {A: 0.4, B: 0.5}, (A,): {END: 1.0}, (B,): {C: 1.0}, (B, C): {END: 1.0}})
    rows = {(A, END), (B, C, END)}
    by_probability = search(model, rows, BeamParams(k=1))
    assert by_probability.hypotheses[0].token_ids == (B, C, END)
    assert by_probability.num_nodes == 3
    # -0.69 * 3 = -2.08 is the best the prefix can become: worse than -1.83, so it is not written.
    result = search(model, rows, BeamParams(k=1, length_penalty=-1.0))
    assert result.hypotheses[0].token_ids == (A, END)
    assert result.certified
    assert result.num_nodes == 2


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (-1.0, 2 * math.log(0.3)),  # finished by its next token
        (0.0, math.log(0.3)),
        (0.5, math.log(0.3) / math.sqrt(4)),  # as long as the longest row
        (1.0, math.log(0.3) / 4),
        (2.0, math.log(0.3) / 16),
    ],
)
def test_what_was_dropped_is_bounded_at_its_kindest_length(penalty: float, expected: float) -> None:
    tables = {(): {A: 0.5, B: 0.3}, (A,): {END: 0.1}, (B,): {C: 0.9}, (B, C): {C: 0.9}, (B, C, C): {END: 0.9}}
    rows = {(A, END), (B, C, C, END)}
    result = search(by_probabilities(tables), rows, BeamParams(k=1, beam_size=1, length_penalty=penalty))
    assert result.hypotheses[0].token_ids == (A, END)
    assert result.best_pruned_score == pytest.approx(expected, abs=1e-6)
    found = score(math.log(0.05), 2, penalty)
    assert result.certified == (found >= expected)


@pytest.mark.parametrize("penalty", [-1.0, 1.0])
def test_a_dropped_prefix_may_win_by_its_length_alone(penalty: float) -> None:
    """Among prefixes a step compares log-probabilities, so the best row can be lost, and the list says so."""
    tables = {(): {A: 0.4, B: 0.3}, (A,): {C: 1.0}, (A, C): {END: 0.6}, (B,): {END: 0.5}}
    rows = {(A, C, END), (B, END)}
    if penalty > 0:  # the other way about: the longer row is the one that is dropped
        tables = {(): {A: 0.4, B: 0.3}, (A,): {END: 0.6}, (B,): {C: 1.0}, (B, C): {END: 0.7}}
        rows = {(A, END), (B, C, END)}
    model = by_probabilities(tables)
    narrow = search(model, rows, BeamParams(k=1, beam_size=1, length_penalty=penalty))
    wide = search(model, rows, BeamParams(k=1, beam_size=2, length_penalty=penalty))
    exact = search(model, rows, BeamParams(k=1, beam_size=1, length_penalty=penalty, exact=True))
    assert wide.certified
    assert wide.hypotheses[0].token_ids[0] == B
    assert narrow.hypotheses[0].token_ids[0] == A
    assert not narrow.certified
    assert narrow.best_pruned_score >= scores_of(wide, penalty)[0]
    assert exact.certified
    assert exact.hypotheses == wide.hypotheses


@pytest.mark.parametrize("penalty", [*LENGTH_PENALTIES, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY, 1e-9])
def test_a_beam_as_wide_as_the_catalogue_lists_the_best_by_score(penalty: float) -> None:
    for seed in range(200, 204):
        batch = Batch.random(seed).only(
            range(50), length_penalty=penalty, beam_size=len(Batch.random(seed).rows), exact=False
        )
        truths = batch.truths()
        for query, result in enumerate(batch.search().results):
            params = batch.params[query]
            check_list(result, truths[query], params)
            if batch.room[query] is None:
                assert result.certified
                assert result.best_pruned_score == -math.inf
                assert is_true_top_k(result, truths[query], params)


def test_penalties_of_one_batch_are_each_query_s_own() -> None:
    trie = TitleTrie.from_rows({SHORT, LONG}, 5)
    params = [BeamParams(k=2, length_penalty=penalty) for penalty in LENGTH_PENALTIES]
    results = beam_search(TWO_ROWS.prefill([(1,)] * len(params)), trie, params)
    found = [[hypothesis.token_ids for hypothesis in result.hypotheses] for result in results]
    assert found == [[SHORT, LONG]] * 2 + [[LONG, SHORT]] * 3


def test_a_hypothesis_knows_its_score() -> None:
    hypothesis = Hypothesis((A, B, C, END), 0, -8.0)
    scores = [hypothesis.score(penalty) for penalty in (0.0, 1.0, 2.0, 0.5, -1.0)]
    assert scores == [-8.0, -2.0, -0.5, -4.0, -32.0]
    assert hypothesis.score() == -8.0


@pytest.mark.parametrize("penalty", [math.nan, math.inf, -math.inf, 4.01, -4.01])
def test_penalties_out_of_range_are_named(penalty: float) -> None:
    with pytest.raises(ValueError, match=r"length_penalty must be in \[-4, 4\]"):
        BeamParams(length_penalty=penalty)

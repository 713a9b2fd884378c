"""Beam search against enumeration: lists, ties, scores under a length penalty, mixed batches."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.beam_search.beams import Written
from genret.decoding.beam_search.candidates import top_tokens
from genret.decoding.beam_search.scoring import Scoring, best_columns
from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import Hypothesis
from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError, InvalidLogitsError
from genret.decoding.params import MAX_LENGTH_PENALTY, BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_batches import LENGTH_PENALTIES, Batch, random_catalogue
from tests.beam_oracles import Row, check_list, is_true_top_k, score, scores_of
from tests.fakes import TableModel, all_sequences, end_with
from tests.hashed_model import HashedModel
from tests.no_sync import no_sync
from tests.tables_model import VOCAB, TablesModel

END = 0


def random_rows(rng: random.Random, vocab_size: int) -> set[tuple[int, ...]]:
    titles = all_sequences(range(1, vocab_size), 3)
    return end_with(rng.sample(titles, rng.randint(1, min(30, len(titles)))), END)


def true_ranking(model: TableModel, prompt: tuple[int, ...], rows: set[tuple[int, ...]]):
    return sorted(((model.logprob(prompt, row), row) for row in rows), reverse=True)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**9), k=st.integers(1, 40), width=st.integers(1, 8))
def test_results_are_valid_distinct_ordered_and_certificates_hold(seed, k, width):
    rng = random.Random(seed)
    vocab_size = rng.randint(2, 6)
    rows = random_rows(rng, vocab_size)
    model = TableModel.random(vocab_size, seed)
    trie = TitleTrie.from_rows(rows, vocab_size)
    ordered = sorted(rows)
    prompts = [(1,), (1, 1)]
    results = beam_search(model.prefill(prompts), trie, [BeamParams(k, width), BeamParams(3, 100)])
    for prompt, result, want in zip(prompts, results, (k, 3), strict=True):
        assert isinstance(result, BeamResult)
        truth = true_ranking(model, prompt, rows)
        found = [h.token_ids for h in result.hypotheses]
        assert len(set(found)) == len(found) <= want
        assert set(found) <= rows
        for hypothesis in result.hypotheses:
            assert ordered[hypothesis.row] == hypothesis.token_ids
            exact = model.logprob(prompt, hypothesis.token_ids)
            assert hypothesis.logprob == pytest.approx(exact, abs=1e-5)
        scores = [h.logprob for h in result.hypotheses]
        assert scores == sorted(scores, reverse=True)
        if result.certified:
            assert found == [row for _, row in truth[:want]]
    assert results[1].certified  # a beam wider than the catalogue prunes nothing
    assert len(results[1].hypotheses) == min(3, len(rows))


def test_fewer_titles_than_k_gives_them_all_and_nothing_else():
    rows = {(1, END), (2, 2, END)}
    trie = TitleTrie.from_rows(rows, 4)
    (result,) = beam_search(TableModel.random(4, 1).prefill([(1,)]), trie, [BeamParams(k=10)])
    assert {h.token_ids for h in result.hypotheses} == rows
    assert result.certified


def test_an_empty_catalogue_gives_an_empty_certified_list():
    trie = TitleTrie.from_rows([], 4)
    (result,) = beam_search(TableModel.random(4, 1).prefill([(1,)]), trie, [BeamParams(k=2)])
    assert result.hypotheses == ()
    assert result.certified


def test_k_and_width_of_one_query_do_not_change_another():
    rows = random_rows(random.Random(5), 6)
    trie = TitleTrie.from_rows(rows, 6)
    model = TableModel.random(6, 5)
    alone = beam_search(model.prefill([(2,)]), trie, [BeamParams(2, 2)])[0]
    crowd = beam_search(
        model.prefill([(1,), (2,), (3,)]), trie, [BeamParams(20, 20), BeamParams(2, 2), BeamParams(1, 1)]
    )[1]
    assert alone.hypotheses == crowd.hypotheses
    assert alone.certified == crowd.certified
    assert alone.best_pruned_score == crowd.best_pruned_score


def test_a_greedy_beam_that_misses_the_best_title_is_not_certified():
    # Token 1 looks best but leads only to an improbable end; token 2 leads to a certain one.
    tables = {(): [-9.0, 1.0, 0.0], (1,): [-9.0, 5.0, 5.0], (2,): [9.0, 0.0, 0.0]}
    model = TableModel(3, lambda _, written: torch.tensor(tables[written]))
    trie = TitleTrie.from_rows({(1, END), (2, END)}, 3)
    narrow, wide = (beam_search(model.prefill([(1,)]), trie, [BeamParams(1, width)])[0] for width in (1, 2))
    assert narrow.hypotheses[0].token_ids == (1, END)
    assert not narrow.certified
    assert wide.hypotheses[0].token_ids == (2, END)
    assert wide.certified


def test_titles_of_probability_zero_are_left_out():
    logits = torch.tensor([0.0, 0.0, -math.inf])
    trie = TitleTrie.from_rows({(1, END), (2, END)}, 3)
    (result,) = beam_search(TableModel(3, lambda *_: logits).prefill([(1,)]), trie, [BeamParams(5)])
    assert [h.token_ids for h in result.hypotheses] == [(1, END)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_an_error(bad):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    model = TableModel(3, lambda *_: torch.tensor([0.0, bad, 0.0]))
    with pytest.raises(InvalidLogitsError, match="NaN or infinite"):
        beam_search(model.prefill([(1,)]), trie, [BeamParams(5)])


def test_room_ends_a_query_and_takes_the_certificate():
    trie = TitleTrie.from_rows({(1, END), (2, 2, 2, END)}, 3)
    model = TableModel.random(3, 3)
    tight, free = beam_search(
        model.prefill([(1,), (1,)]), trie, [BeamParams(5), BeamParams(5)], room=[2, None]
    )
    assert [h.token_ids for h in tight.hypotheses] == [(1, END)]
    assert not tight.certified
    assert len(free.hypotheses) == 2
    assert free.certified


def test_a_cancelled_query_leaves_and_the_others_finish():
    rows = random_rows(random.Random(5), 6)
    trie = TitleTrie.from_rows(rows, 6)
    model = TableModel.random(6, 5)
    cancelled, late = CancelToken(), CancelToken(deadline=0.0)
    cancelled.cancel()
    params = [BeamParams(3)] * 3
    results = beam_search(model.prefill([(1,), (2,), (3,)]), trie, params, [cancelled, None, late])
    assert isinstance(results[0], DecodingCancelledError)
    assert isinstance(results[2], DeadlineExceededError)
    assert results[1].hypotheses == beam_search(model.prefill([(2,)]), trie, params[:1])[0].hypotheses


@pytest.mark.parametrize("arguments", [{"k": 0}, {"k": 10**6}, {"k": True}, {"beam_size": 0}, {"k": 1.5}])
def test_parameters_out_of_range_are_named(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be an integer in"):
        BeamParams(**arguments)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_parameters_for_another_number_of_queries_are_refused(count):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    session = TableModel.random(3, 1).prefill([(1,), (2,)])
    with pytest.raises(ValueError, match=rf"params must have one entry per query \(2\), got {count}"):
        beam_search(session, trie, [BeamParams(5)] * count)


def test_rows_of_thousands_of_tokens_are_written_out_whole():
    rows = [(*(1 + (n * i) % 3 for n in range(2000 + i)), END) for i in range(1, 8)]
    model = HashedModel.random(4, 1)
    (result,) = beam_search(model.prefill([0]), TitleTrie.from_rows(rows, 4), [BeamParams(7, exact=True)])
    assert {hypothesis.token_ids for hypothesis in result.hypotheses} == set(rows)
    for hypothesis in result.hypotheses:
        assert hypothesis.logprob == pytest.approx(model.logprob(0, hypothesis.token_ids), rel=1e-6)


CPU = torch.device("cpu")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    rows=st.integers(1, 4),
    columns=st.sampled_from([1, 2, 9, 511, 512, 513, 2000]),
    count=st.sampled_from([1, 2, 7, 40, 600]),
    values=st.sampled_from([1, 3, 50, 10**6]),
    missing=st.sampled_from([0.0, 0.5, 0.999, 1.0]),
)
def test_the_best_columns_are_the_leftmost_of_the_largest(seed, rows, columns, count, values, missing):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(values, (rows, columns), generator=generator).double()
    table[torch.rand(rows, columns, generator=generator) < missing] = -math.inf
    with no_sync():
        best = best_columns(table, count)
    for row, found, places in zip(table.tolist(), best.values.tolist(), best.columns.tolist(), strict=True):
        order = sorted((c for c in range(columns) if row[c] > -math.inf), key=lambda c: (-row[c], c))[:count]
        assert places[: len(order)] == order
        assert found == [row[c] for c in order] + [-math.inf] * (count - len(order))
        assert all(0 <= place < columns for place in places)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    vocab=st.sampled_from([1, 31, 64, 333, 1000, 4097]),
    count=st.integers(1, 60),
    values=st.sampled_from([1, 4, 10**6]),
)
def test_the_likeliest_tokens_are_those_of_topk(seed, vocab, count, values):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(values, (3, vocab), generator=generator).float()
    logits[torch.rand(3, vocab, generator=generator) < 0.2] = -math.inf
    count = min(count, vocab)
    with no_sync():
        found, tokens = top_tokens(logits, count)
    assert torch.equal(found, logits.topk(count, dim=1).values)
    assert torch.equal(found, logits.gather(1, tokens))
    assert all(len(set(row)) == count for row in tokens.tolist())


@settings(max_examples=200, deadline=None)
@given(
    penalty=st.floats(-4, 4),
    prefix=st.lists(st.floats(0, 9), min_size=1, max_size=6),
    rest=st.lists(st.floats(0, 9), min_size=1, max_size=6),
    longer=st.integers(0, 5),
)
def test_no_row_scores_better_than_a_prefix_of_it_promises(penalty, prefix, rest, longer):
    length = len(prefix) + len(rest)
    scoring = Scoring([BeamParams(length_penalty=penalty), BeamParams()], length + longer, CPU)
    before = -torch.tensor([[sum(prefix)]] * 2, dtype=torch.float64)
    after = before - sum(rest)
    promised, reached = scoring.optimistic(before, len(prefix)), scoring.scores(after, length)
    assert (promised >= reached * (1 - 1e-12)).all() or (promised >= reached).all()
    assert reached[0].item() == pytest.approx(float(after[0]) / length**penalty)
    assert reached[1].item() == after[1].item()


@pytest.mark.parametrize(("penalty", "length"), [(1.5, 9), (-1.5, 4), (0.0, 7)])
def test_a_promise_is_kept_by_the_row_that_costs_nothing_more(penalty: float, length: int):
    """Long rows where length is rewarded, and else the next token ends the row."""
    scoring = Scoring([BeamParams(length_penalty=penalty)], 9, CPU)
    logprob = torch.tensor([[-5.0, -math.inf]], dtype=torch.float64)
    assert scoring.optimistic(logprob, 3)[0].tolist() == [
        pytest.approx(-5.0 / length**penalty),
        -math.inf,
    ]


def test_without_a_penalty_scores_are_log_probabilities():
    scoring = Scoring([BeamParams(), BeamParams(3)], 9, CPU)
    logprob = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64)
    assert scoring.scores(logprob, 5) is logprob
    assert scoring.optimistic(logprob, 5) is logprob


STOP, A, B, C = 0, 1, 2, 3


def by_probabilities(tables: dict[Row, dict[int, float]]) -> TableModel:
    """A model given by P(token | written); what is not named shares the rest of the mass with token 4."""

    def function(_: Row, written: Row) -> torch.Tensor:
        named = tables.get(written, {})
        probabilities = [named.get(token, 0.0) for token in (STOP, A, B, C)]
        return torch.tensor([*probabilities, 1.0 - sum(probabilities)], dtype=torch.float64).log().float()

    return TableModel(5, function)


# A short row of probability 1/4 and a long one of 1/16: which is better is a matter of the penalty.
SHORT, LONG = (A, STOP), (B, C, C, C, C, C, C, STOP)
CERTAIN_TAIL = {LONG[:depth]: {LONG[depth]: 1.0} for depth in range(1, len(LONG))}
TWO_ROWS = by_probabilities({(): {A: 0.25, B: 0.0625}, (A,): {STOP: 1.0}, **CERTAIN_TAIL})


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
    model = by_probabilities({(): {A: 0.4, B: 0.5}, (A,): {STOP: 1.0}, (B,): {C: 1.0}, (B, C): {STOP: 1.0}})
    rows = {(A, STOP), (B, C, STOP)}
    by_probability = search(model, rows, BeamParams(k=1))
    assert by_probability.hypotheses[0].token_ids == (B, C, STOP)
    assert by_probability.num_nodes == 3
    # -0.69 * 3 = -2.08 is the best the prefix can become: worse than -1.83, so it is not written.
    result = search(model, rows, BeamParams(k=1, length_penalty=-1.0))
    assert result.hypotheses[0].token_ids == (A, STOP)
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
    tables = {
        (): {A: 0.5, B: 0.3},
        (A,): {STOP: 0.1},
        (B,): {C: 0.9},
        (B, C): {C: 0.9},
        (B, C, C): {STOP: 0.9},
    }
    rows = {(A, STOP), (B, C, C, STOP)}
    result = search(by_probabilities(tables), rows, BeamParams(k=1, beam_size=1, length_penalty=penalty))
    assert result.hypotheses[0].token_ids == (A, STOP)
    assert result.best_pruned_score == pytest.approx(expected, abs=1e-6)
    found = score(math.log(0.05), 2, penalty)
    assert result.certified == (found >= expected)


@pytest.mark.parametrize("penalty", [-1.0, 1.0])
def test_a_dropped_prefix_may_win_by_its_length_alone(penalty: float) -> None:
    """Among prefixes a step compares log-probabilities, so the best row can be lost, and the list says so."""
    tables = {(): {A: 0.4, B: 0.3}, (A,): {C: 1.0}, (A, C): {STOP: 0.6}, (B,): {STOP: 0.5}}
    rows = {(A, C, STOP), (B, STOP)}
    if penalty > 0:  # the other way about: the longer row is the one that is dropped
        tables = {(): {A: 0.4, B: 0.3}, (A,): {STOP: 0.6}, (B,): {C: 1.0}, (B, C): {STOP: 0.7}}
        rows = {(A, STOP), (B, C, STOP)}
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
    hypothesis = Hypothesis((A, B, C, STOP), 0, -8.0)
    scores = [hypothesis.score(penalty) for penalty in (0.0, 1.0, 2.0, 0.5, -1.0)]
    assert scores == [-8.0, -2.0, -0.5, -4.0, -32.0]
    assert hypothesis.score() == -8.0


@pytest.mark.parametrize("penalty", [math.nan, math.inf, -math.inf, 4.01, -4.01])
def test_penalties_out_of_range_are_named(penalty: float) -> None:
    with pytest.raises(ValueError, match=r"length_penalty must be in \[-4, 4\]"):
        BeamParams(length_penalty=penalty)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9), levels=st.booleans())
def test_texts_are_what_branches_wrote(seed, levels):
    """Frontiers of many widths, in order of depth or at any level, against lists of tokens."""
    rng = random.Random(seed)
    queries = rng.randint(1, 3)
    written, texts = Written(), [[[()]] for _ in range(queries)]  # per query, per depth: texts of branches
    for _ in range(rng.randint(0, 12)):
        deepest = len(texts[0])
        depth = rng.randint(1, deepest) if levels else deepest
        if depth == deepest:
            for query in range(queries):
                texts[query].append([])
        width = rng.randint(1, 4)
        parents = [[rng.randrange(len(texts[q][depth - 1])) for _ in range(width)] for q in range(queries)]
        tokens = [[rng.randrange(50) for _ in range(width)] for _ in range(queries)]
        first = written.add(depth, torch.tensor(parents), torch.tensor(tokens))
        for query in range(queries):
            assert first == len(texts[query][depth])
            above = texts[query][depth - 1]
            texts[query][depth] += [
                (*above[p], t) for p, t in zip(parents[query], tokens[query], strict=True)
            ]
    wanted = [
        (query, depth + 1, slot)
        for query in range(queries)
        for depth, level in enumerate(texts[query])
        for slot in range(len(level))
    ]
    query, length, slot = np.array(wanted, dtype=np.int64).T
    found = written.texts(query, length, slot, np.arange(len(wanted)))
    assert found == [(*texts[q][n - 1][s], number) for number, (q, n, s) in enumerate(wanted)]


@pytest.mark.parametrize("written", [Written()])
def test_no_texts_of_nothing(written: Written):
    nothing = np.zeros(0, dtype=np.int64)
    assert written.texts(nothing, nothing, nothing, nothing) == []


def test_deep_texts_take_no_recursion():
    written = Written()
    for depth in range(1, 5001):
        written.add(depth, torch.tensor([[0]]), torch.tensor([[depth]]))
    (text,) = written.texts(*(np.array([n]) for n in (0, 5001, 0, 5001)))
    assert text == tuple(range(1, 5002))


SEEDS = range(300, 304)


def said(result: BeamResult) -> BeamResult:
    """A result without what is the batch's and not the query's own."""
    return dataclasses.replace(result, num_steps=0)


def crowd_of(seed: int, exact: bool) -> Batch:
    """Queries of all kinds, ties among their scores included; all of them exact, or none."""
    return Batch.random(seed).only(range(50), exact=exact)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_in_a_crowd_gets_what_it_gets_alone(seed: int, exact: bool) -> None:
    batch = crowd_of(seed, exact)
    for query, crowded in enumerate(batch.search().results):
        alone = batch.only([query]).search().results[0]
        assert said(crowded) == said(alone)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_queries_does_not_matter(seed: int, exact: bool) -> None:
    batch = crowd_of(seed, exact)
    order = list(range(len(batch.params)))
    random.Random(seed).shuffle(order)
    straight, shuffled = batch.search().results, batch.only(order).search().results
    for place, query in enumerate(order):
        assert said(shuffled[place]) == said(straight[query])


def test_one_query_asked_with_many_options_at_once() -> None:
    rows = random_catalogue(random.Random(1))
    model = TablesModel.random(1, ["usual"])
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [
        BeamParams(k, width, penalty, exact, budget)
        for k in (1, 4, 40)
        for width in (1, 3, 40)
        for penalty in (0.0, 1.0)
        for exact, budget in ((False, 0), (True, 0), (True, 3), (True, 1000))
    ]
    crowd = beam_search(model.only([0] * len(params)).prefill(), trie, params)
    for mine, result in zip(params, crowd, strict=True):
        (alone,) = beam_search(model.prefill(), trie, [mine])
        assert said(result) == said(alone)
    assert any(result.num_exact_nodes for result in crowd)
    assert len({result.hypotheses for result in crowd}) > 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_that_is_done_is_not_computed_any_more(seed: int) -> None:
    """The nodes of a batch are those of its queries run one at a time."""
    batch = crowd_of(seed, exact=False)
    together = batch.search().meter.nodes
    assert together == [batch.only([query]).search().meter.nodes[0] for query in range(len(batch.params))]


@pytest.mark.parametrize("exact", [False, True])
def test_forwards_are_shared(exact: bool) -> None:
    """A batch takes as many forwards as its slowest query, and not one per query."""
    batch = dataclasses.replace(crowd_of(301, exact), room=[None] * 50)
    together = batch.search().meter.forwards
    alone = [batch.only([query]).search().meter.forwards for query in range(len(batch.params))]
    if exact:  # a forward writes at one depth, so queries may wait for each other
        assert together < sum(alone) / 3
    else:
        assert together == max(alone)


@pytest.mark.parametrize("exact", [False, True])
def test_cancelled_queries_leave_the_others_as_they_are(exact: bool) -> None:
    batch = crowd_of(302, exact)
    tokens = [CancelToken() if query % 3 == 0 else None for query in range(len(batch.params))]
    for token in tokens:
        if token is not None:
            token.cancel()
    undisturbed = batch.search().results
    searched = batch.search(cancel=tokens)
    for query, answer in enumerate(searched.answers):
        if query % 3 == 0:
            assert isinstance(answer, DecodingCancelledError)
            assert searched.meter.nodes[query] == 0
        else:
            assert isinstance(answer, BeamResult)
            assert said(answer) == said(undisturbed[query])

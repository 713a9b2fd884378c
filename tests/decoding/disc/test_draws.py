"""What holds of every kind of draw: rows of every shape, filters, room, broken logits, cancellation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from genret.decoding.cancellation import CancelToken
from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.static_proposer import StaticProposer
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.params import DiscParams
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import END, PROMPT, VOCAB, assert_same_draws, catalogue, true_mass, unlikely
from tests.fakes import SelfCancelling, TableModel, end_with

Kind = dict[str, Any]

STATIC: Kind = {"top_m": None}  # plain draws, made with static shapes

# Options of each kind of draw. A beam of 32 keeps every row there is, so its estimate is the mass.
KINDS: dict[str, Kind] = {
    "plain": {},
    "static": STATIC,
    "adaptive": {"adaptive": True},
    "beams": {"beam_size": 3},
    "all rows": {"beam_size": 32},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    if KINDS[request.param] == STATIC:
        monkeypatch.setattr("genret.decoding.disc.algorithm._proposer", StaticProposer)
    return KINDS[request.param]


def explores(kind: Kind) -> bool:
    """Whether the draws keep a tree that bounds the mass; others know the valid mass at the root alone."""
    return kind in (KINDS["plain"], KINDS["adaptive"])


def assert_bounded(result: DiscResult, truth: float, kind: Kind) -> None:
    assert result.mass_lower - 1e-6 <= truth <= result.mass_upper + 1e-6
    if kind.get("beam_size") == 32:
        assert result.mass == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param({(2, END)}, id="one title"),
        pytest.param({(END,)}, id="one title, nothing but its end"),
        pytest.param(end_with([(1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)], END), id="prefixes of others"),
        pytest.param(end_with([(1,), (2,), (3, 3, 3, 3)], END), id="fewer titles than prefixes"),
        pytest.param({(token,) for token in range(VOCAB)}, id="the whole vocabulary"),
        pytest.param({(a, b) for a in range(1, VOCAB) for b in range(VOCAB)}, id="it, and it again"),
        pytest.param({(3,) * 40 + (END,)}, id="a long title"),
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sets_of_every_shape(kind: Kind, rows: set[tuple[int, ...]], temperature: float) -> None:
    model, trie = TableModel.random(VOCAB, 2), TitleTrie.from_rows(rows, VOCAB)
    params = DiscParams(num_samples=30, num_draws=8, seed=4, temperature=temperature, **kind)
    (result,) = disc(model.prefill([PROMPT]), trie, [params])
    assert len(result.samples) == 30  # more draws than titles
    assert {s.hypothesis.token_ids for s in result.samples} <= rows
    assert all(s.log_weight <= 0 for s in result.samples)
    assert_bounded(result, true_mass(model, rows, temperature=temperature), kind)
    if len(rows) == 30:
        assert all(s.accepted for s in result.samples)


def test_no_titles_at_all(kind: Kind) -> None:
    (result,) = disc(
        TableModel.random(3, 1).prefill([(1,)]), TitleTrie.from_rows([], 3), [DiscParams(**kind)]
    )
    assert (result.samples, result.mass) == ((), 0.0)
    assert result.mass_upper == (0.0 if explores(kind) else 1.0)


def test_valid_tokens_of_probability_zero_have_no_sample(kind: Kind) -> None:
    """At the root, and below it, where the way on is found closed by the first draw."""
    closed = torch.tensor([0.0, 0.0, -math.inf])
    for tables in ({(): closed}, {(): torch.zeros(3), (1,): closed}):
        model = TableModel(3, lambda _, written, tables=tables: tables[written])
        trie = TitleTrie.from_rows({(2, END)} if len(tables) == 1 else {(1, 2)}, 3)
        params = DiscParams(num_samples=2, num_draws=4, reject_early=False, **kind)
        (result,) = disc(model.prefill([(1,)]), trie, [params])
        assert (result.samples, result.mass, result.mass_lower) == ((), 0.0, 0.0)
        assert result.mass_upper == (0.0 if explores(kind) or len(tables) == 1 else pytest.approx(1 / 3))


def test_a_valid_token_of_probability_zero_is_never_written(kind: Kind) -> None:
    model = TableModel(VOCAB, lambda *_: torch.tensor([0.0, -math.inf, 1.0, -math.inf, 0.0]))
    trie = TitleTrie.from_rows({(1, END), (2, END), (3, END), (2, 3, END)}, VOCAB)
    (result,) = disc(model.prefill([PROMPT]), trie, [DiscParams(num_samples=50, num_draws=2, **kind)])
    assert {s.hypothesis.token_ids for s in result.samples} == {(2, END)}


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_logits_that_are_no_numbers_are_an_error(kind: Kind, broken: float, depth: int) -> None:
    def function(_: tuple[int, ...], written: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([0.0, broken if len(written) == depth else 0.0, 0.0])

    trie = TitleTrie.from_rows({(1, 1, 1, END), (2, 2, 2, END)}, 3)
    params = DiscParams(num_draws=2, reject_early=False, **kind)
    with pytest.raises(InvalidLogitsError, match="NaN or infinite"):
        disc(TableModel(3, function).prefill([(1,)]), trie, [params])


@pytest.mark.parametrize("kind", ["plain", "static", "adaptive"], indirect=True)
def test_logits_that_break_in_the_second_phase_are_an_error(kind: Kind) -> None:
    """The prefix (4, 4, 4) is first entered by a fresh draw, at this seed; without the defect all is well."""
    trie = TitleTrie.from_rows(catalogue(2), VOCAB)
    params = [DiscParams(1, 2, seed=0, **kind)]

    def defective(_: tuple[int, ...], written: tuple[int, ...]) -> torch.Tensor:
        late = written == (4, 4, 4) and not allowed
        return torch.full((VOCAB,), math.nan if late else 0.0)

    allowed = True
    (result,) = disc(TableModel(VOCAB, defective).prefill([PROMPT]), trie, params)
    assert result.num_draws == 4
    allowed = False
    with pytest.raises(InvalidLogitsError, match="NaN"):
        disc(TableModel(VOCAB, defective).prefill([PROMPT]), trie, params)


@pytest.mark.parametrize("room", [0, 2, 3])
def test_rows_that_do_not_fit_are_outside_the_set(kind: Kind, room: int) -> None:
    model, rows = TableModel.random(VOCAB, 13), catalogue(0)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(num_samples=50, num_draws=2, seed=1, **kind)]
    (result,) = disc(model.prefill([PROMPT]), trie, params, room=[room])
    short = {row for row in rows if len(row) <= room}
    assert {s.hypothesis.token_ids for s in result.samples} <= short
    assert bool(result.samples) == bool(short)
    assert_bounded(result, true_mass(model, short), kind)


MASKS = [None, range(6), [], [4], [0, 3, 5]]


def test_queries_of_a_crowd_keep_to_their_filters_and_draw_what_they_draw_alone(kind: Kind) -> None:
    model, rows = TableModel.random(VOCAB, 3), sorted(catalogue(0))
    trie = TitleTrie.from_rows(rows, VOCAB)
    ranks = np.arange(len(rows))
    made = [None if mask is None else RowFilter.from_mask(np.isin(ranks, list(mask))) for mask in MASKS]
    prompts, filters = [(i,) for i in range(32)], [made[i % 5] for i in range(32)]
    params = [DiscParams(1 + i % 4, 1 + i % 7, (1.0, 0.5, 2.0)[i % 3], seed=i, **kind) for i in range(32)]
    crowd = disc(model.prefill(prompts), FilteredTrie(trie, filters), params)
    for i, (prompt, crowded) in enumerate(zip(prompts, crowd, strict=True)):
        (alone,) = disc(model.prefill([prompt]), FilteredTrie(trie, [filters[i]]), [params[i]])
        assert_same_draws([alone], [crowded])
        assert alone.num_nodes == crowded.num_nodes
        mask = MASKS[i % 5]
        allowed = {rows[rank] for rank in (ranks if mask is None else mask)}
        assert len(crowded.samples) == (params[i].num_samples if allowed else 0)
        assert {s.hypothesis.token_ids for s in crowded.samples} <= allowed
        assert all(rows[s.hypothesis.row] == s.hypothesis.token_ids for s in crowded.samples)
        assert_bounded(crowded, true_mass(model, allowed, prompt, params[i].temperature), kind)
    assert any(len({s.accepted for s in result.samples}) == 2 for result in crowd)


def test_another_seed_gives_other_draws(kind: Kind) -> None:
    if kind.get("beam_size") == 32:
        return  # every draw is the likeliest row
    model, trie = TableModel.random(VOCAB, 12), TitleTrie.from_rows(catalogue(1), VOCAB)
    params = [DiscParams(num_samples=20, seed=seed, **kind) for seed in (1, 2)]
    one, other = disc(model.prefill([PROMPT] * 2), trie, params)
    assert [s.hypothesis for s in one.samples] != [s.hypothesis for s in other.samples]


@pytest.mark.parametrize("polls", [0, 1, 4, 7, 11, 20])
def test_a_query_cancelled_at_any_time_leaves_the_others_as_they_are(kind: Kind, polls: int) -> None:
    rows, model = catalogue(2), unlikely(2)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(num_samples=2, num_draws=6, seed=seed, **kind) for seed in range(3)]
    results = disc(
        model.prefill([PROMPT] * 3), trie, params, cancel=[None, SelfCancelling(polls), CancelToken()]
    )
    alone = [disc(model.prefill([PROMPT]), trie, [mine])[0] for mine in params]
    if isinstance(results[1], DiscResult):  # it was done before
        assert results[1].samples == alone[1].samples
        assert polls > 4
    else:
        assert isinstance(results[1], DecodingCancelledError)
        assert polls < 20
    assert [results[query].samples for query in (0, 2)] == [alone[query].samples for query in (0, 2)]


@pytest.mark.parametrize("kind", ["plain", "adaptive"], indirect=True)
def test_the_most_draws_that_can_be_asked_for_and_results_of_one_draw_beside_them(kind: Kind) -> None:
    model, rows = TableModel.random(VOCAB, 3), catalogue(0)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(256, 32, seed=1, **kind), DiscParams(3, 1, seed=2, **kind)]
    many, single = disc(model.prefill([PROMPT] * 2), trie, params)
    assert (len(many.samples), len(single.samples)) == (256, 3)
    assert (single.num_draws, {s.num_draws for s in single.samples}) == (3, {1})
    assert 256 * 32 <= many.num_draws <= 2 * 256 * 32
    assert disc(model.prefill([PROMPT]), trie, params[1:])[0].samples == single.samples


@pytest.mark.parametrize("num_params", [0, 1, 3])
def test_params_of_another_number_than_the_queries_are_refused(num_params: int) -> None:
    trie = TitleTrie.from_rows({(1, END)}, 3)
    with pytest.raises(ValueError, match=f"params: expected one for each of .* 2 queries.* got {num_params}"):
        disc(TableModel.random(3, 1).prefill([(1,)] * 2), trie, [DiscParams()] * num_params)


@pytest.mark.parametrize("option", [{"top_m": 3}, {"beam_size": 2}, {"adaptive": True}], ids=str)
def test_options_that_differ_between_queries_are_refused(option: Kind) -> None:
    trie = TitleTrie.from_rows({(1, END)}, 3)
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be the same for all queries"):
        disc(TableModel.random(3, 1).prefill([(1,)] * 2), trie, [DiscParams(), DiscParams(**option)])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"num_draws": 0}, "num_draws"),
        ({"num_samples": 10**6}, "num_samples"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_m": 0}, "top_m"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_parameters_out_of_range_are_named(arguments: Kind, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        DiscParams(**arguments)

"""DISC's draws with static shapes: the same as the tree's, without waiting, and by the right law."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import Constraint
from genret.decoding.disc import disc, static_proposer
from genret.decoding.disc.draws import FIRST, DrawBatch, Proposer
from genret.decoding.disc.static_proposer import StaticProposer, Step, static_step
from genret.decoding.disc.tree_proposer import TreeProposer
from genret.decoding.errors import InvalidLogitsError
from genret.decoding.late_flag import LateFlag
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import DiscParams
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import (
    END,
    VOCAB,
    arguments_of_a_step,
    assert_same_draws,
    batch_of,
    catalogue,
    outcome,
)
from tests.fakes import TableModel, end_with
from tests.no_sync import DeviceWaitError, LazyEvent, no_sync
from tests.tables_model import HashedModel, HashedSession
from tests.tiny_transformers import build, random_prompts
from tests.trie_oracles import filtered_catalogues

ROWS = {0: catalogue(0) | {(END,)}, 1: catalogue(1), 2: catalogue(2)}
Make = Callable[[DrawBatch], Proposer]


@contextmanager
def drawn_by(proposer: Make, lag: int | None = None, max_logits: int = 1 << 28) -> Iterator[None]:
    """Have a proposer make all draws; with a `lag`, flags are as late as a device's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genret.decoding.disc.algorithm._proposer", proposer)
        patch.setattr(static_proposer, "_MAX_LOGITS", max_logits)
        if lag is not None:
            patch.setattr(static_proposer, "LateFlag", partial(LateFlag, lag=lag, new_event=LazyEvent))
        yield


def both(
    session: Callable,
    constraint: Constraint,
    params: Sequence[DiscParams],
    make: Make = StaticProposer,
    lag: int | None = None,
    max_logits: int = 1 << 28,
    **options,
):
    """Results by the tree and with static shapes; a session each."""
    results = []
    for proposer in (TreeProposer, make):
        with drawn_by(proposer, lag, max_logits):
            results.append(disc(session(), constraint, params, **options))
    return results


@st.composite
def cases(draw: st.DrawFn):
    """A catalogue, a filter per query, and parameters of unlike queries."""
    vocab, constraint, queries, room = draw(filtered_catalogues(max_rows=30))
    top_m = draw(st.sampled_from([None, None, 1, 2, 7, 1000]))
    params = [
        DiscParams(
            num_samples=draw(st.integers(1, 5)),
            num_draws=draw(st.integers(1, 5)),
            temperature=draw(st.sampled_from([1.0, 0.5, 3.0])),
            top_m=top_m,
            seed=draw(st.integers(-(2**63), 2**63 - 1)),
            reject_early=draw(st.booleans()),
        )
        for _ in range(queries)
    ]
    return vocab, constraint, params, room


@settings(max_examples=120, deadline=None)
@given(
    case=cases(),
    seed=st.integers(0, 50),
    lag=st.none() | st.integers(0, 3),
    max_logits=st.sampled_from([1, 40, 2**30]),
)
def test_the_draws_are_those_of_the_tree_whatever_flags_are_late_and_walks_are_made(
    case, seed, lag, max_logits
):
    vocab, constraint, params, room = case
    model = HashedModel.random(vocab, seed)
    options = {"lag": lag, "max_logits": max_logits, "room": room}
    tree, static = both(lambda: model.prefill(range(len(params))), constraint, params, **options)
    assert_same_draws(tree, static)
    for mine, theirs in zip(tree, static, strict=True):
        assert mine.num_steps <= theirs.num_steps
        assert mine.num_nodes <= theirs.num_nodes
    bounds = [(mine.mass_upper, theirs.mass_upper) for mine, theirs in zip(tree, static, strict=True)]
    assert all(left <= right + 1e-9 for q, (left, right) in enumerate(bounds) if room is None or room[q] != 0)


def one_run(batch: DrawBatch, lag: int | None = None):
    """First draws of the batch's queries, without an acceptance test, and what made them."""
    proposer = StaticProposer(batch)
    draws = batch.new_draws(
        [(q, s, 0, p.num_draws) for q, p in enumerate(batch.params) for s in range(p.num_samples)]
    )
    with drawn_by(StaticProposer, lag):
        proposer.run(draws, FIRST, None)
    return proposer, draws


def test_every_draw_has_a_branch_of_its_own_from_the_first_token_on():
    params = [DiscParams(num_samples=3, num_draws=4), DiscParams(num_samples=1, num_draws=5)]
    session = HashedModel.random(VOCAB, 0).prefill([1, 2])
    proposer, draws = one_run(batch_of(session, TitleTrie.from_rows(ROWS[0], VOCAB), params))
    assert set(session.num_branches) == {12}
    assert session.num_forwards == proposer.num_steps
    written = (torch.stack(draws.tokens) >= 0).sum(0)
    nodes = [int((written - 1)[draws.query == query].sum()) for query in (0, 1)]
    assert proposer.nodes_of_queries() == nodes


def test_the_bound_of_the_mass_is_the_mass_at_the_root():
    model, trie = HashedModel.random(VOCAB, 4), TitleTrie.from_rows(ROWS[2], VOCAB)
    params = [DiscParams(num_samples=2)] * 3
    proposer, _ = one_run(batch_of(model.prefill([7, 8, 9]), trie, params))
    first = sorted({row[0] for row in ROWS[2]})
    bounds = proposer.log_upper_bounds()
    for prompt, bound in zip([7, 8, 9], bounds, strict=True):
        assert math.exp(bound) == pytest.approx(sum(math.exp(model.logprob(prompt, (t,))) for t in first))
        assert sum(math.exp(model.logprob(prompt, row)) for row in ROWS[2]) <= math.exp(bound)
    proposer, _ = one_run(batch_of(model.prefill([7]), trie, [DiscParams(top_m=2)]))
    assert proposer.log_upper_bounds() is None


def test_late_flags_cost_few_steps_more():
    model, trie = HashedModel.random(VOCAB, 1), TitleTrie.from_rows({*ROWS[2], (1,) * 500 + (END,)}, VOCAB)
    params = [DiscParams(num_samples=4, seed=3)]
    prompt, _ = one_run(batch_of(model.prefill([1]), trie, params))
    assert prompt.num_steps < 20
    for lag in (0, 1, 2, 4):
        late, _ = one_run(batch_of(model.prefill([1]), trie, params), lag)
        assert late.num_steps == prompt.num_steps + lag + 1


# No waiting


class Watched(StaticProposer):
    """Fails where the loop over the steps would wait for a device."""

    def _walk(self, walking, flag) -> None:
        with pytest.MonkeyPatch.context() as patch, no_sync():
            # On the CPU the trie compares widths with values, as it would not on a device.
            patch.setattr("genret.decoding.trie.trie_kernels._can_look_at", lambda _: False)
            super()._walk(walking, flag)


class Peeking(HashedSession):
    """A session that reads a value of the device in every step."""

    def step(self, parents: Tensor, token_ids: Tensor) -> Tensor:
        logits = super().step(parents, token_ids)
        assert logits.sum().item() < math.inf
        return logits


def watched_case(top_m: int | None, narrow: bool):
    trie = TitleTrie.from_rows(ROWS[2] | ROWS[0], VOCAB, kernels="torch")
    even = RowFilter.from_mask(np.arange(trie.num_rows) % 2 == 0)
    constraint = FilteredTrie(trie, [None, even, even]) if narrow else trie
    params = [
        DiscParams(num_samples=4, num_draws=1 + q, temperature=(1.0, 0.7)[q % 2], top_m=top_m, seed=q)
        for q in range(3)
    ]
    return constraint, params


@pytest.mark.parametrize("narrow", [False, True], ids=["trie", "filtered"])
@pytest.mark.parametrize("top_m", [None, 2])
def test_no_step_waits_for_the_device(top_m, narrow):
    constraint, params = watched_case(top_m, narrow)
    cancel, room = [CancelToken(), None, None], [None, 4, 3]
    model = HashedModel.random(VOCAB, 5)
    tree, static = both(
        lambda: model.prefill([1, 2, 3]), constraint, params, Watched, cancel=cancel, room=room
    )
    assert_same_draws(tree, static)


@pytest.mark.parametrize("top_m", [None, 2])
def test_no_step_of_a_transformer_waits_for_the_device(top_m):
    constraint, params = watched_case(top_m, True)
    model = HFLanguageModel(build("llama", VOCAB).double(), pack_frontiers=False)
    prompts = random_prompts([4, 9, 2], VOCAB)
    tree, static = both(lambda: model.prefill(prompts), constraint, params, Watched, room=[None, 4, 3])
    assert_same_draws(tree, static)


def test_a_step_that_waits_would_be_noticed():
    constraint, params = watched_case(None, False)
    session = HashedModel.random(VOCAB, 5).prefill([1, 2, 3], Peeking)
    with drawn_by(Watched), pytest.raises(DeviceWaitError, match="item"):
        disc(session, constraint, params)


def static_disc(session: object, constraint: Constraint, params: Sequence[DiscParams], **options):
    with drawn_by(StaticProposer):
        return disc(session, constraint, params, **options)


@pytest.mark.parametrize("top_m", [None, 2])
@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("lag", [None, 2])
def test_broken_logits_are_an_error_however_late(top_m, depth, lag):
    broken = torch.tensor([0.0, math.nan, 0.0])
    model = TableModel(3, lambda _, written: broken if len(written) == depth else torch.zeros(3))
    trie = TitleTrie.from_rows({(1, 1, 1, END), (2, 2, 2, END)}, 3)
    with drawn_by(StaticProposer, lag), pytest.raises(InvalidLogitsError, match="NaN"):
        disc(model.prefill([(1,)]), trie, [DiscParams(num_draws=1, top_m=top_m)])


def test_broken_logits_of_padding_are_nobodys_business():
    """Branches of ended draws are computed for their shape only; theirs may be anything."""

    class Careless(HashedSession):
        def step(self, parents: Tensor, token_ids: Tensor) -> Tensor:
            logits = super().step(parents, token_ids)
            return torch.where((parents < 0).unsqueeze(2), math.nan, logits)

    model, trie = HashedModel.random(VOCAB, 3), TitleTrie.from_rows(ROWS[0], VOCAB)
    params = [DiscParams(num_samples=5, num_draws=1 + 2 * q, seed=q) for q in range(2)]
    careful = static_disc(model.prefill([1, 2]), trie, params)
    careless = static_disc(model.prefill([1, 2], Careless), trie, params)
    assert_same_draws(careful, careless)


def test_which_batches_are_drawn_with_static_shapes():
    trie = TitleTrie.from_rows(ROWS[0], VOCAB)

    def suits(device: str = "cuda", constraint: object = trie, **params) -> bool:
        return StaticProposer.suits(
            SimpleNamespace(device=torch.device(device), constraint=constraint, params=[DiscParams(**params)])
        )

    assert suits()
    assert suits(top_m=5)
    assert suits(constraint=FilteredTrie(trie, [None]))
    assert not suits(device="cpu")
    assert not suits(adaptive=True)
    assert not suits(beam_size=2)
    assert not suits(constraint=SimpleNamespace(max_depth=3))


def test_disc_takes_static_shapes_where_they_suit(monkeypatch):
    made: list[DrawBatch] = []
    monkeypatch.setattr(StaticProposer, "suits", lambda batch: True)
    monkeypatch.setattr(StaticProposer, "nodes_of_queries", lambda self: made.append(self._batch) or [0])
    model, trie = HashedModel.random(VOCAB, 3), TitleTrie.from_rows(ROWS[0], VOCAB)
    disc(model.prefill([1]), trie, [DiscParams()])
    assert len(made) == 1
    monkeypatch.setattr(StaticProposer, "suits", lambda batch: False)
    disc(model.prefill([1]), trie, [DiscParams()])
    assert len(made) == 1


STEP_ROWS = end_with(
    [(), (1,), (1, 2), (1, 2, 3), (2,), (2, 2), (4, 1), (1, 1, 1), (3, 3), (3, 4), (4, 4, 4, 4)], END
)


def step_arguments(depth: int, top_m: int | None, narrow: bool) -> list[object]:
    """Three queries of four draws, `depth` tokens into random rows."""
    trie = TitleTrie.from_rows(STEP_ROWS, VOCAB)
    even = RowFilter.from_mask(np.arange(trie.num_rows) % 2 == 0)
    constraint = FilteredTrie(trie, [None, even, even]) if narrow else trie
    return arguments_of_a_step(constraint, depth, top_m, seed=10 * depth + (top_m or 0))


def equal(left: Step, right: Step) -> bool:
    return all(torch.equal(a, b) for a, b in zip(outcome(left), outcome(right), strict=True))


STEPS = pytest.mark.parametrize(
    ("depth", "top_m", "narrow"),
    [(0, None, False), (2, None, False), (0, 2, True), (1, None, True), (1, 3, False), (3, 1, True)],
)


@STEPS
def test_a_step_is_the_same_in_pieces(depth, top_m, narrow, monkeypatch):
    arguments = step_arguments(depth, top_m, narrow)
    whole = static_step(*arguments)
    for cells in (1, 7, 30):
        monkeypatch.setattr(static_proposer, "MAX_CELLS", cells)
        assert equal(whole, static_step(*arguments))


@STEPS
def test_a_step_compiles_into_one_graph(depth, top_m, narrow):
    """So no shape depends on values, and none is read."""
    arguments = step_arguments(depth, top_m, narrow)
    torch.compiler.reset()
    compiled = torch.compile(static_step, fullgraph=True, backend="aot_eager")
    assert equal(static_step(*arguments), compiled(*arguments))


def test_draws_chosen_at_the_ends_of_their_cells_are_valid():
    """Uniforms next to 0 and 1 reach the first and the last child with any probability, never padding."""
    arguments = list(step_arguments(0, None, True))
    arguments[3] = torch.tensor([[2.0**-53, 0.5, 1 - 2.0**-53, 1 - 2.0**-53]] * 3, dtype=torch.float64)
    arguments[4] = torch.zeros(3, dtype=torch.bool)
    arguments[6] = None
    arguments[7] += 5  # more padding
    step = static_step(*arguments)
    running = arguments[1].running
    assert (step.token[running] >= 0).all()
    assert (step.walk.state[running] >= 0).all()

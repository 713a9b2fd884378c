"""Beam search with static shapes: the same as the trimmed walk's, and without waiting for the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.beam_search import BeamResult, beam_search
from decoding.beam_search import trie_beam_search as walks_module
from decoding.beam_search.search_state import Search
from decoding.beam_search.trie_beam_search import static_walk, suits_static
from decoding.cancellation import CancelToken
from decoding.constraints import Constraint
from decoding.errors import DecodingCancelledError, InvalidLogitsError
from decoding.late_flag import LateFlag
from decoding.params import BeamParams
from decoding.trie.row_filter import FilteredTrie, RowFilter
from decoding.trie.title_trie import TitleTrie
from tests.hashed_model import HashedModel
from tests.no_sync import DeviceWaitError, no_sync

CPU = torch.device("cpu")
Walk = Callable[[Search], None]


class SlowEvent:
    """A mark that is passed only when somebody waits for it."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass


def late(size: int, device: torch.device, lag: int) -> LateFlag:
    return LateFlag(size, device, lag=lag, new_event=SlowEvent)


@contextmanager
def walked_by(walk: Walk) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoding.beam_search.trie_beam_search.suits_static", lambda _: True)
        patch.setattr("decoding.beam_search.trie_beam_search.static_walk", walk)
        yield


@st.composite
def cases(draw: st.DrawFn):
    """A catalogue, a filter per query, parameters of unlike queries, and room."""
    vocab = draw(st.sampled_from([2, 3, 5, 17, 300]))
    token = st.one_of(st.integers(0, min(3, vocab - 1)), st.integers(0, vocab - 1))
    titles = draw(st.lists(st.lists(token, max_size=6), max_size=40))
    end = draw(st.integers(0, vocab - 1))
    trie = TitleTrie.from_rows({(*(t for t in title if t != end), end) for title in titles}, vocab)
    params = [
        BeamParams(
            k=draw(st.integers(1, 12)),
            beam_size=draw(st.none() | st.integers(1, 9)),
            length_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, 2.0, -1.0])),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    room = draw(
        st.none() | st.lists(st.none() | st.integers(0, 5), min_size=len(params), max_size=len(params))
    )
    bits = np.random.default_rng(draw(st.integers(0, 99)))
    filters = [None, *(RowFilter.from_mask(bits.random(trie.num_rows) < p) for p in (0.0, 0.5, 0.9))]
    constraint: Constraint = trie
    if draw(st.booleans()):
        constraint = FilteredTrie(trie, [draw(st.sampled_from(filters)) for _ in params])
    return vocab, constraint, params, room


def model_of(vocab: int, seed: int) -> HashedModel:
    """Every third model is full of exact ties, every second has tokens of probability zero."""
    model = HashedModel.random(vocab, seed)
    if seed % 3 == 0:
        model.table = model.table.round()
    if seed % 2 and vocab > 2:
        model.table[:, :: max(3, vocab // 3)] = -math.inf
    return model


def assert_same(trimmed: list, static: list) -> None:
    for mine, theirs in zip(trimmed, static, strict=True):
        assert isinstance(mine, BeamResult)
        assert isinstance(theirs, BeamResult)
        assert mine.hypotheses == theirs.hypotheses
        assert (mine.certified, mine.best_pruned_score) == (theirs.certified, theirs.best_pruned_score)
        assert mine.num_nodes == theirs.num_nodes
        assert mine.num_steps <= theirs.num_steps


@settings(max_examples=150, deadline=None)
@given(
    case=cases(),
    seed=st.integers(0, 50),
    lag=st.none() | st.integers(0, 3),
    max_cells=st.sampled_from([1 << 22, 1, 7, 40]),
)
def test_both_walks_find_the_same_to_the_bit(case, seed, lag, max_cells):
    vocab, constraint, params, room = case
    model = model_of(vocab, seed)
    flag = LateFlag if lag is None else partial(late, lag=lag)
    trimmed = beam_search(model.prefill(range(len(params))), constraint, params, room=room)
    with walked_by(partial(static_walk, new_flag=flag, max_cells=max_cells)):
        static = beam_search(model.prefill(range(len(params))), constraint, params, room=room)
    assert_same(trimmed, static)


def catalogue(vocab: int = 40, count: int = 300) -> TitleTrie:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 5, size=count)
    rows = [(*rng.integers(1, vocab, size=n).tolist(), 0) for n in lengths]
    return TitleTrie.from_rows(rows, vocab, kernels="torch")  # as on a device; `no_sync` sees what it does


def watched(steps: Callable[..., None]) -> Callable[..., None]:
    def run(*arguments: object) -> None:
        with pytest.MonkeyPatch.context() as patch, no_sync():
            # On the CPU the trie compares widths with values, as it would not on a device.
            patch.setattr("decoding.trie.torch_kernels._can_look_at", lambda _: False)
            steps(*arguments)

    return run


PARAMS = [BeamParams(5, 7), BeamParams(3, 2, length_penalty=1.0), BeamParams(20, 1, length_penalty=-0.5)]


def test_the_steps_never_wait_for_the_device(monkeypatch):
    calls = []
    steps = walks_module._static_steps
    monkeypatch.setattr(walks_module, "_static_steps", lambda *a: (calls.append(1), watched(steps)(*a)))
    trie = catalogue()
    keep = RowFilter.from_mask(np.arange(trie.num_rows) % 3 == 0)
    model = HashedModel.random(trie.vocab_size, 1)
    cancel = [CancelToken(), None, None]
    for constraint in (trie, FilteredTrie(trie, [keep, None, keep])):
        with walked_by(static_walk):
            static = beam_search(model.prefill(range(3)), constraint, PARAMS, cancel, [None, 3, 4])
        assert_same(beam_search(model.prefill(range(3)), constraint, PARAMS, cancel, [None, 3, 4]), static)
    assert len(calls) == 2


def test_the_watch_sees_the_waits_of_the_trimmed_walk(monkeypatch):
    monkeypatch.setattr(
        "decoding.beam_search.trie_beam_search.trimmed_walk", watched(walks_module.trimmed_walk)
    )
    trie = catalogue()
    with pytest.raises(DeviceWaitError):
        beam_search(HashedModel.random(trie.vocab_size, 1).prefill([0]), trie, PARAMS[:1])


@pytest.mark.parametrize("lag", [0, 2])
def test_a_late_flag_costs_few_steps_more(lag: int):
    rows = [(1, 0), *((2,) * n + (0,) for n in range(5, 60, 5))]
    trie = TitleTrie.from_rows(rows, 3)
    model = HashedModel(torch.tensor([[0.0, 8.0, -30.0]]))
    prompt = beam_search(model.prefill([0]), trie, [BeamParams(1, 2)])
    with walked_by(partial(static_walk, new_flag=partial(late, lag=lag))):
        delayed = beam_search(model.prefill([0]), trie, [BeamParams(1, 2)])
    assert_same(prompt, delayed)
    assert delayed[0].num_steps == prompt[0].num_steps + lag + 1


@pytest.mark.parametrize("lag", [None, 0, 3])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_an_error_however_late(bad: float, lag: int | None):
    trie = catalogue()
    table = HashedModel.random(trie.vocab_size, 1).table
    table[1:, 0] = bad
    flag = LateFlag if lag is None else partial(late, lag=lag)
    with (
        walked_by(partial(static_walk, new_flag=flag)),
        pytest.raises(InvalidLogitsError, match="NaN or inf"),
    ):
        beam_search(HashedModel(table).prefill([0]), trie, [BeamParams(5)])


def test_a_cancelled_query_leaves_and_the_others_finish():
    trie = catalogue()
    model = HashedModel.random(trie.vocab_size, 4)
    cancelled = CancelToken()
    cancelled.cancel()
    with walked_by(static_walk):
        first, second = beam_search(model.prefill([0, 1]), trie, PARAMS[:2], [cancelled, None])
    assert isinstance(first, DecodingCancelledError)
    (alone,) = beam_search(model.prefill([1]), trie, PARAMS[1:2])
    assert second.hypotheses == alone.hypotheses


def test_which_searches_have_static_shapes():
    trie = catalogue()

    def suits(
        device: str = "cuda", constraint: object = trie, held_open: bool = False, recorder: object = None
    ) -> bool:
        nodes = {0: None} if held_open else {}
        return suits_static(
            SimpleNamespace(device=torch.device(device), constraint=constraint, open=nodes, recorder=recorder)
        )

    assert suits()
    assert suits(constraint=FilteredTrie(trie, [None]))
    assert not suits(device="cpu")
    assert not suits(held_open=True)
    assert not suits(recorder=object())
    assert not suits(constraint=SimpleNamespace(max_depth=3))


def test_a_constraint_without_padded_children_is_refused():
    class Ragged:
        max_depth = 3

    with pytest.raises(TypeError, match="Ragged does not list its children padded"):
        static_walk(SimpleNamespace(constraint=Ragged()))

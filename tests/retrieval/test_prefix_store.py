"""Prefixes are run once, kept within a bound, and the same whoever asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from decoding.language_model import PromptPrefix
from retrieval.errors import InputError
from retrieval.kv_memory import MIN_PREFIX_TOKENS, PrefixStore
from tests.fakes import TableModel, TablePrefix

BYTES_PER_TOKEN = 10


class Sharing(TableModel):
    """Counts what it runs; a prefix takes ten bytes a token. It shares nothing that begins with 0."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(8, lambda prompt, written: torch.zeros(8))
        self.ran: list[tuple[int, ...]] = []
        self._before = before

    def share_prefix(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        self.ran.append(tuple(token_ids))
        self._before()
        if token_ids[0] == 0:
            return None
        return TablePrefix(tuple(token_ids), BYTES_PER_TOKEN * len(token_ids))


def tokens(first: int, count: int = 20) -> list[int]:
    return [first] * count


def test_a_prefix_is_run_once_and_kept() -> None:
    model = Sharing()
    store = PrefixStore(model)
    first = store.get(tokens(1))
    assert first is not None
    assert store.get(tuple(tokens(1))) is first
    assert store.get(tokens(2)) is not first
    assert model.ran == [tuple(tokens(1)), tuple(tokens(2))]
    assert (len(store), store.num_bytes) == (2, 400)


def test_short_ones_are_not_worth_it() -> None:
    model = Sharing()
    store = PrefixStore(model)
    assert store.get([]) is None
    assert store.get(tokens(1, MIN_PREFIX_TOKENS - 1)) is None
    assert model.ran == []
    assert store.get(tokens(1, MIN_PREFIX_TOKENS)) is not None


def test_that_a_model_shares_nothing_is_remembered() -> None:
    model = Sharing()
    store = PrefixStore(model)
    assert store.get(tokens(0)) is None
    assert store.get(tokens(0)) is None
    assert len(model.ran) == 1
    assert store.num_bytes == 0


def test_those_used_longest_ago_make_room() -> None:
    model = Sharing()
    store = PrefixStore(model, max_bytes=450)  # two of twenty tokens
    for first in (1, 2, 1, 3):
        store.get(tokens(first))
    assert (len(store), store.num_bytes) == (2, 400)
    model.ran.clear()
    for first in (1, 3, 2):
        store.get(tokens(first))
    assert model.ran == [tuple(tokens(2))], "2 had made room for 3"


@pytest.mark.parametrize("max_bytes", [0, 100])
def test_the_last_one_is_kept_whatever_its_size(max_bytes: int) -> None:
    model = Sharing()
    store = PrefixStore(model, max_bytes)
    for first in (1, 1, 2, 2):
        assert store.get(tokens(first)) is not None
    assert len(model.ran) == 2
    assert (len(store), store.num_bytes) == (1, 200)


def test_clear_gives_up_everything_and_the_store_goes_on() -> None:
    model = Sharing()
    store = PrefixStore(model)
    store.get(tokens(1))
    store.clear()
    store.clear()
    assert (len(store), store.num_bytes) == (0, 0)
    assert store.get(tokens(1)) is not None
    assert len(model.ran) == 2


def test_of_many_threads_one_runs_a_prefix_and_all_have_it() -> None:
    hold = threading.Event()
    model = Sharing(before=lambda: None if hold.wait(60) else pytest.fail("never let go"))
    store = PrefixStore(model)
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(store.get, tokens(1 + n % 2)) for n in range(16)]
        hold.set()
        found = [future.result(timeout=60) for future in asked]
    assert sorted(model.ran) == [tuple(tokens(1)), tuple(tokens(2))]
    assert {id(prefix) for prefix in found[::2]} == {id(store.get(tokens(1)))}
    assert {id(prefix) for prefix in found[1::2]} == {id(store.get(tokens(2)))}


def test_threads_that_evict_one_another_stay_within_the_bound() -> None:
    model = Sharing()
    store = PrefixStore(model, max_bytes=500)
    with ThreadPoolExecutor(8) as pool:
        for first, prefix in zip(
            [1 + n % 7 for n in range(400)],
            pool.map(lambda n: store.get(tokens(1 + n % 7)), range(400)),
            strict=True,
        ):
            assert prefix is not None
            assert prefix.token_ids == tuple(tokens(first))
    assert store.num_bytes == 200 * len(store) <= 500


def test_a_failure_is_everybodys_and_is_not_kept() -> None:
    failing = [True]

    def fail() -> None:
        if failing[0]:
            raise MemoryError("no room")

    store = PrefixStore(Sharing(before=fail))
    with pytest.raises(MemoryError, match="no room"):
        store.get(tokens(1))
    failing[0] = False
    assert store.get(tokens(1)) is not None


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None])
def test_a_bound_that_is_none(wrong: int) -> None:
    with pytest.raises(InputError, match="prefix_bytes: must be an integer of at least 0"):
        PrefixStore(Sharing(), wrong)

"""The trie and its row filters against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import genret.decoding.trie.row_filter as row_filter_module
import genret.decoding.trie.trie_arrays as trie_arrays_module
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie, WalkedTrie
from genret.decoding.trie.trie_arrays import TrieArrays, TrieDeriver, derive_trie
from genret.decoding.trie.trie_kernels import TrieTables
from tests.fakes import roots
from tests.trie_oracles import (
    BACKENDS,
    Row,
    brute_children,
    catalogues,
    edges_of,
    flatten,
    needs_numba,
    node_prefixes,
    padded_edges_of,
    prefixes,
)

every_backend = pytest.mark.parametrize(("device", "kernels"), BACKENDS)


@every_backend
@settings(max_examples=150, deadline=None)
@given(catalogue=catalogues(), data=st.data())
def test_children_verify_advance_and_final_equal_brute_force(device, kernels, catalogue, data):
    rows, vocab_size = catalogue
    trie = TitleTrie.from_rows(rows, vocab_size, device, kernels)
    assert trie.kernels.name == kernels
    four = st.lists(st.integers(0, vocab_size - 1), min_size=4, max_size=4)
    states = check_all_states(
        trie, sorted(rows), [rows], lambda count: data.draw(st.lists(four, min_size=count, max_size=count))
    )
    assert {prefix for _, prefix in states} == prefixes(rows)
    assert len(set(states.values())) == len(states)
    assert trie.num_nodes == len(node_prefixes(rows))


def check_all_states(
    trie: WalkedTrie,
    ordered: list[Row],
    allowed: list[set[Row]],
    candidates_of: Callable[[int], list[list[int]]],
) -> dict[tuple[int, Row], int]:
    """Walk every prefix that every query may write, all queries in one batch, asking everything.

    Returns the state of every query's prefixes. `candidates_of` gives so many states tokens to verify.
    """
    level = [(query, (), state) for query, state in enumerate(roots(trie, len(allowed)).tolist())]
    seen: dict[tuple[int, Row], int] = {}
    while level:
        states = torch.tensor([state for *_, state in level] + [-1], device=trie.device)
        found = edges_of(trie.children(states), len(states))
        width = trie.width_at(len(level[0][1]))
        if isinstance(trie, TitleTrie):
            assert width == max(len(brute_children(allowed[0], prefix)) for _, prefix, _ in level)
        for columns in (width, width + 2):
            padded = trie.padded_children(states, columns)
            assert padded.token.shape == padded.next_state.shape == (len(states), columns)
            assert [list(edges.items()) for edges in padded_edges_of(padded)] == [
                list(edges.items()) for edges in found
            ]
        finals, ranks = trie.is_final(states).tolist(), trie.row(states).tolist()
        candidates = torch.tensor(candidates_of(len(states)), device=trie.device)
        verified = trie.verify(states, candidates).tolist()
        assert trie.advance(states, candidates[:, 0]).tolist() == [row[0] for row in verified]
        assert (found[-1], finals[-1], ranks[-1], set(verified[-1])) == ({}, False, -1, {-1})
        following = []
        for at, (query, prefix, state) in enumerate(level):
            seen[query, prefix] = state
            assert set(found[at]) == brute_children(allowed[query], prefix)
            assert list(found[at]) == sorted(found[at])
            assert finals[at] == (prefix in allowed[query])
            if finals[at]:
                assert ordered[ranks[at]] == prefix
            assert verified[at] == [found[at].get(token, -1) for token in candidates[at].tolist()]
            following += [(query, (*prefix, token), state) for token, state in found[at].items()]
        level = following
    for query, rows in enumerate(allowed):
        assert {prefix for q, prefix in seen if q == query} >= rows
    return seen


@every_backend
def test_no_states_no_candidates_and_no_columns(device, kernels):
    trie = TitleTrie.from_rows({(1, 2, 0), (1, 0)}, 5, device, kernels)
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    assert [len(column) for column in trie.children(nothing)] == [0, 0, 0]
    assert [column.shape for column in trie.padded_children(nothing, 3)] == [(0, 3), (0, 3)]
    assert trie.verify(nothing, nothing.view(0, 4)).shape == (0, 4)
    assert trie.verify(roots(trie, 2), nothing.view(2, 0)).shape == (2, 0)
    assert [x.tolist() for x in (trie.advance(nothing, nothing), trie.is_final(nothing))] == [[], []]
    dead = torch.full((2,), -1, device=device)
    assert [column.shape for column in trie.padded_children(dead, 0)] == [(2, 0), (2, 0)]


@every_backend
def test_candidates_outside_the_vocabulary_lead_nowhere(device, kernels):
    trie = TitleTrie.from_rows([(0, 255), (255, 0)], 256, device, kernels)
    candidates = torch.tensor([[-1, 256, 511, -256, 2**40, 255]], device=device)
    assert (trie.verify(roots(trie), candidates) >= 0).tolist() == [[False] * 5 + [True]]


@every_backend
def test_states_and_candidates_may_be_views(device, kernels):
    trie = TitleTrie.from_rows([(1, 2, 0), (1, 0), (3, 0)], 5, device, kernels)
    states = torch.stack([roots(trie, 3), roots(trie, 3) * 0 - 1], dim=1)[:, 0]
    candidates = torch.tensor([[1, 3, 0], [3, 1, 1]], device=device).T
    assert not states.is_contiguous()
    expected = trie.verify(states.contiguous(), candidates.contiguous())
    assert torch.equal(trie.verify(states, candidates), expected)
    assert (expected >= 0).tolist() == [[True, True], [True, True], [False, True]]
    assert trie.children(states).token.tolist() == [1, 3] * 3
    assert trie.padded_children(states, 2).token.tolist() == [[1, 3]] * 3


@every_backend
def test_all_of_a_vocabulary_of_two_hundred_thousand_in_any_order(device, kernels):
    size = 200_000
    trie = TitleTrie.from_rows([(t, 0) for t in range(1, size)], size, device, kernels)
    assert trie.width_at(0) == size - 1
    tokens = torch.arange(1, size, device=device)
    assert torch.equal(trie.children(roots(trie)).token, tokens)
    assert torch.equal(trie.padded_children(roots(trie), size - 1).token[0], tokens)
    shuffled = torch.randperm(size, generator=torch.Generator().manual_seed(1)).to(device)
    verified = trie.verify(roots(trie), shuffled.unsqueeze(0))[0]
    assert torch.equal(verified >= 0, shuffled > 0)
    in_order = torch.empty_like(verified)
    in_order[shuffled] = verified
    assert torch.equal(in_order[1:], trie.children(roots(trie)).next_state)


@pytest.mark.parametrize("kernels", ["torch", pytest.param("numba", marks=needs_numba)])
def test_too_few_columns_are_refused_where_looking_costs_no_waiting(kernels):
    trie = TitleTrie.from_rows([(t, 0) for t in range(1, 5)], 5, kernels=kernels)
    with pytest.raises(ValueError, match="width: expected at least 4, the children of one state, got 3"):
        trie.padded_children(roots(trie, 2), 3)
    with pytest.raises(ValueError, match="depth: expected 0 or more, got -1"):
        trie.width_at(-1)


@pytest.mark.parametrize(
    ("rows", "vocab_size", "message"),
    [([(5,)], 5, "token id 5 is outside the vocabulary of 5"), ([(-1, 2)], 5, "negative")],
)
def test_rows_that_make_no_trie_are_refused(rows, vocab_size, message):
    with pytest.raises(ValueError, match=message):
        TitleTrie.from_rows(rows, vocab_size)


def reference_arrays(rows: set[Row]) -> TrieArrays:
    """The arrays by their definition, from sets of prefixes."""
    ordered, nodes = sorted(rows), node_prefixes(rows)
    number = {prefix: i for i, prefix in enumerate(nodes)}
    children = [sum(node[:-1] == prefix for node in nodes[1:]) for prefix in nodes]
    tails = [row[max(len(node) for node in nodes if row[: len(node)] == node) :] for row in ordered]
    below = [[r for r, row in enumerate(ordered) if row[: len(node)] == node] for node in nodes]
    assert all(number[node] in range(1, len(nodes)) for node in nodes[1:])
    return TrieArrays(
        token=np.array([0, *(node[-1] for node in nodes[1:]), *(t for tail in tails for t in tail)]),
        child_begin=np.cumsum([1, *children]),
        row_begin=np.array([*(ranks[0] if ranks else 0 for ranks in below), len(rows)]),
        tail_begin=np.cumsum([len(nodes), *(len(tail) for tail in tails)]),
        depth=max((len(row) for row in rows), default=0),
        max_children=max(children),
    )


def check_same(left: TrieArrays, right: TrieArrays) -> None:
    for mine, other in zip(left, right, strict=True):
        assert np.array_equal(mine, other)


@settings(max_examples=150, deadline=None)
@given(catalogue=catalogues(), chunk=st.sampled_from([1, 2, 7, 1 << 20]), data=st.data())
def test_blocks_of_any_size_derive_the_arrays_of_the_definition(catalogue, chunk, data):
    rows, vocab_size = catalogue
    ordered = sorted(rows)
    dtype = np.min_scalar_type(vocab_size - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trie_arrays_module, "_CHUNK_TOKENS", chunk)
        at_once = derive_trie(*flatten(ordered, dtype))
        borders = sorted(data.draw(st.lists(st.integers(0, len(ordered)), max_size=6)))
        deriver = TrieDeriver(dtype)
        for begin, end in zip([0, *borders], [*borders, len(ordered)], strict=True):
            before = data.draw(st.integers(0, begin))  # a block may be a slice of longer arrays
            tokens, offsets = flatten(ordered[before:end])
            deriver.add(tokens, offsets[begin - before :])
        in_blocks = deriver.finish()
    check_same(at_once, reference_arrays(rows))
    check_same(in_blocks, at_once)
    assert at_once.token.dtype == in_blocks.token.dtype == dtype
    assert {array.dtype for array in (*at_once[1:4], *in_blocks[1:4])} == {np.dtype(np.int32)}
    assert (at_once.num_nodes, at_once.num_rows) == (len(node_prefixes(rows)), len(rows))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([[(2, 0), (1, 0)]], "row 1 sorts before row 0"),
        ([[(1, 0), (1, 0)]], "row 1 equals row 0"),
        ([[(1, 2, 0), (1, 1, 0)]], "row 1 sorts before row 0"),
        ([[(1, 2), (1, 2, 0)]], "row 0 is a prefix of row 1"),
        ([[(1, 0), (2, 0)], [(1, 0)]], "row 2 sorts before row 1"),
        ([[(1, 0)], [(2, 0)], [(2, 0)]], "row 2 equals row 1"),
        ([[(1, 2)], [(1, 2, 0)]], "row 0 is a prefix of row 1"),
        ([[(1, 2)], [(1,)]], "row 1 equals row 0 or is a prefix of it"),
        ([[(1, 0)], [(2, 0), ()]], "row 2 is empty"),
        ([[(1, 0)], [(256, 0)]], "expected uint8, got 0 … 256"),
    ],
)
def test_faults_in_blocks_and_at_their_borders_are_named_by_rank(blocks, message):
    deriver = TrieDeriver(np.uint8)
    *sound, faulty = blocks
    for rows in sound:
        deriver.add(*flatten(rows))
    with pytest.raises(ValueError, match=message):
        deriver.add(*flatten(faulty))


def test_a_trie_with_more_positions_than_a_state_can_name_is_refused(monkeypatch):
    rows = [(1, 0), (2, 3, 4, 0)]  # three nodes and four tail tokens
    arrays = derive_trie(*flatten(rows))
    monkeypatch.setattr(trie_arrays_module, "MAX_POSITIONS", 6)
    with pytest.raises(ValueError, match="3 nodes and 4 tokens in tails; together at most 6"):
        derive_trie(*flatten(rows))
    monkeypatch.setattr("genret.decoding.trie.title_trie.MAX_POSITIONS", 6)
    with pytest.raises(ValueError, match="7 nodes and tail tokens; at most 6"):
        TitleTrie(arrays, 5)


@pytest.mark.parametrize("vocab_size", [200, 50_000, 70_000])
def test_the_arrays_are_not_copied_on_the_cpu(vocab_size):
    rows = [(vocab_size - 1, 1, 0), (1, 0), (vocab_size // 2 + 1, 0)]
    tokens, offsets = flatten(sorted(rows), np.min_scalar_type(vocab_size - 1))
    arrays = derive_trie(tokens, offsets)
    trie = TitleTrie(arrays, vocab_size)
    tables = TrieTables.of(arrays, torch.device("cpu"))
    held = (tables.token, tables.child_begin, tables.row_begin, tables.tail_begin)
    for tensor, array in zip(held, arrays[:4], strict=True):
        assert tensor.data_ptr() == array.ctypes.data
    assert trie.num_bytes == sum(array.nbytes for array in arrays[:4])
    assert trie.children(roots(trie)).token.tolist() == sorted(row[0] for row in rows)


@every_backend
def test_two_rows_that_part_after_ten_thousand_tokens(device, kernels):
    stem = [7] * 10_000
    trie = TitleTrie.from_rows([(*stem, 1, 0), (*stem, 2, 2, 0)], 10, device, kernels)
    states = roots(trie)
    for token in stem:
        states = trie.advance(states, torch.tensor([token], device=device))
    assert [trie.width_at(depth) for depth in (0, 9_999, 10_000, 10_001, 10_003)] == [1, 1, 2, 1, 0]
    assert trie.children(states).token.tolist() == [1, 2]
    assert trie.num_nodes == 10_003
    finals = trie.advance(trie.children(states).next_state, torch.tensor([0, 2], device=device))
    assert trie.is_final(finals).tolist() == [True, False]
    assert trie.row(finals).tolist() == [0, 1]


END = 0


def allowed_rows(ordered: list[Row], mask: np.ndarray | None) -> set[Row]:
    return set(ordered) if mask is None else set(itertools.compress(ordered, mask))


def masks(num_rows: int) -> st.SearchStrategy[np.ndarray | None]:
    """None, nothing, everything, and any mask."""
    some = st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)
    fixed = st.sampled_from([[False] * num_rows, [True] * num_rows])
    return st.none() | st.one_of(some, fixed).map(lambda mask: np.array(mask, dtype=bool))


@every_backend
@settings(max_examples=75, deadline=None)
@given(catalogue=catalogues(max_rows=20), data=st.data())
def test_a_batch_of_filters_equals_brute_force_over_the_allowed_rows(device, kernels, catalogue, data):
    rows, vocab_size = catalogue
    ordered = sorted(rows)
    trie = TitleTrie.from_rows(rows, vocab_size, device, kernels)
    distinct = data.draw(st.lists(masks(len(rows)), min_size=1, max_size=3))
    filters = [None if mask is None else RowFilter.from_mask(mask, device) for mask in distinct]
    chosen = data.draw(st.lists(st.integers(0, len(distinct) - 1), min_size=1, max_size=5))
    filtered = FilteredTrie(trie, [filters[i] for i in chosen])
    tokens = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=3, max_size=3))
    tokens += [row[0] for row in ordered[:2]]
    allowed = [allowed_rows(ordered, distinct[i]) for i in chosen]
    check_all_states(filtered, ordered, allowed, lambda count: [tokens] * count)
    assert filtered.max_depth == trie.max_depth


@settings(max_examples=75, deadline=None)
@given(counts=st.lists(st.integers(0, 3), max_size=30), base=st.integers(0, 5))
def test_counts_of_anything_make_the_same_filter_as_their_mask(counts, base):
    prefix = base + np.cumsum([0, *counts])
    mask = np.array(counts, dtype=int) > 0
    by_prefix, by_mask = RowFilter.from_prefix(prefix), RowFilter.from_mask(mask)
    assert by_prefix.num_allowed == by_mask.num_allowed == mask.sum()
    assert by_prefix.num_rows == by_mask.num_rows == len(counts)
    assert by_prefix.num_bytes == by_mask.num_bytes == 4 * (len(counts) + 1)
    assert torch.equal(by_prefix.prefix[1:] > by_prefix.prefix[:-1], torch.from_numpy(mask))
    assert torch.equal(by_mask.prefix[1:] > by_mask.prefix[:-1], torch.from_numpy(mask))


def test_masks_that_are_views_and_counts_that_are_read_only_are_taken():
    mask = np.array([True, False, True, True, False, False])
    assert RowFilter.from_mask(mask[::2]).prefix.tolist() == [0, 1, 2, 2]
    prefix = np.array([0, 1, 1], dtype=np.int32)
    prefix.setflags(write=False)
    assert RowFilter.from_prefix(prefix).prefix.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RowFilter.from_mask(np.zeros(3, dtype=np.int8)), "one dimension of bool, got 1 of int8"),
        (lambda: RowFilter.from_mask(np.zeros((2, 2), dtype=bool)), "got 2 of bool"),
        (lambda: RowFilter.from_prefix(np.array([0, 2, 1])), "decreases from rank 1 to 2"),
        (lambda: RowFilter.from_prefix(np.array([0.0, 1.0])), "signed integers"),
        (lambda: RowFilter.from_prefix(np.array([], dtype=np.int32)), "at least one"),
        (lambda: RowFilter.from_prefix(np.array([0, 2**31])), "values of 32 bits"),
    ],
)
def test_what_makes_no_filter_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_filters_that_do_not_fit_are_refused_by_number(monkeypatch):
    trie = TitleTrie.from_rows([(1, END), (2, END)], 3)
    fits, other = RowFilter.from_mask(np.ones(2, dtype=bool)), RowFilter.from_mask(np.ones(3, dtype=bool))
    with pytest.raises(ValueError, match=r"filters\[1\]: expected a filter over 2 rows, got 3"):
        FilteredTrie(trie, [fits, other])
    monkeypatch.setattr(row_filter_module, "_MAX_ROW_ENDS", 6)
    second = RowFilter.from_mask(np.zeros(2, dtype=bool))
    FilteredTrie(trie, [fits, second, fits])
    with pytest.raises(
        ValueError, match=r"3 different ones over 2 rows, none counting as one, .* at most 2 do"
    ):
        FilteredTrie(trie, [fits, None, second])


@every_backend
def test_the_last_lane_that_fits_into_a_state_is_told_apart(device, kernels):
    """65,536 lanes of 65,536 ranks fill 32 bits: the last one is walked, and one more is refused."""
    num_rows = 2**16 - 1
    trie = TitleTrie.from_rows([(token, END) for token in range(1, num_rows + 1)], 2**16, device, kernels)
    half = RowFilter.from_mask(np.arange(num_rows) % 2 == 0, device)
    odd = RowFilter.from_mask(np.arange(num_rows) % 2 == 1, device)
    lanes = [*(RowFilter(half.prefix, half.num_allowed) for _ in range(2**16 - 1)), odd]
    filtered = FilteredTrie(trie, lanes)
    states = filtered.start(torch.tensor([2**16 - 1, 0], device=device))
    assert states[0] == (2**32 - 1) << 31
    children = filtered.children(states)
    assert children.token[children.owner == 0].tolist() == list(range(2, num_rows + 1, 2))
    assert children.token[children.owner == 1].tolist() == list(range(1, num_rows + 1, 2))
    last = children.next_state[children.owner == 0][-1:]
    ended = filtered.children(last)
    assert ended.token.tolist() == [END]
    assert filtered.is_final(ended.next_state).tolist() == [True]
    assert filtered.row(ended.next_state).tolist() == [num_rows - 2]
    with pytest.raises(ValueError, match="65537 different ones over 65535 rows"):
        FilteredTrie(trie, [*lanes, None])


@pytest.mark.parametrize("num_rows", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_counts_go_on_over_the_borders_of_blocks(num_rows: int) -> None:
    mask = np.random.default_rng(num_rows).random(num_rows) < 0.3
    row_filter = RowFilter.from_mask(mask)
    assert row_filter.prefix.tolist() == [0, *np.cumsum(mask).tolist()]
    assert row_filter.num_allowed == mask.sum()

"""`TitleTrieLogitsProcessor` inside transformers' `generate`, and alone against brute force.

Reference: `generate` with `prefix_allowed_tokens_fn` over a dictionary of prefixes, which must give the same
sequences and scores bit for bit, filler of idle beams included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from genret.decoding.constraints import Children
from genret.decoding.errors import InvalidLogitsError
from genret.decoding.trie.logits_processor import TitleTrieLogitsProcessor
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.generate_peer import (
    CATALOGUES,
    PROMPTS,
    VOCAB,
    Allowed,
    allowed_fn,
    cut,
    dict_trie,
    plain,
    prompt_width,
    run,
)
from tests.tiny_transformers import ARCHITECTURES, END, FIRST_LETTER, PAD, Row
from tests.trie_oracles import brute_children, catalogues, prefixes

TITLES = CATALOGUES["mixed"]
LONGEST = max(map(len, TITLES))
FILLER = -1e8  # `generate` starts its idle beams at -1e9


def processor_for(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], rows: Sequence[Row] = TITLES
) -> TitleTrieLogitsProcessor:
    return TitleTrieLogitsProcessor(TitleTrie.from_rows(rows, VOCAB), prompt_width(model, prompts), END)


def assert_alike(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    processor: TitleTrieLogitsProcessor,
    allowed: Allowed,
    **options: Any,
) -> tuple[Tensor, Any]:
    """Both ways, from the same random numbers, write the same and score it alike."""
    torch.manual_seed(7)
    mine, output = run(model, prompts, logits_processor=[processor], **options)
    torch.manual_seed(7)
    theirs, other = run(model, prompts, prefix_allowed_tokens_fn=allowed, **options)
    assert torch.equal(mine, theirs)
    for a, b in zip(output.scores, other.scores, strict=True):
        assert torch.equal(a, b)
    if options.get("num_beams", 1) > 1:
        assert torch.equal(output.sequences_scores, other.sequences_scores)
    return mine, output


SAMPLED = {"do_sample": True, "num_return_sequences": 3, "temperature": 0.7, "top_k": 3, "top_p": 0.9}
BEAMS = [{"num_beams": number, "num_return_sequences": number} for number in (2, 5, 50)]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("options", [{}, SAMPLED, {**SAMPLED, "num_beams": 3}, *BEAMS], ids=str)
def test_texts_equal_generate_with_a_dictionary(name: str, options: dict[str, Any]) -> None:
    """Greedily, sampling, by beams, and both; several sequences per prompt, cuts after the constraint.

    Fifty beams are more than there are titles: some stay idle.
    """
    model = plain(name)
    processor = processor_for(model, PROMPTS)
    allowed = allowed_fn(prompt_width(model, PROMPTS), TITLES)
    mine, output = assert_alike(model, PROMPTS, processor, allowed, **options)
    num_beams = options.get("num_beams", 1)
    real = output.sequences_scores > FILLER if num_beams > 1 else torch.ones(len(mine), dtype=torch.bool)
    written = [cut(row) for row in mine[real].tolist()]
    assert set(written) <= set(TITLES)
    assert processor.rows(output.sequences)[real].tolist() == [TITLES.index(row) for row in written]
    assert bool(real.all()) == (num_beams < len(TITLES))


@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 4, "num_return_sequences": 4}], ids=["greedy", "beams"]
)
def test_every_query_has_its_own_filter(name: str, options: dict[str, int]) -> None:
    model, trie = plain(name), TitleTrie.from_rows(TITLES, VOCAB)
    rng = np.random.default_rng(0)
    masks = [rng.random(len(TITLES)) < share for share in (0.5, 0.2)]
    filtered = FilteredTrie(trie, [*map(RowFilter.from_mask, masks), None])
    subsets = [[row for row, keep in zip(TITLES, mask, strict=True) if keep] for mask in masks]
    width = prompt_width(model, PROMPTS)
    processor = TitleTrieLogitsProcessor(filtered, width, END)
    assert processor.num_queries == 3
    allowed = allowed_fn(width, *subsets, TITLES)
    mine, output = assert_alike(model, PROMPTS, processor, allowed, **options)
    ranks = processor.rows(output.sequences).view(3, -1)
    for query, subset in enumerate([*subsets, TITLES]):
        written = [cut(row) for row in mine.view(3, -1, mine.shape[1])[query].tolist()]
        assert ranks[query].tolist() == [TITLES.index(row) if row in subset else -1 for row in written]


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_one_processor_serves_one_generate_after_another(name: str) -> None:
    model = plain(name)
    processor = processor_for(model, PROMPTS)
    allowed = allowed_fn(prompt_width(model, PROMPTS), TITLES)
    others = [PROMPTS[0][::-1], PROMPTS[0]]  # fewer rows of the same width
    for prompts, options in [
        (PROMPTS, {"num_beams": 5, "num_return_sequences": 5}),
        (PROMPTS, {"num_beams": 5, "num_return_sequences": 5}),
        (PROMPTS, {"max_new_tokens": 2}),  # stops in the middle of titles
        (others, {"num_beams": 3}),
        (PROMPTS, {"do_sample": True, "num_return_sequences": 4}),
        (others, {}),
    ]:
        assert_alike(model, prompts, processor, allowed, **options)


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True}, {"num_beams": 2}], ids=["greedy", "sample", "beam"]
)
def test_generate_may_go_on_from_the_beginning_of_titles(options: dict[str, Any]) -> None:
    """The tokens behind `prompt_length` may be there from the start."""
    model, begun = plain("gpt2"), [TITLES[-1][:2], TITLES[0][:2]]
    prompts = [[*prompt, *start] for prompt, start in zip((PROMPTS[0], PROMPTS[0]), begun, strict=True)]
    processor = TitleTrieLogitsProcessor(TitleTrie.from_rows(TITLES, VOCAB), len(PROMPTS[0]), END)
    mine, _ = run(model, prompts, logits_processor=[processor], **options)
    for start, row in zip(begun, mine.tolist(), strict=True):
        assert cut([*start, *row]) in TITLES


def test_rows_may_end_with_another_token_than_the_models() -> None:
    """Titles that end with a newline: `generate` has to be told, or pads with newlines to its limit."""
    newline, model = VOCAB - 1, plain("llama")
    rows = [(*row[:-1], newline) for row in TITLES]
    trie = TitleTrie.from_rows(rows, VOCAB)
    width = prompt_width(model, PROMPTS)
    processor = TitleTrieLogitsProcessor(trie, width, newline)
    told, _ = run(model, PROMPTS, logits_processor=[processor], eos_token_id=newline)
    untold, _ = run(model, PROMPTS, logits_processor=[processor], max_new_tokens=LONGEST + 3)
    both = TitleTrieLogitsProcessor(trie, width, [newline, END])
    either, _ = run(model, PROMPTS, logits_processor=[both], max_new_tokens=LONGEST + 3)
    for row, longer, other in zip(told.tolist(), untold.tolist(), either.tolist(), strict=True):
        title = tuple(row[: row.index(newline) + 1])
        assert title in rows
        assert tuple(longer[: len(title)]) == tuple(other[: len(title)]) == title
        assert set(longer[len(title) :]) == {newline}
        assert set(other[len(title) :]) <= {newline, END, PAD}


class CountingTrie(TitleTrie):
    """Counts what a step asks."""

    num_advances = num_children = 0

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        self.num_advances += 1
        return super().advance(states, token_ids)

    def children(self, states: Tensor) -> Children:
        self.num_children += 1
        return super().children(states)


def test_a_step_follows_one_token_although_beams_change_places() -> None:
    model, trie = plain("llama"), CountingTrie.from_rows(TITLES, VOCAB)
    assert isinstance(trie, CountingTrie)
    processor = TitleTrieLogitsProcessor(trie, prompt_width(model, PROMPTS), END)
    trie.num_advances = 0
    run(model, PROMPTS, logits_processor=[processor], num_beams=5)
    assert trie.num_advances == trie.num_children - 1 <= LONGEST - 1


@settings(max_examples=60, deadline=None)
@given(data=st.data(), case=catalogues(max_rows=12))
def test_masks_equal_brute_force_in_any_order_of_rows(
    data: st.DataObject, case: tuple[set[Row], int]
) -> None:
    """Rows fork, swap, end, repeat and are padded; now and then a call is left out."""
    rows, vocab_size = case
    if not rows or vocab_size > 1000:
        return
    queries, beams, prompt = (
        data.draw(st.integers(1, 2)),
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(0, 2)),
    )
    end = max(rows)[-1]
    trie = TitleTrie.from_rows(rows, vocab_size)
    processor = TitleTrieLogitsProcessor(trie, prompt, end, num_queries=queries)
    written: list[Row] = [()] * (queries * beams)
    known = prefixes(rows)
    for _ in range(trie.max_depth + 1):
        scores = torch.randn(len(written), vocab_size)
        ids = torch.tensor([[*([end] * prompt), *row] for row in written], dtype=torch.int64)
        ids = ids.view(len(written), prompt + len(written[0]))
        titles = [next((row[:i] for i in range(len(row) + 1) if row[:i] in rows), None) for row in written]
        if data.draw(st.booleans()) or not written[0]:
            masked = processor(ids, scores.clone())
            for row, title, before, after in zip(written, titles, scores, masked, strict=True):
                allowed = {end} if title is not None or row not in known else brute_children(rows, row)
                assert torch.isfinite(after).nonzero().flatten().tolist() == sorted(allowed)
                assert torch.equal(after[sorted(allowed)], before[sorted(allowed)])
        following: list[Row] = []
        for query in range(queries):
            for _ in range(beams):
                parent = written[query * beams + data.draw(st.integers(0, beams - 1))]
                done = any(parent[:i] in rows for i in range(len(parent) + 1))
                options = (
                    sorted(brute_children(rows, parent)) if not done else list(range(min(vocab_size, 5)))
                )
                following.append((*parent, data.draw(st.sampled_from(options))))
        written = following


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_keep_type_and_values_and_the_input_is_left_alone(dtype: torch.dtype) -> None:
    processor = TitleTrieLogitsProcessor(TitleTrie.from_rows([(3, 2), (5, 4, 2)], 6), 1, 2)
    scores = torch.randn(2, 8).to(dtype)  # a model may be wider than its tokenizer
    before = scores.clone()
    masked = processor(torch.ones(2, 1, dtype=torch.int64), scores)
    assert torch.equal(scores, before)
    assert masked.dtype == dtype
    assert torch.equal(masked[:, [3, 5]], scores[:, [3, 5]])
    assert bool((masked[:, [0, 1, 2, 4, 6, 7]] == -math.inf).all())


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True}, {"num_beams": 3}], ids=["greedy", "sample", "beam"]
)
def test_other_processors_may_forbid_what_the_titles_need(options: dict[str, Any]) -> None:
    """`min_new_tokens` forbids the end of short titles, `bad_words_ids` a token: no NaN, no chimera."""
    model = plain("llama")
    rows = [(FIRST_LETTER, FIRST_LETTER + 1, END), (FIRST_LETTER + 2, END)]
    processor = processor_for(model, PROMPTS, rows)
    mine, _ = run(model, PROMPTS, logits_processor=[processor], min_new_tokens=LONGEST, **options)
    assert {cut(row) for row in mine.tolist()} <= set(rows)
    forbidden = [[FIRST_LETTER, FIRST_LETTER + 1]]
    mine, _ = run(model, PROMPTS, logits_processor=[processor], bad_words_ids=forbidden, **options)
    assert {cut(row) for row in mine.tolist()} <= set(rows)
    if "num_beams" in options:  # the other title is possible, and wins
        assert {cut(row) for row in mine.tolist()} == {rows[1]}


def test_titles_that_generate_forbids_from_the_first_token_on_are_an_error() -> None:
    model = plain("bart")
    processor = processor_for(model, PROMPTS)
    with pytest.raises(ValueError, match=r"query 0: every token that begins a title has the score -inf"):
        run(model, PROMPTS, logits_processor=[processor], forced_bos_token_id=VOCAB - 1)


def test_queries_without_any_title_are_named() -> None:
    some, none = np.array([True, True]), np.array([False, False])
    trie, empty = TitleTrie.from_rows([(3, END), (4, END)], VOCAB), TitleTrie.from_rows([], VOCAB)
    for constraint, query in [
        (FilteredTrie(trie, [RowFilter.from_mask(none)]), 0),
        (FilteredTrie(trie, [RowFilter.from_mask(some), RowFilter.from_mask(none)]), 1),
        (empty, 0),
    ]:
        processor = TitleTrieLogitsProcessor(constraint, 1, END)
        rows = 2 * processor.num_queries
        with pytest.raises(ValueError, match=rf"query {query}: there is no title to write"):
            processor(torch.zeros((rows, 1), dtype=torch.int64), torch.zeros((rows, VOCAB)))


@pytest.mark.parametrize("name", ["llama", "bart"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_wrong_prompt_lengths_are_named(name: str, num_beams: int) -> None:
    model, trie = plain(name), TitleTrie.from_rows(TITLES, VOCAB)
    width = prompt_width(model, PROMPTS)
    long = TitleTrieLogitsProcessor(trie, width + 3, END)
    message = (
        f"prompt_length is {width + 3}, but the rows that generate extends have {width} tokens; it must be"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        run(model, PROMPTS, logits_processor=[long], num_beams=num_beams)
    short = TitleTrieLogitsProcessor(trie, 0, END)
    start = [model.config.decoder_start_token_id] if model.config.is_encoder_decoder else PROMPTS[0]
    message = (
        f"row 0 (query 0): no title begins with the tokens {start} that follow the first 0 (prompt_length)"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        run(model, PROMPTS, logits_processor=[short], num_beams=num_beams)


def test_a_processor_for_shorter_prompts_is_refused_and_goes_on_serving_its_own() -> None:
    model = plain("llama")
    processor = processor_for(model, PROMPTS[1:2])
    mine, _ = run(model, PROMPTS[1:2], logits_processor=[processor])
    with pytest.raises(ValueError, match=r"row 0 \(query 0\): no title begins with"):
        run(model, PROMPTS[:1], logits_processor=[processor])
    again, _ = run(model, PROMPTS[1:2], logits_processor=[processor])
    assert torch.equal(mine, again)


def test_queries_must_divide_the_rows() -> None:
    model, trie = plain("llama"), TitleTrie.from_rows(TITLES, VOCAB)
    filtered = FilteredTrie(trie, [None, None])
    processor = TitleTrieLogitsProcessor(filtered, prompt_width(model, PROMPTS), END)
    with pytest.raises(
        ValueError, match="num_queries is 2, but generate extends 3 rows, which is no multiple"
    ):
        run(model, PROMPTS, logits_processor=[processor])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_length": -1}, "prompt_length: must be >= 0, got -1"),
        ({"num_queries": 0}, "num_queries: must be at least 1, got 0"),
        ({"eos_token_id": []}, "eos_token_id: expected a token or several, got []"),
        ({"eos_token_id": -1}, "eos_token_id: expected a token or several, got -1"),
        ({"filters": [None, None], "num_queries": 3}, "num_queries: must be 2, one per filter, got 3"),
        ({"filters": []}, "num_queries: must be at least 1, got 0"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], message: str) -> None:
    trie = TitleTrie.from_rows(TITLES, VOCAB)
    given: dict[str, Any] = {"constraint": trie, "prompt_length": 1, "eos_token_id": END, **arguments}
    if "filters" in given:
        given["constraint"] = FilteredTrie(trie, given.pop("filters"))
    with pytest.raises(ValueError, match=re.escape(message)):
        TitleTrieLogitsProcessor(**given)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_scores_on_cuda_under_a_trie_on_either_device(device: str) -> None:
    trie = TitleTrie.from_rows(TITLES, VOCAB, device)
    mask = np.arange(len(TITLES)) % 2 == 0
    processor = TitleTrieLogitsProcessor(
        FilteredTrie(trie, [None, RowFilter.from_mask(mask, device)]), 1, END
    )
    allowed = [dict_trie(TITLES), dict_trie([row for row, keep in zip(TITLES, mask, strict=True) if keep])]
    written: list[Row] = [(), ()]
    for _ in range(LONGEST):
        scores = torch.randn(2, VOCAB, device="cuda")
        masked = processor(torch.tensor([[PAD, *row] for row in written], device="cuda"), scores)
        assert masked.device == scores.device
        expected = [mine.get(row, [END]) for mine, row in zip(allowed, written, strict=True)]
        assert [torch.isfinite(row).nonzero().flatten().tolist() for row in masked] == expected
        written = [(*row, tokens[-1]) for row, tokens in zip(written, expected, strict=True)]


def test_a_model_narrower_than_the_trie_is_refused() -> None:
    processor = TitleTrieLogitsProcessor(TitleTrie.from_rows([(9, 2)], 10), 1, 2)
    with pytest.raises(ValueError, match="holds token 9, but the model's scores are 8 wide"):
        processor(torch.ones(1, 1, dtype=torch.int64), torch.zeros(1, 8))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_scores_are_an_error(value: float) -> None:
    processor = TitleTrieLogitsProcessor(TitleTrie.from_rows([(3, 2), (4, 2)], 6), 1, 2)
    scores = torch.zeros(1, 6)
    scores[0, 4] = value
    with pytest.raises(InvalidLogitsError, match="NaN or"):
        processor(torch.ones(1, 1, dtype=torch.int64), scores)

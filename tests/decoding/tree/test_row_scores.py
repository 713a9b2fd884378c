"""Scores of given rows are what the model says of every row alone, however the trees are written."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError, PromptTooLongError
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.self_check import exactly
from genret.decoding.row_scores import RowScores, score_rows
from genret.decoding.row_trees import RowLayout
from genret.decoding.sequence_model import SequenceTrees
from tests.beam_oracles import inner_prefixes
from tests.fakes import TableModel, recorded
from tests.tree_oracles import PlainPasses
from tests.verified_architectures import ARCHITECTURES, VOCAB, build

Rows = list[list[int]]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
LOGIT_BYTES = {torch.float64: 8 * VOCAB, torch.float32: 4 * VOCAB}
PROMPTS = [
    [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
    [20, 21, 22, 23],
    [30, 31, 32, 33, 34, 35, 36, 37],
]
ONE_OF_EACH_KIND = ["gemma3", "gpt2", "qwen2-mixed-windows", "bart", "t5"]


@cache
def both(name: str, dtype: torch.dtype, positions: int = 96) -> tuple[HFLanguageModel, PlainPasses]:
    """A model, and the same as transformers has it."""
    changes = {"max_position_embeddings": positions}
    models = (build(name, dtype, changes={} if positions == 96 else changes) for _ in range(2))
    return HFLanguageModel(next(models)), PlainPasses(next(models))


def alone(passes: PlainPasses, prompt: Sequence[int], rows: Rows) -> list[float]:
    """log P(row | prompt) of every row, by plain passes."""
    if not rows:
        return []
    places = [(tuple(prompt), tuple(row[:place])) for row in rows for place in range(len(row))]
    steps = (
        passes.logprobs(places).double().gather(1, torch.tensor([t for row in rows for t in row])[:, None])
    )
    return [float(part.sum()) for part in steps.split([len(row) for row in rows])]


def random_rows(rng: random.Random, number: int, longest: int = 6, tokens: int = 4) -> Rows:
    """Rows over few tokens, so that they share beginnings, repeat, and are beginnings of each other."""
    return [[rng.randrange(3, 3 + tokens) for _ in range(rng.randint(1, longest))] for _ in range(number)]


def scored(results: Sequence[RowScores | DecodingCancelledError]) -> list[tuple[float | None, ...]]:
    assert all(isinstance(result, RowScores) for result in results)
    return [result.logprobs for result in results if isinstance(result, RowScores)]


def in_forwards_of(most_bytes: int, *arguments: Any, **options: Any) -> list[Any]:
    """Score rows in forwards of so many bytes of logits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genret.decoding.row_scores.MAX_LOGITS_BYTES", most_bytes)
        return score_rows(*arguments, **options)


def check(
    name: str,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Rows],
    nodes_at_once: Sequence[int] = (2048,),
    dtype: torch.dtype = torch.float64,
    prefix: int = 0,
    positions: int = 96,
) -> list[RowScores]:
    """Hold scores of rows to plain passes, however many nodes a forward has; `prefix` tokens are shared."""
    model, passes = both(name, dtype, positions)
    with exactly(dtype):
        session = model.prefill(prompts, model.share_prefix(prompts[0][:prefix]) if prefix else None)
        expected = [alone(passes, prompt, mine) for prompt, mine in zip(prompts, rows, strict=True)]
        for number in nodes_at_once:
            results = in_forwards_of(number * LOGIT_BYTES[dtype], session, rows)
            for got, wanted in zip(scored(results), expected, strict=True):
                assert got == pytest.approx(wanted, abs=TOLERANCE[dtype])
    return results


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_score_what_the_model_says_of_each_alone(name: str, dtype: torch.dtype) -> None:
    rng = random.Random(name)
    rows = [random_rows(rng, 10), [], [[4], [4, 5], [4, 5, 6], [4, 5, 6]]]
    check(name, PROMPTS, rows, (2048, 4), dtype)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_rows_in_any_number_of_forwards(name: str, data: st.DataObject) -> None:
    row = st.lists(st.integers(3, 5), min_size=1, max_size=9)
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    prompts = [[3 + (7 * place + length) % (VOCAB - 3) for place in range(length)] for length in lengths]
    rows = [data.draw(st.lists(row, max_size=6)) for _ in prompts]
    check(name, prompts, rows, [data.draw(st.sampled_from([1, 2, 3, 7, 2048]))])


@pytest.mark.parametrize("name", ["gemma3", "gpt2", "gemma2"])
def test_prompts_behind_a_shared_prefix(name: str) -> None:
    rng = random.Random(3)
    shared = [rng.randrange(3, VOCAB) for _ in range(9)]
    prompts = [[*shared, *prompt] for prompt in PROMPTS]
    check(name, prompts, [random_rows(rng, 8) for _ in prompts], (2048, 5), prefix=9)


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "bart"])
def test_trees_larger_than_the_models_positions(name: str) -> None:
    """500 nodes below a prompt of a model with 64 positions, in blocks and in one forward."""
    rows = random_rows(random.Random(5), 320, longest=6, tokens=40)
    (result,) = check(name, PROMPTS[:1], [rows], positions=64)
    assert result.num_nodes > 500


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "t5"])
def test_long_rows_run_through_many_blocks(name: str) -> None:
    """Rows of 60 tokens that leave each other late: paths above blocks are long, and windows end in them."""
    rng = random.Random(6)
    trunk = [rng.randrange(3, VOCAB) for _ in range(60)]
    rows = [[*trunk[:at], rng.randrange(3, VOCAB), *trunk[at + 1 :]] for at in range(0, 60, 6)]
    check(name, PROMPTS[1:2], [rows], (2048, 100, 17))


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-mixed-windows", "bart"])
def test_a_session_in_the_middle_of_decoding_is_not_disturbed(name: str) -> None:
    model, _ = both(name, torch.float64)
    rows = [random_rows(random.Random(8), 7) for _ in PROMPTS]
    parents, tokens = torch.zeros((3, 2), dtype=torch.int64), torch.tensor([[4, 5], [6, 7], [8, 9]])
    with exactly(torch.float64):
        untouched, used = model.prefill(PROMPTS), model.prefill(PROMPTS)
        expected = scored(score_rows(model.prefill(PROMPTS), rows))
        for session in (untouched, used):
            session.step(parents, tokens)
        assert scored(score_rows(used, rows)) == expected
        chosen = used.select([2, 0])
        for got, query in zip(scored(score_rows(chosen, [rows[2], rows[0]])), (2, 0), strict=True):
            assert got == pytest.approx(expected[query], abs=1e-9)
        torch.testing.assert_close(
            used.step(parents + 1, tokens), untouched.step(parents + 1, tokens), rtol=0, atol=0
        )
        assert used.usage.held_bytes == untouched.usage.held_bytes


def test_room_leaves_out_long_rows_and_nothing_else() -> None:
    model = TableModel.random(9, seed=1)
    rows = [[[1, 2, 3, 4], [5], [1, 2]], [[1, 2, 3], [4, 4]], [[2, 2, 2, 2, 2]]]
    results = score_rows(model.prefill([[1], [2], [3]]), rows, room=[2, None, 0])
    expected: list[list[float | None]] = [
        [None if most is not None and len(row) > most else model.logprob(prompt, row) for row in of_query]
        for prompt, of_query, most in zip([[1], [2], [3]], rows, [2, None, 0], strict=True)
    ]
    for result, logprobs, nodes in zip(results, expected, [1, 3, 0], strict=True):
        assert isinstance(result, RowScores)
        assert result.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert result.num_nodes == nodes


def test_rows_may_use_the_last_position_and_none_behind_it() -> None:
    model, passes = both("gpt2", torch.float64, 16)
    rows = [[3, 4, 5], [3, 4, 5, 6]]
    with exactly(torch.float64):
        session = model.prefill([PROMPTS[0]])  # 13 tokens: 3 positions are left
        ((first, last),) = scored(score_rows(session, [rows], room=[3]))
        assert [first] == pytest.approx(alone(passes, PROMPTS[0], rows[:1]), abs=1e-9)
        assert last is None
        score_rows(session, [rows])  # behind the fourth token nothing is asked
        with pytest.raises(PromptTooLongError, match="the rows of query 0 need position 17 of 16"):
            score_rows(session, [[[3, 4, 5, 6, 7]]])


def cancelling(model: TableModel, token: CancelToken) -> TableModel:
    """A model that cancels the token in the first forward over what the prompt [2] is continued by."""

    def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        if prompt == (2,) and written:
            token.cancel()
        return model.logits(prompt, written)

    return TableModel(model.vocab_size, function)


def test_a_cancelled_query_drops_out_between_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    model, forwards = TableModel.random(9, seed=2), recorded(monkeypatch, SequenceTrees, "write")
    rows = [[[1, 2, 3, 4]], [[5, 6, 7, 8], [5, 5, 5]], [[1, 1, 1]]]
    tokens = [CancelToken(), CancelToken(), None]
    session = cancelling(model, tokens[1]).prefill([[1], [2], [3]])
    results = in_forwards_of(2 * 9 * 4, session, rows, cancel=tokens)
    assert [[span.query for span in spans] for _, spans in forwards] == [[0], [0, 1], [2]]
    assert isinstance(results[1], DecodingCancelledError)
    for query in (0, 2):
        result = results[query]
        assert isinstance(result, RowScores)
        expected = [model.logprob([query + 1], row) for row in rows[query]]
        assert result.logprobs == pytest.approx(expected, abs=1e-5)


def test_whoever_is_cancelled_before_costs_nothing_and_after_the_last_forward_has_its_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forwards = recorded(monkeypatch, SequenceTrees, "write")
    before, late = CancelToken(), CancelToken()
    before.cancel()
    session = cancelling(TableModel.random(9, seed=2), late).prefill([[1], [2]])
    cancelled, kept = score_rows(session, [[[1, 2]], [[1, 2]]], cancel=[before, late])
    assert [[span.query for span in spans] for _, spans in forwards] == [[1]]
    assert late.cancelled
    assert isinstance(cancelled, DecodingCancelledError)
    assert isinstance(kept, RowScores)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_logits_name_their_query(broken: float) -> None:
    good = TableModel.random(9, seed=3)

    def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        logits = good.logits(prompt, written)
        return torch.full_like(logits, broken) if (prompt, written) == ((2,), (4,)) else logits

    model = TableModel(9, function)
    session = model.prefill([[1], [2]])
    with pytest.raises(InvalidLogitsError, match="NaN or infinite logits for query 1"):
        score_rows(session, [[[4, 4]], [[4, 4], [4, 5], [3]]])
    # Where nobody asks, nobody minds.
    score_rows(session, [[[4, 4]], [[4], [3, 3]]])
    gone = CancelToken()
    gone.cancel()
    score_rows(session, [[[4, 4]], [[4, 4]]], cancel=[None, gone])


def test_a_token_that_cannot_follow_has_no_probability() -> None:
    def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        return torch.tensor([0.0, -math.inf, 0.0])

    ((possible, impossible),) = scored(
        score_rows(TableModel(3, function).prefill([[1]]), [[[0, 2], [0, 1, 2]]])
    )
    assert possible == pytest.approx(-2 * math.log(2))
    assert impossible == -math.inf


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rows": [[[1]]]}, "rows must have one entry per query, 2, got 1"),
        ({"cancel": [None]}, "cancel must have one entry per query, 2, got 1"),
        ({"room": [1, 2, 3]}, "room must have one entry per query, 2, got 3"),
        ({"rows": [[[1]], [[1], []]]}, "a row must have at least one token, row 1 of query 1 has none"),
        ({"rows": [[[1]], [[3]]]}, r"in \[0, 3\), row 0 of query 1 has 3"),
        ({"rows": [[], [[1], [0, -1]]]}, r"in \[0, 3\), row 1 of query 1 has -1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict, said: str) -> None:
    session = TableModel.random(3, seed=4).prefill([[1], [2]])
    with pytest.raises(ValueError, match=said):
        score_rows(session, **{"rows": [[[1]], [[1]]], **arguments})


def test_memory_is_counted_and_given_back() -> None:
    module = build("llama-gqa")
    session = HFLanguageModel(module).prefill(PROMPTS)
    before = session.usage
    score_rows(session, [random_rows(random.Random(11), 20) for _ in PROMPTS])
    after = session.usage
    assert after.held_bytes == before.held_bytes
    assert after.peak_bytes > before.peak_bytes
    assert after.per_branch_bytes > before.per_branch_bytes


SMALL_VOCAB = 4
ROWS = st.lists(
    st.lists(st.lists(st.integers(0, SMALL_VOCAB - 1), min_size=1, max_size=5), max_size=8), max_size=4
)


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_nodes_are_the_beginnings_of_rows_in_preorder(rows: list[list[list[int]]]) -> None:
    trees = RowLayout.of(rows, SMALL_VOCAB).trees
    assert trees.num_queries == len(rows)
    for query, of_query in enumerate(rows):
        wanted, span = sorted(inner_prefixes(map(tuple, of_query))), trees.span(query)
        nodes = range(span.first, span.end)
        assert [tuple(trees.tokens[[*trees.path(node), node]].tolist()) for node in nodes] == wanted
        assert trees.depths[span.first : span.end].tolist() == [len(path) for path in wanted]
        below = [sum(other[: len(path)] == path for other in wanted) for path in wanted]
        assert (trees.ends[span.first : span.end] - np.arange(span.first, span.end)).tolist() == below
        assert trees.widths[query] == len(set(map(tuple, of_query)))

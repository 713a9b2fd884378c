"""Answers against enumeration: greedy rows, laws, budgets, log-probabilities, and what goes wrong."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decoding.answering.token_choice as choice_points
from decoding.answering import AnswerParams, AnswerText, write_answers
from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError, InvalidLogitsError, PromptTooLongError
from decoding.grammar.errors import AnswerBudgetError
from tests.answer_oracles import constraint_logprob, count_rows, greedy_row, row_law
from tests.fakes import TableModel, chi_square
from tests.text_grammar import END, Pieces, TextGrammar, binary_texts

ALPHA = 1e-4  # seeds are fixed: a test fails always or never
PIECES = Pieces([b"a", b"b", b"ab", b"ba", b"aab", b"{", b"}", b"{a"], vocab_size=40)
SMALL = TextGrammar(PIECES, binary_texts(3))
BRACED = TextGrammar(PIECES, [b"{" + text + b"}" for text in binary_texts(3)])
GROWING = TextGrammar(PIECES, [b"a", b"b", b"b" * 9, b"ba" * 5, b"{aaab}"])
GRAMMARS = (SMALL, BRACED, GROWING)
PLAIN = AnswerParams(forced_spans=False)


def model_of(seed: int) -> TableModel:
    return TableModel.random(40, seed)


def written(answers: list[object]) -> list[AnswerText]:
    assert all(isinstance(answer, AnswerText) for answer in answers)
    return answers  # type: ignore[return-value]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(GRAMMARS), min_size=1, max_size=4), st.data())
def test_greedy_answers_take_the_likeliest_token(seed: int, grammars: list[TextGrammar], data) -> None:
    model = model_of(seed)
    prompts = [[query + 1] * (query + 1) for query in range(len(grammars))]
    params = [
        AnswerParams(max_tokens=data.draw(st.integers(g.tokens_to_finish(0), 12)), forced_spans=False)
        for g in grammars
    ]
    answers = written(write_answers(model, prompts, grammars, params))
    for prompt, grammar, own, answer in zip(prompts, grammars, params, answers, strict=True):
        row = greedy_row(model, prompt, grammar.rows(own.max_tokens))
        assert answer.token_ids == row
        assert answer.text == grammar.text(row)
        assert answer.text in grammar.texts
        assert answer.logprob == pytest.approx(model.logprob(prompt, row), abs=1e-4)
        expected = constraint_logprob(model, prompt, grammar, row)
        assert answer.constraint_logprob == pytest.approx(expected, abs=1e-4)
        # The prompt, and every token but the last is read once.
        assert answer.counts.forwards == len(row)
        assert (answer.counts.sampled, answer.counts.forced) == (len(row), 0)


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize(("temperature", "budget"), [(1.0, 99), (0.5, 99), (1.0, 4), (1.7, 5)])
def test_sampled_answers_have_the_law_of_their_steps(
    grammar: TextGrammar, temperature: float, budget: int
) -> None:
    budget = max(budget, grammar.tokens_to_finish(0))
    model = model_of(5)

    def write(seeds):
        params = [
            AnswerParams(max_tokens=budget, temperature=temperature, seed=seed, forced_spans=False)
            for seed in seeds
        ]
        return write_answers(model, [[7]] * len(params), [grammar] * len(params), params)

    law = row_law(model, [7], grammar.rows(budget), temperature)
    counts = count_rows(write, 2000)
    assert set(counts) <= set(law)
    assert chi_square(counts, law) > ALPHA


def test_a_budget_that_was_not_kept_would_be_noticed() -> None:
    """The test of laws can fail: rows under a smaller budget have another law."""
    model = model_of(5)

    def write(seeds):
        params = [AnswerParams(temperature=1.0, seed=seed, forced_spans=False) for seed in seeds]
        return write_answers(model, [[7]] * len(params), [SMALL] * len(params), params)

    law = row_law(model, [7], SMALL.rows(99), 1.3)
    assert chi_square(count_rows(write, 2000), law) < ALPHA


def test_a_free_text_is_closed_within_any_budget() -> None:
    """Most tokens only lengthen the text, so that at the end none of the likeliest can be afforded."""
    pieces = Pieces([b"\x00", *(bytes([byte]) for byte in range(97, 117))])
    texts = [bytes(text) + b"\x00" for n in range(3) for text in itertools.product(range(97, 117), repeat=n)]
    grammar = TextGrammar(pieces, texts)
    closing_last = TableModel(
        22, lambda prompt, text: torch.tensor([0.0, -9.0, *[float(n) for n in range(20)]])
    )
    for budget, temperature in itertools.product(range(2, 5), (0.0, 0.7)):
        params = AnswerParams(max_tokens=budget, temperature=temperature, forced_spans=False)
        (answer,) = written(write_answers(closing_last, [[1]], [grammar], params))
        assert len(answer.token_ids) == budget
        assert answer.text in grammar.texts


def test_the_budget_bites_as_a_condition_on_the_next_token() -> None:
    """More tokens are ruled out than the spare draws can be expected to get past."""
    letters = [bytes([byte]) for byte in range(97, 117)]
    pieces = Pieces([b".", b"!", *letters])
    grammar = TextGrammar(pieces, [b".", b"!", *(letter + letter + b"." for letter in letters)])
    model = TableModel(23, lambda prompt, text: torch.tensor([0.0, -4.0, -5.0, *[1.0] * 20]))

    def write(seeds):
        params = [AnswerParams(max_tokens=2, temperature=1.0, seed=seed) for seed in seeds]
        return write_answers(model, [[1]] * len(params), [grammar] * len(params), params)

    law = row_law(model, [1], grammar.rows(2))
    assert set(law) == {(1, END), (2, END)}
    assert chi_square(count_rows(write, 1000), law) > ALPHA


def test_an_answer_depends_on_nothing_else_in_the_batch() -> None:
    model = model_of(3)
    rng = random.Random(0)
    jobs = [
        ([rng.randrange(1, 40)], rng.choice(GRAMMARS), rng.choice((0.0, 1.0)), rng.randrange(100))
        for _ in range(12)
    ]

    def write(some):
        params = [AnswerParams(max_tokens=12, temperature=t, seed=seed) for _, _, t, seed in some]
        return written(write_answers(model, [p for p, *_ in some], [g for _, g, *_ in some], params))

    together = write(jobs)
    assert [write([job])[0] for job in jobs] == together
    shuffled = rng.sample(range(12), 12)
    assert write([jobs[place] for place in shuffled]) == [together[place] for place in shuffled]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_listed_and_packed_masks_choose_alike(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    model = model_of(11)
    params = [AnswerParams(temperature=temperature, seed=seed) for seed in range(30)]
    grammars = [GRAMMARS[seed % 3] for seed in range(30)]
    answers = []
    for most in (0, 2, 512):
        monkeypatch.setattr(choice_points, "MAX_LISTED", most)
        answers.append(written(write_answers(model, [[1]] * 30, grammars, params)))
    for some in answers[1:]:
        assert [one.token_ids for one in some] == [one.token_ids for one in answers[0]]
        for one, other in zip(some, answers[0], strict=True):
            assert one.constraint_logprob == pytest.approx(other.constraint_logprob, abs=1e-4)


def test_masks_are_listed_with_their_tokens() -> None:
    rng = random.Random(2)
    for count in (1, 2, 40, 512):
        tokens = sorted(rng.sample(range(3000), count))
        listed = choice_points.ChoicePoint.listing(Pieces([b"a"], 3000).packed(tokens))
        assert listed is not None
        assert listed.tolist() == tokens
    assert choice_points.ChoicePoint.listing(Pieces([b"a"], 3000).packed(range(513))) is None


def test_the_end_token_is_compared_like_any_other() -> None:
    """A text that may end or go on ends where the end token is likelier, and only there."""
    grammar = TextGrammar(PIECES, [b"a", b"aa", b"aaa"])
    for end, text in ((2.0, b"a"), (-2.0, b"aaa")):
        model = TableModel(40, lambda prompt, row, end=end: torch.tensor([end, *[0.0] * 39]))
        (answer,) = written(write_answers(model, [[1]], [grammar], AnswerParams()))
        assert answer.text == text
        assert answer.token_ids[-1] == END


def test_a_token_that_is_the_only_one_costs_no_pass() -> None:
    grammar = TextGrammar(Pieces([b"a", b"b", b"c"]), [b"abc" * 30 + b"a", b"abc" * 30 + b"b"])
    model = TableModel.random(4, 0)
    (answer,) = written(write_answers(model, [[1]], [grammar], AnswerParams()))
    # The prompt, 90 tokens in two passes, and the last before the end.
    assert (answer.counts.forced, answer.counts.sampled, answer.counts.forwards) == (90, 2, 4)
    assert answer.logprob == pytest.approx(model.logprob([1], answer.token_ids), rel=1e-5)
    forced = range(90)
    expected = constraint_logprob(model, [1], grammar, answer.token_ids, forced)
    assert answer.constraint_logprob == pytest.approx(expected, abs=1e-4)
    (plain,) = written(write_answers(model, [[1]], [grammar], PLAIN))
    assert plain.token_ids == answer.token_ids
    assert plain.counts.forwards == 92
    assert plain.logprob == pytest.approx(answer.logprob, rel=1e-6)


def test_answers_that_do_not_fit_are_refused_by_query() -> None:
    model = TableModel.random(40, 0)
    model.max_positions = model.max_prompt_tokens = 6  # type: ignore[assignment]
    params = [AnswerParams(max_tokens=2), AnswerParams(), AnswerParams(), AnswerParams(), AnswerParams()]
    prompts = [[1], [1] * 5, [1] * 7, [1], [1] * 4]
    narrow, short, long, *whole = write_answers(model, prompts, [BRACED] * 5, params)
    assert isinstance(narrow, AnswerBudgetError)
    assert (narrow.budget, narrow.needed) == (2, 3)
    assert isinstance(short, PromptTooLongError)
    assert (
        "takes 3 tokens, end token included; behind the prompt of 5 tokens the model has room for 2"
        in str(short)
    )
    assert isinstance(long, PromptTooLongError)
    first, second = written(whole)
    assert len(first.token_ids) <= 6
    assert len(second.token_ids) == 3
    assert first.text in BRACED.texts


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_end_one_answer(broken: float, temperature: float) -> None:
    good = TableModel.random(40, 0)

    def function(prompt, row):
        logits = good.logits(prompt, row).clone()
        if prompt == (2,) and len(row) == 1:
            logits[20] = broken
        return logits

    params = AnswerParams(temperature=temperature, forced_spans=False)
    answers = write_answers(TableModel(40, function), [[1], [2], [3]], [BRACED] * 3, params)
    assert isinstance(answers[1], InvalidLogitsError)
    assert "NaN or infinite logits, behind 1 tokens" in str(answers[1])
    expected = write_answers(good, [[1], [3]], [BRACED] * 2, params)
    assert written([answers[0], answers[2]]) == written(expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_allows_nothing_allowed_is_refused(temperature: float) -> None:
    model = TableModel(40, lambda prompt, row: torch.tensor([-math.inf] * 9 + [0.0] * 31))
    (answer,) = write_answers(model, [[1]], [BRACED], AnswerParams(temperature=temperature))
    assert isinstance(answer, InvalidLogitsError)
    assert "gives no probability to any token that the grammar allows" in str(answer)


def test_cancelled_queries_leave_the_batch() -> None:
    stop = CancelToken()
    plain = model_of(1)

    def function(prompt, row):
        if len(row) == 1:
            stop.cancel()
        return plain.logits(prompt, row)

    answers = write_answers(
        TableModel(40, function), [[1], [1]], [BRACED] * 2, AnswerParams(), cancel=[stop, None]
    )
    assert isinstance(answers[0], DecodingCancelledError)
    assert [answers[1]] == write_answers(plain, [[1]], [BRACED], AnswerParams())


def test_arguments_that_do_not_fit_each_other_are_refused() -> None:
    model = model_of(0)
    with pytest.raises(ValueError, match="for the same queries, at least one, got 2, 1 and 2"):
        write_answers(model, [[1], [2]], [SMALL], AnswerParams())
    with pytest.raises(ValueError, match="got 0, 0 and 0"):
        write_answers(model, [], [], AnswerParams())
    with pytest.raises(ValueError, match=r"one entry per query \(1\), got 2"):
        write_answers(model, [[1]], [SMALL], AnswerParams(), cancel=[None, None])
    with pytest.raises(ValueError, match="a grammar is for 40 logits, the model returns 41"):
        write_answers(TableModel.random(41, 0), [[1]], [SMALL], AnswerParams())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be an integer in"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1.0}, "temperature must be 0 or in"),
        ({"temperature": math.nan}, "temperature"),
        ({"seed": 2**63}, "seed"),
        ({"draft_tokens": 65}, "draft_tokens"),
    ],
)
def test_params_are_checked(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnswerParams(**changes)  # type: ignore[arg-type]

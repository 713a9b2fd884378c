"""Drafted tokens change only what an answer costs: the same greedy rows, laws, and the cost model."""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import cache, partial
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.answering import AnswerParams, AnswerText, Speller, write_answers
from genret.decoding.answering.answer import (
    MOST_COST,
    ROW_COST,
    USUAL_COST,
    Answer,
    DraftCostModel,
    relative_cost,
)
from genret.decoding.errors import InvalidLogitsError
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.answer_oracles import ALPHA, Row, check_law, count_rows, greedy_row, row_law
from tests.fakes import TableModel, chi_square
from tests.text_grammar import END, TextGrammar, binary_texts, longest_match, pieces, rows_of

V = 12
PIECES = pieces([b"a", b"b", b"ab", b"ba", b"aab", b"{", b"}", b"{a"], vocab_size=V)
SMALL = TextGrammar(PIECES, binary_texts(3))
BRACED = TextGrammar(PIECES, [b"{" + text + b"}" for text in binary_texts(3)])
GRAMMARS = (SMALL, BRACED)
TARGET = TableModel.random(V, 5)


NOISE = TableModel.random(V, 17)
# Models that propose: the target itself, close to it, far from it, certain, of another width.
DRAFTS = {
    "itself": TARGET,
    "close": TableModel(V, lambda p, r: TARGET.logits(p, r) + 0.3 * NOISE.logits(p, r)),
    "far": TableModel.random(V, 99, scale=3.0),
    "certain": TableModel(V, lambda p, r: 40.0 * NOISE.logits(p, r)),
    "opposite": TableModel(V, lambda p, r: -2.0 * TARGET.logits(p, r)),
    "wider": TableModel.random(V + 7, 3),
    "narrower": TableModel.random(V - 2, 3),
}


def write_one(target: TableModel, draft: TableModel, grammar: TextGrammar, **options: float) -> AnswerText:
    params = AnswerParams(**options)  # type: ignore[arg-type]
    (answer,) = write_answers(target, [[7]], [grammar], params, draft=draft)
    assert isinstance(answer, AnswerText)
    return answer


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(sorted(DRAFTS)),
    st.integers(1, 6),
    st.integers(4, 9),
    st.booleans(),
    st.lists(st.sampled_from(GRAMMARS), min_size=1, max_size=3),
)
def test_greedy_answers_are_the_same(
    seed: int, name: str, k: int, budget: int, forced: bool, grammars: list[TextGrammar]
) -> None:
    target = TableModel.random(V, seed)
    prompts = [[query + 1] for query in range(len(grammars))]
    params = AnswerParams(max_tokens=budget, draft_tokens=k, forced_spans=forced)
    plain = write_answers(target, prompts, grammars, params)
    answers = write_answers(target, prompts, grammars, params, draft=DRAFTS[name])
    for one, other, prompt, grammar in zip(answers, plain, prompts, grammars, strict=True):
        assert isinstance(one, AnswerText)
        assert isinstance(other, AnswerText)
        assert one.token_ids == other.token_ids == greedy_row(target, prompt, rows_of(grammar, budget))
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert one.constraint_logprob == pytest.approx(other.constraint_logprob, abs=1e-4)
        assert (one.counts.sampled, one.counts.forced) == (other.counts.sampled, other.counts.forced)
        assert one.counts.forwards <= other.counts.forwards
        assert one.counts.accepted <= min(one.counts.drafted, len(one.token_ids))


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize(("k", "temperature"), [(1, 1.0), (4, 0.7)])
def test_sampled_answers_have_the_law_of_the_target(name: str, k: int, temperature: float) -> None:
    options = {"draft_tokens": k, "temperature": temperature, "forced_spans": False}
    check_law(TARGET, BRACED, 1000, draft=DRAFTS[name], **options)


@pytest.mark.parametrize("name", ["close", "far", "opposite"])
@pytest.mark.parametrize("budget", [3, 4, 5])
def test_the_law_holds_within_a_budget(name: str, budget: int) -> None:
    """Proposals that the budget rules out were drawn all the same."""
    options = {"draft_tokens": 3, "max_tokens": budget, "forced_spans": False}
    check_law(TARGET, SMALL, 1000, draft=DRAFTS[name], **options)


def test_the_target_as_its_own_draft_is_always_right() -> None:
    for temperature in (0.0, 1.0):
        for seed in range(30):
            options = {"seed": seed, "temperature": temperature, "forced_spans": False}
            answer = write_one(TARGET, TARGET, BRACED, **options)
            counts = answer.counts
            assert counts.drafted == counts.accepted
            # The first token is chosen behind the prompt, and every further pass verifies four proposals and
            # adds a token of its own.
            assert counts.forwards - 1 == math.ceil((counts.sampled - 1) / 5)


def test_a_bad_draft_is_not_asked_for_long() -> None:
    """Its passes end soon, and so does what it costs; a good one is asked throughout."""
    target = TableModel(3, lambda p, r: torch.tensor([0.0, 3.0, -3.0]))
    wrong = TableModel(3, lambda p, r: torch.tensor([0.0, -3.0, 3.0]))
    grammar = TextGrammar(pieces([b"a", b"b"]), [b"a" * place + b"b" for place in range(60)])
    bad = write_one(target, wrong, grammar, forced_spans=False, max_tokens=128)
    good = write_one(target, target, grammar, forced_spans=False, max_tokens=128)
    alone = write_one(target, target, grammar, forced_spans=False, max_tokens=128, draft_tokens=0)
    assert bad.token_ids == good.token_ids == alone.token_ids
    assert bad.counts.drafted < 20
    assert good.counts.drafted == good.counts.accepted > 40
    assert bad.counts.forwards <= alone.counts.forwards


@pytest.mark.parametrize("budget", range(4, 12))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_budget_may_choose_what_was_refused(budget: int, temperature: float) -> None:
    """The likeliest token cannot be afforded, and the next is what the draft proposed and went on from."""
    texts = [b"a" * n + b"z" + end for n in range(12) for end in (b"yz", b"zy", b"yy")]
    grammar = TextGrammar(pieces([b"a", b"y", b"z"]), texts)
    model = TableModel(4, lambda p, r: torch.tensor([0.0, 3.0, 1.0, 2.0]))
    for k in range(1, 7):
        options = {"max_tokens": budget, "temperature": temperature, "draft_tokens": k, "forced_spans": False}
        answer = write_one(model, model, grammar, **options)
        assert answer.text in grammar.texts
        assert len(answer.token_ids) <= budget
        assert answer.logprob == pytest.approx(model.logprob([7], answer.token_ids), abs=1e-4)
        if temperature == 0:
            assert answer.token_ids == greedy_row(model, [7], rows_of(grammar, budget))


def test_a_draft_may_know_less_and_be_shorter_of_room() -> None:
    """If the draft allows nothing, or has no positions left, the target goes on alone."""
    target = TableModel.random(V, 1)
    silent = TableModel(V, lambda p, r: torch.tensor([-math.inf] * (V - 1) + [0.0]))
    alone = write_one(target, silent, BRACED, draft_tokens=0)
    for temperature in (0.0, 1.0):
        quiet = write_one(target, silent, BRACED, temperature=temperature)
        assert quiet.counts.drafted == 0
        assert quiet.text in BRACED.texts
    short = TableModel.random(V, 2)
    short.max_positions = 2  # type: ignore[assignment]
    answer = write_one(target, short, BRACED, forced_spans=False)
    assert answer.token_ids == write_one(target, silent, BRACED, forced_spans=False).token_ids
    assert answer.counts.drafted <= 2
    assert alone.text in BRACED.texts


def test_a_broken_draft_is_said_to_be_broken() -> None:
    broken = TableModel(V, lambda p, r: torch.full((V,), math.nan))
    (answer,) = write_answers(TARGET, [[7]], [BRACED], AnswerParams(), draft=broken)
    assert isinstance(answer, InvalidLogitsError)
    assert "the draft model returned NaN" in str(answer)


NUM = 2000
LAW_PIECES = [b"[", b"]", b"x", b"y", b"xy", b",", b";", b",;", b";x", b";xy"]
LAW_V = len(LAW_PIECES) + 1
VOCABULARY = Vocabulary([None, *LAW_PIECES], end_token_id=END, vocab_size=LAW_V)
# The brackets are forced, and so is an x behind a y. What stands between values is forced as bytes, and has
# several spellings: some go on into the next value.
DOCUMENTS = TextGrammar(
    VOCABULARY, [b"[" + b",;".join(values) + b"]" for values in product((b"x", b"xy", b"yx"), repeat=3)]
)


SPELLER = Speller(partial(longest_match, VOCABULARY), VOCABULARY)
LAW_TARGET, LAW_NOISE = TableModel.random(LAW_V, 1, 1.0), TableModel.random(LAW_V, 17)
LAW_DRAFTS = {
    "none": None,
    "close": TableModel(LAW_V, lambda p, r: LAW_TARGET.logits(p, r) + 0.7 * LAW_NOISE.logits(p, r)),
    "far": TableModel.random(LAW_V, 99, 2.0),
}


def p_value(draft: str, num: int = NUM) -> tuple[float, Counter[str]]:
    """p-value of some documents against the model's law, rare rows as one; the sums of their counts."""
    options = {"draft": LAW_DRAFTS[draft], "speller": SPELLER, "draft_tokens": 3}
    (counts, sums), law = count_rows(LAW_TARGET, DOCUMENTS, num, **options), law_of_documents()
    assert set(counts) <= set(law)
    usual = {row: share for row, share in law.items() if num * share >= 5}
    pooled = Counter({row: counts[row] for row in usual})
    pooled[()] = num - pooled.total()
    return chi_square(pooled, {**usual, (): 1 - sum(usual.values())}), sums


@cache
def law_of_documents() -> dict[Row, float]:
    """Forced tokens are the only ones that are allowed there: no law changes where they are not asked for."""
    return row_law(LAW_TARGET, [7], rows_of(DOCUMENTS))


@pytest.mark.parametrize("draft", LAW_DRAFTS)
def test_documents_have_the_law_of_the_model(draft: str) -> None:
    probability, sums = p_value(draft)
    assert probability > ALPHA
    # All of it happened, and proposals both stood and fell.
    assert min(sums["forced"], sums["guessed"]) > NUM / 3
    assert draft == "none" or (sums["accepted"] > NUM / 3 and sums["drafted"] - sums["accepted"] > NUM)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(8, 13))
def test_likely_tokens_change_no_greedy_answer(seed: int, drafted: bool, budget: int) -> None:
    target = TableModel.random(LAW_V, seed)
    draft = TableModel.random(LAW_V, seed + 1) if drafted else None
    (answer,) = write_answers(
        target, [[7]], [DOCUMENTS], AnswerParams(max_tokens=budget), speller=SPELLER, draft=draft
    )
    assert isinstance(answer, AnswerText)
    assert answer.token_ids == greedy_row(target, [7], rows_of(DOCUMENTS, budget))
    assert answer.logprob == pytest.approx(target.logprob([7], answer.token_ids), abs=1e-4)


def test_the_law_does_not_depend_on_how_much_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals that often do not pay: they stop and are tried again all the time."""
    for name, value in (
        ("ROW_COST", 0.55),
        ("_FIRST_WEIGHT", 1.0),
        ("_SHORTEST_PAUSE", 1),
        ("_LONGEST_PAUSE", 2),
    ):
        monkeypatch.setattr(f"genret.decoding.answering.answer.{name}", value)
    probability, sums = p_value("far")
    assert probability > ALPHA
    assert NUM < sums["drafted"] < 5 * NUM


def test_how_much_is_proposed_is_asked_once_for_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for every token that may fall: that would let tokens which fell decide."""
    asked: Counter[DraftCostModel] = Counter()
    following = DraftCostModel.next

    def watched(self: DraftCostModel) -> int:
        asked[self] += 1
        return following(self)

    monkeypatch.setattr(DraftCostModel, "next", watched)
    made: list[Answer] = []
    monkeypatch.setattr(
        "genret.decoding.answering.writer.Answer", lambda *given: made.append(Answer(*given)) or made[-1]
    )
    p_value("close", 250)
    assert len(made) == 250
    for answer in made:
        # Every pass but the one over the prompt, behind which a bracket is forced.
        assert asked[answer.drafts] == asked[answer.guesses] == answer.forwards - 1


class Weighted:
    """A model of so many layers of some width."""

    def __init__(self, layers: int, width: int) -> None:
        self.pretrained = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def run(pace: DraftCostModel, share: float, passes: int, seed: int = 0) -> list[int]:
    """Numbers proposed in some passes where every token is accepted with a probability."""
    rng = random.Random(seed)
    numbers = []
    for _ in range(passes):
        numbers.append(pace.next())
        for _ in range(numbers[-1]):
            accepted = rng.random() < share
            pace.learn(accepted)
            if not accepted:
                break
    return numbers


def best_number(share: float, cost: float, most: int) -> int:
    """The number of proposals that brings most tokens for its cost, by the expectation term by term."""

    def rate(number: int) -> float:
        return sum(share**place for place in range(number + 1)) / (1 + number * (cost + ROW_COST))

    return max(range(most + 1), key=rate)


@given(st.integers(0, 8), st.floats(0.01, 1.5), st.lists(st.booleans(), max_size=30))
def test_the_number_is_the_best_for_the_share(most: int, cost: float, judged: list[bool]) -> None:
    pace = DraftCostModel(most, cost)
    for accepted in judged:
        pace.learn(accepted)
    assert pace.next() == best_number(pace.share, cost, most)


@given(st.lists(st.booleans(), min_size=60, max_size=60))
def test_the_share_is_that_of_late_proposals(judged: list[bool]) -> None:
    pace = DraftCostModel(4, 0.2)
    for accepted in judged:
        pace.learn(accepted)
    weights = [0.9**age for age in range(len(judged))]
    late = sum(weight * accepted for weight, accepted in zip(weights, reversed(judged), strict=True))
    assert pace.share == pytest.approx(late / sum(weights), abs=0.01)


def test_a_draft_that_is_never_right_is_given_up() -> None:
    numbers = run(DraftCostModel(4, 0.2), 0.0, 500)
    assert numbers[0] == 4
    assert sum(numbers[:12]) < 20
    # Tried again now and then, one token at a time, in pauses that grow.
    assert set(numbers[20:]) == {0, 1}
    tried = [place for place, number in enumerate(numbers) if number and place > 20]
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses == sorted(pauses)
    assert sum(numbers[20:]) < 20


def test_a_draft_that_becomes_right_is_used_again() -> None:
    pace = DraftCostModel(4, 0.2)
    run(pace, 0.0, 60)
    assert max(run(pace, 1.0, 400)[-50:]) == 4


def test_a_trial_waits_for_something_to_be_proposed() -> None:
    """There may be nothing to propose in the pass in which it is tried again."""
    pace = DraftCostModel(1, 0.0)
    while pace.next():
        pace.learn(False)
    assert [pace.next() for _ in range(6)] == [0, 0, 0, 1, 1, 1]
    pace.learn(False)
    assert [pace.next() for _ in range(10)] == [0] * 8 + [1, 1]


@given(st.integers(0, 16), st.floats(0, 1), st.floats(0, 1.5), st.integers(0, 1000))
def test_numbers_are_within_what_was_asked_for(most: int, share: float, cost: float, seed: int) -> None:
    numbers = run(DraftCostModel(most, cost), share, 100, seed)
    assert 0 <= min(numbers) <= max(numbers) <= most
    assert numbers == run(DraftCostModel(most, cost), share, 100, seed)


def test_models_are_weighed() -> None:
    large = Weighted(8, 8)
    assert relative_cost(Weighted(2, 4), large) == 0.25  # a sixteenth of the weights, a quarter of the layers
    assert relative_cost(Weighted(1, 12), large) == 0.28125
    assert relative_cost(large, large) == relative_cost(large, Weighted(2, 4)) == MOST_COST
    assert DraftCostModel(4, MOST_COST).next() > 1
    assert relative_cost(object(), large) == relative_cost(large, object()) == USUAL_COST

"""Whole sampled documents with drafts, likely tokens and forced spans together: the model's law, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from decoding.answering import AnswerParams, AnswerText, Speller, speculation, write_answers
from decoding.answering import answer as pace
from decoding.answering import token_choice as choosing
from decoding.answering.answer import Answer, DraftCostModel
from decoding.answering.speculation import ProposedSpan
from decoding.answering.token_choice import PointGroup, Suggestion
from decoding.grammar.vocabulary import Vocabulary
from tests.answer_oracles import Row, count_rows, row_law
from tests.fakes import TableModel, chi_square
from tests.text_grammar import END, TextGrammar

ALPHA = 1e-4  # seeds are fixed: a test fails always or never
NUM = 2000
PIECES = [b"[", b"]", b"x", b"y", b"xy", b",", b";", b",;", b";x", b";xy"]
V = len(PIECES) + 1
VOCABULARY = Vocabulary([None, *PIECES], end_token_id=END, vocab_size=V)
VALUES = (b"x", b"xy", b"yx")
# The brackets are forced, and so is an x behind a y. What stands between values is forced as bytes, and has
# several spellings: some go on into the next value.
DOCUMENTS = TextGrammar(
    VOCABULARY,
    [b"[" + one + b",;" + two + b",;" + three + b"]" for one in VALUES for two in VALUES for three in VALUES],
)


def longest_piece(text: bytes) -> list[int]:
    tokens = []
    while text:
        best = max((piece for piece in PIECES if text.startswith(piece)), key=len)
        tokens.append(1 + PIECES.index(best))
        text = text[len(best) :]
    return tokens


TARGET, NOISE = TableModel.random(V, 1, 1.0), TableModel.random(V, 17)
DRAFTS = {
    "close": TableModel(V, lambda p, r: TARGET.logits(p, r) + 0.7 * NOISE.logits(p, r)),
    "far": TableModel.random(V, 99, 2.0),
}
Sampled = Callable[[Tensor, PointGroup], tuple[Tensor, Tensor]]


def p_value(draft: str, counted: Counter[str], num: int = NUM) -> float:
    """Of some documents against the model's law; rows that are rare count as one."""
    speller = Speller(longest_piece, VOCABULARY)

    def write(seeds: Sequence[int]) -> Sequence[object]:
        params = [AnswerParams(seed=seed, temperature=1.0, draft_tokens=3) for seed in seeds]
        many = len(params)
        answers = write_answers(
            TARGET, [[7]] * many, [DOCUMENTS] * many, params, draft=DRAFTS[draft], speller=speller
        )
        for answer in answers:
            assert isinstance(answer, AnswerText)
            for name in ("forced", "guessed", "drafted", "accepted"):
                counted[name] += getattr(answer.counts, name)
        return answers

    counts, law = count_rows(write, num), law_of_documents()
    assert set(counts) <= set(law)
    usual = {row: share for row, share in law.items() if num * share >= 5}
    pooled = Counter({row: counts[row] for row in usual})
    pooled[()] = num - pooled.total()
    return chi_square(pooled, {**usual, (): 1 - sum(usual.values())})


@cache
def law_of_documents() -> dict[Row, float]:
    """Forced tokens are the only ones that are allowed there: no law changes where they are not asked for."""
    return row_law(TARGET, [7], DOCUMENTS.rows())


@pytest.mark.parametrize("draft", DRAFTS)
def test_documents_have_the_law_of_the_model(draft: str) -> None:
    counted: Counter[str] = Counter()
    assert p_value(draft, counted) > ALPHA
    # All of it happened, and proposals both stood and fell.
    assert min(counted["forced"], counted["guessed"], counted["accepted"]) > NUM / 3
    assert counted["drafted"] - counted["accepted"] > NUM


def test_the_law_does_not_depend_on_how_much_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals that often do not pay: they stop and are tried again all the time."""
    monkeypatch.setattr(pace, "ROW_COST", 0.55)
    monkeypatch.setattr(pace, "_FIRST_WEIGHT", 1.0)
    monkeypatch.setattr(pace, "_SHORTEST_PAUSE", 1)
    monkeypatch.setattr(pace, "_LONGEST_PAUSE", 2)
    counted: Counter[str] = Counter()
    assert p_value("far", counted) > ALPHA
    assert NUM < counted["drafted"] < 5 * NUM


def _certain_ones_stand(sampled: Sampled, probabilities: Tensor, group: PointGroup) -> tuple[Tensor, Tensor]:
    """Likely tokens are taken for forced ones."""
    places, accepted = sampled(probabilities, group)
    proposals = [point.proposal for point in group.points]
    certain = [[proposal is not None and proposal.probabilities is None] for proposal in proposals]
    return places, accepted | torch.tensor(certain)


def _too_many_stand(sampled: Sampled, probabilities: Tensor, group: PointGroup) -> tuple[Tensor, Tensor]:
    """Proposals are accepted a quarter more often than they should be: p counts for more than it is."""
    places, accepted = sampled(probabilities, group)
    _, generous = sampled((1.25 * probabilities).clamp(max=1.0), group)
    return places, accepted | generous


def _drawn_again(sampled: Sampled, probabilities: Tensor, group: PointGroup) -> tuple[Tensor, Tensor]:
    """Where a proposal falls, a token is drawn from p, and not from what p has more than q."""
    places, accepted = sampled(probabilities, group)
    return torch.cat([places[:, 1:2], places[:, 1:]], dim=1), accepted


@pytest.mark.parametrize("bias", [_certain_ones_stand, _too_many_stand, _drawn_again])
def test_a_bias_is_noticed(
    bias: Callable[[Sampled, Tensor, PointGroup], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_sampled", partial(bias, choosing._sampled))
    assert p_value("far", Counter(), NUM // 2) < ALPHA


def test_a_proposal_that_is_withdrawn_for_what_it_is_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether something is proposed may depend on what came before alone, not on the token itself."""
    take = speculation._take

    def pick(answer: Answer, stretch: ProposedSpan, suggestion: Suggestion) -> None:
        if suggestion.tokens[:1] == (1 + PIECES.index(b"x"),):
            stretch.closed = True
        else:
            take(answer, stretch, suggestion)

    monkeypatch.setattr(speculation, "_take", pick)
    assert p_value("far", Counter(), NUM // 2) < ALPHA


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
        "decoding.answering.writer.Answer", lambda *given: made.append(Answer(*given)) or made[-1]
    )
    p_value("close", Counter(), 250)
    assert len(made) == 250
    for answer in made:
        # Every pass but the one over the prompt, behind which a bracket is forced.
        assert asked[answer.drafts] == asked[answer.guesses] == answer.forwards - 1

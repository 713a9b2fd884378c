"""What requests count for in a queue: what their kind takes, and not the numbers they name."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.answers.answer_types import AnswerRequest, AnswerResult
from retrieval.errors import ModelError
from retrieval.types import RetrievalResult, RetrieveRequest
from service.configuration.server_config import QueueLimits
from service.errors import OverloadedError
from service.serving.admission import Admission, CostModel, estimate_tokens, open_tokens, used_tokens

PROOF = RetrieveRequest("q", k=2, exact=True, exact_budget=1_000)
ANSWER = AnswerRequest("q", True, max_tokens=400)
WIDE = AnswerRequest("q", True, method="beam", beam_size=4, max_tokens=400)


def proof_of(nodes: int) -> RetrievalResult:
    return RetrievalResult("q", "beam", (), num_exact_nodes=nodes)


def answer_of(tokens: int, method: str = "greedy") -> AnswerResult:
    return AnswerResult("q", method, "1", (), logprob=-1.0, num_tokens=tokens)


def test_what_a_client_bounds_and_what_was_taken_of_it() -> None:
    assert open_tokens(RetrieveRequest("q")) == 0
    assert (open_tokens(PROOF), open_tokens(ANSWER), open_tokens(WIDE)) == (1_000, 400, 1_600)
    assert used_tokens(PROOF, proof_of(30)) == 30
    assert used_tokens(PROOF, proof_of(1_002)) == 1_000, "a budget may be overrun by a few nodes"
    assert used_tokens(WIDE, answer_of(50)) == 200
    assert used_tokens(WIDE, ModelError("broken")) == 1_600


def test_a_budget_counts_in_full_before_any_of_its_kind_is_done() -> None:
    cost_model = CostModel()
    assert cost_model.expected(ANSWER) == 400
    cost_model.learn(PROOF, proof_of(10))
    cost_model.learn(ANSWER, ModelError("says nothing of others"))
    assert cost_model.expected(ANSWER) == 400
    cost_model.learn(ANSWER, answer_of(20))
    assert 20 < cost_model.expected(ANSWER) < 100
    assert cost_model.expected(WIDE) == 1_600, "another method"


def test_requests_without_a_budget_teach_nothing() -> None:
    cost_model = CostModel()
    cost_model.learn(RetrieveRequest("q"), proof_of(0))
    assert cost_model.expected(PROOF) == 1_000


def test_a_wide_request_is_expected_to_take_as_many_times_more() -> None:
    cost_model = CostModel()
    for _ in range(100):
        cost_model.learn(WIDE, answer_of(50))
    narrow = AnswerRequest("q", True, method="beam", beam_size=1, max_tokens=400)
    assert cost_model.expected(WIDE) == pytest.approx(4 * 50, rel=0.1)
    assert cost_model.expected(narrow) == pytest.approx(50, rel=0.1)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(1, 400))
def test_nothing_is_expected_beyond_the_budget_or_below_nothing(seen: list[int], budget: int) -> None:
    cost_model = CostModel()
    for tokens in seen:
        cost_model.learn(ANSWER, answer_of(tokens))
    asked = AnswerRequest("q", True, max_tokens=budget)
    assert 0 <= cost_model.expected(asked) <= budget


def test_most_requests_take_less_than_is_expected_and_a_change_is_followed() -> None:
    rng = random.Random(1)
    cost_model = CostModel()
    for mean in (40, 200, 20):
        for _ in range(100):
            cost_model.learn(ANSWER, answer_of(round(rng.uniform(0.5, 1.5) * mean)))
        expected = cost_model.expected(ANSWER)
        assert 1.5 * mean <= expected < 3.5 * mean


def test_no_number_in_a_request_closes_the_queue_to_others() -> None:
    admission = Admission(QueueLimits(max_tokens=1_000))
    greedy = RetrieveRequest("q", exact=True, exact_budget=100_000)
    tokens = estimate_tokens(greedy, 10)
    share = admission.share(greedy, tokens)
    assert share == tokens - 100_000 + 250
    admission.admit(share)
    plain = RetrieveRequest("q")
    work = estimate_tokens(plain, 10)
    assert admission.share(plain, work) == work, "what has no budget counts in full"
    admission.admit(work)
    admission.admit(share)
    with pytest.raises(OverloadedError):
        admission.admit(share)


def test_a_share_is_never_less_than_one_and_never_more_than_the_work() -> None:
    admission = Admission(QueueLimits(max_tokens=1_000_000))
    for _ in range(50):
        admission.learn(ANSWER, answer_of(0))
    assert admission.share(ANSWER, estimate_tokens(ANSWER, 0)) == 1
    fresh = Admission(QueueLimits(max_tokens=1_000_000))
    assert fresh.share(ANSWER, estimate_tokens(ANSWER, 7)) == 407


def test_draws_count_for_the_tokens_that_they_do_not_share() -> None:
    wide = RetrieveRequest("q", method="disc", num_samples=256, num_draws=16)
    assert open_tokens(wide) == 8 * 4096
    cost_model = CostModel()
    assert cost_model.expected(wide) == 8 * 4096
    usual = RetrieveRequest("q", method="disc")
    for _ in range(50):
        cost_model.learn(usual, RetrievalResult("q", "disc", (), num_nodes=32))
    assert 32 <= cost_model.expected(usual) <= 40
    assert 64 * 32 <= cost_model.expected(wide) <= 64 * 40

"""Admission counts work, and never locks itself shut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.answers.answer_types import AnswerRequest, AnswerResult
from retrieval.errors import GenretError
from retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from retrieval.types import RetrievalResult, RetrieveRequest
from service.configuration.server_config import BatchLimits, QueueLimits
from service.errors import OverloadedError
from service.serving.admission import TITLE_TOKENS, Admission, done_tokens, estimate_tokens
from service.serving.served import EvidenceDescription, IndexDescription


@pytest.mark.parametrize(
    ("request_", "branches"),
    [
        (RetrieveRequest("q", k=3), 10),
        (RetrieveRequest("q", k=50), 50),
        (RetrieveRequest("q", beam_size=7), 7),
        (RetrieveRequest("q", method="disc"), 4 * 16),
        (RetrieveRequest("q", method="disc", num_draws=2, num_samples=3), 6),
    ],
)
def test_work_grows_with_the_prompt_and_the_branches(request_: RetrieveRequest, branches: int) -> None:
    assert estimate_tokens(request_, 20) == 20 + branches * TITLE_TOKENS


def test_work_grows_with_the_titles_that_are_scored() -> None:
    beam = estimate_tokens(RetrieveRequest("q", k=3, method="beam"), 20)
    auto = RetrieveRequest("q", k=3, method="auto")
    assert estimate_tokens(auto, 20) == beam, "what has no shortlist decodes alone"
    assert estimate_tokens(auto, 20, scored_forms=150) == beam + 150 * TITLE_TOKENS
    shortlist = RetrieveRequest("q", k=3, method="shortlist")
    assert estimate_tokens(shortlist, 20, scored_forms=150) == 20 + 150 * TITLE_TOKENS
    draws = RetrieveRequest("q", method="auto", decoder="disc", num_draws=2, num_samples=3)
    assert estimate_tokens(draws, 20, scored_forms=1) == 20 + (1 + 6) * TITLE_TOKENS


def test_given_titles_are_work_by_their_length() -> None:
    titles = ["Hamlet", "The Tragedy of Macbeth", "x"]
    request = ScoreRequest("q", titles)  # type: ignore[arg-type]  # takes any iterable
    assert estimate_tokens(request, 20) == 20 + (1 + 1) + (1 + 5) + 1
    scores = ScoreResult("q", tuple(TitleScore(title, -1.0, 0.3, 2) for title in titles), num_nodes=5)
    assert done_tokens(estimate_tokens(request, 20), request, scores) == 20 + 9
    assert Admission(QueueLimits(max_tokens=40)).share(request, 29) == 29, "all of it is sure to be done"


DESCRIBED = IndexDescription("i", "v", "d", num_rows=3000, num_entities=1000, model="m", device="cpu")


@pytest.mark.parametrize(
    ("method", "size", "evidence", "forms"),
    [
        ("beam", None, True, 0),
        ("disc", None, True, 0),
        ("auto", None, True, 72),
        ("auto", 7, True, 21),
        ("auto", 7, False, 0),
        ("auto", 2000, False, 3000),
        ("shortlist", 2000, True, 3000),
    ],
)
def test_a_shortlist_has_as_many_forms_as_its_entities_have_in_the_mean(
    method: str, size: int | None, evidence: bool, forms: int
) -> None:
    made = EvidenceDescription("names", 3000, 10**6, None if evidence else GenretError())
    request = RetrieveRequest("q", method=method, shortlist_size=size)
    assert replace(DESCRIBED, evidence=(made,)).scored_forms(request) == forms
    if not evidence:
        assert DESCRIBED.scored_forms(request) == forms, "broken evidence is none"


def test_a_proof_is_work_up_to_its_budget_and_less_when_it_ended_sooner() -> None:
    request = RetrieveRequest("q", k=3, exact=True, exact_budget=500)
    estimated = estimate_tokens(request, 20)
    assert estimated == estimate_tokens(RetrieveRequest("q", k=3), 20) + 500
    assert (
        estimate_tokens(RetrieveRequest("q", exact=True), 0) - estimate_tokens(RetrieveRequest("q"), 0)
        == 1024
    )
    assert done_tokens(estimated, request, proof_of(500)) == estimated
    assert done_tokens(estimated, request, proof_of(510)) == estimated
    assert done_tokens(estimated, request, proof_of(30)) == estimated - 470
    assert done_tokens(100, RetrieveRequest("q"), proof_of(0)) == 100


def proof_of(tokens: int) -> RetrievalResult:
    return RetrievalResult("q", "beam", (), num_exact_nodes=tokens)


def test_a_document_is_work_up_to_its_budget_and_less_when_it_ended_sooner() -> None:
    request = AnswerRequest("q", True, max_tokens=300)
    estimated = estimate_tokens(request, 20)
    assert estimated == 320
    written = AnswerResult("q", "greedy", "1", (), logprob=-1.0, num_tokens=40)
    assert done_tokens(estimated, request, written) == 60
    wide = AnswerRequest("q", True, method="beam", beam_size=4, max_tokens=300)
    assert estimate_tokens(wide, 20) == 20 + 4 * 300
    assert done_tokens(estimate_tokens(wide, 20), wide, written) == 20 + 4 * 40


def test_a_request_larger_than_the_limit_is_taken_alone() -> None:
    admission = Admission(QueueLimits(max_requests=5, max_tokens=100))
    admission.admit(1000)
    with pytest.raises(OverloadedError, match="1000 tokens of work, at most 100, this request 1"):
        admission.admit(1)
    admission.release(1000)
    admission.admit(1)


def test_what_would_wait_too_long_is_refused_and_told_when_to_return() -> None:
    admission = Admission(QueueLimits(max_wait_seconds=2), BatchLimits(max_tokens=50))
    admission.observe(100, seconds=1.0)
    admission.admit(500)  # alone it is taken, as it could never be served otherwise
    with pytest.raises(OverloadedError, match=r"work for 5\.0 s, at most 2 s") as refused:
        admission.admit(1)
    assert refused.value.reason == "QUEUE_FULL"
    assert refused.value.retry_after_s == pytest.approx(2.5)
    admission.release(500)
    admission.admit(200)
    admission.admit(200)  # two seconds of work are held, not more
    with pytest.raises(OverloadedError, match=r"work for 4\.0 s"):
        admission.admit(1)


def test_two_full_batches_are_held_however_slow_the_device_is() -> None:
    admission = Admission(QueueLimits(max_wait_seconds=0.001), BatchLimits(max_size=4, max_tokens=100))
    admission.observe(100, seconds=60.0)
    for _ in range(8):
        admission.admit(25)
    with pytest.raises(OverloadedError, match=r"work for 120\.0 s, at most 0\.001 s"):
        admission.admit(1)
    admission.release(25)
    with pytest.raises(OverloadedError):
        admission.admit(26)
    admission.admit(25)
    assert not admission.leaves_half(1)
    for _ in range(5):
        admission.release(25)
    assert admission.leaves_half(25)
    assert not admission.leaves_half(26)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=60))
def test_the_limits_hold_and_all_is_given_back(events: list[tuple[bool, int]]) -> None:
    limits = QueueLimits(max_requests=4, max_tokens=100)
    admission = Admission(limits)
    held: list[int] = []
    for arrives, tokens in events:
        if not arrives:
            if held:
                admission.release(held.pop())
            continue
        fits = len(held) < 4 and sum(held) + tokens <= 100
        if fits:
            admission.admit(tokens)
            held.append(tokens)
        else:
            with pytest.raises(OverloadedError):
                admission.admit(tokens)
        assert (admission.num_requests, admission.num_tokens) == (len(held), sum(held))


def test_waits_are_estimated_from_the_speed_seen() -> None:
    admission = Admission(QueueLimits())
    admission.admit(1000)
    assert admission.expected_wait_s() == 0, "nothing is known yet, so nothing is refused for it"
    assert admission.retry_after_s() == 1.0
    admission.observe(500, seconds=1.0)
    assert admission.expected_wait_s() == pytest.approx(2.0)
    assert admission.retry_after_s() == pytest.approx(1.0)
    for _ in range(100):
        admission.observe(500, seconds=0.05)
    assert admission.expected_wait_s() == pytest.approx(0.1, rel=0.01)
    admission.observe(1, seconds=0.0)
    assert 0.05 <= admission.retry_after_s() <= 30

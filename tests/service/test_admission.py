"""Admission: cost and speed models, limits, and the parts of clients."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.answers.answer_types import AnswerRequest, AnswerResult
from genret.retrieval.errors import ModelError
from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.client.reply import EvidenceInfo, IndexInfo
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.errors import NoRoomError, OverloadedError
from genret.service.serving.admission import (
    TITLE_TOKENS,
    Admission,
    CostModel,
    Patience,
    SpeedModel,
    done_tokens,
    estimate_tokens,
    open_tokens,
    used_tokens,
)
from genret.service.serving.fair_shares import Caller
from genret.service.serving.served import scored_forms

ME = Caller("me", "call")


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


DESCRIBED = IndexInfo("i", "v", "d", num_rows=3000, num_entities=1000, model="m", device="cpu")


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
    made = EvidenceInfo("names", 3000, 10**6, "" if evidence else "broken")
    request = RetrieveRequest("q", method=method, shortlist_size=size)
    assert scored_forms(replace(DESCRIBED, evidence=(made,)), request) == forms
    if not evidence:
        assert scored_forms(DESCRIBED, request) == forms, "broken evidence is none"


def test_a_proof_is_work_up_to_its_budget_and_less_when_it_ended_sooner() -> None:
    request = RetrieveRequest("q", k=3, exact=True, exact_budget=500)
    estimated = estimate_tokens(request, 20)
    assert estimated == estimate_tokens(RetrieveRequest("q", k=3), 20) + 500
    by_default = estimate_tokens(RetrieveRequest("q", exact=True), 0)
    assert by_default - estimate_tokens(RetrieveRequest("q"), 0) == 1024
    for tokens, left in ((500, 0), (510, 0), (30, 470)):
        assert done_tokens(estimated, request, proof_of(tokens)) == estimated - left
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
    admission.admit(ME, 1000)
    with pytest.raises(OverloadedError, match="1000 tokens of work, at most 100, this request 1"):
        admission.admit(ME, 1)
    admission.release(ME, 1000)
    admission.admit(ME, 1)


def test_what_would_wait_too_long_is_refused_and_told_when_to_return() -> None:
    admission = Admission(QueueLimits(max_wait_seconds=2), BatchLimits(max_tokens=50))
    admission.speed.observe(100, seconds=1.0)
    admission.admit(ME, 500)  # alone it is taken, as it could never be served otherwise
    with pytest.raises(OverloadedError, match=r"work for 5\.0 s, at most 2 s") as refused:
        admission.admit(ME, 1)
    assert refused.value.reason == "QUEUE_FULL"
    assert refused.value.retry_after_s == pytest.approx(2.5)
    admission.release(ME, 500)
    admission.admit(ME, 200)
    admission.admit(ME, 200)  # two seconds of work are held, not more
    with pytest.raises(OverloadedError, match=r"work for 4\.0 s"):
        admission.admit(ME, 1)


@pytest.mark.parametrize(
    ("size", "batch_s", "num_taken", "told"),
    [
        (4, 60.0, 4, r"work for 60\.0 s, at most 2 s"),  # what runs at once, however slow the device is
        (9, 60.0, 4, r"work for 60\.0 s, at most 2 s"),
        (4, 1.6, 6, r"work for 2\.4 s, at most 2 s"),  # of a second batch what begins within twice the limit
        (4, 1.0, 8, r"work for 2\.0 s, at most 1 s"),
        (4, 0.4, 11, r"work for 1\.1 s, at most 1 s"),
    ],
)
def test_how_long_work_may_wait_depends_on_how_many_batches_are_held(
    size: int, batch_s: float, num_taken: int, told: str
) -> None:
    admission = Admission(QueueLimits(max_wait_seconds=1), BatchLimits(max_size=size, max_tokens=100))
    admission.speed.observe(100, seconds=batch_s)
    for _ in range(num_taken):
        admission.admit(ME, 25)
    with pytest.raises(NoRoomError, match=told) as refused:
        admission.admit(ME, 25)
    assert refused.value.num_held == num_taken
    with pytest.raises(NoRoomError, match="the deadline is in") as refused:
        admission.admit(Caller("you"), 25, time.monotonic() + batch_s / 8)
    assert refused.value.num_held is None, "one with more time might be taken"
    admission.release(ME, 25)
    admission.admit(ME, 25)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=60))
def test_the_limits_hold_and_all_is_given_back(events: list[tuple[bool, int]]) -> None:
    limits = QueueLimits(max_requests=4, max_tokens=100)
    admission = Admission(limits)
    held: list[int] = []
    for arrives, tokens in events:
        if not arrives:
            if held:
                admission.release(ME, held.pop())
            continue
        fits = len(held) < 4 and sum(held) + tokens <= 100
        if fits:
            admission.admit(ME, tokens)
            held.append(tokens)
        else:
            with pytest.raises(OverloadedError):
                admission.admit(ME, tokens)
        assert (admission.num_requests, admission.num_tokens) == (len(held), sum(held))


def test_waits_are_estimated_from_the_speed_seen() -> None:
    admission = Admission(QueueLimits())
    admission.admit(ME, 1000)
    assert admission.expected_wait_s(ME, admission.num_tokens) == 0, (
        "nothing is known yet, so nothing is refused for it"
    )
    assert admission.retry_after_s(ME) == 1.0
    admission.speed.observe(500, seconds=1.0)
    assert admission.expected_wait_s(ME, admission.num_tokens) == pytest.approx(2.0)
    assert admission.retry_after_s(ME) == pytest.approx(1.0)
    for _ in range(100):
        admission.speed.observe(500, seconds=0.05)
    assert admission.expected_wait_s(ME, admission.num_tokens) == pytest.approx(0.1, rel=0.01)
    admission.speed.observe(1, seconds=0.0)
    assert 0.05 <= admission.retry_after_s(ME) <= 30


PROOF = RetrieveRequest("q", k=2, exact=True, exact_budget=1_000)
ANSWER = AnswerRequest("q", True, max_tokens=400)
WIDE = AnswerRequest("q", True, method="beam", beam_size=4, max_tokens=400)


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
    cost_model.learn(RetrieveRequest("q"), proof_of(0))
    assert cost_model.expected(PROOF) == 1_000, "requests without a budget teach nothing"
    cost_model.learn(PROOF, proof_of(10))
    cost_model.learn(ANSWER, ModelError("says nothing of others"))
    assert cost_model.expected(ANSWER) == 400
    cost_model.learn(ANSWER, answer_of(20))
    assert 20 < cost_model.expected(ANSWER) < 100
    assert cost_model.expected(WIDE) == 1_600, "another method"
    for _ in range(100):
        cost_model.learn(WIDE, answer_of(50))
    narrow = replace(WIDE, beam_size=1)
    assert cost_model.expected(WIDE) == pytest.approx(4 * 50, rel=0.1), "four times as wide"
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
    admission.admit(ME, share)
    plain = RetrieveRequest("q")
    work = estimate_tokens(plain, 10)
    assert admission.share(plain, work) == work, "what has no budget counts in full"
    admission.admit(ME, work)
    admission.admit(ME, share)
    with pytest.raises(OverloadedError):
        admission.admit(ME, share)


def test_a_share_is_never_less_than_one_and_never_more_than_the_work() -> None:
    admission = Admission(QueueLimits(max_tokens=1_000_000))
    for _ in range(50):
        admission.costs.learn(ANSWER, answer_of(0))
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


def test_the_mean_speed_is_known_of_one_size_of_batch_and_a_change_is_followed() -> None:
    speed = SpeedModel()
    assert speed.seconds(1000, 3) == 0, "before any batch"
    speed.observe(1000, 5.0)
    assert speed.seconds(1000, 1) == pytest.approx(5.0)
    assert speed.seconds(100, 9) == pytest.approx(0.5)
    for _ in range(50):
        speed.observe(1000, 0.1)
    assert speed.seconds(1000, 1) == pytest.approx(0.1, rel=0.01)


@given(st.floats(0, 0.2), st.floats(1e-6, 1e-3), st.lists(st.integers(1, 20_000), min_size=2, max_size=60))
def test_a_device_that_is_a_straight_line_is_known_exactly(
    per_batch: float, per_token: float, sizes: list[int]
) -> None:
    speed = SpeedModel()
    for tokens in sizes:
        speed.observe(tokens, per_batch + per_token * tokens)
    if len({size.bit_length() for size in sizes}) > 1:
        assert speed.seconds(5000, 2) == pytest.approx(2 * per_batch + per_token * 5000, rel=1e-3, abs=1e-4)


def test_single_requests_do_not_make_a_burst_look_hopeless() -> None:
    speed = SpeedModel()
    for tokens, seconds in ((120, 0.09), (1900, 0.5), (3800, 0.93)):
        speed.observe(tokens, seconds)
    for _ in range(1000):
        speed.observe(120, 0.09)
    assert speed.seconds(64 * 120, 2) == pytest.approx(1.86, rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 100)), min_size=1))
def test_whatever_was_seen_more_work_never_takes_less_time(seen: list[tuple[int, float]]) -> None:
    speed = SpeedModel()
    for tokens, seconds in seen:
        speed.observe(tokens, seconds)
    assert 0 <= speed.seconds(10, 1) <= speed.seconds(20, 1) <= speed.seconds(20, 2)


def test_one_odd_batch_is_not_believed_for_ever() -> None:
    speed = SpeedModel()
    speed.observe(100, 0.05)
    speed.observe(4096, 60.0)
    for _ in range(5):
        speed.observe(100, 0.05)
    assert speed.seconds(200, 1) < 1.0
    for _ in range(20):
        speed.observe(4096, 1.5)
    assert speed.seconds(4096, 1) == pytest.approx(1.5, rel=0.1)


def test_batches_may_cost_more_than_in_proportion() -> None:
    speed = SpeedModel()
    for _ in range(30):
        speed.observe(100, 0.05)
        speed.observe(3200, 2.4)  # half as much again for each token
    assert speed.seconds(3200, 1) == pytest.approx(2.4, rel=0.1)


def test_a_client_fills_its_part_only_and_others_find_theirs() -> None:
    admission = Admission(QueueLimits(max_requests=8))
    for number in range(8):
        admission.admit(Caller("greedy", str(number)), 1)
    with pytest.raises(OverloadedError, match=r"8 requests, at most 8$"):
        admission.admit(Caller("greedy", "one more"), 1)
    for number in range(4):
        admission.admit(Caller("late", str(number)), 1)
    assert admission.num_clients == 2
    with pytest.raises(OverloadedError, match="4 requests, at most 4 while 2 clients ask"):
        admission.admit(Caller("late", "4"), 1)
    for number in range(4):
        admission.release(Caller("late", str(number)), 1)
    assert admission.num_clients == 1


def test_a_wait_counts_of_others_no_more_than_they_may_have_meanwhile() -> None:
    admission = Admission(QueueLimits(), BatchLimits(max_tokens=10**6))
    admission.speed.observe(100, seconds=1.0)
    admission.admit(Caller("a", "stream"), 400, patience=Patience.STREAM)
    admission.admit(Caller("a", "single"), 10)
    admission.admit(Caller("b", "huge"), 900)
    waits = {
        Caller("a", "stream"): 4.0 + 0.1 + 4.2,  # its own, all of the single one, of b as much as all of a
        Caller("a", "new"): 0.1 + 0.1 + 0.3,  # ten tokens of each call, then as much of b
        Caller("b", "new"): 0.1 + 0.2,
        Caller("c", "new"): 0.1 + 0.1,
    }
    for caller, wait_s in waits.items():
        assert admission.expected_wait_s(caller, 10) == pytest.approx(wait_s)


def test_who_cannot_be_served_in_time_is_told_so_at_once() -> None:
    admission = Admission(QueueLimits(max_wait_seconds=1000))
    admission.speed.observe(100, seconds=1.0)
    admission.admit(Caller("a", "1"), 500)
    now = time.monotonic()
    with pytest.raises(
        OverloadedError, match=r"the deadline is in \d\.\d\d s and the work ahead takes about 5"
    ) as late:
        admission.admit(Caller("a", "1"), 1, deadline=now + 2)
    assert late.value.retry_after_s > 0
    admission.admit(Caller("a", "1"), 1, deadline=now + 100)
    admission.admit(Caller("b", "1"), 1, deadline=now + 2)
    admission.admit(Caller("a", "1"), 1, deadline=now + 2, patience=Patience.STREAM)
    with pytest.raises(OverloadedError):
        admission.admit(Caller("a", "1"), 1, deadline=now + 2, patience=Patience.BATCH)


def test_patient_work_takes_no_room_and_of_batches_no_more_waits_than_the_queue_may_hold() -> None:
    admission = Admission(QueueLimits(max_requests=2, max_tokens=10))
    for _ in range(3):
        admission.admit(ME, 50, patience=Patience.STREAM)
    admission.admit(ME, 5)
    with pytest.raises(OverloadedError, match="3 requests of batches wait, at most 2"):
        admission.admit(ME, 1, patience=Patience.BATCH)
    for _ in range(2):
        admission.release(ME, 50, Patience.STREAM)
    admission.admit(ME, 1, patience=Patience.BATCH)
    admission.release(ME, 1, Patience.BATCH)
    admission.release(ME, 50, Patience.STREAM)
    admission.release(ME, 5)
    assert (admission.num_requests, admission.num_tokens, admission.num_clients) == (0, 0, 0)

"""Admission: cost and speed models, limits, the overload guard, and the queue of work that waits for room."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.errors import DeadlineExceededError
from genret.retrieval.answers.answer_types import AnswerRequest, AnswerResult
from genret.retrieval.errors import ModelError
from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.client.reply import EvidenceInfo, IndexInfo
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.errors import OverloadedError
from genret.service.serving.admission import (
    TITLE_TOKENS,
    Admission,
    CostModel,
    FairQueue,
    OverloadGuard,
    SpeedModel,
    done_tokens,
    estimate_tokens,
    open_tokens,
    used_tokens,
)
from genret.service.serving.served import scored_forms
from tests.service.running_server import until


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


TOKENS = 90


@dataclass(frozen=True, slots=True)
class Device:
    """A device whose batches take time by a straight line, with lognormal noise."""

    per_batch_s: float
    per_request_s: float
    noise: float = 0.1

    def seconds(self, requests: int) -> float:
        """Return how long a batch should take."""
        return self.per_batch_s + requests * self.per_request_s


@dataclass(slots=True)
class Lane:
    """A device with its queue and clients in simulated time; `seconds` are those of answered calls."""

    device: Device
    limits: BatchLimits = field(default_factory=BatchLimits)
    queue: QueueLimits = field(default_factory=QueueLimits)
    seed: int = 0
    seconds: list[float] = field(default_factory=list)
    num_refused: int = 0

    def open_loop(self, per_second: float, seconds: float) -> None:
        """Let calls come at the times of a Poisson process."""
        rng, at, arrivals = random.Random(self.seed), 0.0, []
        while (at := at + rng.expovariate(per_second)) < seconds:
            arrivals.append(at)
        self._run(arrivals, seconds, repeats=False)

    def closed_loop(self, clients: int, seconds: float) -> None:
        """Let clients send one call after the other; one that is refused comes when it was told to."""
        self._run([client / 1e4 for client in range(clients)], seconds, repeats=True)

    def percentile(self, share: float) -> float:
        """Return what a share of the answered calls took at most, seconds."""
        return sorted(self.seconds)[int(share * len(self.seconds))]

    def _run(self, arrivals: list[float], until: float, repeats: bool) -> None:
        now, rng = 0.0, random.Random(self.seed + 1)
        admission = Admission(self.queue, self.limits, clock=lambda: now)
        for size in (1, 2, 4, 8, 16, 32):
            admission.observe(size * TOKENS, self.device.seconds(size))
        events = [(at, "arrival") for at in arrivals]
        heapq.heapify(events)
        waiting: list[float] = []
        running: list[float] = []
        begun = 0.0
        while events and events[0][0] < until:
            now, event = heapq.heappop(events)
            if event == "arrival":
                try:
                    admission.admit(TOKENS)
                    waiting.append(now)
                except OverloadedError as error:
                    self.num_refused += 1
                    if repeats:
                        heapq.heappush(events, (now + error.retry_after_s, "arrival"))
            else:
                admission.end()
                for arrived in running:
                    admission.release(TOKENS)
                    self.seconds.append(now - arrived)
                    if repeats:
                        heapq.heappush(events, (now + rng.uniform(0.003, 0.03), "arrival"))
                admission.observe(TOKENS * len(running), now - begun)
                running = []
            if waiting and not running:
                running, waiting = waiting[: self.limits.max_size], waiting[self.limits.max_size :]
                begun = now
                admission.begin(len(running), TOKENS * len(running))
                took = self.device.seconds(len(running)) * rng.lognormvariate(0, self.device.noise)
                heapq.heappush(events, (now + took, "end"))


CPU = Device(per_batch_s=0.055, per_request_s=0.0235)
CAPACITY = 32 / CPU.seconds(32)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Crowd:
    """A device of which a batch takes a second, and calls that come every `every_s`; nine fill a batch."""

    def __init__(self, every_s: float, max_wait_s: float = 1.0, max_size: int = 9, tokens: int = 1) -> None:
        self.clock = Clock()
        self.tokens = tokens
        self.guard = OverloadGuard(BatchLimits(max_size=max_size, max_tokens=90), max_wait_s, self.clock)
        self.every_s = every_s

    def begin(self, seconds: float = 1.0) -> None:
        self.guard.begin(9, 9 * self.tokens, seconds)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / self.every_s)):
            self.clock.now += self.every_s
            self.guard.arrived(self.tokens)

    def is_told_to_come_later(self, waiting: int = 0) -> bool:
        return self.guard.fills_next(9 + waiting, (9 + waiting) * self.tokens)


@pytest.mark.parametrize(("max_size", "tokens"), [(9, 1), (4000, 10)])
def test_the_first_of_many_calls_are_told_to_come_later_and_the_last_are_let_in(
    max_size: int, tokens: int
) -> None:
    crowd = Crowd(every_s=0.02, max_size=max_size, tokens=tokens)
    for _ in range(6):
        crowd.begin()
        crowd.wait(1.0)
        crowd.guard.refused()
    crowd.begin()
    assert crowd.is_told_to_come_later(), "fifty come in a second, and nine are wanted"
    crowd.wait(0.5)
    assert crowd.is_told_to_come_later(), "some seventeen come before the batch may be over"
    assert crowd.is_told_to_come_later(waiting=8)
    crowd.wait(0.2)
    assert not crowd.is_told_to_come_later(), "there is time for seven more"
    assert crowd.is_told_to_come_later(waiting=6), "and these make it nearly full"
    assert crowd.is_told_to_come_later(waiting=9)
    crowd.wait(0.4)
    assert not crowd.is_told_to_come_later(waiting=8), "the batch is late: the next one begins at any time"
    crowd.guard.end()
    assert not crowd.is_told_to_come_later(waiting=-9), "nothing runs"


def test_who_might_wait_longer_anyway_is_let_in() -> None:
    for max_wait_s, told in ((1.9, True), (2.0, False)):
        crowd = Crowd(every_s=0.02, max_wait_s=max_wait_s)
        crowd.begin()
        crowd.wait(1.0)
        crowd.guard.refused()
        crowd.begin()
        assert crowd.is_told_to_come_later() is told


def test_overload_is_over_when_nobody_was_refused_for_two_batches() -> None:
    crowd = Crowd(every_s=0.02)
    for seconds in (1.0, 0.98):
        crowd.begin()
        crowd.wait(seconds)
        if seconds == 1.0:
            crowd.guard.refused()
    crowd.begin()
    assert crowd.is_told_to_come_later()
    crowd.wait(1.04)
    crowd.begin()
    assert not crowd.is_told_to_come_later()


def test_a_small_batch_between_large_ones_does_not_end_the_overload() -> None:
    crowd = Crowd(every_s=0.002)
    crowd.begin()
    crowd.wait(1.0)
    crowd.guard.refused()
    crowd.begin(seconds=0.1)
    assert crowd.is_told_to_come_later(waiting=1)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 2), st.integers(1, 60)), max_size=60))
def test_nobody_is_told_to_come_later_before_a_limit_was_met(events: list[tuple[float, int, int]]) -> None:
    clock = Clock()
    guard = OverloadGuard(BatchLimits(max_size=4, max_tokens=100), 0.1, clock)
    for passed, event, tokens in events:
        clock.now += passed
        if event == 0:
            guard.arrived(tokens)
        elif event == 1:
            guard.begin(1 + tokens % 4, tokens, 1.0)
        else:
            guard.end()
        assert not guard.fills_next(8, 200)


def test_work_that_has_waited_for_room_is_not_told_to_come_later() -> None:
    clock = Clock()
    admission = Admission(QueueLimits(), BatchLimits(max_size=2), clock)
    admission.observe(20, seconds=1.0)
    for _ in range(4):
        admission.admit(10)
    admission.begin(2, 20)
    for _ in range(50):
        with pytest.raises(OverloadedError, match="work for"):
            admission.admit(10)
    admission.end()
    for _ in range(2):
        admission.release(10)
    admission.begin(2, 20)
    for _ in range(50):
        with pytest.raises(OverloadedError, match="far more comes than can be answered") as refused:
            admission.admit(10)
        assert refused.value.reason == "QUEUE_FULL"
        assert refused.value.retry_after_s == pytest.approx(0.5)
    admission.admit(10, has_waited=True)
    assert admission.num_requests == 3


Play = Callable[[Device, Callable[[Lane], None]], tuple[Lane, Lane]]


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Plays open or closed loops twice: as they are, and without the guard against overload."""

    def play(device: Device, loop: Callable[[Lane], None]) -> tuple[Lane, Lane]:
        guarded, free = Lane(device), Lane(device)
        loop(guarded)
        with monkeypatch.context() as patch:
            patch.setattr(OverloadGuard, "fills_next", lambda *_: False)
            loop(free)
        return guarded, free

    return play


@pytest.mark.parametrize("times", [2, 4, 8])
def test_in_overload_waits_are_shorter_and_as_many_are_answered(times: int, unguarded: Play) -> None:
    usual = Lane(CPU)
    usual.open_loop(0.8 * CAPACITY, 200)
    loaded, before = unguarded(CPU, lambda lane: lane.open_loop(times * CAPACITY, 200))
    assert len(loaded.seconds) >= 0.98 * len(before.seconds)
    assert loaded.percentile(0.5) < 0.9 * before.percentile(0.5)
    assert loaded.percentile(0.99) < 0.95 * before.percentile(0.99)
    if times >= 4:
        assert loaded.percentile(0.99) < 1.8 * usual.percentile(0.99) < 0.9 * before.percentile(0.99)


FAST = Device(per_batch_s=0.007, per_request_s=0.0004)


@pytest.mark.parametrize(
    ("device", "per_second", "seconds"),
    [(CPU, 0.5 * CAPACITY, 200), (CPU, 0.8 * CAPACITY, 200), (FAST, 4 * 1600, 5)],
    ids=["half of the capacity", "near the capacity", "a queue that is short in time"],
)
def test_where_waits_are_short_nothing_changes(
    device: Device, per_second: float, seconds: float, unguarded: Play
) -> None:
    lane, before = unguarded(device, lambda lane: lane.open_loop(per_second, seconds))
    assert lane.seconds == before.seconds
    assert device is FAST or lane.num_refused == 0


@pytest.mark.parametrize("clients", [1, 32, 64])
def test_clients_that_all_find_room_are_never_refused(clients: int) -> None:
    lane = Lane(CPU)
    lane.closed_loop(clients, 100)
    assert lane.num_refused == 0
    assert clients == 1 or len(lane.seconds) > 0.9 * 100 * clients / (CPU.seconds(min(clients, 32)) * 2)


def test_clients_that_come_again_when_they_are_told_keep_the_device_busy(unguarded: Play) -> None:
    lane, before = unguarded(CPU, lambda lane: lane.closed_loop(96, 100))
    assert len(lane.seconds) >= 0.95 * len(before.seconds)
    assert lane.percentile(0.99) < before.percentile(0.99)


class Queue:
    """A queue that patient work and calls share, without a device behind it."""

    def __init__(self, max_requests: int = 4, max_tokens: int = 1000) -> None:
        limits = QueueLimits(max_requests, max_tokens)
        self.admission = Admission(limits)
        self.fair_queue = FairQueue(self.admission, limits)
        self.order: list[str] = []

    async def work(self, name: str, done: asyncio.Event, tokens: int = 1, deadline: float = math.inf) -> None:
        async with self.fair_queue.room(tokens, deadline):
            self.admission.admit(tokens)
            self.order.append(name)
            try:
                await done.wait()
            finally:
                self.admission.release(tokens)

    async def begin(self, done: asyncio.Event, *works: tuple[str, int], waiting: int = 0) -> list[Any]:
        """Start works of a name and a number of tokens, and wait until so many wait for room."""
        tasks = [asyncio.create_task(self.work(name, done, tokens)) for name, tokens in works]
        await until(lambda: len(self.order) + self.fair_queue.num_waiting >= len(tasks))
        assert self.fair_queue.num_waiting == waiting
        return tasks


async def test_it_takes_half_of_the_queue_and_the_rest_waits_in_order() -> None:
    queue, done = Queue(max_requests=4), asyncio.Event()
    tasks = await queue.begin(done, *((name, 1) for name in "01234"), waiting=3)
    assert queue.order == ["0", "1"]
    assert queue.admission.num_requests == 2
    done.set()
    await asyncio.gather(*tasks)
    assert queue.order == ["0", "1", "2", "3", "4"]
    assert (queue.admission.num_requests, queue.fair_queue.num_waiting) == (0, 0)


async def test_a_queue_full_of_calls_lets_it_in_as_soon_as_one_leaves() -> None:
    queue, done = Queue(max_requests=2), asyncio.Event()
    queue.admission.admit(1)
    queue.admission.admit(1)
    task = asyncio.create_task(queue.work("a", done))
    await until(lambda: queue.fair_queue.num_waiting == 1)
    queue.admission.release(1)
    await until(lambda: queue.order == ["a"])
    done.set()
    await task


async def test_one_that_is_larger_than_the_share_is_let_in_alone() -> None:
    queue, done = Queue(max_tokens=100), asyncio.Event()
    tasks = await queue.begin(done, ("small", 10), ("large", 80), ("after", 1), waiting=2)
    assert queue.order == ["small"], "nobody overtakes"
    done.set()
    await asyncio.gather(*tasks)
    assert queue.order == ["small", "large", "after"]


async def test_the_deadline_passes_while_it_waits() -> None:
    queue, done = Queue(max_requests=1), asyncio.Event()
    (first,) = await queue.begin(done, ("first", 1))
    with pytest.raises(DeadlineExceededError, match="the deadline passed while the queue was full"):
        await queue.work("late", done, deadline=time.monotonic() + 0.02)
    assert queue.fair_queue.num_waiting == 0
    done.set()
    await first


async def test_cancelling_the_first_lets_the_second_look() -> None:
    queue, done, hold = Queue(max_tokens=100), asyncio.Event(), asyncio.Event()
    (running,) = await queue.begin(hold, ("running", 40))
    large = asyncio.create_task(queue.work("large", done, tokens=40))
    small = asyncio.create_task(queue.work("small", done, tokens=1))
    await until(lambda: queue.fair_queue.num_waiting == 2)
    large.cancel()
    await until(lambda: queue.order == ["running", "small"])
    done.set()
    hold.set()
    await asyncio.gather(running, small)


async def test_an_error_gives_the_share_back() -> None:
    queue = Queue(max_requests=2)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            async with queue.fair_queue.room(1, math.inf):
                raise ValueError("broken")
    done = asyncio.Event()
    done.set()
    await queue.work("a", done)
    assert queue.order == ["a"]


async def test_half_of_the_time_is_left_to_single_calls() -> None:
    limits = QueueLimits(max_wait_seconds=2)
    admission = Admission(limits, BatchLimits(max_tokens=50))
    fair_queue = FairQueue(admission, limits)
    admission.observe(100, seconds=1.0)
    async with fair_queue.room(60, math.inf):
        admission.admit(60)
        async with fair_queue.room(60, math.inf):
            admission.admit(60)
            with pytest.raises(DeadlineExceededError):  # a second of work is there
                async with fair_queue.room(60, time.monotonic() + 0.02):
                    raise AssertionError("there was room")
            admission.admit(60)  # and another one for single calls


async def test_of_a_batch_no_more_waits_than_the_queue_may_hold() -> None:
    queue, done = Queue(max_requests=2), asyncio.Event()
    tasks = await queue.begin(done, *((name, 1) for name in "012"), waiting=2)
    with pytest.raises(OverloadedError, match="2 requests of batches wait for room, at most 2"):
        async with queue.fair_queue.room(1, math.inf, bounded=True):
            raise AssertionError("there was room")
    done.set()
    await asyncio.gather(*tasks)

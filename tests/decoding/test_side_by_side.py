"""Passes of several sessions in one forward, cut to any size, equal those of each session alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from genret.decoding.errors import DecodingCancelledError
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.row_scores import score_rows
from genret.decoding.side_by_side import Ending, Scheduler, SharedForwardError, current_call, undivided
from tests.verified_architectures import VOCAB, build


class EqualShare:
    """A share of which nobody has more than another."""

    turn = (0.0,)

    def charge(self, seconds: float) -> None:
        pass

    def reason_to_stop(self) -> None:
        pass


class Calls:
    """Calls of a scheduler by name, and how they ended.

    With `most`, so many rows fit into a forward, whatever the scheduler learns of the device.
    """

    def __init__(self, most: int | None = None, **options: Any) -> None:
        self.scheduler = Scheduler(0.1, **options)
        self.ended: dict[Any, Ending[Any]] = {}
        if most is not None:
            self.scheduler.max_rows, self.scheduler._learn = most, lambda *_: None  # type: ignore[method-assign]

    def start(self, name: Any, share: Any, call: Callable[..., Any], *arguments: Any) -> None:
        self.scheduler.start(partial(call, *arguments), share, partial(self.ended.__setitem__, name))

    def run(self) -> dict[Any, Ending[Any]]:
        while not self.scheduler.is_idle:
            self.scheduler.run_once()
        return self.ended


def model_of(name: str) -> HFLanguageModel:
    return HFLanguageModel(build(name, torch.float64))


def decode(model: HFLanguageModel, seed: int) -> list[Tensor]:
    """Return logits of a batch of random prompts, trees, chains and rows; some share a prefix."""
    rng = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(rng.randint(least, most))]

    queries = rng.randint(1, 4)
    prompts, prefix = [tokens(2, 30) for _ in range(queries)], None
    if seed % 3 == 0 and not model.is_encoder_decoder:
        shared = tokens(20, 20)
        prefix, prompts = model.share_prefix(shared), [shared + prompt for prompt in prompts]
    session = model.prefill(prompts, prefix)
    found = [session.root_logits]
    if seed % 4 == 1:
        session.keep_levels()
    alive = [1] * queries
    for depth in range(5):
        width = rng.randint(1, 12)
        drawn = [[rng.randrange(-1, alive[q]) if depth else 0 for _ in range(width)] for q in range(queries)]
        parents = torch.tensor([sorted(row, reverse=True) for row in drawn])
        alive = [int((row >= 0).sum()) for row in parents]
        if not sum(alive):
            break
        logits = session.step(parents, torch.tensor([tokens(width, width) for _ in range(queries)]))
        found.append(logits[parents >= 0])
    rows = [[tokens(1, 8) for _ in range(rng.randint(1, 20))] for _ in range(queries)]
    scores = score_rows(session, rows)
    found.append(torch.tensor([one for of in scores for one in of.logprobs], dtype=torch.float64))  # type: ignore[union-attr]
    chains = model.prefill_chains(prompts, prefix)
    for _ in range(3):
        written = [tokens(1, 9), *(tokens(0, 9) for _ in range(queries - 1))]
        logits = chains.extend(written)
        found += [logits[query, : len(new)] for query, new in enumerate(written)]
    return found


@pytest.mark.parametrize("most", [3, 17, None])
@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gemma2", "gpt2", "t5"])
def test_side_by_side_and_in_pieces_everyone_finds_what_it_finds_alone(name: str, most: int | None) -> None:
    model, calls = model_of(name), Calls(most)
    for seed in range(4):
        calls.start(seed, EqualShare(), decode, model, seed)
    for seed, ending in calls.run().items():
        assert ending.error is None
        for one, other in zip(decode(model, seed), ending.value, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
    assert len(calls.ended) == 4


def test_gradients_are_as_a_call_has_left_them_whatever_others_do() -> None:
    model, modes, calls = model_of("gpt2"), [], Calls()

    def watched(with_grad: bool) -> None:
        with torch.set_grad_enabled(with_grad):
            session = model.prefill([[1, 2, 3]])
            for depth in range(4):
                session.step(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), depth))
                modes.append(torch.is_grad_enabled() is with_grad)

    for name, with_grad in enumerate((True, False, True)):
        calls.start(name, EqualShare(), watched, with_grad)
        assert torch.is_grad_enabled(), "who starts calls keeps its own"
    while not calls.scheduler.is_idle:
        calls.scheduler.run_once()
        assert torch.is_grad_enabled()
    assert [ending.error for ending in calls.ended.values()] == [None] * 3
    assert modes == [True] * 12


class Pass:
    """A forward of a test: fails if one of those it runs with is broken."""

    def __init__(self, name: str, broken: bool = False) -> None:
        self.name, self.broken = name, broken

    def joins(self, other: object) -> bool:
        return True

    def run_with(self, others: Sequence[Pass]) -> list[str]:
        FORWARDS.append([self.name, *(other.name for other in others)])
        if any(one.broken for one in (self, *others)):
            raise ZeroDivisionError("broken")
        return [one.name for one in (self, *others)]


FORWARDS: list[list[str]] = []


class Counted(EqualShare):
    """A share that counts."""

    def __init__(self) -> None:
        self.had = 0.0

    @property
    def turn(self) -> tuple[float]:  # type: ignore[override]
        return (self.had,)

    def charge(self, seconds: float) -> None:
        self.had += seconds


def asking(name: str, rows: int, count: int, broken: bool = False) -> list[str]:
    running = current_call()
    assert running is not None
    return [running.wait(Pass(name, broken), rows) for _ in range(count)]


def test_a_small_pass_is_not_held_up_by_a_far_larger_one() -> None:
    FORWARDS.clear()
    times = iter(float(number) for number in range(10**6))
    calls = Calls(128, clock=lambda: next(times))
    for name, rows in (("small", 10), ("large", 120)):
        calls.start(name, Counted(), asking, name, rows, 6)
    calls.run()
    assert all(len(forward) == 1 for forward in FORWARDS)
    small = [number for number, (name,) in enumerate(FORWARDS) if name == "small"]
    assert small[-1] <= 12, "in turn, and not behind all of the other"


class OfClient(Counted):
    """A share of a call and its client, which both count: in the order of clients, then of calls."""

    def __init__(self, client: Counted) -> None:
        super().__init__()
        self.client = client

    @property
    def turn(self) -> tuple[float, ...]:  # type: ignore[override]
        return (self.client.had, self.had)

    def charge(self, seconds: float) -> None:
        super().charge(seconds)
        self.client.charge(seconds)


def test_small_calls_of_a_client_never_take_the_whole_part_of_its_large_one() -> None:
    FORWARDS.clear()
    times = iter(float(number) for number in range(10**6))
    calls, single, many = Calls(100, clock=lambda: next(times)), Counted(), Counted()
    calls.start("large", OfClient(many), asking, "large", 95, 4)
    for name, client in (("single", single), ("little", many), ("small", many)):
        calls.start(name, OfClient(client), asking, name, 10, 100)
    calls.run()
    large = [number for number, forward in enumerate(FORWARDS) if "large" in forward]
    assert large[-1] < 30, "the two small ones have its client's part, and fit beside the single one"
    assert sum(len(forward) == 3 for forward in FORWARDS) > 90, "who fits still runs beside others"


def test_passes_of_equal_size_join_and_a_broken_one_tells_all_to_begin_again() -> None:
    FORWARDS.clear()
    calls = Calls()
    for name in "abc":
        calls.start(name, EqualShare(), asking, name, 10, 2, name == "b")
    errors = [ending.error for ending in calls.run().values()]
    assert FORWARDS == [["a", "b", "c"]]
    assert len(errors) == 3
    assert all(isinstance(error, SharedForwardError) for error in errors)
    assert {type(error.__cause__) for error in errors} == {ZeroDivisionError}


def test_an_undivided_call_goes_on_to_its_end() -> None:
    model, order, calls = model_of("gpt2"), [], Calls()

    def work(name: str, whole: bool) -> None:
        if whole:
            with undivided():
                model.prefill([[1, 2]])
        else:
            model.prefill([[1, 2]])
        order.append(name)

    for name, whole in (("divided", False), ("whole", True)):
        calls.start(name, EqualShare(), work, name, whole)
    assert order == ["whole"]
    calls.scheduler.run_once()
    assert order == ["whole", "divided"]


class Given(EqualShare):
    """A share of a call that nobody waits for after some time."""

    is_over = False

    def reason_to_stop(self) -> DecodingCancelledError | None:  # type: ignore[override]
        return DecodingCancelledError("gone") if self.is_over else None


def test_a_call_that_nobody_waits_for_gets_no_forward() -> None:
    FORWARDS.clear()
    calls, shares = Calls(), {"a": Given(), "b": Given()}
    for name, share in shares.items():
        calls.start(name, share, asking, name, 10, 3)
    calls.scheduler.run_once()
    for name in "ba":
        shares[name].is_over = True
        calls.scheduler.run_once()
        assert isinstance(calls.ended[name].error, DecodingCancelledError)
    assert calls.scheduler.is_idle
    assert FORWARDS == [["a", "b"], ["a"]]

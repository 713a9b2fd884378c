"""Passes of several sessions in one forward, cut to any size, equal those of each session alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    T5Config,
)
from transformers.models.auto import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.row_scores import score_rows
from genret.decoding.side_by_side import Ending, Scheduler, SharedForwardError, undivided

VOCAB = 97
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
CONFIGS = {
    "llama": LlamaConfig(**SMALL, **HEADS),
    "mistral": MistralConfig(**SMALL, **HEADS, sliding_window=9),
    "gemma2": Gemma2Config(**SMALL, **HEADS, head_dim=8, sliding_window=9),
    "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128),
    "t5": T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
}


class EqualShare:
    """A share of which nobody has more than another."""

    turn = (0.0,)

    def charge(self, seconds: float) -> None:
        pass


def model_of(name: str) -> HFLanguageModel:
    torch.manual_seed(0)
    config: PretrainedConfig = CONFIGS[name]
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if config.is_encoder_decoder:
        config.decoder_start_token_id = 0
    return HFLanguageModel(auto.from_config(config).double())


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


def side_by_side(model: HFLanguageModel, seeds: Sequence[int], most: int | None) -> list[list[Tensor]]:
    scheduler = Scheduler(0.1)
    ended: dict[int, Ending[list[Tensor]]] = {}
    if most is not None:
        scheduler.max_rows, scheduler._learn = most, lambda *_: None  # type: ignore[method-assign]
    for seed in seeds:
        scheduler.start(
            lambda seed=seed: decode(model, seed),  # type: ignore[misc]
            EqualShare(),
            lambda ending, seed=seed: ended.__setitem__(seed, ending),  # type: ignore[misc]
        )
    while not scheduler.is_idle:
        scheduler.run_once()
    return [ending.value for seed in seeds if not (ending := ended[seed]).error and ending.value]


@pytest.mark.parametrize("most", [3, 17, None])
@pytest.mark.parametrize("name", CONFIGS)
def test_side_by_side_and_in_pieces_everyone_finds_what_it_finds_alone(name: str, most: int | None) -> None:
    model, seeds = model_of(name), range(4)
    alone = [decode(model, seed) for seed in seeds]
    together = side_by_side(model, seeds, most)
    assert len(together) == len(alone)
    for expected, found in zip(alone, together, strict=True):
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)


def test_gradients_are_as_a_call_has_left_them_whatever_others_do() -> None:
    model, modes = model_of("gpt2"), []

    def watched(with_grad: bool) -> None:
        with torch.set_grad_enabled(with_grad):
            session = model.prefill([[1, 2, 3]])
            for depth in range(4):
                session.step(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), depth))
                modes.append(torch.is_grad_enabled() is with_grad)

    scheduler, errors = Scheduler(0.1), []
    for with_grad in (True, False, True):
        scheduler.start(lambda w=with_grad: watched(w), EqualShare(), lambda end: errors.append(end.error))  # type: ignore[misc]
        assert torch.is_grad_enabled(), "who starts calls keeps its own"
    while not scheduler.is_idle:
        scheduler.run_once()
        assert torch.is_grad_enabled()
    assert errors == [None] * 3
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
    from genret.decoding.side_by_side import current_call

    running = current_call()
    assert running is not None
    return [running.wait(Pass(name, broken), rows) for _ in range(count)]


def test_a_small_pass_is_not_held_up_by_a_far_larger_one() -> None:
    FORWARDS.clear()
    times = iter(float(number) for number in range(10**6))
    scheduler, shares = Scheduler(0.1, clock=lambda: next(times)), [Counted(), Counted()]
    scheduler.max_rows, scheduler._learn = 128, lambda *_: None  # type: ignore[method-assign]
    for name, rows, share in (("small", 10, shares[0]), ("large", 120, shares[1])):
        scheduler.start(lambda n=name, r=rows: asking(n, r, 6), share, lambda _: None)  # type: ignore[misc]
    while not scheduler.is_idle:
        scheduler.run_once()
    assert all(len(forward) == 1 for forward in FORWARDS)
    small = [number for number, (name,) in enumerate(FORWARDS) if name == "small"]
    assert small[-1] <= 12, "in turn, and not behind all of the other"


def test_passes_of_equal_size_join_and_a_broken_one_tells_all_to_begin_again() -> None:
    FORWARDS.clear()
    scheduler, ends = Scheduler(0.1), {}
    for name in "abc":
        scheduler.start(
            lambda n=name: asking(n, 10, 2, broken=n == "b"),  # type: ignore[misc]
            EqualShare(),
            lambda end, n=name: ends.__setitem__(n, end.error),  # type: ignore[misc]
        )
    while not scheduler.is_idle:
        scheduler.run_once()
    assert FORWARDS == [["a", "b", "c"]]
    assert all(isinstance(error, SharedForwardError) for error in ends.values())
    assert {type(error.__cause__) for error in ends.values()} == {ZeroDivisionError}


def test_an_undivided_call_goes_on_to_its_end() -> None:
    model, order = model_of("gpt2"), []

    def work(name: str, whole: bool) -> None:
        if whole:
            with undivided():
                model.prefill([[1, 2]])
        else:
            model.prefill([[1, 2]])
        order.append(name)

    scheduler = Scheduler(0.1)
    for name, whole in (("divided", False), ("whole", True)):
        scheduler.start(lambda n=name, w=whole: work(n, w), EqualShare(), lambda _: None)  # type: ignore[misc]
    assert order == ["whole"]
    scheduler.run_once()
    assert order == ["whole", "divided"]

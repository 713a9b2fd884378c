"""The training loop: budgets, optimisers, the loss, the time left, and when a model is measured."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, TrainingArguments

from genret.decoding.model.architectures import decoder_prompt
from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.progress import StepProgress
from genret.retrieval.training.dataset import EncodedExample, causal_batch, seq2seq_batch
from genret.retrieval.training.forecast import StepMeter
from genret.retrieval.training.trainer import (
    Budget,
    TitleTrainer,
    TrainerOptions,
    _Reporter,
    build_optimizer,
)
from genret.retrieval.training.training_run import (
    MAX_STEPS,
    TrainingPlan,
    _copy,
    run_budget,
)
from tests.tiny_transformers import BOS, END, PAD, build


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def start(budget: Budget) -> None:
    budget.on_train_begin(None, None, None)


def test_the_first_limit_reached_counts() -> None:
    steps = Budget(200, None)
    start(steps)
    assert [steps.progress(step) for step in (0, 50, 200, 300)] == [0.0, 0.25, 1.0, 1.0]
    clock = Clock()
    budget = Budget(100, 10, clock)
    start(budget)
    clock.now += 300  # half of the minutes
    assert budget.progress(10) == pytest.approx(0.5)
    assert budget.progress(80) == pytest.approx(0.8)


def test_the_rate_warms_up_and_falls_to_zero() -> None:
    budget = Budget(1000, None)
    rates = [budget.rate(step) for step in range(1001)]
    assert 0 < rates[0] < 0.1
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[-1] == 0.0
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_time_spent_survives_a_resume(tmp_path: Path) -> None:
    clock = Clock()
    killed = Budget(10**6, 10, clock)
    start(killed)
    clock.now += 240
    (tmp_path / "checkpoint-3").mkdir()
    killed.on_save(SimpleNamespace(output_dir=tmp_path), SimpleNamespace(global_step=3), None)
    resumed = Budget(10**6, 10, clock)
    resumed.load(tmp_path / "checkpoint-3")
    clock.now += 10_000  # the pause costs nothing
    start(resumed)
    clock.now += 60
    assert resumed.progress(0) == pytest.approx(0.5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.hidden = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 12, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(torch.tanh(self.hidden(self.embed(ids)))))
        return out


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def train(model: Net, optimizer: torch.optim.Optimizer, steps: int) -> float:
    ids = torch.arange(12)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(ids), ids.flip(0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def test_muon_gets_hidden_matrices_only() -> None:
    model = net()
    optimizer = build_optimizer(model, "muon", lr=1e-2, weight_decay=0.1)
    muon, adamw = optimizer.param_groups
    assert [id(p) for p in muon["params"]] == [id(model.hidden.weight)]
    assert {id(p) for p in adamw["params"]} == {id(p) for p in model.parameters()} - {id(model.hidden.weight)}
    assert adamw["weight_decay"] == 0.0


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_it_learns(name: str) -> None:
    model = net()
    assert train(model, build_optimizer(model, name, lr=3e-2, weight_decay=0.0), 120) < 0.2


def test_a_scheduler_drives_both_parts_also_after_loading() -> None:
    model = net()
    optimizer = build_optimizer(model, "muon", lr=1e-2, weight_decay=0.0)
    train(model, optimizer, 2)
    optimizer.load_state_dict(optimizer.state_dict())
    LambdaLR(optimizer, lambda step: 0.0)
    before = [p.clone() for p in model.parameters()]
    train(model, optimizer, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_saved_state_continues_exactly() -> None:
    whole, halves = net(), net()
    train(whole, build_optimizer(whole, "muon", lr=1e-2, weight_decay=0.1), 10)
    first, second = (build_optimizer(halves, "muon", lr=1e-2, weight_decay=0.1) for _ in range(2))
    train(halves, first, 5)
    second.load_state_dict(first.state_dict())
    train(halves, second, 5)
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


VOCABULARY = 20
EXAMPLES = [
    EncodedExample((3, 9, 4, 11), (7, 8, END)),
    EncodedExample((5, 4), (6, END)),
    EncodedExample((12, 3, 3), (7, 8, 9, 10, 11, END)),
]


def made_trainer(model: PreTrainedModel, folder: Path, **more: object) -> TitleTrainer:
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    budget = Budget(1, None)
    return TitleTrainer(model=model, options=TrainerOptions(), budget=budget, args=arguments, **more)


def loss(model: PreTrainedModel, examples: list[EncodedExample], folder: Path) -> float:
    """Mean loss per token, by the trainer's own collator and loss."""
    if model.config.is_encoder_decoder:
        batch = seq2seq_batch(PAD, decoder_prompt(model), examples)
    else:
        batch = causal_batch(PAD, examples)
    with torch.no_grad():
        return float(made_trainer(model, folder).compute_loss(model.eval(), batch))


def served(model: HFLanguageModel, example: EncodedExample) -> float:
    """Log-probability of the title, token by token in a session."""
    session = model.prefill([example.prompt_ids])
    logits, total = session.root_logits[0], 0.0
    for token in example.title_ids:
        total += float(logits.double().log_softmax(-1)[token])
        logits = session.step(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[token]]))[0, 0]
    return total


def with_forced_bos(name: str, forced: int | None) -> PreTrainedModel:
    model = build(name, VOCABULARY)
    model.generation_config.forced_bos_token_id = forced
    return model


@pytest.mark.parametrize(
    ("name", "forced"),
    [("bart", None), ("bart", BOS), ("t5", None), ("t5", BOS), ("llama", None), ("gpt2", None)],
)
def test_the_loss_is_the_log_probability_in_a_session(name: str, forced: int | None, tmp_path: Path) -> None:
    model = with_forced_bos(name, forced)
    serving = HFLanguageModel(deepcopy(model))
    if serving.is_encoder_decoder:
        assert len(serving.decoder_prompt) == (1 if forced is None else 2)
    scores = [served(serving, example) for example in EXAMPLES]
    for example, score in zip(EXAMPLES, scores, strict=True):
        assert -len(example.title_ids) * loss(model, [example], tmp_path) == pytest.approx(score, abs=1e-4)
    num_tokens = sum(len(example.title_ids) for example in EXAMPLES)
    # Together they are padded on both sides, which must not show.
    assert -num_tokens * loss(model, EXAMPLES, tmp_path) == pytest.approx(math.fsum(scores), abs=1e-3)


def test_the_copy_that_is_measured_during_training_begins_titles_alike() -> None:
    model = with_forced_bos("bart", BOS)
    assert decoder_prompt(_copy(model)) == decoder_prompt(model) == (END, BOS)


def test_the_first_limit_ends_a_run() -> None:
    plan = TrainingPlan(catalogue=Path("c"), queries=None, out=Path("o"), model="m", minutes=30.0)
    assert run_budget(plan, 1_234_567).max_steps == MAX_STEPS
    plan = TrainingPlan(catalogue=Path("c"), queries=None, out=Path("o"), model="m")
    assert run_budget(plan, 1_234_567).max_steps == round(3 * 1_234_567 / 48)


class ReportedRun:
    """A run of 1,000 steps under a clock of its own, as the callbacks see it."""

    def __init__(self, options: TrainerOptions, minutes: float | None = None) -> None:
        self.clock = Clock()
        self.evaluated: list[int] = []
        self.evaluation_s = 0.0
        self.told: list[tuple[int, str]] = []
        self.state = SimpleNamespace(global_step=0, max_steps=1000)
        self.measured: list[tuple[float, int]] = []
        budget = Budget(1000, minutes, self.clock)
        run = self

        class Shown(StepProgress):
            def advance(self, done: int, note: str, *, tells_left: bool = False) -> None:
                run.told.append((done, note))

        meter = StepMeter(self.clock, [10] * 16, lambda *found: self.measured.append(found))
        self.reporter = _Reporter(budget, options, Shown(), self.evaluate, meter)
        self.callbacks = (budget, meter, self.reporter)
        self.call("on_train_begin")

    def evaluate(self) -> None:
        self.evaluated.append(self.state.global_step)
        self.clock.now += self.evaluation_s

    def call(self, event: str) -> None:
        for callback in self.callbacks:
            control = SimpleNamespace(should_training_stop=False)
            getattr(callback, event)(SimpleNamespace(use_cpu=True), self.state, control)

    def steps(self, count: int, seconds: float) -> None:
        """Make steps that take so many seconds each."""
        for _ in range(count):
            self.call("on_step_begin")
            self.clock.now += seconds
            self.state.global_step += 1
            self.call("on_step_end")


def test_the_time_left_goes_by_measured_steps_alone() -> None:
    run = ReportedRun(TrainerOptions(eval_steps=0))
    run.steps(1, 5.0)  # it warms up
    run.steps(6, 2.0)
    assert [note for _, note in run.told] == [f"step {step}" for step in range(1, 8)]
    assert run.measured == [(0.2, 5)]
    run.steps(1, 2.0)
    assert run.told[-1] == (8, "step 8, 33 min 04 s left")
    run.steps(92, 4.0)
    assert run.reporter.seconds_left(100) == pytest.approx(900 * (2 + 92 * 4) / 93)


def test_no_more_time_is_left_than_the_minutes_of_the_run() -> None:
    run = ReportedRun(TrainerOptions(eval_steps=0), minutes=10)
    run.steps(20, 3.0)
    assert run.reporter.seconds_left(20) == 540


def test_evaluations_are_ten_or_a_twentieth_of_the_time() -> None:
    run = ReportedRun(TrainerOptions())
    run.evaluation_s = 0.1
    run.steps(1000, 1.0)
    assert run.evaluated == [100, 200, 300, 400, 500, 600, 700, 800, 900]
    slow = ReportedRun(TrainerOptions())
    slow.evaluation_s = 30.0
    slow.steps(1000, 1.0)
    assert slow.evaluated == [100, 570]  # 30 s are a twentieth of 600 s, of which the first one had 30
    exact = ReportedRun(TrainerOptions(eval_steps=400))
    exact.evaluation_s = 1e6
    exact.steps(1000, 1.0)
    assert exact.evaluated == [400, 800]


def test_loss_is_shown_when_it_is_there() -> None:
    run = ReportedRun(TrainerOptions())
    run.state.global_step = 50
    run.reporter.on_log(None, run.state, None, {"loss": 1.5})
    assert run.told == [(50, "step 50, loss 1.5000")]

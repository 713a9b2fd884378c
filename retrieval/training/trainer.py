"""Runs the training loop: Hugging Face's Trainer with our losses, optimisers, budget and interruption.

A run lasts a number of steps, or minutes of wall time. Under a time budget the schedule follows the clock, so
that the rate is zero when time is up, however fast the machine is. Every checkpoint stores the time spent: a
resumed run goes on with the rest.

An interrupt within a step would leave weights and optimiser half updated. So the loop notes it and ends
between two steps, with a checkpoint; a second interrupt takes effect at once, and the run falls back to the
last checkpoint.
"""

from __future__ import annotations

import inspect
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler, SequentialSampler
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from genret.retrieval.interruption import handled
from genret.retrieval.progress import StepProgress, duration
from genret.retrieval.training.dataset import BATCHES_PER_BLOCK, IGNORED_LABEL, Encode, ExampleDataset
from genret.retrieval.training.examples import ExampleGenerator
from genret.retrieval.training.forecast import (
    RunForecast,
    StepMeter,
    activation_bytes,
    free_bytes,
    training_memory,
)

_PARTS = 10  # of a run; between two of them it is evaluated, unless the interval is given
_EVALUATION_SHARE = 0.05  # most of the time that they may take


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """Options of the optimisation; the command has checked that each is in its range."""

    optimizer: str = "muon"  # "muon" or "adamw"
    learning_rate: float = 1e-2  # AdamW's peak rate (Muon's is a fixed multiple of it)
    weight_decay: float = 0.05  # decoupled weight decay of the hidden matrices
    batch_size: int = 48  # examples per step
    label_smoothing: float = 0.0  # share of the target spread over the vocabulary, in [0, 1)
    max_grad_norm: float = 1.0  # norm to which gradients are clipped
    seed: int = 17  # seed of dropout and of everything else random in the loop
    save_steps: int = 500  # steps between two checkpoints
    # Steps between two evaluations; 0: none before the end; None: after every tenth of the run, where
    # that takes no more than a twentieth of the time
    eval_steps: int | None = None
    log_steps: int = 50  # steps over which the loss that is shown is a mean
    # Whether to compute in bfloat16 (weights stay float32, except those that LoRA freezes)
    bf16: bool = False
    use_cpu: bool = False  # whether to stay on the CPU even with an accelerator


class BudgetTrainer(Trainer):
    """Trainer that reads its examples in order and follows a budget; subclasses define the loss."""

    def __init__(
        self, *, model: PreTrainedModel, options: TrainerOptions, budget: Budget, **kwargs: Any
    ) -> None:
        optimizer = build_optimizer(model, options.optimizer, options.learning_rate, options.weight_decay)
        super().__init__(model=model, optimizers=(optimizer, LambdaLR(optimizer, budget.rate)), **kwargs)
        self._options = options
        # The losses are means over the batch, not sums to be divided by its number of tokens.
        self.model_accepts_loss_kwargs = False

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        return SequentialSampler(dataset)


class TitleTrainer(BudgetTrainer):
    """Trainer whose loss is the cross-entropy of the title's tokens, end token included, given the prompt."""

    def __init__(self, *, model: PreTrainedModel, **kwargs: Any) -> None:
        super().__init__(model=model, **kwargs)
        self._is_encoder_decoder = bool(model.config.is_encoder_decoder)
        wrapped: Any = model
        plain = wrapped.get_base_model() if hasattr(model, "get_base_model") else model  # within LoRA's
        self._accepted = inspect.signature(plain.forward).parameters

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *_: Any, **unused: Any) -> Any:
        """Return the mean loss per title token; what else the loop passes is for losses that are sums."""
        labels = inputs["labels"]
        width = labels.shape[1]
        given = {k: v for k, v in inputs.items() if k != "labels" and k in self._accepted}
        if self._is_encoder_decoder:
            logits = model(**given, use_cache=False).logits[:, -width:]
        else:
            if "logits_to_keep" in self._accepted:
                length = inputs["input_ids"].shape[1]
                # Positions, not their number: for a slice of the hidden states torch copies a frozen head
                # once for every text of the batch (half of the time of a step of LoRA at 135 million
                # parameters).
                last = torch.arange(max(0, length - width - 1), length, device=labels.device)
                given["logits_to_keep"] = last
            logits = model(**given, use_cache=False).logits[:, -(width + 1) : -1]
        return functional.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED_LABEL,
            label_smoothing=self._options.label_smoothing if model.training else 0.0,
        )


class _Reporter(TrainerCallback):
    """Shows progress after every step, and evaluates when it is due.

    The time left goes by the steps of this session alone, and is told once they are measured.
    """

    def __init__(
        self,
        budget: Budget,
        options: TrainerOptions,
        progress: StepProgress,
        evaluate: Callable[[], None],
        meter: StepMeter,
    ) -> None:
        self._budget = budget
        self._options = options
        self._progress = progress
        self._evaluate = evaluate
        self._meter = meter
        self._learnt = ""
        self._measured: tuple[int, float] | None = None  # step and second from which on time is told
        self._evaluated = 0  # parts of the run that were over at the last evaluation
        self._evaluation_s = 0.0  # of all evaluations

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluated = self._part(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._learnt = f", loss {logs['loss']:.4f}"
            self._show(state.global_step)

    def _show(self, step: int) -> None:
        left = self.seconds_left(step)
        told = "" if left is None else f", {duration(left)} left"
        share = self._budget.progress(step)
        note = f"step {step:,}{self._learnt}{told}"
        self._progress.advance(round(1000 * share), note, tells_left=left is not None)

    def seconds_left(self, step: int) -> float | None:
        """Return an estimate of the seconds that are left after a step; None before steps are measured."""
        if not self._meter.is_done:
            return None
        if self._measured is None:
            self._measured = step, self._budget.elapsed_s
        since, begun_s = self._measured
        limits = []
        if step > since:
            per_step = (self._budget.elapsed_s - begun_s) / (step - since)
            limits.append((self._budget.max_steps - step) * per_step)
        if self._budget.minutes is not None:
            limits.append(max(0.0, 60 * self._budget.minutes - self._budget.elapsed_s))
        return min(limits, default=None)

    def _is_due(self, step: int) -> bool:
        every = self._options.eval_steps
        if every is not None:
            return every > 0 and step % every == 0
        due = self._evaluated < self._part(step) < _PARTS
        return due and self._evaluation_s <= _EVALUATION_SHARE * self._budget.elapsed_s

    def _part(self, step: int) -> int:
        return int(_PARTS * self._budget.progress(step) + 1e-9)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if self._is_due(step):
            begun_s, self._evaluated = self._budget.elapsed_s, self._part(step)
            with torch.random.fork_rng():  # whether it is measured or not, the run stays the same
                self._evaluate()
            self._evaluation_s += self._budget.elapsed_s - begun_s
        self._show(step)


def train_model(
    trainer_type: type[BudgetTrainer],
    model: PreTrainedModel,
    generator: ExampleGenerator,
    encode: Encode,
    collator: Callable[[Sequence[Any]], dict[str, Tensor]],
    work_folder: Path,
    budget: Budget,
    options: TrainerOptions,
    progress: StepProgress,
    evaluate: Callable[[], None],
    forecast: RunForecast,
    approve: Callable[[RunForecast], None],
) -> int:
    """Train the model in place and return the number of steps taken.

    Examples are drawn, encoded and collated as `options.seed` decides; a run goes on from the last checkpoint
    in `work_folder`, and `evaluate` is called as `options.eval_steps` says. `forecast` holds what is known
    before there are examples. `approve` receives the whole one when the first steps are measured, and before
    the first step if there is too little memory; an error that it raises ends the run, and nothing is saved.

    Raises:
        TrainingInterrupted: the user stopped the run; a checkpoint of the last step was written.
        KeyboardInterrupt: a second interrupt came before that was done.
    """
    interrupt = InterruptCallback()
    length = budget.max_steps * options.batch_size
    dataset = ExampleDataset(generator, encode, length, options.batch_size, options.seed)
    remove_half_made(work_folder)
    last = last_checkpoint(work_folder)
    done = 0 if last is None else checkpoint_step(last)
    if last is not None:
        budget.load(last)
        progress.note(f"going on from step {done:,}, after {duration(budget.elapsed_s)} of training")
    progress.phase("making examples")
    block, block_s = dataset.timed_block(done, budget.clock)
    begins = range(0, len(block), options.batch_size)
    tokens = [sum(map(len, block[begin : begin + options.batch_size])) for begin in begins]

    def decide(token_s: float, num_steps: int) -> None:
        step_s = token_s * forecast.step_tokens + block_s / BATCHES_PER_BLOCK
        approve(replace(forecast, step_s=step_s, measured_steps=num_steps))
        progress.phase("training", 1000)

    meter = StepMeter(budget.clock, tokens[done % BATCHES_PER_BLOCK :], decide)
    trainer = trainer_type(
        options=options,
        budget=budget,
        model=model,
        args=TrainingArguments(
            output_dir=str(work_folder),
            per_device_train_batch_size=options.batch_size,
            max_steps=budget.max_steps,
            max_grad_norm=options.max_grad_norm,
            learning_rate=options.learning_rate,
            logging_steps=options.log_steps,
            save_strategy="steps",
            save_steps=options.save_steps,
            save_total_limit=2,
            seed=options.seed,
            bf16=options.bf16,
            # Else transformers refuses bfloat16 where there is nothing but a CPU.
            use_cpu=options.use_cpu or not torch.accelerator.is_available(),
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            report_to=[],
        ),
        train_dataset=dataset,
        data_collator=collator,
        callbacks=[budget, interrupt, meter, _Reporter(budget, options, progress, evaluate, meter)],
    )
    trainer.remove_callback(PrinterCallback)  # prints to stdout, which is for data
    if trainer.args.device.type == "cpu":
        # Of texts as short as these, the backward pass of fused attention takes ten times as long on a
        # CPU as that of plain matrix products: a fifth of a step of LoRA at 135 million parameters.
        model.set_attn_implementation("eager")
    progress.phase("measuring steps")
    optimizer: Any = trainer.optimizer
    activations = activation_bytes(trainer, block, options.batch_size)
    memory = training_memory(trainer, optimizer_bytes(optimizer), activations)
    forecast = replace(
        forecast,
        steps=budget.max_steps,
        done_steps=done,
        spent_s=budget.elapsed_s,
        step_tokens=sum(tokens) / BATCHES_PER_BLOCK,
        memory=memory,
        free_bytes=free_bytes(trainer.args.device) + memory["weights"],
    )
    if not forecast.fits:
        approve(forecast)
    with interrupt.listening():
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    steps = int(trainer.state.global_step)
    progress.note(f"{steps:,} steps, {duration(budget.elapsed_s)} of training")
    if interrupt.requested:
        raise TrainingInterrupted(f"interrupted at step {steps}, which is saved")
    return steps


# Muon's rate over AdamW's. Small random embeddings are what a short run learns slowest: after two to three
# CPU-minutes on 2,700 titles, 0.6 with AdamW at 5e-3 (batches of 48) found 15 % of mistyped titles at once,
# 2.0 with AdamW at 1e-3 (batches of 128) 6 %.
MUON_LR_RATIO = 0.6


class MuonAdamW(torch.optim.Optimizer):
    """`torch.optim.Muon` on matrices and `torch.optim.AdamW` on all other parameters, as one optimiser.

    Muon orthogonalises the update of a matrix; `match_rms_adamw` gives its step the size of AdamW's. `lr` is
    AdamW's; Muon's is `MUON_LR_RATIO` times as large. Weight decay is decoupled, and of the matrices alone.
    """

    def __init__(
        self, matrices: list[nn.Parameter], others: list[nn.Parameter], lr: float, weight_decay: float
    ) -> None:
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices, lr=lr * MUON_LR_RATIO, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0),
        )
        super().__init__([*matrices, *others], {})
        self._link()

    def _link(self) -> None:
        # The very dicts of the parts: a scheduler that writes a rate here writes it there.
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with both parts; a closure is not called."""
        for part in self._parts:
            part.step()
        return None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of both parts."""
        for part in self._parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both parts."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._link()


def build_optimizer(model: nn.Module, name: str, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return the optimiser "muon" or "adamw" over the model's trainable parameters.

    Embeddings, the output head, norms and biases always get AdamW: Muon is meant for hidden matrices.
    """
    embeddings = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)
    }
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None:
        embeddings.update(id(p) for p in head.parameters())
    trainable = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.ndim == 2 and id(p) not in embeddings]
    others = [p for p in trainable if p.ndim != 2 or id(p) in embeddings]
    if name == "muon":
        if not matrices or not others:
            raise ValueError("the model has no hidden matrices for Muon; use the optimiser 'adamw'")
        return MuonAdamW(matrices, others, lr, weight_decay)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimiser's state: two numbers for each that is trained, one for Muon's."""
    muon = optimizer._parts[0].param_groups if isinstance(optimizer, MuonAdamW) else []
    numbers = {id(p): 1 for group in muon for p in group["params"]}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return sum(numbers.get(id(p), 2) * p.numel() * p.element_size() for p in parameters)


BUDGET_FILE = "genret_budget.json"  # the last file of a checkpoint to be written
WARM_UP = 0.03  # share of the run


class Budget(TrainerCallback):
    """Progress of a run, from 0 to 1: of `max_steps` steps, or of `minutes` of wall time, unless None.

    As a callback it counts the time of training alone, ends the run when the budget is spent, and stores the
    time in every checkpoint.
    """

    def __init__(
        self, max_steps: int, minutes: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_steps = max_steps
        self.minutes = minutes
        self.clock = clock
        self._spent_s = 0.0
        self._started_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds spent, with those before a resume."""
        return self._spent_s + (0.0 if self._started_s is None else self.clock() - self._started_s)

    def progress(self, step: int) -> float:
        """Return the share of the run that is over after `step` steps, in [0, 1]."""
        share = step / self.max_steps
        if self.minutes is not None:
            share = max(share, self.elapsed_s / (60 * self.minutes))
        return min(1.0, share)

    def rate(self, step: int) -> float:
        """Return the factor of the learning rate: linear warm-up, then linear decay to zero."""
        share = self.progress(step)
        if share < WARM_UP:
            # A step counts from one: the first update must not be lost to a rate of zero.
            return min(1.0, max(share, 1 / self.max_steps) / WARM_UP)
        return (1.0 - share) / (1.0 - WARM_UP)

    def load(self, folder: Path) -> None:
        """Take over the time spent by the run that wrote this checkpoint."""
        self._spent_s = float(json.loads((folder / BUDGET_FILE).read_text(encoding="utf-8"))["elapsed_s"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock, or go on after `load`."""
        self._started_s = self.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop when time is up, with a checkpoint: the measurements that follow may be interrupted."""
        if self.progress(state.global_step) >= 1.0:
            control.should_training_stop = True
            control.should_save = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock: measurements do not count."""
        self._spent_s, self._started_s = self.elapsed_s, None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Store the time spent in the checkpoint just written."""
        file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / BUDGET_FILE
        file.write_text(json.dumps({"elapsed_s": self.elapsed_s}) + "\n", encoding="utf-8")


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(KeyboardInterrupt):
    """The user stopped the run, and a checkpoint of the last step was written."""


class InterruptCallback(TrainerCallback):
    """Ends the run with a checkpoint after the step during which an interrupt came."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note the first interrupt in the block instead of raising it; the second is raised.

        Concerns the signals that would raise KeyboardInterrupt now, and only in the main thread, which
        receives them.
        """
        ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.default_int_handler]
        with handled(self._note, *ours):
            yield

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop after an interrupt."""
        if self.requested:
            control.should_save = True
            control.should_training_stop = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint: a kill while saving leaves one without the budget's file."""
    complete = [file.parent for file in folder.glob(f"checkpoint-*/{BUDGET_FILE}")]
    return max(complete, key=checkpoint_step, default=None)


def checkpoint_step(checkpoint: Path) -> int:
    """Return the number of steps before a checkpoint."""
    return int(checkpoint.name.rsplit("-", 1)[1])


def remove_half_made(folder: Path) -> None:
    """Remove checkpoints that a kill left incomplete; they would count among those that are kept."""
    for checkpoint in folder.glob("checkpoint-*"):
        if not (checkpoint / BUDGET_FILE).is_file():
            shutil.rmtree(checkpoint)

"""The training loop: Hugging Face's Trainer with our losses, our optimiser and our schedule."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler, SequentialSampler
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from retrieval.errors import InputError
from retrieval.linking.progress import duration
from retrieval.training.budget import Budget, BudgetCallback
from retrieval.training.dataset import IGNORED_LABEL, ExampleDataset
from retrieval.training.interruption import (
    InterruptCallback,
    TrainingInterrupted,
    last_checkpoint,
    remove_half_made,
)
from retrieval.training.optimizer import build_optimizer

_SILENT_S = 30.0  # between two lines of progress, where steps are not longer


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """How a model is optimised.

    Attributes:
        optimizer: "muon" or "adamw".
        learning_rate: AdamW's peak rate (Muon's is a fixed multiple of it).
        weight_decay: Decoupled weight decay of the hidden matrices.
        batch_size: Examples per step.
        label_smoothing: Share of the target spread over the vocabulary, in [0, 1).
        max_grad_norm: Gradients are clipped to this norm.
        seed: Seed of dropout and of everything else random in the loop.
        save_steps: Steps between two checkpoints.
        eval_steps: Steps between two calls of the evaluation, 0 for none before the end.
        log_steps: Steps between two progress lines.
        bf16: Compute in bfloat16 (weights stay float32, but for those that LoRA freezes).
        use_cpu: Stay on the CPU even where an accelerator is present.
        resume: Go on from the last checkpoint, if there is one.

    Raises:
        InputError: a number is out of its range.
    """

    optimizer: str = "muon"
    learning_rate: float = 1e-2
    weight_decay: float = 0.05
    batch_size: int = 48
    label_smoothing: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 17
    save_steps: int = 500
    eval_steps: int = 0
    log_steps: int = 50
    bf16: bool = False
    use_cpu: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise InputError("learning_rate", f"must be > 0 and finite, got {self.learning_rate}")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError("weight_decay", f"must be >= 0 and finite, got {self.weight_decay}")
        if not 0 <= self.label_smoothing < 1:
            raise InputError("label_smoothing", f"must be in [0, 1), got {self.label_smoothing}")
        for name, least in (("batch_size", 1), ("save_steps", 1), ("eval_steps", 0), ("log_steps", 1)):
            if getattr(self, name) < least:
                raise InputError(name, f"must be >= {least}, got {getattr(self, name)}")


class BudgetTrainer(Trainer):
    """Trainer that reads its examples in order and follows a budget; a subclass has the loss."""

    def __init__(
        self, *, model: PreTrainedModel, options: TrainerOptions, budget: Budget, **kwargs: Any
    ) -> None:
        super().__init__(model=model, **kwargs)
        self._trained_model = model
        self._options = options
        self._budget = budget
        # The losses are means over the batch, not sums to be divided by its number of tokens.
        self.model_accepts_loss_kwargs = False

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Build Muon + AdamW, or AdamW alone."""
        if self.optimizer is None:
            o = self._options
            self.optimizer = build_optimizer(
                self._trained_model, o.optimizer, o.learning_rate, o.weight_decay
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Build the budget's schedule."""
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.create_optimizer(), self._budget.rate)
            self._created_lr_scheduler = True
        return self.lr_scheduler

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
        accepted = inspect.signature(plain.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepted
        self._takes_positions = "position_ids" in accepted

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the mean loss per title token."""
        labels = inputs["labels"]
        width = labels.shape[1]
        if self._is_encoder_decoder:
            features = {k: v for k, v in inputs.items() if k != "labels"}
            outputs = model(**features, use_cache=False)
            logits = outputs.logits[:, -width:]
        else:
            features = {k: inputs[k] for k in ("input_ids", "attention_mask")}
            if self._takes_positions:
                features["position_ids"] = inputs["position_ids"]
            length = inputs["input_ids"].shape[1]
            # Positions, not their number: for a slice of the hidden states torch copies a frozen head once
            # for every text of the batch (half of the time of a step of LoRA at 135 million parameters).
            last = torch.arange(max(0, length - width - 1), length, device=labels.device)
            kept = {"logits_to_keep": last} if self._keeps_logits else {}
            outputs = model(**features, **kept, use_cache=False)
            logits = outputs.logits[:, -(width + 1) : -1]
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED_LABEL,
            label_smoothing=self._options.label_smoothing if model.training else 0.0,
        )
        return (loss, outputs) if return_outputs else loss


class _Reporter(TrainerCallback):
    """One line of progress every few steps, and the evaluation when it is due.

    Until the first such line, steps 1, 2, 4, 8, … have one without a loss, so that a run of slow steps says
    soon how long it will take; later, steps that come half a minute after the line before.
    """

    def __init__(
        self,
        budget: Budget,
        options: TrainerOptions,
        report: Callable[[str], None],
        evaluate: Callable[[], None],
    ) -> None:
        self._budget = budget
        self._options = options
        self._report = report
        self._evaluate = evaluate
        self._first_step = 0
        self._reported_s = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._first_step = state.global_step
        self._reported_s = self._budget.elapsed_s

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        learnt = f"loss {logs['loss']:.4f}  rate {logs.get('learning_rate', 0.0):.2e}  "
        self._report_step(state.global_step, learnt)

    def _report_step(self, step: int, learnt: str) -> None:
        share = self._budget.progress(step)
        self._reported_s = elapsed = self._budget.elapsed_s
        left = elapsed * (1 - share) / share if share else 0.0
        self._report(
            f"step {step}  {100 * share:5.1f} %  {learnt}elapsed {duration(elapsed)}  left {duration(left)}"
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        taken = state.global_step - self._first_step
        early = taken & (taken - 1) == 0 and taken < self._options.log_steps
        late = self._budget.elapsed_s - self._reported_s > _SILENT_S
        if (early or late) and state.global_step % self._options.log_steps:
            self._report_step(state.global_step, "")
        every = self._options.eval_steps
        if every and state.global_step % every == 0:
            self._evaluate()


def train_model(
    trainer_type: type[BudgetTrainer],
    model: PreTrainedModel,
    dataset: ExampleDataset,
    collator: Callable[[Sequence[Any]], dict[str, Tensor]],
    work_folder: Path,
    budget: Budget,
    options: TrainerOptions,
    report: Callable[[str], None],
    evaluate: Callable[[], None],
) -> int:
    """Train the model in place and return the number of steps taken.

    Args:
        trainer_type: The trainer with the model's loss.
        model: The model.
        dataset: The examples of the run, in order.
        collator: Makes a batch of examples.
        work_folder: Where checkpoints go; the last one is what `options.resume` goes on from.
        budget: Length of the run.
        options: How to optimise.
        report: Receives one line of text every few steps.
        evaluate: Called every `options.eval_steps` steps.

    Raises:
        TrainingInterrupted: the user stopped the run; a checkpoint of the last step was written.
        KeyboardInterrupt: the user insisted before that was done.
    """
    interrupt = InterruptCallback()
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
        callbacks=[BudgetCallback(budget), interrupt, _Reporter(budget, options, report, evaluate)],
    )
    trainer.remove_callback(PrinterCallback)  # prints to stdout, which is for data
    if trainer.args.device.type == "cpu":
        # Of texts as short as these, the backward pass of fused attention takes ten times as long on a
        # CPU as that of plain matrix products: a fifth of a step of LoRA at 135 million parameters.
        model.set_attn_implementation("eager")
    last = None
    if options.resume:
        remove_half_made(work_folder)
        last = last_checkpoint(work_folder)
    if last is not None:
        budget.load(last)
        report(f"resuming from {last} ({budget.elapsed_s / 60:.1f} minutes spent)")
    with interrupt.listening():
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    steps = int(trainer.state.global_step)
    if interrupt.requested:
        raise TrainingInterrupted(steps)
    return steps

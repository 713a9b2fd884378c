"""Forecasts what a training run takes on this machine: steps, tokens, minutes, memory, size of the result.

The first steps of the run itself are measured. They are taken anyway, so a forecast costs no time, and is
ready before anything is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from transformers import TrainerCallback

from genret.retrieval.progress import duration

_WARM_UP_STEPS = 2  # the first steps also allocate memory and choose kernels
_MEASURED_STEPS = 5
_MEASURED_S = 20.0  # steps that take longer together are enough
_PROBED_EXAMPLES = 4
_LIMIT_OF_CONTAINER = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class RunForecast:
    """What a run takes. Fields from `steps` on are known once a model and examples are there."""

    texts: Mapping[str, int]  # texts to learn from, by kind
    model: str  # preset or checkpoint
    parameters: int  # numbers of the model
    trained: int  # numbers among them, or beside them, that the run changes
    checkpoint_bytes: int  # weights of the finished checkpoint
    batch_size: int  # examples of a step
    minutes: float | None  # wall time after which the run ends, or None
    steps: int = 0  # steps of the whole run, if no time limit ends it
    done_steps: int = 0  # steps that were taken before an interruption
    spent_s: float = 0.0  # seconds that these took
    step_tokens: float = 0.0  # tokens of a step on average, without padding
    memory: Mapping[str, int] | None = None  # bytes by use; their sum is what is needed at once
    free_bytes: int = 0  # bytes that there are, those of the loaded weights included
    step_s: float | None = None  # seconds of a step; None: not measured
    measured_steps: int = 0  # steps that `step_s` is the median of

    @property
    def seconds(self) -> float | None:
        """Seconds of the steps that are left; None: not measured."""
        if self.step_s is None:
            return None
        left = (self.steps - self.done_steps) * self.step_s
        return left if self.minutes is None else max(0.0, min(left, 60 * self.minutes - self.spent_s))

    @property
    def likely_steps(self) -> int:
        """Steps of the whole run, a time limit considered."""
        if self.minutes is None or self.seconds is None or not self.step_s:
            return self.steps
        return min(self.steps, self.done_steps + max(1, round(self.seconds / self.step_s)))

    @property
    def needed_bytes(self) -> int:
        """Bytes of memory needed at once."""
        return sum((self.memory or {}).values())

    @property
    def fits(self) -> bool:
        """Whether there is as much memory as is needed."""
        return self.needed_bytes <= self.free_bytes

    def objection(self, max_hours: float, smaller: str) -> str | None:
        """Return why the run should not begin and what to change; None if nothing speaks against it.

        `smaller` names options that make the model cheaper, each with a comma behind it.
        """
        if not self.fits:
            told = (
                f"training needs {_size(self.needed_bytes)} of memory, and {_size(self.free_bytes)} are free"
            )
            return (
                f"{told}; take {smaller}a lower --batch-size (now {self.batch_size}) or --max-prompt-tokens"
            )
        if self.seconds is None or self.step_s is None or self.seconds <= 3600 * max_hours:
            return None
        fitting = self.done_steps + max(1, int(3600 * max_hours / self.step_s))
        return (
            f"training would take {duration(self.seconds)} on this machine, more than --max-hours "
            f"{max_hours:g}; take {smaller}fewer steps (--max-steps {fitting} fits), --minutes, a smaller "
            "catalogue or a GPU"
        )

    def table(self) -> str:
        """Return a table as text."""
        num_texts = sum(self.texts.values())
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in self.texts.items() if number)
        steps = self.likely_steps
        examples = steps * self.batch_size
        is_open = self.minutes is not None and self.step_s is None
        length = "steps" if is_open else f"{steps:,} steps"
        length += f" of {self.batch_size} examples"
        if not is_open:
            length += f": {examples / num_texts:,.3g} epochs, {_count(steps * self.step_tokens)} tokens"
        if self.done_steps:
            length += f"; {self.done_steps:,} steps are done"
        if self.seconds is None or self.step_s is None:
            time = "not measured"
        else:
            of = f"median of {self.measured_steps} steps" if self.measured_steps > 1 else "one step"
            time = f"{duration(self.seconds)} on this machine ({self.step_s:.2g} s a step, {of})"
        parts = ", ".join(f"{name} {_size(size)}" for name, size in (self.memory or {}).items())
        share = "all" if self.trained == self.parameters else _count(self.trained)
        rows = {
            "texts": kinds,
            "model": f"{self.model}: {_count(self.parameters)} parameters, {share} trained",
            "run": length,
            "time": time,
            "memory": f"{_size(self.needed_bytes)} needed ({parts}), {_size(self.free_bytes)} there",
            "checkpoint": _size(self.checkpoint_bytes),
        }
        return "\n".join(["plan", *(f"  {name:<11}{said}" for name, said in rows.items())])

    def to_json(self) -> dict[str, Any]:
        """Return all figures; times in seconds, memory in bytes."""
        return {
            "texts": dict(self.texts),
            "model": self.model,
            "parameters": self.parameters,
            "trained_parameters": self.trained,
            "steps": self.likely_steps,
            "done_steps": self.done_steps,
            "examples": self.likely_steps * self.batch_size,
            "epochs": self.likely_steps * self.batch_size / sum(self.texts.values()),
            "tokens": round(self.likely_steps * self.step_tokens),
            "step_seconds": self.step_s,
            "measured_steps": self.measured_steps,
            "seconds": self.seconds,
            "memory_bytes": dict(self.memory or {}),
            "needed_bytes": self.needed_bytes,
            "free_bytes": self.free_bytes,
            "checkpoint_bytes": self.checkpoint_bytes,
        }


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"


def _count(number: float) -> str:
    """Return a number in thousands, millions or billions, with three digits."""
    for unit, name in ((1e9, " billion"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:,.0f}"


class StepMeter(TrainerCallback):
    """Measures the first steps of a run, and says once how long a step takes.

    Steps are compared by their tokens: batches have examples of like length, so that one may have ten times
    as many as the next. `tokens` are those of the steps to come, as far as they are known; one is measured at
    least. `decide` receives the median of the seconds per token, and the number of steps measured.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        tokens: Sequence[int],
        decide: Callable[[float, int], None],
    ) -> None:
        self._clock = clock
        self._tokens = tokens
        self._decide = decide
        self._begun = 0.0
        self._seconds: list[float] = []
        self._by_token: list[float] = []
        self.is_done = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the time."""
        self._begun = self._clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the step in; say the median when there are enough."""
        if self.is_done:
            return
        if torch.accelerator.is_available() and not args.use_cpu:
            torch.accelerator.synchronize()
        self._seconds.append(self._clock() - self._begun)
        self._by_token.append(self._seconds[-1] / self._tokens[len(self._by_token)])
        measured = self._by_token[_WARM_UP_STEPS:]
        is_enough = len(measured) == _MEASURED_STEPS or (measured and sum(self._seconds) > _MEASURED_S)
        is_last = len(self._by_token) == len(self._tokens) or state.global_step >= state.max_steps
        if is_enough or is_last or control.should_training_stop:
            self.is_done = True
            measured = measured or self._by_token[-1:]
            self._decide(median(measured), len(measured))


def activation_bytes(trainer: Any, examples: Sequence[Any], batch_size: int) -> int:
    """Return the bytes that a forward of a batch keeps for its backward, counted on the longest examples.

    The state of the trainer (a `transformers.Trainer`) and of its model is not changed.
    """
    probed = sorted(examples, key=len, reverse=True)[: min(_PROBED_EXAMPLES, batch_size)]
    model = trainer.model
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    training = model.training
    model.train()
    with (
        torch.random.fork_rng(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        trainer.accelerator.autocast(),
    ):
        inputs = trainer._prepare_inputs(trainer.data_collator(probed))
        loss = trainer.compute_loss(model, inputs)
    model.train(training)
    del loss
    return math.ceil(
        sum(size for place, size in kept.items() if place not in weights) * batch_size / len(probed)
    )


def training_memory(trainer: Any, optimizer_bytes: int, activations: int) -> dict[str, int]:
    """Return bytes by use. A measurement copies the weights while there are no gradients and activations."""
    parameters = list(trainer.model.parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    gradients = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    return {
        "weights": weights,
        "optimiser": optimizer_bytes,
        "gradients": gradients,
        "activations": max(activations, weights - gradients),
    }


def free_bytes(device: torch.device) -> int:
    """Return the bytes of memory that a device has left, on a CPU within the limit of the container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = int(psutil.virtual_memory().available)
    if _LIMIT_OF_CONTAINER.is_file() and (limit := _LIMIT_OF_CONTAINER.read_text().strip()) != "max":
        free = min(free, int(limit) - psutil.Process().memory_info().rss)
    return max(free, 0)

"""Joins the passes of many sessions in common forwards, so that decoders can run side by side.

Every layer of a decoder-only model but its attention works token by token. So the tokens of several passes run
as rows of one sequence; cache and attention get each pass's rows in the shape that the pass itself has.

`PassScheduler` runs decoders as tasks on one thread. A task works until its session needs a forward; then it
waits, and another goes on. When all wait, the passes of those whose turn it is run together. Decoders know
nothing of this: to them `session.step` is a call that returns logits. A task is a greenlet: a second call
stack of the same thread, so nothing is locked, and torch's threads are started once.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor
from transformers.cache_utils import Cache

if TYPE_CHECKING:
    from genret.decoding.model.hf_session import TreeModel
    from genret.decoding.model.tree_attention import BranchPass
    from genret.decoding.model.whole_trees import WholeTreePass

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ModelPass:
    """One pass of a session through a decoder-only model."""

    model: TreeModel
    tokens: Tensor  # Shape: (Q, B), int64; (1, P) for packed frontiers and whole trees
    positions: Tensor  # Shape: as `tokens`, int64
    tree: BranchPass | WholeTreePass
    cache: Cache  # Takes the keys and values

    @property
    def num_rows(self) -> int:
        """Tokens it computes."""
        return self.tokens.numel()


class FusedPass:
    """Several passes of one model as the rows of one sequence (an argument of the attention function).

    `shared_bias` is the model's, and so that of all passes.
    """

    def __init__(self, passes: Sequence[ModelPass]) -> None:
        self.passes = passes
        self.shared_bias = passes[0].tree.shared_bias

    def split(self, states: Tensor) -> list[Tensor]:
        """Return the states of every pass in its own shape: (Q, H, B, D) of (1, H, P, D)."""
        heads, size = states.shape[1], states.shape[3]
        parts = torch.split(states, [one.num_rows for one in self.passes], dim=2)
        return [
            part.view(heads, *one.tokens.shape, size).transpose(0, 1)
            for part, one in zip((part[0] for part in parts), self.passes, strict=True)
        ]

    @staticmethod
    def join(parts: Sequence[Tensor]) -> Tensor:
        """Put the states of all passes side by side, (1, H, P, D): undoes `split`."""
        return torch.cat([part.transpose(0, 1).flatten(1, 2) for part in parts], dim=1)[None]


class _FusedWrites(Cache):
    """Gives every pass's cache the keys and values of its own rows."""

    def __init__(self, fused: FusedPass) -> None:
        super().__init__(layers=fused.passes[0].cache.layers)
        self._fused = fused

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer; shapes (1, H_kv, P, D) and (1, H_kv, P, D_v)."""
        fused = self._fused
        parts = zip(fused.passes, fused.split(key_states), fused.split(value_states), strict=True)
        for one, keys, values in parts:
            one.cache.update(keys, values, layer_idx, *args, **kwargs)
        return key_states, value_states


@torch.no_grad()
def run_passes(passes: Sequence[ModelPass]) -> list[Tensor]:
    """Run passes of one model in one forward. Returns the logits of each, (Q, B, V), in the model's type."""
    first = passes[0]
    if len(passes) == 1:
        return [_forward(first.model, first.tokens, first.positions, first.tree, first.cache)]
    fused = FusedPass(passes)
    tokens, positions = (
        torch.cat([part.flatten() for part in parts])[None]
        for parts in ((one.tokens for one in passes), (one.positions for one in passes))
    )
    logits = _forward(first.model, tokens, positions, fused, _FusedWrites(fused))
    rows = torch.split(logits[0], [one.num_rows for one in passes])
    return [part.view(*one.tokens.shape, -1) for part, one in zip(rows, passes, strict=True)]


def _forward(model: TreeModel, tokens: Tensor, positions: Tensor, tree: object, cache: Cache) -> Tensor:
    output = model.inner(
        input_ids=tokens,
        position_ids=positions,
        attention_mask=model.no_mask,
        past_key_values=cache,
        use_cache=True,
        tree=tree,
    )
    logits: Tensor = output.logits
    return logits


class Share(Protocol):
    """Part of the device's time that a client, or several, have had."""

    @property
    def had(self) -> float:
        """Time had so far, seconds divided by the weight; whose is smallest is next."""

    def charge(self, seconds: float) -> None:
        """Count time of the device, seconds."""


@dataclass(slots=True, eq=False)
class Outcome(Generic[T]):
    """The end of a call: what it returned, or what it raised."""

    value: T | None = None
    error: BaseException | None = None


class _Task(greenlet):  # type: ignore[misc]  # greenlet is untyped
    """A call that runs beside others on one thread.

    It waits for `num_rows` tokens of a forward: for the pass `wanted`, or, if that is None, to run its own.
    """

    def __init__(
        self, call: Callable[[], object], share: Share, done: Callable[[Outcome[Any]], None], max_rows: int
    ) -> None:
        super().__init__(call)
        # A greenlet begins with an empty context: what is set for the thread would be missing.
        self.gr_context = contextvars.copy_context()
        self.share, self.done, self.max_rows = share, done, max_rows
        self.wanted: ModelPass | None = None
        self.num_rows = 0
        self.is_undivided = False

    def wait(self, wanted: ModelPass | None, num_rows: int) -> Tensor:
        """Let others go on until it is this one's turn; return the logits of the pass."""
        self.wanted, self.num_rows = wanted, num_rows
        logits: Tensor = self.parent.switch()
        return logits

    def joins(self, other: _Task) -> bool:
        """Whether the passes that two tasks wait for can run together."""
        mine, its = self.wanted, other.wanted
        return mine is not None and its is not None and mine.model is its.model


def _current() -> _Task | None:
    """Return the task that is running, if it may be divided."""
    task = getcurrent()
    return task if isinstance(task, _Task) and not task.is_undivided else None


def max_rows() -> int | None:
    """Return the most tokens that a session should compute in one pass, None without a bound."""
    task = _current()
    return None if task is None else task.max_rows


def run_pass(wanted: ModelPass) -> Tensor:
    """Run a pass, with others where a scheduler runs them. Returns its logits, (Q, B, V)."""
    task = _current()
    return run_passes([wanted])[0] if task is None else task.wait(wanted, wanted.num_rows)


def wait_for_turn(num_rows: int) -> None:
    """Let others go on before a forward of `num_rows` tokens that runs alone."""
    task = _current()
    if task is not None:
        task.wait(None, num_rows)


@contextmanager
def undivided() -> Iterator[None]:
    """Let no other task go on inside the block, as others may wait for its end."""
    task = _current()
    if task is not None:
        task.is_undivided = True
    try:
        yield
    finally:
        if task is not None:
            task.is_undivided = False


class PassScheduler:
    """Runs calls side by side on the thread that makes and uses it.

    `max_rows`, at least 1, bounds the tokens of a forward: sessions cut their passes so that none has more,
    but for one token of each of many queries. A forward serves those whose shares have had least.
    """

    def __init__(self, max_rows: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._max_rows = max_rows
        self._clock = clock
        self._tasks: list[_Task] = []

    @property
    def is_idle(self) -> bool:
        """Whether no call is left."""
        return not self._tasks

    def start(self, call: Callable[[], T], share: Share, done: Callable[[Outcome[T]], None]) -> None:
        """Run a call until it needs a forward or ends; `done`, which may not raise, is told its end."""
        task = _Task(call, share, done, self._max_rows)
        self._tasks.append(task)
        self._go_on(task, None)

    def run_once(self) -> None:
        """Run one forward, for the calls whose turn it is, and let them go on to their next."""
        turn = self._next_turn()
        begun = self._clock()
        results = self._run(turn)
        spent, rows = self._clock() - begun, sum(task.num_rows for task in turn)
        for task, result in zip(turn, results, strict=True):
            task.share.charge(spent * task.num_rows / rows)
            self._go_on(task, result)

    def _go_on(self, task: _Task, result: Tensor | Exception | None) -> None:
        """Let a task go on with the logits of its pass, or the error of it."""
        begun = self._clock()
        try:
            # What one task sets for the thread, another finds: gradients are off in all of them.
            with torch.no_grad():
                value = task.throw(result) if isinstance(result, Exception) else task.switch(*(() if result is None else (result,)))
            outcome: Outcome[Any] = Outcome(value)
        except BaseException as error:  # of the call: it is told to whom it concerns
            outcome = Outcome(error=error)
        task.share.charge(self._clock() - begun)
        if task.dead:
            self._tasks.remove(task)
            task.done(outcome)

    def _next_turn(self) -> list[_Task]:
        """Choose tasks that run together, within the bound; the first is the one whose share has had least."""
        waiting = sorted(self._tasks, key=lambda task: task.share.had)
        turn, room = waiting[:1], self._max_rows - sum(task.num_rows for task in waiting[:1])
        for task in waiting[1:]:
            if turn[0].joins(task) and task.num_rows <= room:
                turn.append(task)
                room -= task.num_rows
        return turn

    def _run(self, turn: Sequence[_Task]) -> list[Tensor | Exception | None]:
        """Run the passes of a turn; if it fails as a whole, run them one by one, so that the culprit alone fails."""
        passes = [task.wanted for task in turn if task.wanted is not None]
        if not passes:
            return [None]  # it runs its own forward
        try:
            return list(run_passes(passes))
        except Exception as error:
            if len(passes) == 1:
                return [error]
        return [self._run([task])[0] for task in turn]

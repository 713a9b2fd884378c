"""Draws of DISC with static shapes and no host synchronisation per step, for CUDA.

The host only queues work: it never asks the device which draws are alive, which of them wrote the same, or
how many children a prefix has. Every draw keeps its place in a rectangle to the end, and from the first token
on a branch of its own.

What that costs against `TreeProposer`: draws that wrote the same tokens are computed once each instead of
once for all of them; branches of ended draws are computed, as padding, until the batch's last draw ends; and
every branch is given as many children as the widest node of its depth has. All three are work that a device
does side by side. What it saves is a wait for the device, several times per step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoding.counter_rng import uniforms
from decoding.disc.draw_grid import DrawGrid
from decoding.disc.draws import Draws
from decoding.disc.proposer import DrawBatch
from decoding.disc.static_step import Step, Walk, static_step
from decoding.errors import InvalidLogitsError
from decoding.late_flag import LateFlag
from decoding.types import StaticConstraint

# Logits computed by one forward, at 4 bytes each: more draws than fit are made in several walks.
_MAX_LOGITS = 1 << 28

# Steps whose random numbers are made at once; hashing one step's alone would be some 60 small kernels.
_STEPS_AHEAD = 16


class StaticProposer:
    """Draws by ancestral sampling among the valid tokens (`decoding.disc.proposer.Proposer`).

    The same draws as `TreeProposer` makes, for the same random numbers go to the same tokens.

    Args:
        batch: The queries; their constraint lists its children padded.
        new_flag: Makes what tells the host, late, whether to go on, from a number of booleans and a device.
        max_logits: Most logits computed by one forward, but for one draw of each query.

    Raises:
        TypeError: the constraint cannot list its children padded.
    """

    def __init__(
        self,
        batch: DrawBatch,
        new_flag: Callable[[int, torch.device], LateFlag] = LateFlag,
        max_logits: int = _MAX_LOGITS,
    ) -> None:
        if not isinstance(batch.constraint, StaticConstraint):
            raise TypeError(f"{type(batch.constraint).__name__} does not list its children padded")
        self._batch = batch
        self._constraint: StaticConstraint = batch.constraint
        self._new_flag = new_flag
        self._max_logits = max_logits
        self._used = False
        self.num_steps = 0
        self._nodes = torch.zeros(batch.num_queries, dtype=torch.int64, device=batch.device)
        self._log_upper = torch.zeros(batch.num_queries, dtype=torch.float64, device=batch.device)

    @staticmethod
    def suits(batch: DrawBatch) -> bool:
        """Whether this is the way to make a batch's draws: where waiting for the device costs time."""
        plain = not batch.params[0].adaptive and batch.params[0].beam_size == 1
        return plain and batch.device.type == "cuda" and isinstance(batch.constraint, StaticConstraint)

    def nodes_of_queries(self) -> list[int]:
        """Return the tokens computed behind each prompt so far."""
        return [int(count) for count in self._nodes.tolist()]

    def log_upper_bounds(self) -> list[float] | None:
        """Return the log of the valid mass at each root; nothing under `top_m`, which truncates it."""
        return None if self._batch.top_m is not None else self._log_upper.tolist()

    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Walk draws to their ends; see `Proposer.run`."""
        columns: Counter[int] = Counter()
        passes: dict[int, list[tuple[int, int]]] = {}
        owners: list[int] = draws.query.tolist()
        most = self._most_columns(len(set(owners)))
        for member, query in enumerate(owners):
            passes.setdefault(columns[query] // most, []).append((query, member))
            columns[query] += 1
        for members in passes.values():
            self._run_some(draws, members, stream, log_threshold)

    def _most_columns(self, num_queries: int) -> int:
        return max(1, self._max_logits // (max(1, num_queries) * self._batch.session.root_logits.shape[1]))

    def _run_some(
        self, draws: Draws, members: Sequence[tuple[int, int]], stream: int, log_threshold: Tensor | None
    ) -> None:
        """Walk the draws of some (query, index among all draws) pairs to their ends."""
        queries = sorted({query for query, _ in members})
        whole = len(queries) == self._batch.num_queries and not self._used
        self._used = True
        batch = self._batch if whole else self._batch.select(queries)
        row = {query: place for place, query in enumerate(queries)}
        grid = DrawGrid(
            [row[query] for query, _ in members], [m for _, m in members], len(queries), batch.device
        )
        walking = _Walking(self._constraint, batch, grid, draws, stream, log_threshold)
        flag = self._new_flag(2, batch.device)
        self._walk(walking, flag)
        _goes_on(flag.last())  # raises if what the loop did not live to see was broken
        if not whole:
            self._batch.stop.absorb(batch.stop, queries)
        grid.collect(draws, walking.walk, walking.tokens)
        chosen = torch.tensor(queries, dtype=torch.int64, device=batch.device)
        self._nodes[chosen] += walking.num_nodes
        if walking.log_root_mass is not None:
            self._log_upper[chosen] = walking.log_root_mass

    def _walk(self, walking: _Walking, flag: LateFlag) -> None:
        """Take steps until all draws have ended.

        Nothing here waits for the device, but for a flag whose answer the host is several steps ahead of.

        Raises:
            InvalidLogitsError: the logits of a branch were broken.
        """
        logits = walking.batch.session.root_logits.unsqueeze(1)  # (Q, 1, V)
        for depth in range(self._constraint.max_depth):
            step = walking.take(logits, depth)
            flag.put(step.flags)
            if not _goes_on(flag.latest()) or depth + 1 == self._constraint.max_depth:
                break
            logits = walking.batch.session.step(step.parents, step.token_ids)
            walking.num_nodes += step.num_running
            self.num_steps += 1


class _Walking:
    """One walk of a rectangle of draws: everything the device needs for it, uploaded beforehand."""

    def __init__(
        self,
        constraint: StaticConstraint,
        batch: DrawBatch,
        grid: DrawGrid,
        draws: Draws,
        stream: int,
        log_threshold: Tensor | None,
    ) -> None:
        self._constraint, self.batch = constraint, batch
        threshold = torch.full_like(draws.log_weight, -math.inf) if log_threshold is None else log_threshold
        self._log_threshold = grid.spread(threshold + draws.log_bound, -math.inf)
        self._seed = batch.seed.unsqueeze(1)
        self._coordinates = (stream, grid.spread(draws.sample, 0), grid.spread(draws.number, 0))
        self._ahead = torch.arange(_STEPS_AHEAD, device=batch.device)[:, None, None]
        self._uniforms = self._ahead
        self.walk: Walk = grid.begin(draws, constraint.start(batch.numbers))
        self.tokens: list[Tensor] = []
        self.num_nodes = torch.zeros(grid.num_rows, dtype=torch.int64, device=batch.device)
        self.log_root_mass: Tensor | None = None

    def take(self, logits: Tensor, depth: int) -> Step:
        """Write one more token on every running draw.

        Args:
            logits: Next-token logits of the branches. Shape: (Q, B, V).
            depth: Tokens written so far.
        """
        if depth % _STEPS_AHEAD == 0:
            self._uniforms = uniforms(self._seed, *self._coordinates, self._ahead + depth)
        step = static_step(
            self._constraint,
            self.walk,
            logits,
            self._uniforms[depth % _STEPS_AHEAD],
            self.batch.stop.dropped_queries(depth),
            self._log_threshold,
            self.batch.temperature,
            max(1, self._constraint.width_at(depth)),
            self.batch.top_m,
        )
        if depth == 0:
            self.log_root_mass = step.log_mass.squeeze(1)
        self.walk = step.walk
        self.tokens.append(step.token)
        return step


def _goes_on(flags: tuple[bool, ...] | None) -> bool:
    """Return whether draws are running, as far as is known.

    Raises:
        InvalidLogitsError: the logits of a branch were broken.
    """
    if flags is None:
        return True
    running, broken = flags
    if broken:
        raise InvalidLogitsError(
            "the model returned NaN or infinite logits on a branch that was being written"
        )
    return running

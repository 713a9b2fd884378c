"""Makes draws of DISC with static shapes and no host synchronisation per step, for CUDA.

The host only queues work: it never asks the device which draws are alive, which of them wrote the same, or
how many children a prefix has. Every draw keeps its place in a rectangle (Q, D) to the end, Q queries with
up to D draws each, rows padded to the longest; from the first token on it has a branch of its own, and it is
carried along when it has ended or never was. So a step is a fixed sequence of operations, a pure function of
tensors whose shapes do not depend on their values: nothing is read back, and it can be compiled whole or
captured in a CUDA graph. Where no candidate is valid, both ways on are computed and one is taken.

What that costs against `TreeProposer`: draws that wrote the same tokens are computed once each instead of
once for all of them; branches of ended draws are computed, as padding, until the batch's last draw ends; and
every branch is given as many children as the widest node of its depth has. All three are work that a device
does side by side. What it saves is a wait for the device, several times per step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.constraints import StaticConstraint
from decoding.counter_rng import uniforms
from decoding.disc.draws import DrawBatch, Draws
from decoding.errors import InvalidLogitsError
from decoding.late_flag import LateFlag

# Logits computed by one forward, at 4 bytes each: more draws than fit are made in several walks.
_MAX_LOGITS = 1 << 28

# Steps whose random numbers are made at once; hashing one step's alone would be some 60 small kernels.
_STEPS_AHEAD = 16


class StaticProposer:
    """Draws by ancestral sampling among the valid tokens (`decoding.disc.draws.Proposer`).

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
        self.walk: DrawWalk = grid.begin(draws, constraint.start(batch.numbers))
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


class DrawGrid:
    """Where some of a batch's draws stand in a rectangle, and the way there and back.

    Args:
        rows: Row of each draw that takes part, in [0, Q). Length n.
        members: Its index among all draws. Length n.
        num_rows: Q.
        device: Where the draws live.

    Attributes:
        num_columns: D, the most draws of any row.
    """

    def __init__(
        self, rows: Sequence[int], members: Sequence[int], num_rows: int, device: torch.device
    ) -> None:
        filled = [0] * num_rows
        columns = []
        for row in rows:
            columns.append(filled[row])
            filled[row] += 1
        self.num_columns = max(filled)
        self.num_rows = num_rows
        places = [row * self.num_columns + column for row, column in zip(rows, columns, strict=True)]
        self._places = torch.tensor(places, dtype=torch.int64, device=device)
        self._members = torch.tensor(members, dtype=torch.int64, device=device)

    def spread(self, column: Tensor, padding: float) -> Tensor:
        """Return one value per place from one value per draw. Shapes: (Q, D) from (all draws,)."""
        cells = column.new_full((self.num_rows * self.num_columns,), padding)
        cells[self._places] = column[self._members]
        return cells.view(self.num_rows, self.num_columns)

    def begin(self, draws: Draws, start: Tensor) -> DrawWalk:
        """Return the draws at the beginning of their walk.

        Args:
            draws: All draws.
            start: Where each row starts. Shape: (Q,), int64.
        """
        return DrawWalk(
            state=start.unsqueeze(1).expand(self.num_rows, self.num_columns).contiguous(),
            log_weight=self.spread(draws.log_weight, -math.inf),
            logprob=self.spread(draws.logprob, 0.0),
            running=self.spread(draws.running, False),
            finished=self.spread(draws.finished, False),
            broken=torch.zeros((), dtype=torch.bool, device=start.device),
        )

    def collect(self, draws: Draws, walk: DrawWalk, tokens: Sequence[Tensor]) -> None:
        """Put what the draws of the rectangle did where all draws are; the others stay as they are.

        Args:
            draws: All draws, changed in place.
            walk: At the end of the rectangle's walk.
            tokens: What was written, step by step. Each of shape (Q, D), int64.
        """
        for name in ("state", "log_weight", "logprob", "running", "finished"):
            column = getattr(draws, name).clone()
            column[self._members] = getattr(walk, name).flatten()[self._places]
            setattr(draws, name, column)
        unwritten = torch.full_like(draws.state, -1)
        draws.tokens.extend(unwritten.clone() for _ in range(len(tokens) - len(draws.tokens)))
        if tokens:
            written = torch.stack([step.flatten() for step in tokens])[:, self._places]
            for step, column in zip(draws.tokens, written, strict=False):
                step[self._members] = column


# Children looked at in one piece, at about 60 bytes each. The root of a catalogue can have tens of thousands.
MAX_CELLS = 1 << 22


class DrawWalk(NamedTuple):
    """What D draws of each of Q queries have done so far.

    Attributes:
        state: Constraint state reached. Shape: (Q, D), int64.
        log_weight: log of the product of the valid masses met. Shape: (Q, D), float64.
        logprob: log P_L of what was written. Shape: (Q, D), float64.
        running: Not at its end yet; False for padding. Shape: (Q, D), bool.
        finished: At its end, with a whole row. Shape: (Q, D), bool.
        broken: Whether the logits of a live branch were ever NaN, +inf, or -inf everywhere; what the draws
            say is then meaningless. Shape: (), bool.
    """

    state: Tensor
    log_weight: Tensor
    logprob: Tensor
    running: Tensor
    finished: Tensor
    broken: Tensor


class Step(NamedTuple):
    """The outcome of one step.

    Attributes:
        walk: After it.
        token: What each draw wrote, -1 where it wrote nothing. Shape: (Q, D), int64.
        log_mass: log of the valid mass at each branch, -inf where nothing is valid. Shape: (Q, B), float64.
        parents: For the next forward: every running draw grows its own branch, -1 for the others.
            Shape: (Q, D), int64.
        token_ids: For the next forward: `token`, 0 for padding. Shape: (Q, D), int64.
        num_running: Running draws of each query. Shape: (Q,), int64.
        flags: Whether any draw is running, and `walk.broken`. Shape: (2,), bool.
    """

    walk: DrawWalk
    token: Tensor
    log_mass: Tensor
    parents: Tensor
    token_ids: Tensor
    num_running: Tensor
    flags: Tensor


class _Picked(NamedTuple):
    """The edge each draw takes from its branch, n branches with k draws each.

    Attributes:
        token: Shape: (n, k), int64.
        next_state: Shape: (n, k), int64; -1 from a branch where nothing is valid.
        logprob: Shape: (n, k), float64.
        log_mass: Shape: (n, 1), float64.
    """

    token: Tensor
    next_state: Tensor
    logprob: Tensor
    log_mass: Tensor


def static_step(
    constraint: StaticConstraint,
    walk: DrawWalk,
    logits: Tensor,
    u: Tensor,
    dropped: Tensor,
    log_threshold: Tensor,
    temperature: Tensor | None,
    width: int,
    top_m: int | None,
    max_cells: int = MAX_CELLS,
) -> Step:
    """Write one token on every running draw.

    Args:
        constraint: What may be written.
        walk: Before the step. The draws of a query that share a branch are in one state, or not running.
        logits: Next-token logits of the branches: all draws of a query share B = 1, or each has its own,
            B = D. Shape: (Q, B, V), float32 or float64.
        u: A uniform in (0, 1) for each draw. Shape: (Q, D), float64.
        dropped: Queries that may not write another token. Shape: (Q,), bool.
        log_threshold: A draw whose log weight falls below it is stopped. Shape: (Q, D), float64.
        temperature: Divides the logits, None: 1. Shape: (Q,), float32.
        width: No branch has more children.
        top_m: Verify only the M likeliest tokens of a branch; its exact children where none is valid. None:
            exact children.
        max_cells: Children looked at in one piece.
    """
    queries, branches, vocab = logits.shape
    num_draws = u.shape[1]
    running = walk.running & ~dropped.unsqueeze(1)
    live = torch.where(running, walk.state, -1)
    nodes = live.view(queries, branches, num_draws // branches).amax(2).flatten()
    if temperature is not None:
        logits = logits / temperature[:, None, None]
    logits = logits.reshape(-1, vocab)
    normaliser = torch.logsumexp(logits, dim=-1)  # (Q * B,)
    broken = walk.broken | (~torch.isfinite(normaliser) & (nodes >= 0)).any()
    targets = u.reshape(len(nodes), -1)
    rows = max(1, max_cells // (width + (top_m or 0)))
    pieces = [
        _pick(constraint, nodes[here], logits[here], normaliser[here], targets[here], width, top_m)
        for here in (slice(first, first + rows) for first in range(0, len(nodes), rows))
    ]
    picked = _Picked(*(torch.cat(column) for column in zip(*pieces, strict=True)))
    after, token = _move(constraint, walk, running, broken, log_threshold, picked)
    return Step(
        walk=after,
        token=token,
        log_mass=picked.log_mass.view(queries, branches),
        parents=torch.where(after.running, torch.arange(num_draws, device=u.device), -1),
        token_ids=torch.where(after.running, token, 0),
        num_running=after.running.sum(dim=1),
        flags=torch.stack([after.running.any(), broken]),
    )


def _move(
    constraint: StaticConstraint,
    walk: DrawWalk,
    running: Tensor,
    broken: Tensor,
    log_threshold: Tensor,
    picked: _Picked,
) -> tuple[DrawWalk, Tensor]:
    """Return the draws after they took their edges, and the token each wrote."""
    shape = running.shape
    log_mass = picked.log_mass.expand(picked.token.shape).reshape(shape)
    moves = running & torch.isfinite(log_mass)  # where nothing is valid the weight becomes zero
    log_weight = torch.where(moves, walk.log_weight + log_mass, walk.log_weight)
    log_weight = torch.where(walk.running & ~moves, -math.inf, log_weight)
    state = torch.where(moves, picked.next_state.view(shape), walk.state)
    done = moves & constraint.is_final(state.flatten()).view(shape)
    after = DrawWalk(
        state=state,
        log_weight=log_weight,
        logprob=walk.logprob + torch.where(moves, picked.logprob.view(shape), 0.0),
        running=moves & ~done & (log_weight >= log_threshold),
        finished=walk.finished | done,
        broken=broken,
    )
    return after, torch.where(moves, picked.token.view(shape), -1)


def _pick(
    constraint: StaticConstraint,
    nodes: Tensor,
    logits: Tensor,
    normaliser: Tensor,
    u: Tensor,
    width: int,
    top_m: int | None,
) -> _Picked:
    """Choose an edge per draw by inverse transform.

    Args:
        constraint: What may be written.
        nodes: State of each branch, -1 for none. Shape: (n,), int64.
        logits: Shape: (n, V).
        normaliser: Shape: (n,).
        u: Uniforms of the draws at each branch. Shape: (n, k), float64.
        width: No branch has more children.
        top_m: See `static_step`.
    """
    token, next_state = _support(constraint, nodes, logits, width, top_m)
    logprob = logits.gather(1, token.clamp(min=0)).double() - normaliser.double().unsqueeze(1)
    logprob = torch.where(next_state >= 0, logprob, -math.inf)
    largest, likeliest = logprob.max(dim=1, keepdim=True)
    base = torch.where(torch.isfinite(largest), largest, 0.0)
    cumulative = torch.exp(logprob - base).cumsum(1)
    total = cumulative[:, -1:]
    # Strictly below the total, so that the search stays clear of padding at the end.
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    edge = torch.searchsorted(cumulative, target, right=True).clamp(max=cumulative.shape[1] - 1)
    # A parallel sum need not grow from one term to the next by exactly the term: the search can, once in
    # some 2**50 draws, stop at an edge of probability zero.
    edge = torch.where(torch.isfinite(logprob.gather(1, edge)), edge, likeliest)
    return _Picked(
        token=token.gather(1, edge),
        next_state=next_state.gather(1, edge),
        logprob=logprob.gather(1, edge),
        # Rounding must never carry the log of a probability above zero.
        log_mass=(torch.log(total) + base).clamp(max=0.0),
    )


def _support(
    constraint: StaticConstraint, nodes: Tensor, logits: Tensor, width: int, top_m: int | None
) -> tuple[Tensor, Tensor]:
    """Return the tokens to look at and the states behind them, -1 where not valid. Shapes: (n, W), int64."""
    if top_m is None:
        token, next_state = constraint.padded_children(nodes, width)
        return token, next_state
    top = logits.topk(min(top_m, logits.shape[1]), dim=-1).indices
    following = constraint.verify(nodes, top)
    # A branch whose valid tokens are all below the top M would have mass zero and no way on (0/0). Which
    # branches those are is not known here, so exact children are listed for all and left empty elsewhere.
    stuck = (following < 0).all(dim=1)
    token, next_state = constraint.padded_children(torch.where(stuck, nodes, -1), width)
    return torch.cat([top, token], dim=1), torch.cat([following, next_state], dim=1)

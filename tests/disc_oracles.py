"""DISC worked out by hand on table models: plain walks one token at a time, and envelopes by recursion."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from genret.decoding.constraints import Constraint
from genret.decoding.counter_rng import uniforms
from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.draws import ACCEPT, CHOOSE, FIRST, SECOND, DrawBatch
from genret.decoding.disc.static_proposer import DrawWalk, Step
from genret.decoding.params import DiscParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_oracles import Row, ValidTokens
from tests.fakes import TableModel, all_sequences, end_with, normalise

END = 0
VOCAB = 5
PROMPT = (1,)


def catalogue(which: int) -> set[Row]:
    return {
        # titles that are prefixes of others, one-token titles, shared prefixes
        0: end_with([(1,), (1, 2), (1, 2, 3), (2,), (2, 2), (4, 1)], END),
        # every sequence over two tokens up to length 3: little bias
        1: end_with(all_sequences((1, 2), 3), END),
        # a likely prefix that leads nowhere likely: much bias
        2: end_with([(1, 1, 1), (2,), (3, 3), (3, 4), (4, 4, 4, 4)], END),
    }[which]


def true_mass(model: TableModel, rows: set[Row], prompt: Row = PROMPT, temperature: float = 1.0) -> float:
    """P_L(S)."""
    return math.fsum(math.exp(model.logprob(prompt, row, temperature)) for row in rows)


def target(model: TableModel, rows: set[Row], temperature: float = 1.0) -> dict[Row, float]:
    """P_S."""
    return normalise({row: math.exp(model.logprob(PROMPT, row, temperature)) for row in rows})


def constrained_law(model: TableModel, rows: set[Row]) -> dict[Row, float]:
    """Plain constrained sampling: P_L(s) divided by the valid masses met on the way."""
    by_hand = ByHand(model, rows)
    return {row: math.exp(by_hand.logprob(row) - by_hand.log_weight(row)) for row in rows}


def counted(results: Iterable[DiscResult], accepted_only: bool = False) -> Counter[Row]:
    """How often each row was returned."""
    return Counter(
        s.hypothesis.token_ids for r in results for s in r.samples if s.accepted or not accepted_only
    )


def batch_of(session: object, constraint: Constraint, params: Sequence[DiscParams]) -> DrawBatch:
    stop = StopPoll(len(params), None, None, torch.device("cpu"))
    return DrawBatch(session, constraint, params, stop, range(len(params)))


def drawn(
    model: TableModel, rows: Iterable[Row], params: Sequence[DiscParams], **options: Any
) -> list[DiscResult]:
    """Results of DISC over a set of rows, all queries behind one prompt."""
    session = model.prefill([PROMPT] * len(params))
    return disc(session, TitleTrie.from_rows(rows, model.vocab_size), params, **options)


def batch_for(model: TableModel, rows: Iterable[Row], params: Sequence[DiscParams]) -> DrawBatch:
    """The same queries, before any draw."""
    session = model.prefill([PROMPT] * len(params))
    return batch_of(session, TitleTrie.from_rows(rows, model.vocab_size), params)


def rows_of(columns: Sequence[Tensor]) -> list[Row]:
    """What every draw wrote, by its tokens at every depth (-1 is none)."""
    return [tuple(t for t in tokens if t >= 0) for tokens in torch.stack(list(columns), dim=1).tolist()]


def assert_same_draws(left: Sequence[object], right: Sequence[object], tolerance: float = 1e-9) -> None:
    """The same rows in the same way, with numbers that differ by no more than rounding."""
    for mine, theirs in zip(left, right, strict=True):
        assert type(mine) is type(theirs)
        if not isinstance(mine, DiscResult):
            continue
        assert mine.num_draws == theirs.num_draws
        for name in ("mass", "mass_stderr", "mass_lower"):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=tolerance, nan_ok=True)
        for a, b in zip(mine.samples, theirs.samples, strict=True):
            assert (a.hypothesis.token_ids, a.hypothesis.row) == (b.hypothesis.token_ids, b.hypothesis.row)
            assert (a.accepted, a.num_draws) == (b.accepted, b.num_draws)
            assert a.log_weight == pytest.approx(b.log_weight, abs=tolerance)
            assert a.hypothesis.logprob == pytest.approx(b.hypothesis.logprob, abs=tolerance)


@cache
def unlikely(which: int) -> TableModel:
    """A model that gives a catalogue between two and ten percent."""
    rows = catalogue(which)
    for seed in range(1000):
        model = TableModel.random(VOCAB, seed, scale=2.0)
        if 0.02 < true_mass(model, rows) < 0.1:
            return model
    raise AssertionError("no such model")


class CountingModel(TableModel):
    """A table model that notes every node of every session, in the order computed."""

    def __init__(self, model: TableModel) -> None:
        super().__init__(model.vocab_size, model._function)
        self.nodes: list[tuple[Row, Row]] = []
        self.num_forwards = 0

    def next_logits(self, sequences: Sequence[tuple[object, ...]]) -> Tensor:
        written = [(sequence[0], sequence[1:]) for sequence in sequences if len(sequence) > 1]
        self.nodes += written
        self.num_forwards += bool(written)
        return super().next_logits(sequences)


class ByHand(ValidTokens):
    """The valid tokens of a table model, and what follows from them."""

    def __init__(self, model: TableModel, rows: Iterable[Row], temperature: float = 1.0) -> None:
        super().__init__(rows, partial(model.next_logprobs, PROMPT, temperature=temperature))

    def envelope(self, prefix: Row, computed: set[Row]) -> float:
        """c of a prefix when the model was run on some prefixes."""
        if prefix in self.rows or prefix not in computed:
            return 1.0
        return math.fsum(
            math.exp(logprob) * self.envelope((*prefix, token), computed)
            for token, logprob in self.after(prefix)
        )

    def proposal(self, row: Row, known: set[Row]) -> float:
        """Probability with which an adaptive draw writes a row, when some prefixes were known before."""
        probability = 1.0
        for depth, token in enumerate(row):
            prefix = row[:depth]
            shares = {
                t: math.exp(logprob) * self.envelope((*prefix, t), known) for t, logprob in self.after(prefix)
            }
            probability *= shares[token] / math.fsum(shares.values())
        return probability


class Lockstep:
    """Plain DISC for one query as Algorithm 1 says it: every draw walks alone, both phases from the root."""

    def __init__(self, by_hand: ByHand, seed: int, num_draws: int, reject_early: bool) -> None:
        self._by_hand, self._seed = by_hand, torch.tensor(seed)
        self._num_draws, self._early = num_draws, reject_early and num_draws > 1
        self.entered: dict[int, set[Row]] = {FIRST: set(), SECOND: set()}  # prefixes the model is run on

    def _uniform(self, stream: int, sample: int, number: int, step: int) -> float:
        return float(uniforms(self._seed, stream, torch.tensor(sample), torch.tensor(number), step))

    def _walk(self, stream: int, sample: int, number: int, log_u: float) -> tuple[Row, float] | None:
        written, log_weight = (), 0.0
        while written not in self._by_hand.rows:
            if written:
                self.entered[stream].add(written)
            after = self._by_hand.after(written)
            mass = math.fsum(math.exp(logprob) for _, logprob in after)
            log_weight += math.log(mass)
            target = self._uniform(stream, sample, number, len(written)) * mass
            ends = itertools.accumulate(math.exp(logprob) for _, logprob in after)
            token = next(token for (token, _), end in zip(after, ends, strict=True) if target < end)
            written = (*written, token)
            if log_weight < log_u:
                return None
        return written, log_weight

    def sample(self, sample: int) -> tuple[Row, bool, int]:
        """Return (row, whether accepted, draws used)."""
        for number in range(self._num_draws):
            log_u = math.log(self._uniform(ACCEPT, sample, number, 0))
            done = self._walk(FIRST, sample, number, log_u if self._early else -math.inf)
            if done is not None and (log_u < done[1] or self._num_draws == 1):
                # The draws behind it are made all the same: all of a phase walk together.
                for later in range(number + 1, self._num_draws):
                    later_u = math.log(self._uniform(ACCEPT, sample, later, 0))
                    self._walk(FIRST, sample, later, later_u if self._early else -math.inf)
                return done[0], log_u < done[1], number + 1
        draws = [self._walk(SECOND, sample, number, -math.inf) for number in range(self._num_draws)]
        ends = list(itertools.accumulate(math.exp(draw[1]) for draw in draws if draw))
        target = self._uniform(CHOOSE, sample, 0, 0) * ends[-1]
        row = next(draw[0] for draw, end in zip(draws, ends, strict=True) if draw and target < end)
        return row, False, 2 * self._num_draws


def arguments_of_a_step(
    constraint: Constraint, depth: int, top_m: int | None, seed: int, vocab_size: int = VOCAB
) -> list[object]:
    """Arguments of `static_step` on the constraint's device: three queries of four draws, random rows."""
    device = constraint.device
    generator = torch.Generator().manual_seed(seed)
    state = constraint.start(torch.arange(3, device=device).repeat_interleave(4))
    for _ in range(depth):
        owner, _, following = constraint.children(state)
        last = [int(torch.nonzero(owner == n).max()) if (owner == n).any() else -1 for n in range(12)]
        state = torch.stack([following[at] if at >= 0 else state[n] for n, at in enumerate(last)])
    done = constraint.is_final(state).view(3, 4)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64).to(device)

    walk = DrawWalk(
        state=state.view(3, 4),
        log_weight=-random(3, 4),
        logprob=-random(3, 4),
        running=~done & (random(3, 4) < 0.8),
        finished=done,
        broken=torch.tensor(False, device=device),
    )
    return [
        constraint,
        walk,
        torch.randn(3, 4 if depth else 1, vocab_size, generator=generator).to(device),
        random(3, 4),
        torch.tensor([False, False, True], device=device),
        torch.full((3, 4), -2.0, dtype=torch.float64, device=device),
        torch.tensor([1.0, 0.5, 2.0], device=device),
        constraint.width_at(depth),
        top_m,
    ]


def outcome(step: Step) -> list[Tensor]:
    return [*step.walk, *step[1:]]

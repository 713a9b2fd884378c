"""Small stand-ins for models: exact next-token tables, so that true distributions can be enumerated.

And calls of functions that stay as they are, recorded.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import Constraint
from genret.decoding.language_model import PromptPrefix
from genret.decoding.params import check_continuations
from genret.decoding.sequence_model import SequenceChains, SequenceSession
from genret.retrieval.index.reader import Index

LogitsFunction = Callable[[tuple[int, ...], tuple[int, ...]], Tensor]


class TableSession(SequenceSession):
    """A session of a `TableModel` that counts its steps and the branches it writes."""

    num_forwards = num_nodes = 0

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        self.num_forwards += 1
        self.num_nodes += int((parents >= 0).sum())
        return super().step(parents, token_ids, depth)


@dataclass(frozen=True, slots=True)
class TablePrefix:
    """Tokens that prompts begin with; a table has nothing to share."""

    token_ids: tuple[int, ...]
    kv_bytes: int = 0


class TableModel:
    """A language model given by a function of the prompt and the tokens written so far.

    Args:
        vocab_size: Number of logits.
        function: From prompt and written tokens to logits.
        dtype: What the logits are cast to: float64 where a library is to be compared to the last digits.
    """

    device = torch.device("cpu")
    max_positions = None
    max_prompt_tokens = None
    is_encoder_decoder = False

    def __init__(self, vocab_size: int, function: LogitsFunction, dtype: torch.dtype = torch.float32) -> None:
        self.vocab_size = vocab_size
        self.dtype = dtype
        self._function = function
        self._memory: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
        self._logprobs: dict[tuple[tuple[int, ...], tuple[int, ...], float], list[float]] = {}

    @classmethod
    def random(
        cls, vocab_size: int, seed: int, scale: float = 1.5, dtype: torch.dtype = torch.float32
    ) -> TableModel:
        """Independent normal logits for every context, a pure function of (seed, context)."""

        def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
            generator = torch.Generator().manual_seed(hash((seed, prompt, written)) % (2**63))
            return torch.randn(vocab_size, generator=generator) * scale

        return cls(vocab_size, function, dtype)

    def logits(self, prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        key = (prompt, written)
        if key not in self._memory:
            self._memory[key] = self._function(prompt, written).to(self.dtype)
        return self._memory[key]

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> TableSession:
        if prefix is not None:
            check_continuations(prefix.token_ids, prompts)
        return TableSession(SimpleNamespace(logits=self.next_logits), [(tuple(one),) for one in prompts])

    def prefill_chains(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> SequenceChains:
        self.prefill(prompts, prefix)  # refuses what goes on behind no prefix
        return SequenceChains(SimpleNamespace(logits=self.next_logits), [(tuple(one),) for one in prompts])

    def next_logits(self, sequences: Sequence[tuple[Any, ...]]) -> Tensor:
        """Logits behind sequences whose first item is the prompt. Shape: (N, V)."""
        return torch.stack([self.logits(sequence[0], sequence[1:]) for sequence in sequences])

    def share_prefix(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        return TablePrefix(tuple(token_ids))

    def next_logprobs(
        self, prompt: Sequence[int], written: Sequence[int], temperature: float = 1.0
    ) -> list[float]:
        """log P_L(token | prompt, written) in float64."""
        key = (tuple(prompt), tuple(written), temperature)
        if key not in self._logprobs:
            logits = self.logits(*key[:2]).double() / temperature
            self._logprobs[key] = torch.log_softmax(logits, -1).tolist()
        return self._logprobs[key]

    def logprob(self, prompt: Sequence[int], row: Sequence[int], temperature: float = 1.0) -> float:
        """log P_L(row | prompt) in float64, by the chain rule."""
        steps = (self.next_logprobs(prompt, row[:depth], temperature) for depth in range(len(row)))
        return math.fsum(logprobs[token] for token, logprobs in zip(row, steps, strict=True))


def recorded(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """Return the positional arguments of every call of a function from now on; of a method, with `self`."""
    calls: list[tuple[Any, ...]] = []
    function = getattr(owner, name)

    def recording(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, recording)
    return calls


class SelfCancelling(CancelToken):
    """Cancels itself when it is polled more than so many times; counts them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.polls = 0

    def check(self) -> None:
        self.polls += 1
        if self.polls > self._most:
            self.cancel()
        super().check()


def roots(constraint: Constraint, count: int = 1) -> Tensor:
    """Start states of queries 0 … count - 1."""
    return constraint.start(torch.arange(count, device=getattr(constraint, "device", None)))


def end_with(rows: Iterable[Sequence[int]], end: int) -> set[tuple[int, ...]]:
    """Close every row with the end token, so that none is a prefix of another."""
    return {(*row, end) for row in rows}


def tokens_after(rows: Iterable[tuple[int, ...]]) -> defaultdict[tuple[int, ...], set[int]]:
    """Tokens with which some row continues, by prefix."""
    following: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    for row in rows:
        for depth, token in enumerate(row):
            following[row[:depth]].add(token)
    return following


def all_sequences(alphabet: Sequence[int], max_length: int) -> list[tuple[int, ...]]:
    return [
        sequence
        for length in range(1, max_length + 1)
        for sequence in itertools.product(alphabet, repeat=length)
    ]


def normalise(weights: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    total = math.fsum(weights.values())
    return {row: weight / total for row, weight in weights.items()}


def chi_square(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """p-value of counts against a law."""
    rows = sorted(law, key=law.__getitem__, reverse=True)
    n = sum(counts.values())
    observed = [counts[row] for row in rows]
    expected = [n * law[row] for row in rows]
    while len(expected) > 2 and expected[-1] < 5:  # pool the rare tail, as the test's theory asks
        last = expected.pop(), observed.pop()
        expected[-1] += last[0]
        observed[-1] += last[1]
    return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


def likely_titles(index: Index, seed: int = 0, boost: float = 5.0, scale: float = 1.0) -> TableModel:
    """Random logits, with `boost` for every token that continues a title."""
    following = tokens_after(map(index.row_token_ids, range(index.num_rows)))
    noise = TableModel.random(index.vocab_size, seed, scale)

    def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        logits = noise.logits(prompt, written).clone()
        logits[sorted(following[written])] += boost
        return logits

    return TableModel(index.vocab_size, function)

"""Checks numerically, at loading, the architectures that no test of this repository covers.

One random tree below two short prompts is run as plain forward passes over every path, by the model's own
attention and uncached, and then as a token tree. A model whose answers differ is refused by name. `genret
doctor` examines more with the same tools (`decoding.conformance`).

One pass over a leaf's path answers for all branches on it, since a causal model's answer does not depend on
later tokens; branches that several leaves share show the model's own rounding (and whether the model is
causal at all).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from genret.decoding.errors import UnsupportedModelError
from genret.decoding.language_model import LanguageModel
from genret.decoding.model.architectures import other_engine, writable_tokens

_K = TypeVar("_K")

_PROMPT_LENGTHS = (11, 6)
_DEPTH = 3
_BRANCHES = 3
_SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class SelfCheck:
    """Results of plain forward passes, made before the model's attention was replaced."""

    model_type: str  # The architecture, for messages
    dtype: torch.dtype  # What the model computes in
    tree: RandomTree  # What was written
    answers: PlainAnswers  # What was answered

    @classmethod
    def of(cls, model: PreTrainedModel, decoder_prompt: Sequence[int]) -> SelfCheck:
        """Run every path of a random tree alone; UnsupportedModelError if the model fails even so."""
        generator = torch.Generator().manual_seed(_SEED)
        tree = random_tree(_PROMPT_LENGTHS, 1, _DEPTH, _BRANCHES, writable_tokens(model), generator)
        name = model.config.model_type
        try:
            with exactly(model.dtype):
                answers = plain_answers(model, decoder_prompt, tree)
        except Exception as error:
            raise UnsupportedModelError(
                f"model type {name!r} cannot be checked: a plain forward pass failed: {error}"
            ) from error
        return cls(name, model.dtype, tree, answers)

    def refuse_if_different(self, model: LanguageModel) -> None:
        """Decode the same paths as a token tree; UnsupportedModelError if that fails, or they differ."""
        name = self.model_type
        try:
            with exactly(self.dtype):
                difference = self._difference(model)
        except Exception as error:
            raise UnsupportedModelError(
                f"model type {name!r} is not supported: token-tree decoding failed: {error}"
                f"{other_engine(name)}"
            ) from error
        tolerance = Tolerance.relative(self.dtype)
        if not tolerance.holds(difference):
            raise UnsupportedModelError(
                f"model type {name!r} is not supported: token-tree decoding differs from plain forward "
                f"passes by {tolerance.measure(difference):.2g} (relative), at most {tolerance.allowed:g} is "
                f"allowed{other_engine(name)}"
            )

    def _difference(self, model: LanguageModel) -> Difference:
        session = model.prefill(self.tree.prompts)
        found = [session.root_logits[:, None]]
        for parents, tokens in zip(self.tree.parents, self.tree.tokens, strict=True):
            found.append(session.step(parents.to(model.device), tokens.to(model.device)))
        compared = Difference()
        for depth, (got, expected) in enumerate(zip(found, self.answers.logits, strict=True)):
            real = self.tree.columns(depth)
            compared += Difference.between(got.cpu()[real], expected[real])
        return compared


# Largest |difference| of log-probabilities, for types that round finely enough to tell it from a mistake.
_LARGEST = {torch.float64: 1e-9, torch.float32: 1e-4}

# In float32 a few badly conditioned branches may round ten times further while all branches together hardly
# differ. A misplaced position or mask moves the relative difference to 1e-3 and more.
_STRETCH = 10.0
_NEXT_TO_NOTHING = 1e-5

# |difference| / |log-probabilities about their mean|, Euclidean norms. Half precision kernels round
# differently for different batch shapes; a misplaced position or mask changes trained models by far more.
_RELATIVE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.03}


@dataclass(frozen=True, slots=True)
class Difference:
    """Log-probabilities of many branches compared with the expected ones. Differences add up."""

    branches: int = 0  # Distributions compared
    largest: float = 0.0  # Largest |difference| of a log-probability; NaN if one was met
    squared: float = 0.0  # Sum of squared differences
    spread: float = 0.0  # Sum of squares of the expected values, about the mean of every distribution
    agreeing: int = 0  # Distributions with the same likeliest token

    @classmethod
    def between(cls, got: Tensor, expected: Tensor) -> Difference:
        """Compare logits or log-probabilities, row by row. Shape of both: (n, V)."""
        got, expected = got.double().log_softmax(-1), expected.double().log_softmax(-1)
        if not len(got):
            return cls()
        apart = (got - expected).abs()
        return cls(
            branches=len(got),
            largest=float(apart.max()),
            squared=float(apart.square().sum()),
            spread=float((expected - expected.mean(-1, keepdim=True)).square().sum()),
            agreeing=int((got.argmax(-1) == expected.argmax(-1)).sum()),
        )

    def __add__(self, other: Difference) -> Difference:
        """Return the sum. NaN stays NaN."""
        largest = max(self.largest, other.largest)
        if math.isnan(self.largest) or math.isnan(other.largest):
            largest = math.nan
        return Difference(
            self.branches + other.branches,
            largest,
            self.squared + other.squared,
            self.spread + other.spread,
            self.agreeing + other.agreeing,
        )

    @property
    def relative(self) -> float:
        """Norm of the difference over the norm of the expected values about their mean."""
        if self.squared == 0.0:
            return 0.0
        return math.sqrt(self.squared / self.spread) if self.spread else math.inf


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Bound on the differences that rounding explains."""

    allowed: float  # Differences must stay below it
    is_relative: bool  # Whether it bounds `Difference.relative`; otherwise `Difference.largest`
    # Bound on `Difference.largest` while `Difference.relative` is below 1e-5; None for none.
    stretched: float | None = None

    @classmethod
    def relative(cls, dtype: torch.dtype) -> Tolerance:
        """Return a bound on the relative difference, which decides about a model at loading."""
        return cls(_RELATIVE[dtype], is_relative=True)

    @classmethod
    def strict(cls, dtype: torch.dtype) -> Tolerance:
        """Return a bound on every log-probability; half precision gets the relative bound."""
        if dtype not in _LARGEST:
            return cls.relative(dtype)
        allowed = _LARGEST[dtype]
        return cls(allowed, False, allowed * _STRETCH if dtype == torch.float32 else None)

    def measure(self, difference: Difference) -> float:
        """Return the figure of a difference that is bounded."""
        return difference.relative if self.is_relative else difference.largest

    def bound(self, difference: Difference) -> float:
        """Return the bound for a difference."""
        if self.stretched is None or difference.largest < self.allowed:
            return self.allowed
        return self.stretched if difference.relative < _NEXT_TO_NOTHING else self.allowed

    def holds(self, difference: Difference) -> bool:
        """Whether rounding explains a difference. NaN is never explained."""
        return self.measure(difference) < self.bound(difference)

    def worst(self, differences: Mapping[_K, Difference]) -> _K:
        """Return the key of the largest difference; a NaN is larger than anything."""
        return max(
            differences,
            key=lambda key: (math.isnan(differences[key].largest), self.measure(differences[key])),
        )


class Float64Throughout(TorchFunctionMode):
    """Turn the casts to float32 that norms, rotary embeddings and eager softmax hard-code into float64.

    Without it a float64 model of most architectures is only as exact as float32.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function, with float64 wherever it names float32."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            return args[0].double()
        if func in (torch.Tensor.to, torch.nn.functional.softmax):
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def exactly(dtype: torch.dtype) -> AbstractContextManager[object]:
    """Return `Float64Throughout` for float64, so that rounding does not blur comparisons; else nothing."""
    return Float64Throughout() if dtype == torch.float64 else nullcontext()


_PADDING_SHARE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class RandomTree:
    """The trees of Q queries, all of one depth and one width. Depth 0 is the prompt alone."""

    prompts: tuple[tuple[int, ...], ...]  # Their lengths may differ. Length Q
    prefix_length: int  # Tokens of the shared prefix, fewer than the shortest prompt has
    # Column of every branch's parent one level up, -1 for padding branches; 0 at depth 1. Shape: (depth, Q,
    # B), int64.
    parents: Tensor
    tokens: Tensor  # Token of every branch. Shape: (depth, Q, B), int64

    @property
    def num_queries(self) -> int:
        """Q."""
        return len(self.prompts)

    @property
    def depth(self) -> int:
        """Tokens on the deepest branches."""
        return self.tokens.shape[0]

    def columns(self, depth: int) -> Tensor:
        """Return whether each branch is real, not padding. Shape: (Q, B), bool; (Q, 1) at depth 0."""
        if depth == 0:
            return torch.ones(self.num_queries, 1, dtype=torch.bool)
        return self.parents[depth - 1] >= 0

    def ancestry(self, query: int, depth: int, column: int) -> list[int]:
        """Return the columns on the way from depth 0 to a branch, both included. Length depth + 1."""
        columns = [column]
        for level in range(depth - 1, -1, -1):
            column = int(self.parents[level, query, column]) if level else 0
            columns.append(column)
        return columns[::-1]

    def path(self, query: int, depth: int, column: int) -> list[int]:
        """Return the tokens from the prompt to a branch. Length depth."""
        columns = self.ancestry(query, depth, column)
        return [int(self.tokens[level, query, columns[level + 1]]) for level in range(depth)]

    def leaves(self) -> Iterator[tuple[int, int, int]]:
        """Yield (query, depth, column) of every branch without children, childless prompts included."""
        for query in range(self.num_queries):
            for depth in range(self.depth + 1):
                below = set(self.parents[depth, query].tolist()) if depth < self.depth else set()
                for column in self.columns(depth)[query].nonzero()[:, 0].tolist():
                    if column not in below:
                        yield query, depth, column


def random_tree(
    lengths: Sequence[int],
    prefix_length: int,
    depth: int,
    branches: int,
    allowed: Tensor,
    generator: torch.Generator,
) -> RandomTree:
    """Draw a tree: crossing parents, and a fifth of the branches padding, never a query's first column.

    `lengths` are those of the prompts, each above `prefix_length`; `allowed` are the token ids to draw from,
    (n,).
    """

    def draw(*shape: int) -> Tensor:
        return allowed[torch.randint(len(allowed), shape, generator=generator)]

    prefix = draw(prefix_length).tolist()
    prompts = tuple(tuple(prefix + draw(length - prefix_length).tolist()) for length in lengths)
    shape = (depth, len(lengths), branches)
    padding = torch.rand(shape, generator=generator) < _PADDING_SHARE
    padding[:, :, 0] = False
    parents = torch.zeros(shape, dtype=torch.int64)
    for level in range(1, depth):
        for query in range(len(lengths)):
            written = (~padding[level - 1, query]).nonzero()[:, 0]
            parents[level, query] = written[torch.randint(len(written), (branches,), generator=generator)]
    return RandomTree(prompts, prefix_length, parents.masked_fill(padding, -1), draw(*shape))


@dataclass(frozen=True, slots=True, eq=False)
class PlainAnswers:
    """Results of plain forward passes over a tree, on the CPU."""

    # Next-token logits by depth, 0 being the prompt; zeros for padding branches. Shape of each: (Q, B, V);
    # (Q, 1, V) at depth 0.
    logits: list[Tensor]
    # How far passes of different lengths differ over the branches that they share.
    among_themselves: Difference


@torch.no_grad()
def plain_answers(
    model: PreTrainedModel,
    decoder_prompt: Sequence[int],
    tree: RandomTree,
    answered: Callable[[int, Mapping[int, int]], None] = lambda query, columns: None,
) -> PlainAnswers:
    """Run every path of a tree alone, by the model's own attention.

    Args:
        model: The model, its attention not replaced.
        decoder_prompt: Tokens before every path; empty for causal models.
        tree: The tree.
        answered: Called after every pass with the query, and by depth the column of each branch on the path
            that no pass before has answered.
    """
    logits: list[Tensor] = []
    known = [torch.zeros(tree.columns(depth).shape, dtype=torch.bool) for depth in range(tree.depth + 1)]
    rounding = Difference()
    for query, depth, column in tree.leaves():
        found = _run(model, tree.prompts[query], decoder_prompt, tree.path(query, depth, column))
        if not logits:
            logits = [found.new_zeros(*level.shape, found.shape[-1]) for level in known]
        fresh = {}
        for level, place in enumerate(tree.ancestry(query, depth, column)):
            if known[level][query, place]:
                rounding += Difference.between(found[level, None], logits[level][query, place, None])
            else:
                fresh[level] = place
                known[level][query, place] = True
                logits[level][query, place] = found[level]
        answered(query, fresh)
    return PlainAnswers(logits, rounding)


def _run(
    model: PreTrainedModel, prompt: Sequence[int], decoder_prompt: Sequence[int], path: Sequence[int]
) -> Tensor:
    """Logits of the prompt and of a path, on the CPU. Shape: (depth + 1, V)."""
    written = torch.tensor([[*(decoder_prompt or prompt), *path]], device=model.device)
    if decoder_prompt:
        read = torch.tensor([list(prompt)], device=model.device)
        output = model(input_ids=read, decoder_input_ids=written, use_cache=False)
    else:
        output = model(input_ids=written, use_cache=False)
    # A copy: a view would keep the logits of the whole prompt.
    logits: Tensor = output.logits[0, -len(path) - 1 :].cpu().clone()
    return logits

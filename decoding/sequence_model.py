"""Makes a language model of an engine that takes whole token sequences, such as vLLM.

Such an engine has its own batching and its own cache of prefixes, and no tree. A session here only remembers
what every branch wrote; a step hands the engine one sequence per live branch, the prompt and its path. So all
decoders run unchanged on it, and their results are those of the engine's logits. The price is a request per
branch and step, of which the engine computes again what its cache of prefixes does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from genret.decoding.errors import PromptTooLongError
from genret.decoding.language_model import KvUsage, PromptPrefix
from genret.decoding.params import check_continuations, check_prefix, check_prompts
from genret.decoding.row_trees import NodeSpan, RowTrees
from genret.decoding.side_by_side import current_call

Path = tuple[int, ...]


class SequenceEngine(Protocol):
    """An engine that says what may follow whole token sequences."""

    @property
    def vocab_size(self) -> int:
        """Number of logits, V."""

    @property
    def device(self) -> torch.device:
        """Device of the logits."""

    @property
    def max_positions(self) -> int:
        """Most tokens of a sequence."""

    def next_logits(self, sequences: Sequence[Path]) -> Tensor:
        """Return the next-token logits after every sequence, in order; equal sequences may occur.

        Args:
            sequences: Prompts with what was written behind them, none of them empty. Length N.

        Returns:
            Shape: (N, V), float32; the caller may overwrite them.

        Raises:
            DecodingError: the engine failed or is not there.
        """


@dataclass(frozen=True, slots=True, eq=False)
class SequencePass:
    """Sequences that a call wants to ask the engine for (`side_by_side.Forward`)."""

    engine: SequenceEngine
    sequences: Sequence[Path]

    def joins(self, other: object) -> bool:
        """Whether another call's sequences can go to the engine together with these."""
        return isinstance(other, SequencePass) and other.engine is self.engine

    def run_with(self, others: Sequence[SequencePass]) -> list[Tensor]:
        """Ask for these sequences and those of other calls at once; returns the logits of each."""
        passes = [self, *others]
        found = self.engine.next_logits([path for one in passes for path in one.sequences])
        return list(torch.split(found, [len(one.sequences) for one in passes]))


class SequencePrefix:
    """The shared beginning of prompts; the engine's own cache of prefixes holds it (`PromptPrefix`)."""

    kv_bytes = 0  # the engine's own

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = tuple(token_ids)


class SequenceModel:
    """A `LanguageModel` over an engine of whole sequences. Decoder-only; keeps no keys and values.

    `max_positions` are those of prompt and title together: what the engine asks for beyond them is taken off.
    """

    is_encoder_decoder = False

    def __init__(self, engine: SequenceEngine) -> None:
        self.engine = engine
        self.vocab_size, self.device = engine.vocab_size, engine.device
        self.max_positions = self.max_prompt_tokens = engine.max_positions

    def prefill(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> SequenceSession:
        """Ask for the logits behind every prompt; see `LanguageModel.prefill`."""
        return SequenceSession(self, self._checked(prompts, prefix))

    def prefill_chains(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> SequenceChains:
        """Ask for the logits behind every prompt; see `LanguageModel.prefill_chains`."""
        return SequenceChains(self, self._checked(prompts, prefix))

    def share_prefix(self, token_ids: Sequence[int]) -> SequencePrefix:
        """Return the prefix; nothing is run, as the engine finds shared prefixes itself."""
        check_prefix(token_ids, self.vocab_size, self.max_prompt_tokens)
        return SequencePrefix(token_ids)

    def logits(self, paths: Sequence[Path]) -> Tensor:
        """Return logits behind whole sequences, (N, V), float32; PromptTooLongError beyond the positions."""
        longest = max(map(len, paths))
        if longest > self.max_positions:
            raise PromptTooLongError(
                f"the next token needs position {longest} of {self.max_positions} that the engine has"
            )
        running = current_call()
        if running is None:
            return self.engine.next_logits(paths)
        logits: Tensor = running.wait(SequencePass(self.engine, paths), len(paths))
        return logits

    def _checked(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None) -> list[Path]:
        check_prompts(prompts, self.vocab_size, self.max_prompt_tokens)
        if prefix is not None:
            check_continuations(prefix.token_ids, prompts)
        return [tuple(prompt) for prompt in prompts]


class _Prompted:
    """Prompts of a batch, with the logits behind them."""

    def __init__(self, model: SequenceModel, prompts: list[Path], root_logits: Tensor | None = None) -> None:
        self._model = model
        self._prompts = prompts
        self.root_logits = model.logits(prompts) if root_logits is None else root_logits

    @property
    def usage(self) -> KvUsage:
        """Nothing: keys and values are the engine's."""
        return KvUsage()


class SequenceSession(_Prompted):
    """The branches of a batch of prompts, as the tokens that each wrote (`DecodeSession`)."""

    def __init__(self, model: SequenceModel, prompts: list[Path], root_logits: Tensor | None = None) -> None:
        super().__init__(model, prompts, root_logits)
        self._keeps_levels = False
        # Per depth and query the path of every branch; None for padding. Of a depth that is no longer needed
        # nothing is left.
        self._levels: list[list[list[Path | None]]] = []

    def keep_levels(self) -> None:
        """Keep the branches of every depth; see `DecodeSession.keep_levels`."""
        if self._levels and not self._keeps_levels:
            raise ValueError("keep_levels must be called before the first step")
        self._keeps_levels = True

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on B branches of every query; see `DecodeSession.step`."""
        following = len(self._levels) + 1
        depth = following if depth is None else depth
        if not (depth == following or (self._keeps_levels and 1 <= depth < following)):
            raise ValueError(f"depth must be the next, {following}, or an earlier one kept, got {depth}")
        width = parents.shape[1]
        written: list[list[Path | None]] = []
        live: list[int] = []
        paths: list[Path] = []
        for query, (above, tokens) in enumerate(zip(parents.tolist(), token_ids.tolist(), strict=True)):
            level: list[Path | None] = []
            for column, (parent, token) in enumerate(zip(above, tokens, strict=True)):
                before = self._parent(query, parent, depth)
                level.append(None if before is None else (*before, token))
                if before is not None:
                    live.append(query * width + column)
                    paths.append((*self._prompts[query], *before, token))
            written.append(level)
        if depth < following:
            for held, new in zip(self._levels[depth - 1], written, strict=True):
                held.extend(new)
        else:
            if self._levels and not self._keeps_levels:
                self._levels[-1] = []
            self._levels.append(written)
        root = self.root_logits
        logits = root.new_zeros(len(written) * width, root.shape[1])
        if paths:
            logits[torch.tensor(live, device=logits.device)] = self._model.logits(paths)
        return logits.view(len(written), width, -1)

    def tree_writer(self, trees: RowTrees) -> SequenceTrees:
        """Return a writer of whole token trees; see `DecodeSession.tree_writer`."""
        if trees.num_queries != len(self._prompts):
            raise ValueError(f"one tree per query, {len(self._prompts)}, got {trees.num_queries}")
        return SequenceTrees(self._model, self._prompts, trees)

    def select(self, queries: Sequence[int], branches: bool = False) -> Self:
        """Return a session over some of the queries; see `DecodeSession.select`."""
        numbers = list(queries)
        prompts = [self._prompts[query] for query in numbers]
        other = type(self)(self._model, prompts, self.root_logits[numbers])
        if branches:
            other._keeps_levels = self._keeps_levels
            other._levels = [[list(level[query]) for query in numbers if level] for level in self._levels]
        return other

    def _parent(self, query: int, parent: int, depth: int) -> Path | None:
        if parent < 0:
            return None
        return () if depth == 1 else self._levels[depth - 2][query][parent]


class SequenceTrees:
    """Writes given token trees, a sequence per node (`TreeWriter`)."""

    def __init__(self, model: SequenceModel, prompts: list[Path], trees: RowTrees) -> None:
        self._model = model
        self._paths: list[Path] = []
        for query, prompt in enumerate(prompts):
            span = trees.span(query)
            for node in range(span.first, span.end):
                parent = int(trees.parents[node])
                before = prompt if parent < 0 else self._paths[parent]
                self._paths.append((*before, int(trees.tokens[node])))

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        """Return the logits after every node, (P, V), float32; see `TreeWriter.write`."""
        return self._model.logits([path for span in spans for path in self._paths[span.first : span.end]])


class SequenceChains(_Prompted):
    """One text per query, as its tokens (`ChainSession`)."""

    def __init__(self, model: SequenceModel, prompts: list[Path], root_logits: Tensor | None = None) -> None:
        super().__init__(model, prompts, root_logits)
        self._texts: list[Path] = [() for _ in prompts]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that every query has written and not taken back."""
        return tuple(map(len, self._texts))

    def extend(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Write tokens behind those of each query; see `ChainSession.extend`."""
        if len(token_ids) != len(self._texts) or not any(token_ids):
            raise ValueError(f"one list per query, {len(self._texts)}, with a token in one of them")
        width = max(map(len, token_ids))
        places: list[int] = []
        paths: list[Path] = []
        for query, tokens in enumerate(token_ids):
            for place, token in enumerate(tokens):
                self._texts[query] = (*self._texts[query], token)
                places.append(query * width + place)
                paths.append((*self._prompts[query], *self._texts[query]))
        root = self.root_logits
        logits = root.new_zeros(len(token_ids) * width, root.shape[1])
        logits[torch.tensor(places, device=logits.device)] = self._model.logits(paths)
        return logits.view(len(token_ids), width, -1)

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget all but some tokens of each query; see `ChainSession.rewind`."""
        for query, (text, length) in enumerate(zip(self._texts, lengths, strict=True)):
            if not 0 <= length <= len(text):
                raise ValueError(f"query {query} has written {len(text)} tokens, cannot keep {length}")
            self._texts[query] = text[:length]

    def select(self, queries: Sequence[int]) -> Self:
        """Return a session over some queries with their tokens; see `ChainSession.select`."""
        numbers = list(queries)
        prompts = [self._prompts[query] for query in numbers]
        other = type(self)(self._model, prompts, self.root_logits[numbers])
        other._texts = [self._texts[query] for query in numbers]
        return other

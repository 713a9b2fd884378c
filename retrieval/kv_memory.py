"""Keeps shared prefixes of prompts in key/value memory, and meters how much of it a batch takes.

Decoders make sessions of their own from the one they are given. `KvMeter` wraps them all, reads the usage of
each, and keeps none alive; `ChainMeter` does so for answers that are written token by token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from genret.decoding.bounded_cache import BoundedCache
from genret.decoding.language_model import (
    ChainSession,
    DecodeSession,
    KvUsage,
    LanguageModel,
    PromptPrefix,
    TreeWriter,
)
from genret.decoding.row_trees import NodeSpan, RowTrees
from genret.retrieval.errors import InputError
from genret.retrieval.types import KvShare


@dataclass(slots=True)
class _Reading:
    """The last usage of a session, and the numbers of its queries in the batch."""

    queries: tuple[int, ...]
    usage: KvUsage


class KvMeter:
    """Reads the usage of a session, and of every session made from it.

    Attributes:
        session: The same session, metered, for the decoder.
    """

    def __init__(self, session: DecodeSession, num_queries: int) -> None:
        self._readings: list[_Reading] = []
        self.session: DecodeSession = _MeteredSession(session, tuple(range(num_queries)), self._readings)

    def share(self, query: int) -> KvShare:
        """Return the share of one query: in every session an equal part, as their caches are rectangles.

        The first session stays while the others run, and they run one after the other.
        """
        first = self._readings[0]
        mine = [reading for reading in self._readings if query in reading.queries]
        later = max((_part(r.usage.peak_bytes, r) for r in mine if r is not first), default=0)
        held = _part(first.usage.held_bytes, first)
        return KvShare(
            peak_bytes=max(_part(first.usage.peak_bytes, first), held + later),
            per_branch_bytes=max(_part(r.usage.per_branch_bytes, r) for r in mine),
            shared_prefix_bytes=max(r.usage.shared_bytes for r in mine),
            num_collections=sum(r.usage.num_collections for r in mine),
        )


def _part(num_bytes: int, reading: _Reading) -> int:
    return num_bytes // len(reading.queries)


class _MeteredSession:
    """A session whose usage is read after everything that changes it."""

    def __init__(self, session: DecodeSession, queries: tuple[int, ...], readings: list[_Reading]) -> None:
        self._session = session
        self._readings = readings
        self._mine = _Reading(queries, session.usage)
        readings.append(self._mine)

    @property
    def root_logits(self) -> Tensor:
        return self._session.root_logits

    @property
    def usage(self) -> KvUsage:
        return self._session.usage

    def keep_levels(self) -> None:
        self._session.keep_levels()

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        logits = self._session.step(parents, token_ids, depth)
        self._mine.usage = self._session.usage
        return logits

    def tree_writer(self, trees: RowTrees) -> TreeWriter:
        return _MeteredWriter(self._session, self._session.tree_writer(trees), self._mine)

    def select(self, queries: Sequence[int], branches: bool = False) -> DecodeSession:
        numbers = tuple(self._mine.queries[query] for query in queries)
        return _MeteredSession(self._session.select(queries, branches), numbers, self._readings)


class _MeteredWriter:
    """A writer whose session's usage is read after every forward."""

    def __init__(self, session: DecodeSession, writer: TreeWriter, reading: _Reading) -> None:
        self._session, self._writer, self._mine = session, writer, reading

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        logits = self._writer.write(spans)
        self._mine.usage = self._session.usage
        return logits


class ChainMeter:
    """A model that measures its first pass over the prompts (`decoding.language_model`).

    Attributes:
        prefill_ms: Wall time of the prompts, milliseconds; on a GPU until the work was handed over.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.vocab_size = model.vocab_size
        self.device = model.device
        self.max_positions = model.max_positions
        self.max_prompt_tokens = model.max_prompt_tokens
        self.is_encoder_decoder = model.is_encoder_decoder
        self.prefill = model.prefill  # not metered
        self.share_prefix = model.share_prefix
        self.prefill_ms = 0.0
        self._model = model
        self._session: ChainSession | None = None
        self._num_queries = 1

    def prefill_chains(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> ChainSession:
        """Run prompts as the model does, metered."""
        begun = time.perf_counter()
        session = self._model.prefill_chains(prompts, prefix)
        self.prefill_ms += (time.perf_counter() - begun) * 1e3
        self._session, self._num_queries = session, len(prompts)
        return session

    def share(self) -> KvShare:
        """Return the share of one query of the batch: an equal part."""
        if self._session is None:
            return KvShare()
        usage = self._session.usage
        return KvShare(
            peak_bytes=usage.peak_bytes // self._num_queries,
            per_branch_bytes=usage.per_branch_bytes // self._num_queries,
            shared_prefix_bytes=usage.shared_bytes,
            num_collections=usage.num_collections,
        )


DEFAULT_PREFIX_BYTES = 512 * 2**20
# Prompts with different beginnings do not share a forward, and a shared one is a segment of its own in every
# layer's attention, in every step: a few tokens are cheaper to run again. Roughly, on one CPU thread, with
# models of 5 and 25 M parameters and 12 tokens of query: 8 shared tokens take a lone prompt's prefill to 0.9
# of its time, 16 to 0.8, 64 to 0.3 or 0.5; that of eight prompts to 0.7, 0.5 or 0.6, and 0.3.
MIN_PREFIX_TOKENS = 16

_Key = tuple[int, ...]


class PrefixStore:
    """The shared prefixes of one model last used, up to a number of bytes of key/value memory.

    The last one is kept whatever its size. Prefixes in use stay alive with the sessions that use them. Safe
    to use from several threads; of those that miss the same prefix at once, one runs it and the others wait.

    Raises:
        InputError: the bound is negative or no integer.
    """

    def __init__(self, model: LanguageModel, max_bytes: int = DEFAULT_PREFIX_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise InputError("prefix_bytes", f"must be an integer of at least 0, got {max_bytes!r}")
        self._model = model
        # None: cannot be shared
        self._held: BoundedCache[_Key, PromptPrefix | None] = BoundedCache(
            max_bytes,
            lambda key, prefix: 0 if prefix is None else prefix.kv_bytes,
            max_value_size=math.inf,
            single_flight=True,
        )

    @property
    def num_bytes(self) -> int:
        """Key/value memory of the prefixes held."""
        return self._held.size

    def __len__(self) -> int:
        return len(self._held)

    def get(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """Return the prefix of these tokens, run if it is not held; None if too short or not to be shared."""
        key = tuple(token_ids)
        if len(key) < MIN_PREFIX_TOKENS:
            return None
        return self._held.get_or_make(key, lambda: self._model.share_prefix(key))

    def before(self, prompt: Sequence[int], num_shared: int) -> PromptPrefix | None:
        """Return the shared prefix of a prompt, of `num_shared` tokens; at least one token follows it."""
        return None if num_shared >= len(prompt) else self.get(prompt[:num_shared])

    def clear(self) -> None:
        """Drop everything held."""
        self._held.clear()

"""What a batch of answers takes of its model: how long the prompts ran, how much key/value memory is held."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from decoding.language_model import ChainSession, DecodeSession, LanguageModel, PromptPrefix
from retrieval.types import KvShare


class ChainMeter:
    """A model that remembers what its first pass over the prompts took (`decoding.language_model`).

    Args:
        model: The model.

    Attributes:
        prefill_ms: Wall time of the prompts, milliseconds; on a GPU until the work was handed over.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._session: ChainSession | None = None
        self._num_queries = 1
        self.prefill_ms = 0.0

    @property
    def vocab_size(self) -> int:
        """As the model's."""
        return self._model.vocab_size

    @property
    def device(self) -> torch.device:
        """As the model's."""
        return self._model.device

    @property
    def max_positions(self) -> int | None:
        """As the model's."""
        return self._model.max_positions

    @property
    def max_prompt_tokens(self) -> int | None:
        """As the model's."""
        return self._model.max_prompt_tokens

    @property
    def is_encoder_decoder(self) -> bool:
        """As the model's."""
        return self._model.is_encoder_decoder

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> DecodeSession:
        """As the model's; not metered."""
        return self._model.prefill(prompts, prefix)

    def prefill_chains(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> ChainSession:
        """As the model's, metered."""
        begun = time.perf_counter()
        session = self._model.prefill_chains(prompts, prefix)
        self.prefill_ms += (time.perf_counter() - begun) * 1e3
        self._session, self._num_queries = session, len(prompts)
        return session

    def share_prefix(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """As the model's."""
        return self._model.share_prefix(token_ids)

    def share(self) -> KvShare:
        """What one query of the batch answers for: an equal part."""
        if self._session is None:
            return KvShare()
        usage = self._session.usage
        return KvShare(
            peak_bytes=usage.peak_bytes // self._num_queries,
            per_branch_bytes=usage.per_branch_bytes // self._num_queries,
            shared_prefix_bytes=usage.shared_bytes,
            num_collections=usage.num_collections,
        )

"""The model behind one adapter: prompts in, next-token logits of a tree of branches out.

Decoders never see transformers, caches or masks. They prefill a batch of prompts once and then advance
all branches of all queries together; the session keeps one KV entry per written token and shares the
prompt's KV between all branches of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class DecodeSession(Protocol):
    """The token tree of one batch of queries. Q queries; the frontier is rectangular, (Q, B).

    A session is used by one thread and thrown away after the batch.
    """

    @property
    def root_logits(self) -> Tensor:
        """Next-token logits after each prompt. Shape: (Q, V), float32."""

    def step(self, parents: Tensor, token_ids: Tensor) -> Tensor:
        """Write one token on B branches of every query, in one forward.

        Position and attention of a branch are exactly as if it ran alone after its prompt.

        Args:
            parents: For every new branch the index of its parent in the *previous* frontier of the same
                query, in [0, B_previous); at the first step every parent is the prompt and the value is
                ignored. A padding branch has parent -1: it is computed for shape only, its logits are
                meaningless (but finite) and nothing else is affected. Shape: (Q, B), int64.
            token_ids: The token written on each branch; any valid id for padding. Shape: (Q, B), int64.

        Returns:
            Next-token logits of every branch. Shape: (Q, B, V), float32.
        """

    def select(self, queries: Sequence[int]) -> DecodeSession:
        """Return a new session over some of the queries, in that order, without any branches.

        Nothing is run again: the new session takes the prompts' keys and values from this one, which stays
        as it is. Later phases of a decoder use it, so that queries which are done cost nothing.
        """

    @property
    def kv_bytes(self) -> int:
        """Bytes of key/value cache held now, prompts and branches together."""


class LanguageModel(Protocol):
    """An autoregressive model with shared-prompt decoding."""

    @property
    def vocab_size(self) -> int:
        """Number of logits, V."""

    @property
    def device(self) -> torch.device:
        """Where logits live and where token ids are expected."""

    @property
    def max_positions(self) -> int | None:
        """Most positions prompt and title may take together (the title alone for encoder-decoders);
        None when the architecture sets no bound."""

    @property
    def max_prompt_tokens(self) -> int | None:
        """Most prompt tokens accepted when no title follows; None when unbounded."""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether prompts go into an encoder, so that titles have the decoder's positions alone."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> DecodeSession:
        """Run every prompt once and return the session its branches grow from.

        Args:
            prompts: One non-empty token id list per query, lengths may differ. Length Q >= 1.

        Raises:
            PromptTooLongError: a prompt is longer than `max_prompt_tokens`.
        """

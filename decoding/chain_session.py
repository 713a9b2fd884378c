"""Chains over stock transformers models: one branch per query, several tokens a pass, and taking back.

Prompts, cache and attention are the token tree's; a chain differs in what a pass may look at alone. Whatever
architecture the tree is exact for, chains are exact for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.chain_slots import ChainSlots
from decoding.errors import PromptTooLongError
from decoding.hf_session import TreeSession, at_least_float32
from decoding.kv_usage import KvUsage


class TreeChains:
    """The chains of one batch of prompts (`decoding.language_model.ChainSession`).

    Args:
        session: The prompts, just run; its branches are the chains' from now on.
    """

    def __init__(self, session: TreeSession) -> None:
        self._session = session
        self._slots = ChainSlots(session.prompts)

    @property
    def root_logits(self) -> Tensor:
        """Next-token logits after each prompt. Shape: (Q, V), float32."""
        return self._session.root_logits

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that every query has written and not taken back."""
        return tuple(self._slots.lengths.tolist())

    @property
    def usage(self) -> KvUsage:
        """Key/value memory; see `ChainSession.usage`."""
        return self._session.usage

    @torch.no_grad()
    def extend(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Write tokens behind each query's chain, in one pass; see `ChainSession.extend`.

        Never waits for the device.

        Raises:
            PromptTooLongError: a query has used up the model's positions.
            ValueError: not one list per query, or no token at all.
        """
        self._check(token_ids)
        width = max(len(tokens) for tokens in token_ids)
        self._make_room(width)
        tokens, step = self._slots.extend(token_ids)
        return at_least_float32(self._session.run_chains(tokens, step))

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget everything behind some written tokens; see `ChainSession.rewind`.

        Raises:
            ValueError: a query has written fewer.
        """
        self._slots.rewind(lengths)

    @torch.no_grad()
    def select(self, queries: Sequence[int]) -> TreeChains:
        """Return the chains of some queries; see `ChainSession.select`.

        Raises:
            ValueError: no queries.
            IndexError: a query the session does not have.
        """
        other = TreeChains.__new__(TreeChains)
        other._session = self._session.select(queries, branches=True)
        other._slots = self._slots.select(queries)
        return other

    def _check(self, token_ids: Sequence[Sequence[int]]) -> None:
        prompts, limit = self._slots.prompts.lengths, self._session.position_limit
        if len(token_ids) != len(prompts):
            raise ValueError(f"token_ids must have one list per query, {len(prompts)}, got {len(token_ids)}")
        if not any(token_ids):
            raise ValueError("a pass needs at least one token, got none for any query")
        if limit is None:
            return
        for prompt, written, tokens in zip(prompts, self.lengths, token_ids, strict=True):
            if prompt + written + len(tokens) > limit:
                raise PromptTooLongError(
                    f"the next tokens need position {prompt + written + len(tokens)} of {limit}: the prompt "
                    f"has {prompt} tokens and {written} were written after it"
                )

    def _make_room(self, width: int) -> None:
        """Let the cache take one more pass, collecting dead slots before it would have to grow."""
        slots = self._slots
        if slots.num_slots + width > self._session.capacity and slots.most_living < slots.num_slots:
            self._session.compact(slots.collect(), width)
        self._session.make_room(width)

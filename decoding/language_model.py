"""Defines the protocol of a language model: prompts in, next-token logits of a tree of branches out.

Decoders never see transformers, caches or masks. They prefill a batch of prompts once and then advance all
branches of all queries together. The session keeps one KV entry per written token that a branch descends
from; all branches of a query share the prompt's KV, and all queries that of a common prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from genret.decoding.row_trees import NodeSpan, RowTrees


class PromptPrefix(Protocol):
    """Tokens that many prompts begin with, run once. Immutable: any number of sessions may share it."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of key/value cache it holds."""


class TreeWriter(Protocol):
    """Writes given token trees, many depths of many trees in one forward."""

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        """Write nodes, every one of them behind its ancestors.

        Position and attention of a node are exactly as if its path ran alone after its prompt.

        Args:
            spans: Nodes of different queries, none of them empty. The nodes of a tree are written from first
                to last. A span that ends before its tree does must be the last of its forward, and the next
                forward must continue there, or write nothing more of that tree.

        Returns:
            Next-token logits after every node, in the order of the spans, in the type that the model computes
            them in; the caller may overwrite them. Shape: (P, V).
        """


class DecodeSession(Protocol):
    """The token tree of one batch of queries. Q queries; the frontier is rectangular, (Q, B).

    A session is used by one thread and thrown away after the batch.
    """

    @property
    def root_logits(self) -> Tensor:
        """Next-token logits after each prompt. Shape: (Q, V), float32."""

    def keep_levels(self) -> None:
        """Keep the branches of every depth, so that any of them may get children later.

        Must be called before the first step. Without it a session forgets the branches of a frontier once the
        next one is written, and may free keys and values that no branch descends from.

        Raises:
            ValueError: branches were written before this call.
        """

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on B branches of every query, in one forward.

        Position and attention of a branch are exactly as if it ran alone after its prompt.

        Args:
            parents: Index of each new branch's parent among the branches of its query at `depth` - 1: the
                columns of all frontiers of that depth, padding included, in the order written. At depth 1
                every parent is the prompt and the value is ignored. A padding branch has parent -1: its
                logits are meaningless (but finite) and nothing else is affected. Shape: (Q, B), int64.
            token_ids: The token written on each branch; any valid id for padding. Shape: (Q, B), int64.
            depth: Tokens written on the new branches, this one included; None is one more than on the
                deepest. Without `keep_levels` nothing else is allowed, and parents index the *previous*
                frontier.

        Returns:
            Next-token logits of every branch. Shape: (Q, B, V), float32.

        Raises:
            ValueError: `depth` is not in [1, deepest + 1], or not the next without `keep_levels`.
        """

    def tree_writer(self, trees: RowTrees) -> TreeWriter:
        """Return a writer of whole token trees below the prompts of this session.

        The trees stand beside the session's own branches: neither attends to the other, and the session stays
        as it is. Any number of writers may come from one session, one after the other.

        Args:
            trees: One per query.

        Raises:
            PromptTooLongError: a tree needs more positions than the model has.
            ValueError: not one tree per query.
        """

    def select(self, queries: Sequence[int], branches: bool = False) -> DecodeSession:
        """Return a new session over some of the queries, in that order.

        Runs nothing again: the new session takes the prompts' keys and values from this one, which stays as
        it is. With it, later phases of a decoder leave out queries that are done.

        Args:
            queries: Numbers of queries of this session, at least one.
            branches: Whether to take over the written branches too, with their levels if they are kept.
                Otherwise the new session is as `prefill` returns one, without branches and without kept
                levels.
        """

    @property
    def usage(self) -> KvUsage:
        """Key/value memory of this session. Never waits for the device."""


class ChainSession(Protocol):
    """One text per query, written several tokens at a time, of which some may be taken back. Q queries.

    A session is used by one thread and thrown away after the batch.
    """

    @property
    def root_logits(self) -> Tensor:
        """Next-token logits after each prompt. Shape: (Q, V), float32."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that every query has written and not taken back. Length Q."""

    def extend(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Write tokens behind those of each query, in one forward.

        Positions and attention are exactly as if every query ran alone and token by token.

        Args:
            token_ids: New tokens of every query, of any number, possibly none. Length Q.

        Returns:
            Next-token logits after each new token, those of a query first; the rows behind a query's last
            token are meaningless, but finite. Shape: (Q, longest, V), float32.

        Raises:
            PromptTooLongError: a query would need more positions than the model has.
            ValueError: not one list per query, or no token at all.
        """

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget all but `lengths` tokens of each query; ValueError if a query has written fewer."""

    def select(self, queries: Sequence[int]) -> ChainSession:
        """Return a new session over some queries, at least one, with their tokens; runs nothing again."""

    @property
    def usage(self) -> KvUsage:
        """Key/value memory of this session. Never waits for the device."""


class LanguageModel(Protocol):
    """An autoregressive model with shared-prompt decoding."""

    @property
    def vocab_size(self) -> int:
        """Number of logits, V."""

    @property
    def device(self) -> torch.device:
        """Device of logits and of token ids."""

    @property
    def max_positions(self) -> int | None:
        """Most positions of prompt and title (encoder-decoders: of the title alone); None without bound."""

    @property
    def max_prompt_tokens(self) -> int | None:
        """Most prompt tokens accepted when no title follows; None without bound."""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads the prompts, so that titles alone take the decoder's positions."""

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> DecodeSession:
        """Run every prompt once and return the session its branches grow from.

        Args:
            prompts: One non-empty token id list per query, lengths may differ. Length Q >= 1.
            prefix: Beginning of every prompt, from this model's `share_prefix`; it is not run again. At least
                one token must follow it in every prompt.

        Raises:
            PromptTooLongError: a prompt is longer than `max_prompt_tokens`.
            ValueError: a prompt does not begin with the prefix, or ends with it.
        """

    def prefill_chains(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> ChainSession:
        """Run every prompt once and return a session that writes one text per query behind it.

        Args and errors are those of `prefill`.
        """

    def share_prefix(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """Run tokens that many prompts begin with, for `prefill`.

        Args:
            token_ids: Not empty.

        Returns:
            None if the model cannot share a prefix: an encoder reads prompts in both directions.

        Raises:
            PromptTooLongError: they leave no room for another token.
        """


@dataclass(frozen=True, slots=True)
class KvUsage:
    """Key/value memory of a session, in bytes of storage."""

    # Held now: prompts, branches and reserved room. Here and in the next two, without a prefix shared with
    # other sessions.
    held_bytes: int = 0
    # Part of it behind written slots: prompts with their padding, and branches not collected.
    used_bytes: int = 0
    peak_bytes: int = 0  # Most held at any time, copies during growing and compacting included
    # Most that one cache per branch would have held, as batched beam search keeps it: in its costliest step
    # every branch with its whole prompt, the shared prefix included, and its path. Prompts of a batch are as
    # long as the longest, as in such a search. An encoder-decoder's cross-attention counts once per branch.
    per_branch_bytes: int = 0
    shared_bytes: int = 0  # Memory of the shared prefix, held once for all sessions that use it
    num_collections: int = 0  # Collections of dead branches

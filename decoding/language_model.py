"""Defines the protocol of a language model: prompts in, next-token logits of a tree of branches out.

Decoders never see transformers, caches or masks. They prefill a batch of prompts once and then advance all
branches of all queries together; the session keeps one KV entry per written token that a branch descends
from, and shares the prompt's KV between all branches of a query, and a common prefix's between all queries.
A session also says how much key/value memory it takes, and what one cache per branch would have taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from decoding.row_trees import NodeSpan, RowTrees


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
            spans: Nodes of different queries, none of them empty. The nodes of a tree are written from its
                first to its last. A span that ends before its tree does is the last one of its forward; the
                next forward begins where it ended, or nothing more of that tree is written.

        Returns:
            Next-token logits after every node, in the order of the spans, in the type that the model computes
            them in; the caller's to overwrite. Shape: (P, V).
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

        To be called before the first step. A session otherwise forgets which branches a frontier had once
        it has written the next one, and may free the keys and values of branches that nothing descends from.

        Raises:
            ValueError: branches have been written without.
        """

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on B branches of every query, in one forward.

        Position and attention of a branch are exactly as if it ran alone after its prompt.

        Args:
            parents: For every new branch the index of its parent among the branches of the same query that
                were written at `depth` - 1: the columns of all frontiers of that depth, padding included,
                in the order written. At depth 1 every parent is the prompt and the value is ignored. A
                padding branch has parent -1: it is computed for shape only, its logits are meaningless
                (but finite) and nothing else is affected. Shape: (Q, B), int64.
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
        """Return what writes whole token trees below the prompts of this session.

        The trees stand beside the session's own branches, written or not: neither sees the other, and the
        session stays as it is. Any number of writers may come from one session, one after the other.

        Args:
            trees: One per query.

        Raises:
            PromptTooLongError: a tree needs more positions than the model has.
            ValueError: not one tree per query.
        """

    def select(self, queries: Sequence[int], branches: bool = False) -> DecodeSession:
        """Return a new session over some of the queries, in that order.

        Nothing is run again: the new session takes the prompts' keys and values from this one, which stays
        as it is. Later phases of a decoder use it, so that queries which are done cost nothing.

        Args:
            queries: Numbers of queries of this session, at least one.
            branches: Whether to take over the written branches too, with their levels where they are kept.
                Otherwise the new session is as `prefill` returns one: it has no branches, and keeps levels
                only after a `keep_levels` of its own.
        """

    @property
    def usage(self) -> KvUsage:
        """Key/value memory of this session. Never waits for the device."""


class ChainSession(Protocol):
    """One text per query, written several tokens at a time and taken back where it was wrong. Q queries.

    A session is used by one thread and thrown away after the batch.
    """

    @property
    def root_logits(self) -> Tensor:
        """Next-token logits after each prompt. Shape: (Q, V), float32."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that every query has written and not taken back. Length Q."""

    def extend(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Write tokens behind what each query has written, in one forward.

        Positions and attention are exactly as if every query ran alone and token by token.

        Args:
            token_ids: What every query writes; queries may write different numbers of tokens, and some of
                them none. Length Q.

        Returns:
            Next-token logits after each new token, those of a query first; the rows behind a query's last
            token are meaningless, but finite. Shape: (Q, longest, V), float32.

        Raises:
            PromptTooLongError: a query would need more positions than the model has.
            ValueError: not one list per query, or no token at all.
        """

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget everything behind some written tokens, as if it had never been written.

        Args:
            lengths: Tokens that every query keeps, at most as many as it has. Length Q.

        Raises:
            ValueError: a query has written fewer.
        """

    def select(self, queries: Sequence[int]) -> ChainSession:
        """Return a new session over some of the queries with what they have written, in that order.

        Nothing is run again; this session stays as it is.

        Args:
            queries: Numbers of queries of this session, at least one.
        """

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

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> DecodeSession:
        """Run every prompt once and return the session its branches grow from.

        Args:
            prompts: One non-empty token id list per query, lengths may differ. Length Q >= 1.
            prefix: What every prompt begins with, from this model's `share_prefix`; it is not run again. At
                least one token must follow it in every prompt.

        Raises:
            PromptTooLongError: a prompt is longer than `max_prompt_tokens`.
            ValueError: a prompt does not begin with the prefix, or ends with it.
        """

    def prefill_chains(
        self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None
    ) -> ChainSession:
        """Run every prompt once and return the session in which one text per query is written behind it.

        Args and errors are those of `prefill`.
        """

    def share_prefix(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """Run tokens that many prompts begin with, for `prefill`.

        Args:
            token_ids: Not empty.

        Returns:
            None where a prefix cannot be shared: an encoder reads prompts in both directions.

        Raises:
            PromptTooLongError: they leave no room for another token.
        """


@dataclass(frozen=True, slots=True)
class KvUsage:
    """Key/value memory of a session, in bytes of storage.

    Attributes:
        held_bytes: Held now: prompts, branches and reserved room. A prefix shared with other sessions is not
            counted, here and in the next two.
        used_bytes: Of these, behind slots that have been written: prompts with their padding, and branches
            that have not been collected.
        peak_bytes: Most held at any time, the copies included that growing and compacting make.
        per_branch_bytes: Most that one cache per branch would have held, as batched beam search keeps it: in
            its costliest step every branch with its whole prompt, the shared prefix included, and its path.
            Prompts of a batch are as long as the longest, as they are in such a search. An encoder-decoder's
            cross-attention counts once per branch.
        shared_bytes: Of the shared prefix, held once for all sessions that use it.
        num_collections: How often dead branches were collected.
    """

    held_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0
    per_branch_bytes: int = 0
    shared_bytes: int = 0
    num_collections: int = 0


class PerBranchCost:
    """Counts what one cache per branch would have held, without ever making one.

    Args:
        num_queries: Q.
        prompt_tokens: Decoder tokens before the first branch, of the longest prompt, its prefix included.
        token_bytes: Keys and values of one token in all layers.
        fixed_bytes: What every branch holds besides: an encoder-decoder's cross-attention.
    """

    __slots__ = ("_fixed_bytes", "_num_queries", "_prompt_tokens", "_token_bytes", "most_bytes")

    def __init__(self, num_queries: int, prompt_tokens: int, token_bytes: int, fixed_bytes: int) -> None:
        self._num_queries = num_queries
        self._prompt_tokens = prompt_tokens
        self._token_bytes = token_bytes
        self._fixed_bytes = fixed_bytes
        self.most_bytes = 0
        self.note(1, 0)

    def note(self, branches: int, depth: int) -> None:
        """Count one frontier of `branches` per query, padding included, `depth` tokens below the prompt."""
        path_bytes = (self._prompt_tokens + depth) * self._token_bytes
        cost = self._num_queries * branches * (path_bytes + self._fixed_bytes)
        self.most_bytes = max(self.most_bytes, cost)

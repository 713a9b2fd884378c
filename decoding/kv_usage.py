"""How much key/value memory a session takes, and what one cache per branch would take."""

from __future__ import annotations

from dataclasses import dataclass


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

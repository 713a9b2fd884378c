"""A random Llama that leans towards titles, so that what is drawn from it looks like a real model's draws.

Random weights alone know no titles: nearly every draw would have a weight of zero, and no two would share a
token. Two things are done. The final norm is scaled, so that logits have the given standard deviation and the
likeliest few tokens hold most of the probability; all other weights are as transformers initialises them. And
the logits of the tokens that continue a title are raised, at every step and on every branch, until together
they have the probability asked for, so that a draw that wrote n tokens has the weight `valid`^n. The raising
costs a logarithm of a sum over the vocabulary per branch, the same for everything that is compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from genret.decoding.language_model import DecodeSession, KvUsage, LanguageModel, PromptPrefix
from genret.decoding.trie.title_trie import TitleTrie


class LeaningModel:
    """A model that gives all valid tokens together a probability in (0, 1) at every step."""

    def __init__(self, model: LanguageModel, trie: TitleTrie, valid: float) -> None:
        self._model, self._trie, self._odds = model, trie, math.log(valid / (1.0 - valid))

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> LeaningSession:
        """Run the prompts; see `LanguageModel.prefill`."""
        start = self._trie.start(torch.arange(len(prompts)))
        return LeaningSession(self, self._model.prefill(prompts, prefix), [start.unsqueeze(1)])

    def lean(self, logits: Tensor, states: Tensor) -> Tensor:
        """Raise the logits of valid tokens. Shapes: (..., V) and (...)."""
        flat = logits.flatten(0, -2).clone()
        children = self._trie.children(states.flatten())
        valid = flat[children.owner, children.token]
        largest = flat.new_full((len(flat),), -math.inf)
        largest = largest.scatter_reduce(0, children.owner, valid, "amax").nan_to_num(neginf=0.0)
        shares = flat.new_zeros(len(flat)).scatter_add(
            0, children.owner, (valid - largest[children.owner]).exp()
        )
        log_valid = shares.log() + largest
        log_all = torch.logsumexp(flat, dim=-1)
        log_invalid = log_all + torch.log1p(-(log_valid - log_all).exp().clamp(max=1 - 1e-6))
        raised = self._odds + log_invalid - log_valid
        flat[children.owner, children.token] = valid + raised[children.owner]
        return flat.view(logits.shape)

    def follow(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Return the states after one token each; invalid padding stays at the start. Shapes: (Q, B)."""
        flat = self._trie.advance(states.flatten(), token_ids.flatten()).view(states.shape)
        start = self._trie.start(torch.arange(len(states))).unsqueeze(1)
        return torch.where(flat >= 0, flat, start)


class LeaningSession:
    """A session of a `LeaningModel` (`decoding.language_model.DecodeSession`).

    `levels` are the trie's states behind the prompts and on the branches of each depth, (Q, B) each.
    """

    def __init__(self, model: LeaningModel, session: DecodeSession, levels: list[Tensor]) -> None:
        self._model, self._session, self._levels = model, session, levels
        self._root = model.lean(session.root_logits, levels[0][:, 0])

    @property
    def root_logits(self) -> Tensor:
        """Logits after each prompt. Shape: (Q, V)."""
        return self._root

    @property
    def usage(self) -> KvUsage:
        """Memory of the session below."""
        return self._session.usage

    def keep_levels(self) -> None:
        """Keep all levels."""
        self._session.keep_levels()

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on every branch; see `DecodeSession.step`."""
        logits = self._session.step(parents, token_ids, *(() if depth is None else (depth,)))
        level = len(self._levels) if depth is None else depth
        above = torch.zeros_like(parents) if level == 1 else parents.clamp(min=0)
        states = self._model.follow(self._levels[level - 1].gather(1, above), token_ids)
        if level == len(self._levels):
            self._levels.append(states)
        else:
            self._levels[level] = torch.cat([self._levels[level], states], dim=1)
        return self._model.lean(logits, states)

    def select(self, queries: Sequence[int], branches: bool = False) -> LeaningSession:
        """Return a session over some of the queries."""
        chosen = list(queries)
        session = self._session.select(chosen, branches=True) if branches else self._session.select(chosen)
        kept = self._levels if branches else self._levels[:1]
        return LeaningSession(self._model, session, [level[chosen] for level in kept])

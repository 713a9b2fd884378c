"""Decode sessions over stock transformers models: the token tree of one batch of prompts.

`CausalSession` writes the prompts into the tree's cache. `EncoderDecoderSession` runs the encoder once, keeps
one cross-attention cache per query, and writes the decoder's start tokens as the prompt of the tree.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from decoding.errors import PromptTooLongError
from decoding.kv_usage import KvUsage
from decoding.token_tree import TokenTree
from decoding.tree_attention import BranchPass, PromptPass
from decoding.tree_cache import TreeCache

# Position of the frontier, for decoders that would otherwise number positions by cache slot. Set for one
# call in one thread, so that sessions in different threads do not meet.
_FRONTIER_POSITIONS: ContextVar[Tensor | None] = ContextVar("genret_frontier_positions", default=None)


class TreeSession(ABC):
    """The token trees of one batch of prompts (`decoding.language_model.DecodeSession`).

    Logits are float32, and float64 for a model that computes in float64.

    Args:
        model: The model, its attention already replaced by the tree's.
        prompt_lengths: Tokens the decoder reads before the first branch, per query. Length Q.
        position_limit: Positions of the decoder, None without bound.
        shared_bias: Module with the relative bias table of the layers that have none themselves.
    """

    root_logits: Tensor

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_lengths: Sequence[int],
        position_limit: int | None,
        shared_bias: nn.Module | None,
    ) -> None:
        self._model = model
        self._limit = position_limit
        self._shared_bias = shared_bias
        self._tree = TokenTree(prompt_lengths, model.device)
        self._prompt_pass = PromptPass.of(prompt_lengths, model.device, shared_bias)
        self._cache = TreeCache()
        # Any mask with four axes keeps transformers from building one out of slot numbers.
        self._no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=model.device)

    @property
    def usage(self) -> KvUsage:
        """Key/value memory; see `DecodeSession.usage`."""
        return KvUsage(held_bytes=self._held_bytes)

    @property
    def _held_bytes(self) -> int:
        return self._cache.held_bytes

    def keep_levels(self) -> None:
        """Keep the branches of every depth; see `DecodeSession.keep_levels`.

        Raises:
            ValueError: branches have been written without.
        """
        self._tree.keep_levels()

    @torch.no_grad()
    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on B branches of every query; see `DecodeSession.step`.

        Raises:
            PromptTooLongError: a query with live branches has used up the model's positions.
            ValueError: the shapes do not fit the session, or `depth` is no depth it can write at.
        """
        queries = self._tree.num_queries
        if parents.shape != token_ids.shape or parents.ndim != 2 or parents.shape[0] != queries:
            raise ValueError(
                f"parents and token_ids must both have shape ({queries}, B), "
                f"got {tuple(parents.shape)} and {tuple(token_ids.shape)}"
            )
        if parents.shape[1] == 0:
            raise ValueError("a frontier needs at least one branch, got B = 0")
        depth = self._tree.checked_depth(depth)
        overflows = self._limit is not None and self._tree.longest_prompt + depth > self._limit
        if overflows:
            self._refuse_live_overflow(parents, depth)
        growth = self._tree.grow(parents, depth)
        tree = BranchPass(growth, self._cache, self._shared_bias)
        positions = growth.positions[:, None].expand(parents.shape)
        if overflows and self._limit is not None:
            positions = positions.clamp(max=self._limit - 1)  # padding of queries that have ended
        return _at_least_float32(self._forward(token_ids, positions, tree))

    def _refuse_live_overflow(self, parents: Tensor, depth: int) -> None:
        """Raise if a query that still has branches is out of positions; ended ones do not matter.

        Asks the device, but only once a prompt of the batch has no position left.
        """
        live = (parents >= 0).any(dim=1).tolist()
        for length, alive in zip(self._tree.prompt_lengths, live, strict=True):
            needed = length + depth
            if alive and self._limit is not None and needed > self._limit:
                raise PromptTooLongError(
                    f"the next token needs position {needed} of {self._limit}: the prompt has "
                    f"{length} tokens and {depth - 1} were written after it"
                )

    @torch.no_grad()
    def select(self, queries: Sequence[int], branches: bool = False) -> Self:
        """Return a session over some of the queries; see `DecodeSession.select`.

        Raises:
            ValueError: no queries.
            IndexError: a query the session does not have.
        """
        chosen = torch.tensor(list(queries), dtype=torch.int64, device=self.root_logits.device)
        return self._select(queries, chosen, branches)

    def _select(self, queries: Sequence[int], chosen: Tensor, branches: bool) -> Self:
        """`select`, the queries also given on the device. Shape of `chosen`: (n,), int64."""
        other = copy.copy(self)
        other._tree = self._tree.select(queries, chosen, branches)
        other._cache = self._cache.select(chosen, other._tree.longest_prompt, branches)
        other.root_logits = self.root_logits[chosen]
        return other

    @abstractmethod
    def _forward(self, token_ids: Tensor, positions: Tensor, tree: BranchPass) -> Tensor:
        """Logits of one frontier in the model's type. Shape: (Q, B, V)."""


class CausalSession(TreeSession):
    """Decoder-only models.

    Args:
        model: As in `TreeSession`.
        prompts: Non-empty token id lists. Length Q.
        position_limit: As in `TreeSession`.
        shared_bias: As in `TreeSession`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        position_limit: int | None,
        shared_bias: nn.Module | None,
    ) -> None:
        super().__init__(model, [len(prompt) for prompt in prompts], position_limit, shared_bias)
        self.root_logits = self._run_prompts(prompts)

    @torch.no_grad()
    def _run_prompts(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        width = self._tree.longest_prompt
        # Padding stands on the left, so that the last column holds the last token of every prompt.
        padded = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        positions = self._tree.prompt_positions.clamp(min=0)
        last_only = {"logits_to_keep": 1} if _accepts(self._model, "logits_to_keep") else {}
        output = self._model(
            input_ids=torch.tensor(padded, device=self._model.device),
            position_ids=positions,
            attention_mask=self._no_mask,
            past_key_values=self._cache,
            use_cache=True,
            tree=self._prompt_pass,
            **last_only,
        )
        return _at_least_float32(output.logits[:, -1])

    def _forward(self, token_ids: Tensor, positions: Tensor, tree: BranchPass) -> Tensor:
        output = self._model(
            input_ids=token_ids,
            position_ids=positions,
            attention_mask=self._no_mask,
            past_key_values=self._cache,
            use_cache=True,
            tree=tree,
        )
        logits: Tensor = output.logits
        return logits


class EncoderDecoderSession(TreeSession):
    """Encoder-decoder models. All queries have the same decoder prompt, so all stand at one position.

    Args:
        model: As in `TreeSession`.
        prompts: What the encoder reads: non-empty token id lists. Length Q.
        decoder_prompt: Tokens that stand before every title.
        position_limit: As in `TreeSession`.
        shared_bias: As in `TreeSession`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        decoder_prompt: Sequence[int],
        position_limit: int | None,
        shared_bias: nn.Module | None,
    ) -> None:
        super().__init__(model, [len(decoder_prompt)] * len(prompts), position_limit, shared_bias)
        self._cross = DynamicCache()
        self._past = EncoderDecoderCache(self._cache, self._cross)
        self._takes_positions = _accepts(model, "decoder_position_ids")
        self.root_logits = self._run_prompts(prompts, decoder_prompt)

    def _select(self, queries: Sequence[int], chosen: Tensor, branches: bool) -> Self:
        other = super()._select(queries, chosen, branches)
        other._cross = DynamicCache()
        layers: list[Any] = self._cross.layers
        for number, layer in enumerate(layers):
            other._cross.update(layer.keys[chosen], layer.values[chosen], number)
        other._past = EncoderDecoderCache(other._cache, other._cross)
        other._encoder_mask = self._encoder_mask[chosen]
        other._encoded = self._encoded[: len(queries)]  # a stand-in: only its shape is asked for
        return other

    @property
    def _held_bytes(self) -> int:
        """Bytes of key/value storage held now, the cross-attention's included."""
        cross = sum(
            part.untyped_storage().nbytes()
            for layer in self._cross.layers
            for part in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if isinstance(part, Tensor)
        )
        return super()._held_bytes + cross

    @torch.no_grad()
    def _run_prompts(self, prompts: Sequence[Sequence[int]], decoder_prompt: Sequence[int]) -> Tensor:
        width = max(len(prompt) for prompt in prompts)
        device = self._model.device
        # Encoders count positions from the left edge: padding stands on the right.
        padded = [list(prompt) + [0] * (width - len(prompt)) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = torch.arange(width, device=device)[None, :] < lengths[:, None]
        encoded: Tensor = self._model.get_encoder()(
            input_ids=torch.tensor(padded, device=device), attention_mask=mask.long(), return_dict=True
        ).last_hidden_state
        self._encoder_mask = mask[:, None, None, :]
        self._encoded = encoded
        start = torch.tensor(decoder_prompt, device=device).expand(len(prompts), -1)
        positions = torch.arange(len(decoder_prompt), device=device).expand(len(prompts), -1)
        logits = self._run_decoder(start, positions, self._prompt_pass)
        # The cross-attention cache is full. Later passes only ask whether there is an encoding and how
        # long it is, so a view of one zero stands in for it.
        self._encoded = encoded.new_zeros(()).expand(encoded.shape)
        return _at_least_float32(logits[:, -1])

    def _forward(self, token_ids: Tensor, positions: Tensor, tree: BranchPass) -> Tensor:
        with _frontier_at(positions[0]):
            return self._run_decoder(token_ids, positions, tree)

    def _run_decoder(self, token_ids: Tensor, positions: Tensor, tree: PromptPass | BranchPass) -> Tensor:
        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded),
            attention_mask=self._encoder_mask,
            decoder_input_ids=token_ids,
            decoder_attention_mask=self._no_mask,
            past_key_values=self._past,
            use_cache=True,
            tree=tree,
            **({"decoder_position_ids": positions} if self._takes_positions else {}),
        )
        logits: Tensor = output.logits
        return logits


def use_true_positions(embedding: nn.Module) -> None:
    """Let a decoder's position embedding take the frontier's position instead of cache slot numbers.

    BART's decoder numbers positions by slots and takes no `position_ids` from outside. Branches lie side
    by side in the slots, so those numbers are wrong from the second branch on, and run past the table's
    end. Idempotent.
    """
    if not getattr(embedding, "takes_frontier_positions", False):
        embedding.register_forward_pre_hook(_replace_positions, with_kwargs=True)
        embedding.takes_frontier_positions = True  # type: ignore[assignment]


def _replace_positions(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positions = _FRONTIER_POSITIONS.get()
    return (args, kwargs) if positions is None else (args, {**kwargs, "position_ids": positions})


@contextmanager
def _frontier_at(positions: Tensor) -> Iterator[None]:
    """Say at which position the frontier stands. `positions` shape: (B,), int64."""
    token = _FRONTIER_POSITIONS.set(positions)
    try:
        yield
    finally:
        _FRONTIER_POSITIONS.reset(token)


def _accepts(model: PreTrainedModel, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))

"""The token tree over encoder-decoders: prompts go into the encoder, titles grow in the decoder.

The encoder runs once, the cross-attention's keys and values are kept once per query, and the decoder's start
tokens are the prompt of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from decoding.branch_attention import BranchPass
from decoding.hf_session import TreeModel, TreeSession, accepts, at_least_float32
from decoding.prompt_attention import PromptPass
from decoding.prompt_layout import PromptLayout
from decoding.whole_tree_attention import WholeTreePass

# Positions of the tokens of a pass, for decoders that would otherwise number them by cache slot. Set for one
# call in one thread, so that sessions in different threads do not meet. Shape: (Q, B).
_FRONTIER_POSITIONS: ContextVar[Tensor | None] = ContextVar("genret_frontier_positions", default=None)


class EncoderDecoderSession(TreeSession):
    """Encoder-decoder models. All queries have the same decoder prompt, so all stand at one position.

    Args:
        model: The model.
        prompts: What the encoder reads: non-empty token id lists. Length Q.
        decoder_prompt: Tokens that stand before every title.
    """

    def __init__(
        self, model: TreeModel, prompts: Sequence[Sequence[int]], decoder_prompt: Sequence[int]
    ) -> None:
        super().__init__(model, PromptLayout([len(decoder_prompt)] * len(prompts), model.inner.device))
        self._cross = DynamicCache()
        self._past = EncoderDecoderCache(self._cache, self._cross)
        self._takes_positions = accepts(model.inner, "decoder_position_ids")
        self.root_logits = self._run_prompts(prompts, decoder_prompt)
        self._count_from_here()

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
    def _cross_bytes(self) -> int:
        return sum(
            part.untyped_storage().nbytes()
            for layer in self._cross.layers
            for part in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if isinstance(part, Tensor)
        )

    @torch.no_grad()
    def _run_prompts(self, prompts: Sequence[Sequence[int]], decoder_prompt: Sequence[int]) -> Tensor:
        width = max(len(prompt) for prompt in prompts)
        device = self._model.inner.device
        # Encoders count positions from the left edge: padding stands on the right.
        padded = [list(prompt) + [0] * (width - len(prompt)) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = torch.arange(width, device=device)[None, :] < lengths[:, None]
        encoded: Tensor = self._model.inner.get_encoder()(
            input_ids=torch.tensor(padded, device=device), attention_mask=mask.long(), return_dict=True
        ).last_hidden_state
        self._encoder_mask = mask[:, None, None, :]
        self._encoded = encoded
        start = torch.tensor(decoder_prompt, device=device).expand(len(prompts), -1)
        positions = torch.arange(len(decoder_prompt), device=device).expand(len(prompts), -1)
        # These models compute logits of every position, of which there are one or two here.
        tree = PromptPass.of(self._tree.prompts.own_lengths, device, self._model.shared_bias)
        logits = self._run_decoder(start, positions, tree, self._past)
        # The cross-attention cache is full. Later passes only ask whether there is an encoding and how
        # long it is, so a view of one zero stands in for it.
        self._encoded = encoded.new_zeros(()).expand(encoded.shape)
        return at_least_float32(logits[:, -1])

    def _forward(self, token_ids: Tensor, positions: Tensor, tree: BranchPass) -> Tensor:
        with _frontier_at(positions):
            return self._run_decoder(token_ids, positions, tree, self._past)

    def _forward_whole_trees(self, tree: WholeTreePass) -> Tensor:
        past = EncoderDecoderCache(tree.kept, self._cross)
        with _frontier_at(tree.piece.positions):
            return self._run_decoder(tree.piece.tokens, tree.piece.positions, tree, past)

    def _run_decoder(
        self,
        token_ids: Tensor,
        positions: Tensor,
        tree: PromptPass | BranchPass | WholeTreePass,
        past: EncoderDecoderCache,
    ) -> Tensor:
        output = self._model.inner(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded),
            attention_mask=self._encoder_mask,
            decoder_input_ids=token_ids,
            decoder_attention_mask=self._no_mask,
            past_key_values=past,
            use_cache=True,
            tree=tree,
            **({"decoder_position_ids": positions} if self._takes_positions else {}),
        )
        logits: Tensor = output.logits
        return logits


def use_true_positions(embedding: nn.Module) -> None:
    """Let a decoder's position embedding take the pass's positions instead of cache slot numbers.

    BART's decoder numbers positions by slots and takes no `position_ids` from outside. Branches lie side
    by side in the slots, so those numbers are wrong from the second branch on, and run past the table's
    end. Idempotent.
    """
    if not getattr(embedding, "takes_frontier_positions", False):
        embedding.register_forward_pre_hook(_replace_positions, with_kwargs=True)
        embedding.register_forward_hook(_shape_as_positions)
        embedding.takes_frontier_positions = True  # type: ignore[assignment]


def _replace_positions(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positions = _FRONTIER_POSITIONS.get()
    # The embedding takes one row of positions for all queries of a batch, and these differ by query.
    return (args, kwargs) if positions is None else (args, {**kwargs, "position_ids": positions.flatten()})


def _shape_as_positions(_: nn.Module, __: tuple[Any, ...], embedded: Tensor) -> Tensor:
    positions = _FRONTIER_POSITIONS.get()
    return embedded if positions is None else embedded.view(*positions.shape, -1)


@contextmanager
def _frontier_at(positions: Tensor) -> Iterator[None]:
    """Say at which positions the tokens of a pass stand. `positions` shape: (Q, B), int64."""
    token = _FRONTIER_POSITIONS.set(positions)
    try:
        yield
    finally:
        _FRONTIER_POSITIONS.reset(token)

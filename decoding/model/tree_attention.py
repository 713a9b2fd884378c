"""Attends over the token tree, as one function that stock transformers models call.

Registered as `genret_tree` beside transformers' own attention functions. The extra argument `tree` of a
forward pass names its kind: a `PromptPass` writes the prompts (`decoding.model.prefill`), a `BranchPass` one
frontier of branches or the next tokens of chains, a `WholeTreePass` nodes of all depths
(`decoding.model.whole_trees`). Without it, in encoders and in cross-attention the function is plain scaled
dot product attention.

Masks come from positions and ancestry alone; whatever mask a model builds for itself is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from genret.decoding.errors import UnsupportedModelError
from genret.decoding.model.prefill import PromptPass, attend_prompts
from genret.decoding.model.segment_attention import (
    Rule,
    attend,
    bias_by_distance,
    causal_mask,
    visible_segments,
)
from genret.decoding.model.token_tree import BranchStep
from genret.decoding.model.tree_cache import PackedFrontier, TreeCache
from genret.decoding.model.whole_trees import WholeTreePass, attend_whole_trees

# The name must not contain "sdpa", "flex" or "flash": transformers looks for those substrings.
TREE_ATTENTION = "genret_tree"

# Arguments that change the scores in ways not computed here: refused unless None.
_UNSUPPORTED_ARGUMENTS = ("sinks", "alibi", "head_mask", "block_mask")


def register_tree_attention() -> None:
    """Register `genret_tree` with transformers. Idempotent.

    The mask function serves encoders and ordinary forward passes; without one, transformers would drop
    padding masks silently.
    """
    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    tree: PromptPass | BranchPass | WholeTreePass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' attention interface requires.

    Args:
        module: The attention module; `layer_idx` names its cache layer, `is_causal` tells self-attention.
        query: For packed frontiers and whole trees Q is 1 and B the number of live tokens, here and below
            (but not for an encoder's keys and values). Shape: (Q, H, B, D).
        key: Keys of this pass's tokens (self-attention) or of the encoder. Shape: (Q, H_kv, B or S, D).
        value: Shape: (Q, H_kv, B or S, D_v).
        attention_mask: Used outside the tree only.
        dropout: Used outside the tree only.
        scaling: Factor on query-key products, D ** -0.5 when None.
        sliding_window: Window of this layer, in positions.
        softcap: Soft cap of this layer's scores.
        position_bias: Bias computed by the model from slots; only its presence matters in the tree.
        s_aux: Attention sinks of this layer, by transformers' name. Shape: (H,).
        tree: The pass, or None outside the tree.
        **kwargs: Further arguments of the model.

    Returns:
        The attended values, shape (Q, B, H, D_v), and no weights.

    Raises:
        UnsupportedModelError: the layer asks for scores that are not computed here.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree is None and (softcap is not None or s_aux is not None):
        return _attend_outside(query, key, value, attention_mask, dropout, scaling, softcap, s_aux), None
    if isinstance(tree, WholeTreePass) and not getattr(module, "is_causal", True):
        return _attend_across(
            tree, module, query, key, value, attention_mask, dropout, scaling, position_bias
        ), None
    if tree is None or not getattr(module, "is_causal", True):
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=kwargs.get("is_causal"),
            position_bias=position_bias,
        )
    for name in _UNSUPPORTED_ARGUMENTS:
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(
                f"{type(module).__name__} attends with {name!r}, which is not supported"
            )
    rule = Rule(
        scaling=scaling,
        window=sliding_window,
        softcap=softcap,
        bias_owner=_bias_owner(module, position_bias, tree.shared_bias),
        sinks=s_aux,
    )
    layer = module.layer_idx
    assert isinstance(layer, int)
    if isinstance(tree, WholeTreePass):
        attended = attend_whole_trees(tree, layer, query, key, value, rule)
    elif isinstance(tree, PromptPass):
        attended = attend_prompts(tree, layer, query, key, value, rule)
    else:
        attended = attend_branches(tree, layer, query, rule)
    return attended.transpose(1, 2).contiguous(), None


def _attend_across(
    tree: WholeTreePass,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float,
    position_bias: Tensor | None,
) -> Tensor:
    """Cross-attention of whole trees: the nodes of every query to its own encoding. (1, P, H, D_v)."""
    attended = []
    for of, first, end in tree.piece.rows:
        part, _ = sdpa_attention_forward(
            module,
            query[:, :, first:end],
            key[of : of + 1],
            value[of : of + 1],
            None if mask is None else mask[of : of + 1],
            dropout=dropout,
            scaling=scaling,
            is_causal=False,
            position_bias=None if position_bias is None else position_bias[:, :, first:end],
        )
        attended.append(part)
    return torch.cat(attended, dim=1)


def _attend_outside(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of an ordinary forward pass with soft-capped scores or sinks, which no fused kernel computes.

    The mask follows `sdpa_mask`. Returns shape (Q, B, H, D_v).
    """
    if dropout:
        raise UnsupportedModelError(
            "attention dropout is not supported together with soft-capped scores or attention sinks"
        )
    length, groups = query.shape[2], query.shape[1] // key.shape[1]
    hidden: Tensor | None = None
    if attention_mask is None and length > 1:
        # No mask means a causal one over as many keys as queries.
        key, value = key[:, :, :length], value[:, :, :length]
        hidden = causal_mask(length, None, query.device)
    elif attention_mask is not None:
        hidden = ~attention_mask
        # A padding row with everything hidden would be NaN; its output is never used.
        hidden = hidden & ~hidden.all(-1, keepdim=True)
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    scores = (query * scaling) @ key.mT
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]].to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous()


def _bias_owner(
    module: nn.Module, position_bias: Tensor | None, shared: nn.Module | None
) -> nn.Module | None:
    if position_bias is None:
        return None
    owner = module if getattr(module, "has_relative_attention_bias", False) else shared
    if owner is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} adds a position bias of unknown origin to its attention scores"
        )
    return owner


# Biases of prefix, prompts and tail. Shape of each: (Q or 1, H, B or 1, n).
_Biases = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class BranchPass:
    """A pass that writes one frontier of branches, or the next tokens of chains."""

    step: BranchStep  # The slots that the new tokens may attend to
    cache: TreeCache  # Keys and values of prefix, prompts and tail
    # Module with the relative bias table of the layers that have none themselves.
    shared_bias: nn.Module | None
    packed: PackedFrontier | None = None  # The live branches, if only they are computed
    # Biases of this pass by owner, shared between layers.
    biases: dict[nn.Module, _Biases] = field(default_factory=dict)


def attend_branches(tree: BranchPass, layer: int, query: Tensor, rule: Rule) -> Tensor:
    """Attend from one frontier, whose keys and values the layer already has, to shared prefix, prompts and
    tree.

    Shapes: query (Q, H, B, D), (1, H, P, D) for a packed frontier; returns the same with D_v for D.
    """
    if tree.packed is None:
        return _attend_rectangle(tree, layer, query, rule)
    attended = _attend_rectangle(tree, layer, tree.packed.unpack_heads(query), rule)
    return tree.packed.pack_heads(attended)


def _attend_rectangle(tree: BranchPass, layer: int, query: Tensor, rule: Rule) -> Tensor:
    """Attention of all branches, padding included. Shapes: (Q, H, B, D) to (Q, H, B, D_v)."""
    held = tree.cache.tree_layer(layer)
    prefix = tree.cache.prefix[layer] if tree.cache.prefix else None
    stretches = (prefix, held.prompt, (held.tail_keys, held.tail_values))
    segments = visible_segments(stretches, tree.step.sights(rule.window), _biases(tree, rule))
    return attend(query, segments, rule)


def _biases(tree: BranchPass, rule: Rule) -> _Biases:
    owner = rule.bias_owner
    if owner is None:
        return None, None, None
    if owner not in tree.biases:
        table = bias_by_distance(owner, tree.step.largest_position, tree.step.positions.device)
        # (H, Q or 1, B or 1, n) to (Q or 1, H, B or 1, n)
        prefix, prompt, tail = (table[:, distances].transpose(0, 1) for distances in tree.step.distances())
        tree.biases[owner] = (prefix, prompt, tail)
    return tree.biases[owner]

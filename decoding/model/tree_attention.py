"""Attends over the token tree, as one function that stock transformers models call.

Registered as `genret_tree` beside transformers' own attention functions. The extra argument `tree` of a
forward pass names its kind: a `PromptPass` writes the prompts, a `BranchPass` one
frontier of branches or the next tokens of chains, a `WholeTreePass` nodes of all depths
(`decoding.model.whole_trees`). Without it, in encoders and in cross-attention the function is plain scaled
dot product attention.

Masks come from positions and ancestry alone; whatever mask a model builds for itself is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from genret.decoding.errors import UnsupportedModelError
from genret.decoding.model.segment_attention import Rule, Segment, attend, bias_by_distance, causal_mask
from genret.decoding.model.shared_passes import FusedPass
from genret.decoding.model.token_tree import BranchStep
from genret.decoding.model.tree_cache import KeysAndValues, PackedFrontier, TreeCache
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
    tree: PromptPass | BranchPass | WholeTreePass | FusedPass | None = None,
    shared_bias: nn.Module | None = None,
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
        shared_bias: In the tree, module with the relative bias table of the layers that have none themselves.
        **kwargs: Further arguments of the model.

    Returns:
        The attended values, shape (Q, B, H, D_v), and no weights.

    Raises:
        UnsupportedModelError: the layer asks for scores that are not computed here.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree is None and (softcap is not None or s_aux is not None):
        return _attend_outside(query, key, value, attention_mask, dropout, scaling, softcap, s_aux), None
    if tree is None or not getattr(module, "is_causal", True):
        plainly = partial(sdpa_attention_forward, module, dropout=dropout, scaling=scaling)
        if isinstance(tree, WholeTreePass):
            return _attend_across(tree, plainly, query, key, value, attention_mask, position_bias), None
        own_mask = kwargs.get("is_causal")
        return plainly(query, key, value, attention_mask, is_causal=own_mask, position_bias=position_bias)
    for name in _UNSUPPORTED_ARGUMENTS:
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(
                f"{type(module).__name__} attends with {name!r}, which is not supported"
            )
    rule = Rule(
        scaling=scaling,
        window=sliding_window,
        softcap=softcap,
        bias_owner=_bias_owner(module, position_bias, shared_bias),
        sinks=s_aux,
    )
    layer = module.layer_idx
    assert isinstance(layer, int)
    if isinstance(tree, PromptPass):
        attended = attend_prompts(tree, layer, query, key, value, rule)
    elif isinstance(tree, FusedPass):
        parts = zip(tree.passes, *(tree.split(states) for states in (query, key, value)), strict=True)
        attended = tree.join([_attend_tree(one.tree, layer, q, k, v, rule) for one, q, k, v in parts])
    else:
        attended = _attend_tree(tree, layer, query, key, value, rule)
    return attended.transpose(1, 2).contiguous(), None


def _attend_tree(
    tree: BranchPass | WholeTreePass, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule
) -> Tensor:
    if isinstance(tree, WholeTreePass):
        return attend_whole_trees(tree, layer, query, key, value, rule)
    return attend_branches(tree, layer, query, rule)


def _attend_across(
    tree: WholeTreePass,
    plainly: Callable[..., tuple[Tensor, None]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    position_bias: Tensor | None,
) -> Tensor:
    """Cross-attention of whole trees: the nodes of every query to its own encoding. (1, P, H, D_v)."""
    attended = []
    for of, first, end in tree.piece.rows:
        own, rows = slice(of, of + 1), slice(first, end)
        part, _ = plainly(
            query[:, :, rows],
            key[own],
            value[own],
            None if mask is None else mask[own],
            is_causal=False,
            position_bias=None if position_bias is None else position_bias[:, :, rows],
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


@dataclass(frozen=True, slots=True, eq=False)
class BranchPass:
    """A pass that writes one frontier of branches, or the next tokens of chains."""

    step: BranchStep  # The slots that the new tokens may attend to
    cache: TreeCache  # Keys and values of prefix, prompts and tail
    packed: PackedFrontier | None = None  # The live branches, if only they are computed

    def columns(self, first: int, end: int) -> BranchPass:
        """Return the pass of some columns, once those before are written."""
        packed = None if self.packed is None else self.packed.columns(first, end)
        return replace(self, step=self.step.columns(first, end), packed=packed)


def attend_branches(tree: BranchPass, layer: int, query: Tensor, rule: Rule) -> Tensor:
    """Attend from one frontier, whose keys and values the layer already has, to prefix, prompts and tree.

    Shapes: query (Q, H, B, D), (1, H, P, D) for a packed frontier; returns the same with D_v for D.
    """
    held, packed = tree.cache.tree_layer(layer), tree.packed
    stretches = (tree.cache.prefix_of(layer), held.prompt, held.tail)
    if packed is None:
        return tree.step.attend(query, stretches, rule)
    return packed.pack_heads(tree.step.attend(packed.unpack_heads(query), stretches, rule))


# Rows of a prompt whose scores are materialised together, where no fused kernel computes them.
ROWS_AT_ONCE = 128


@dataclass(frozen=True, slots=True, eq=False)
class PromptGroup:
    """Queries whose prompts have the same length; `rows` None means all queries."""

    length: int
    rows: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class PromptPass:
    """The pass that writes left-padded prompts. Each length is attended on its own, without padding."""

    groups: tuple[PromptGroup, ...]  # The queries by their prompt length behind the prefix
    # Keys and values of the shared prefix, by model layer; empty without one.
    prefix: tuple[KeysAndValues, ...] = ()
    # Masks of this pass by length, window and tokens before, shared between layers.
    masks: dict[tuple[int, int | None, int], Tensor] = field(default_factory=dict)
    # The first column of a piece, and what earlier pieces wrote; None for a pass that writes all columns.
    first: int = 0
    pieces: PromptPieces | None = None

    @classmethod
    def of(
        cls, lengths: Sequence[int], device: torch.device, prefix: tuple[KeysAndValues, ...] = ()
    ) -> PromptPass:
        """Group the queries by length. `lengths` are counted behind the prefix."""
        distinct = sorted(set(lengths))
        if len(distinct) == 1:
            return cls((PromptGroup(distinct[0], None),), prefix)
        rows = {n: [row for row, length in enumerate(lengths) if length == n] for n in distinct}
        groups = tuple(PromptGroup(n, torch.tensor(rows[n], device=device)) for n in distinct)
        return cls(groups, prefix)

    def hidden(self, length: int, window: int | None, before: int, device: torch.device) -> Tensor:
        """Return `causal_mask`, made once for all layers that need it."""
        key = (length, window, before)
        if key not in self.masks:
            self.masks[key] = causal_mask(length, window, device, before)
        return self.masks[key]


def attend_prompts(
    tree: PromptPass, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule
) -> Tensor:
    """Attend causally inside every prompt and to the prefix; zeros on padding.

    Shapes: query (Q, H, T, D), key (Q, H_kv, T, D), value (Q, H_kv, T, D_v); returns (Q, H, T, D_v).
    """
    if tree.pieces is not None:
        return _attend_piece(tree, tree.pieces.of(layer), layer, query, rule)
    prefix = _seen_prefix(tree.prefix[layer], rule.window) if tree.prefix else None
    if tree.groups[0].rows is None:
        return _attend_causally(tree, prefix, query, key, value, rule)
    width = query.shape[2]
    attended = query.new_zeros(*query.shape[:3], value.shape[3])
    for group in tree.groups:
        first = width - group.length
        q, k, v = (part[group.rows, :, first:] for part in (query, key, value))
        attended[group.rows, :, first:] = _attend_causally(tree, prefix, q, k, v, rule)
    return attended


class PromptPieces(Cache):
    """The columns of prompts that are written piece by piece, by model layer."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._written: dict[int, KeysAndValues] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> KeysAndValues:
        """Append columns to a layer. Shapes: (Q, H_kv, T, D) and (Q, H_kv, T, D_v)."""
        before = self._written.get(layer_idx)
        if before is not None:
            key_states, value_states = (
                torch.cat(pair, dim=2) for pair in zip(before, (key_states, value_states), strict=True)
            )
        self._written[layer_idx] = key_states, value_states
        return key_states, value_states

    def of(self, layer: int) -> KeysAndValues:
        """Keys and values of all columns written in a layer."""
        return self._written[layer]

    @staticmethod
    def store(parts: Sequence[PromptPieces], cache: TreeCache) -> None:
        """Give the prompts of all parts to the cache of their session, padded on the left to one width."""
        width = max(part.get_seq_length() for part in parts)
        for layer in sorted(parts[0]._written):
            written = zip(*(part._written.pop(layer) for part in parts), strict=True)
            keys, values = (
                torch.cat([F.pad(states, (0, 0, width - states.shape[2], 0)) for states in of_parts])
                for of_parts in written
            )
            cache.update(keys, values, layer)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns written."""
        return self._written[layer_idx][0].shape[2] if layer_idx in self._written else 0


def _attend_piece(tree: PromptPass, written: KeysAndValues, layer: int, query: Tensor, rule: Rule) -> Tensor:
    """Attend from the last columns of prompts to all before; zeros on padding.

    Shapes: query (Q, H, T, D), the keys and values `written` until now (Q, H_kv, first + T, D or D_v).
    """
    first, end, (keys, values) = tree.first, written[0].shape[2], written
    attended = query.new_zeros(*query.shape[:3], values.shape[3])
    width = max(group.length for group in tree.groups)
    for group in tree.groups:
        start = width - group.length  # the column of their first token
        own = max(first, start)
        for row in range(len(query)) if group.rows is None else group.rows.tolist():
            if own >= end:
                continue
            before = [(keys[row : row + 1, :, start:own], values[row : row + 1, :, start:own])]
            before += [tree.prefix[layer]] if tree.prefix else []
            joined = tuple(torch.cat(parts[::-1], dim=2) for parts in zip(*before, strict=True))
            prefix = _seen_prefix((joined[0], joined[1]), rule.window) if joined[0].shape[2] else None
            attended[row : row + 1, :, own - first :] = _attend_causally(
                tree,
                prefix,
                query[row : row + 1, :, own - first :],
                keys[row : row + 1, :, own:],
                values[row : row + 1, :, own:],
                rule,
            )
    return attended


def _seen_prefix(segment: KeysAndValues, window: int | None) -> KeysAndValues | None:
    """The part of the prefix that the first token behind it attends to; later ones attend to no more."""
    if window is None:
        return segment
    if window == 1:
        return None
    keys, values = segment
    return keys[:, :, -(window - 1) :], values[:, :, -(window - 1) :]


def _attend_causally(
    tree: PromptPass, prefix: KeysAndValues | None, query: Tensor, key: Tensor, value: Tensor, rule: Rule
) -> Tensor:
    """Causal attention over unpadded sequences of length T. Returns (rows, H, T, D_v)."""
    # One query at a time, so that only one copy of the prefix exists at any time.
    rows = zip(*(torch.split(part, 1) for part in (query, key, value)), strict=True)
    if rule.softcap is not None or rule.bias_owner is not None or rule.sinks is not None:
        bias = _causal_bias(rule, query, prefix)
        return torch.cat([_attend_row(tree, prefix, q, k, v, rule, bias) for q, k, v in rows])
    if prefix is None:
        return _attend_fused(tree, 0, query, key, value, rule)
    keys, values = prefix
    before = keys.shape[2]
    return torch.cat(
        [
            _attend_fused(tree, before, q, torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2), rule)
            for q, k, v in rows
        ]
    )


def _attend_fused(
    tree: PromptPass, before: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule
) -> Tensor:
    """Attend by torch's fused kernel, which materialises no scores. `before` keys are the prefix."""
    length = query.shape[2]
    windowed = rule.window is not None and before + length > rule.window
    hidden = None
    if windowed or (before and length > 1):
        hidden = tree.hidden(length, rule.window if windowed else None, before, query.device)
    groups = query.shape[1] // key.shape[1]
    # Grouped heads together with a mask fall back to a slow kernel on some devices. A few tokens are folded
    # into rows of their key's head; for many tokens, such masks would be larger than the keys.
    folds = hidden is not None and groups > 1 and length <= key.shape[1] * key.shape[3]
    if folds and hidden is not None:
        hidden = hidden.repeat(groups, 1)
        query = query.reshape(query.shape[0], key.shape[1], groups * length, -1)
    elif hidden is not None and groups > 1:
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    attended = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if hidden is None else ~hidden,
        is_causal=hidden is None and length > 1,
        scale=rule.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended.reshape(attended.shape[0], -1, length, attended.shape[3]) if folds else attended


def _attend_row(
    tree: PromptPass,
    prefix: KeysAndValues | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rule: Rule,
    bias: Tensor | None,
) -> Tensor:
    """Attend in one prompt, some rows at a time. Bias: (1, H, T, s + T). Returns (1, H, T, D_v)."""
    length, before = query.shape[2], 0 if prefix is None else prefix[0].shape[2]
    hidden = tree.hidden(length, rule.window, before, query.device)[None]
    attended = []
    for first in range(0, length, ROWS_AT_ONCE):
        end = min(first + ROWS_AT_ONCE, length)
        rows, seen = slice(first, end), slice(before, before + end)
        own_bias = None if bias is None else bias[:, :, rows, seen]
        segments = [Segment(key[:, :, :end], value[:, :, :end], hidden[:, rows, seen], own_bias)]
        if prefix is not None:
            prefix_bias = None if bias is None else bias[:, :, rows, :before]
            segments.append(Segment(*prefix, hidden[:, rows, :before], prefix_bias))
        attended.append(attend(query[:, :, rows], tuple(segments), rule))
    return torch.cat(attended, dim=2)


def _causal_bias(rule: Rule, query: Tensor, prefix: KeysAndValues | None) -> Tensor | None:
    """Relative biases of a prompt's tokens to all slots before them. Shape: (1, H, T, s + T)."""
    if rule.bias_owner is None:
        return None
    before, length = 0 if prefix is None else prefix[0].shape[2], query.shape[2]
    table = bias_by_distance(rule.bias_owner, before + length - 1, query.device)
    slots = torch.arange(before + length, device=query.device)
    behind = (slots[before:, None] - slots[None, :]).clamp(min=0)
    return table[:, behind][None]

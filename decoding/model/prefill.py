"""Runs prefill: the pass that writes prompts, causal and unpadded, and the prefix that prompts may share.

A `PromptPass` is that pass in the token tree's attention. A `TreePrefix` holds the keys and values of tokens
that many prompts begin with, run once.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from genret.decoding.language_model import PromptPrefix
from genret.decoding.model.segment_attention import Rule, Segment, attend, bias_by_distance, causal_mask
from genret.decoding.model.tree_cache import PrefixSegment, TreeCache

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
    # Module with the relative bias table of the layers that have none themselves.
    shared_bias: nn.Module | None
    # Keys and values of the shared prefix, by model layer; empty without one.
    prefix: tuple[PrefixSegment, ...] = ()
    # Masks of this pass by length, window and tokens before, shared between layers.
    masks: dict[tuple[int, int | None, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        device: torch.device,
        shared_bias: nn.Module | None,
        prefix: tuple[PrefixSegment, ...] = (),
    ) -> PromptPass:
        """Group the queries by length. `lengths` are counted behind the prefix."""
        distinct = sorted(set(lengths))
        if len(distinct) == 1:
            return cls((PromptGroup(distinct[0], None),), shared_bias, prefix)
        rows = {n: [row for row, length in enumerate(lengths) if length == n] for n in distinct}
        groups = tuple(PromptGroup(n, torch.tensor(rows[n], device=device)) for n in distinct)
        return cls(groups, shared_bias, prefix)

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


def _seen_prefix(segment: PrefixSegment, window: int | None) -> PrefixSegment | None:
    """The part of the prefix that the first token behind it attends to; later ones attend to no more."""
    if window is None:
        return segment
    if window == 1:
        return None
    keys, values = segment
    return keys[:, :, -(window - 1) :], values[:, :, -(window - 1) :]


def _attend_causally(
    tree: PromptPass, prefix: PrefixSegment | None, query: Tensor, key: Tensor, value: Tensor, rule: Rule
) -> Tensor:
    """Causal attention over unpadded sequences of length T. Returns (rows, H, T, D_v)."""
    if rule.softcap is not None or rule.bias_owner is not None or rule.sinks is not None:
        bias = _causal_bias(rule, query, prefix)
        return torch.cat(
            [
                _attend_row(tree, prefix, query[row, None], key[row, None], value[row, None], rule, bias)
                for row in range(query.shape[0])
            ]
        )
    if prefix is None:
        return _attend_fused(tree, 0, query, key, value, rule)
    # One query at a time, so that only one copy of the prefix exists at any time.
    keys, values = prefix
    return torch.cat(
        [
            _attend_fused(
                tree,
                keys.shape[2],
                query[row, None],
                torch.cat([keys, key[row, None]], dim=2),
                torch.cat([values, value[row, None]], dim=2),
                rule,
            )
            for row in range(query.shape[0])
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
    prefix: PrefixSegment | None,
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


def _causal_bias(rule: Rule, query: Tensor, prefix: PrefixSegment | None) -> Tensor | None:
    """Relative biases of a prompt's tokens to all slots before them. Shape: (1, H, T, s + T)."""
    if rule.bias_owner is None:
        return None
    before, length = 0 if prefix is None else prefix[0].shape[2], query.shape[2]
    table = bias_by_distance(rule.bias_owner, before + length - 1, query.device)
    slots = torch.arange(before + length, device=query.device)
    behind = (slots[before:, None] - slots[None, :]).clamp(min=0)
    return table[:, behind][None]


class TreePrefix:
    """Keys and values of tokens that many prompts begin with (`decoding.language_model.PromptPrefix`).

    Immutable; sessions refer to the segments, one per model layer, and never copy them. Does not keep the
    model alive.
    """

    def __init__(
        self, model: PreTrainedModel, token_ids: Sequence[int], segments: tuple[PrefixSegment, ...]
    ) -> None:
        self._model = weakref.ref(model)
        self._model_type: str = model.config.model_type
        self.token_ids = tuple(token_ids)
        self.segments = segments  # Shapes: (1, H_kv, S, D) and (1, H_kv, S, D_v)

    @classmethod
    def of(cls, model: PreTrainedModel, token_ids: Sequence[int], cache: TreeCache) -> TreePrefix:
        """Return the one prompt of a cache as a prefix."""
        layers = range(len(cache.layers))
        return cls(model, token_ids, tuple(cache.tree_layer(index).prompt for index in layers))

    @property
    def kv_bytes(self) -> int:
        """Bytes of key/value cache it holds."""
        return sum(part.untyped_storage().nbytes() for segment in self.segments for part in segment)


def checked_prefix(prefix: PromptPrefix, model: PreTrainedModel) -> TreePrefix:
    """Return the prefix, if this model made it, in its present type and on its present device.

    Raises:
        ValueError: another model made it, or the model has been moved since.
    """
    name = model.config.model_type
    if not isinstance(prefix, TreePrefix):
        raise ValueError(
            f"prefix must come from this model's share_prefix (model type {name!r}), "
            f"got a {type(prefix).__name__}"
        )
    if prefix._model() is not model:
        raise ValueError(
            f"prefix was made by another model (model type {prefix._model_type!r}) than this one "
            f"(model type {name!r}); keys and values mean nothing to another model"
        )
    made: tuple[torch.dtype, torch.device] = (prefix.segments[0][0].dtype, prefix.segments[0][0].device)
    if made != (model.dtype, model.device):
        raise ValueError(
            f"prefix was made when model type {name!r} computed in {made[0]} on {made[1]}, "
            f"it now computes in {model.dtype} on {model.device}"
        )
    return prefix


def check_continuations(prefix: PromptPrefix, prompts: Sequence[Sequence[int]]) -> None:
    """Raise ValueError for prompts that do not begin with the prefix, or end with it."""
    shared = prefix.token_ids
    for index, prompt in enumerate(prompts):
        both = range(min(len(shared), len(prompt)))
        differing = next((place for place in both if prompt[place] != shared[place]), None)
        if differing is not None:
            raise ValueError(
                f"prompt {index} does not begin with the prefix: token {differing} is {prompt[differing]}, "
                f"the prefix has {shared[differing]}"
            )
        if len(prompt) <= len(shared):
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens, it must go on after the prefix of "
                f"{len(shared)} with at least one more"
            )

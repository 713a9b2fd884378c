"""The attention of the token tree, as one function that stock transformers models call.

Registered under the name `genret_tree` beside transformers' own attention functions. A forward pass says by
its extra argument `tree` which pass it is: a `PromptPass` writes the prompts, a `BranchPass` one frontier.
Without that argument, in encoders and in cross-attention the function is plain scaled dot product attention.

Grouped-query heads are folded into rows instead of repeating keys, the prompt's keys are read once per query
for all its branches, and one softmax runs over the scores of prompt and tail together. Masks come from
positions and ancestry alone, so whatever mask a model builds for itself is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from decoding.errors import UnsupportedModelError
from decoding.token_tree import TreeStep
from decoding.tree_cache import TreeCache

# The name must not contain "sdpa", "flex" or "flash": transformers looks for those substrings.
TREE_ATTENTION = "genret_tree"

# Arguments that change the scores in ways not computed here. Present and not None means: refuse.
_UNSUPPORTED_ARGUMENTS = ("s_aux", "sinks", "alibi", "head_mask", "block_mask")


def register_tree_attention() -> None:
    """Make `genret_tree` known to transformers. Idempotent.

    The mask function serves encoders and ordinary forward passes; with a name that has none, transformers
    would drop padding masks silently.
    """
    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)


@dataclass(frozen=True, slots=True, eq=False)
class PromptGroup:
    """The queries whose prompts have one length; `rows` is None when that is all of them."""

    length: int
    rows: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class PromptPass:
    """The pass that writes left-padded prompts. Each length is attended on its own, without padding.

    Attributes:
        groups: The queries by prompt length.
        shared_bias: Module with the relative bias table of the layers that have none themselves.
    """

    groups: tuple[PromptGroup, ...]
    shared_bias: nn.Module | None

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, shared_bias: nn.Module | None) -> PromptPass:
        """Group the queries by prompt length."""
        distinct = sorted(set(lengths))
        if len(distinct) == 1:
            return cls((PromptGroup(distinct[0], None),), shared_bias)
        rows = {n: [row for row, length in enumerate(lengths) if length == n] for n in distinct}
        groups = tuple(PromptGroup(n, torch.tensor(rows[n], device=device)) for n in distinct)
        return cls(groups, shared_bias)


@dataclass(frozen=True, slots=True, eq=False)
class BranchPass:
    """The pass that writes one frontier of branches.

    Attributes:
        step: What the frontier may look at.
        cache: Where the layers find prompt and tail.
        shared_bias: Module with the relative bias table of the layers that have none themselves.
        bias: Biases of this pass by owner, shared between layers. Shape of each: (Q, H, 1, T + n).
    """

    step: TreeStep
    cache: TreeCache
    shared_bias: nn.Module | None
    bias: dict[nn.Module, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """How one layer turns products into scores.

    Attributes:
        scaling: Factor on query-key products.
        window: A token at position p sees positions above p - window.
        softcap: Scores become softcap * tanh(score / softcap).
        bias_owner: The module whose `compute_bias` gives T5-style relative position biases.
    """

    scaling: float
    window: int | None
    softcap: float | None
    bias_owner: nn.Module | None


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A stretch of keys and values with its mask and bias.

    Attributes:
        keys: Shape: (Q, H_kv, n, D).
        values: Shape: (Q, H_kv, n, D_v).
        hidden: True where a row may not look. Shape: (Q or 1, B or 1, n), bool.
        bias: Added to the scores. Shape: (Q or 1, H, B or 1, n).
    """

    keys: Tensor
    values: Tensor
    hidden: Tensor | None
    bias: Tensor | None


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
    tree: PromptPass | BranchPass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend in the form transformers' attention interface asks for.

    Args:
        module: The attention module; `layer_idx` names its cache layer, `is_causal` tells self-attention.
        query: Shape: (Q, H, B, D).
        key: Keys of this pass's tokens (self-attention) or of the encoder. Shape: (Q, H_kv, B or S, D).
        value: Shape: (Q, H_kv, B or S, D_v).
        attention_mask: Used outside the tree only.
        dropout: Used outside the tree only.
        scaling: Factor on query-key products, D ** -0.5 when None.
        sliding_window: Window of this layer, in positions.
        softcap: Soft cap of this layer's scores.
        position_bias: Bias computed by the model from slots; only its presence matters in the tree.
        tree: The pass, or None outside the tree.
        **kwargs: Whatever else the model passes on.

    Returns:
        The attended values, shape (Q, B, H, D_v), and no weights.

    Raises:
        UnsupportedModelError: the layer asks for scores that are not computed here.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree is None and softcap is not None:
        rule = Rule(scaling, None, softcap, None)
        return _attend_outside(query, key, value, attention_mask, dropout, rule), None
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
    )
    if isinstance(tree, PromptPass):
        attended = _attend_prompts(tree, query, key, value, rule)
    else:
        attended = _attend_branches(tree, module, query, rule)
    return attended.transpose(1, 2).contiguous(), None


def _attend_outside(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float, rule: Rule
) -> Tensor:
    """Soft-capped attention of an ordinary forward pass; the mask follows `sdpa_mask`. (Q, B, H, D_v)."""
    if dropout:
        raise UnsupportedModelError("attention dropout is not supported together with soft-capped scores")
    length = query.shape[2]
    hidden: Tensor | None = None
    if attention_mask is None and length > 1:
        # No mask stands for a causal one over as many keys as queries.
        key, value = key[:, :, :length], value[:, :, :length]
        hidden = _causal_mask(length, None, query.device)[None]
    elif attention_mask is not None:
        hidden = ~attention_mask[:, 0]
        # A padding row that sees nothing would be NaN; what it answers is never used.
        hidden = hidden & ~hidden.all(-1, keepdim=True)
    return _attend(query, (Segment(key, value, hidden, None),), rule).transpose(1, 2).contiguous()


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


def _attend_prompts(tree: PromptPass, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
    """Causal attention inside every prompt. Returns (Q, H, T, D_v), zeros on padding."""
    if tree.groups[0].rows is None:
        return _attend_causally(query, key, value, rule)
    width = query.shape[2]
    attended = query.new_zeros(*query.shape[:3], value.shape[3])
    for group in tree.groups:
        first = width - group.length
        q, k, v = (part[group.rows, :, first:] for part in (query, key, value))
        attended[group.rows, :, first:] = _attend_causally(q, k, v, rule)
    return attended


def _attend_causally(query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
    """Causal attention over unpadded sequences of length T. Returns (rows, H, T, D_v)."""
    length = query.shape[2]
    windowed = rule.window is not None and length > rule.window
    hidden = _causal_mask(length, rule.window, query.device) if windowed else None
    if rule.softcap is None and rule.bias_owner is None:
        if hidden is not None and query.shape[1] != key.shape[1]:
            # Grouped heads together with a mask fall back to a slow kernel on some devices.
            key, value = (
                part.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for part in (key, value)
            )
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if hidden is None else ~hidden,
            is_causal=hidden is None and length > 1,
            scale=rule.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    if hidden is None:
        hidden = _causal_mask(length, None, query.device)
    bias = None
    if rule.bias_owner is not None:
        slots = torch.arange(length, device=query.device)
        behind = (slots[:, None] - slots[None, :]).clamp(min=0)
        bias = _bias_by_distance(rule.bias_owner, length - 1, query.device)[:, behind][None]
    # One prompt at a time: the score matrix is materialised here.
    attended = [
        _attend(query[row, None], (Segment(key[row, None], value[row, None], hidden[None], bias),), rule)
        for row in range(query.shape[0])
    ]
    return torch.cat(attended)


def _attend_branches(tree: BranchPass, module: nn.Module, query: Tensor, rule: Rule) -> Tensor:
    """Attention of one frontier over its prompts and the tree. Returns (Q, H, B, D_v)."""
    layer_idx = module.layer_idx
    assert isinstance(layer_idx, int)
    layer = tree.cache.tree_layer(layer_idx)
    assert layer.prompt_keys is not None
    assert layer.prompt_values is not None
    width = layer.prompt_keys.shape[2]
    prompt_hidden, tail_hidden = tree.step.hidden(rule.window)
    prompt_bias = tail_bias = None
    if rule.bias_owner is not None:
        if rule.bias_owner not in tree.bias:
            table = _bias_by_distance(rule.bias_owner, tree.step.largest_position, query.device)
            tree.bias[rule.bias_owner] = table[:, tree.step.distances()].transpose(0, 1)[:, :, None]
        bias = tree.bias[rule.bias_owner]
        prompt_bias, tail_bias = bias[..., :width], bias[..., width:]
    segments = (
        Segment(layer.prompt_keys, layer.prompt_values, prompt_hidden, prompt_bias),
        Segment(layer.tail_keys, layer.tail_values, tail_hidden, tail_bias),
    )
    return _attend(query, segments, rule)


def _attend(query: Tensor, segments: tuple[Segment, ...], rule: Rule) -> Tensor:
    """Attend over several segments with one softmax.

    Args:
        query: Shape: (Q, H, B, D).
        segments: Their lengths n may differ.
        rule: Scaling and soft cap; window and bias are already in the segments.

    Returns:
        Shape: (Q, H, B, D_v).
    """
    queries, heads, branches, size = query.shape
    kv_heads = segments[0].keys.shape[1]
    folded = (query * rule.scaling).reshape(queries, kv_heads, -1, size)
    scores = torch.cat(
        [_scores(folded, segment, (queries, heads, branches), rule.softcap) for segment in segments], dim=-1
    )
    weights = scores.softmax(dim=-1).to(query.dtype).reshape(queries, kv_heads, -1, scores.shape[-1])
    parts = torch.split(weights, [segment.keys.shape[2] for segment in segments], dim=-1)
    attended: Tensor = parts[0] @ segments[0].values
    for part, segment in zip(parts[1:], segments[1:], strict=True):
        attended = attended + part @ segment.values
    return attended.reshape(queries, heads, branches, -1)


def _scores(folded: Tensor, segment: Segment, shape: tuple[int, int, int], softcap: float | None) -> Tensor:
    """Masked scores of one segment, at least float32. Shape: (Q, H, B, n)."""
    scores = (folded @ segment.keys.mT).reshape(*shape, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if segment.bias is not None:
        scores = scores + segment.bias
    if segment.hidden is not None:
        scores = scores.masked_fill(segment.hidden[:, None], -torch.inf)
    return scores


def _causal_mask(length: int, window: int | None, device: torch.device) -> Tensor:
    """True where a token may not look. Shape: (T, T), bool."""
    slots = torch.arange(length, device=device)
    behind = slots[:, None] - slots[None, :]
    hidden = behind < 0
    return hidden if window is None else hidden | (behind >= window)


def _bias_by_distance(owner: nn.Module, farthest: int, device: torch.device) -> Tensor:
    """T5's relative bias of a causal layer as a table over distances. Shape: (H, farthest + 1).

    The bias depends on the distance alone (T5, section 2.1), so the row of the last of `farthest + 1`
    consecutive tokens, read backwards, holds every distance.
    """
    row: Tensor = owner.compute_bias(1, farthest + 1, device=device, past_seen_tokens=farthest)  # type: ignore[operator]
    return row[0, :, 0].flip(-1)

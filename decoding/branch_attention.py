"""The pass that writes one frontier of branches, or the next tokens of chains, as attention sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from decoding.chain_step import ChainStep
from decoding.packed_frontier import PackedFrontier
from decoding.segment_attention import Rule, Segment, attend, bias_by_distance
from decoding.tree_cache import TreeCache
from decoding.tree_step import TreeStep

# Biases of prefix, prompts and tail. Shape of each: (Q or 1, H, B or 1, n).
_Biases = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class BranchPass:
    """The pass that writes one frontier of branches.

    Attributes:
        step: What the frontier may look at.
        cache: Where the layers find prefix, prompts and tail.
        shared_bias: Module with the relative bias table of the layers that have none themselves.
        packed: The live branches, where only they are computed.
        biases: Biases of this pass by owner, shared between layers.
    """

    step: TreeStep | ChainStep
    cache: TreeCache
    shared_bias: nn.Module | None
    packed: PackedFrontier | None = None
    biases: dict[nn.Module, _Biases] = field(default_factory=dict)


def attend_branches(tree: BranchPass, layer: int, query: Tensor, rule: Rule) -> Tensor:
    """Attention of one frontier over shared prefix, prompts and tree.

    Args:
        tree: The pass.
        layer: Number of the model layer, which has been given the frontier's keys and values.
        query: Shape: (Q, H, B, D), (1, H, P, D) of a packed frontier.
        rule: How the layer scores.

    Returns:
        Shape: (Q, H, B, D_v), (1, H, P, D_v) of a packed frontier.
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
    segments = []
    for stretch, sight, bias in zip(
        stretches, tree.step.sights(rule.window), _biases(tree, rule), strict=True
    ):
        if stretch is None or sight.first >= stretch[0].shape[2]:
            continue  # there is none, or the window has left it behind
        keys, values = (part[:, :, sight.first :] for part in stretch)
        segments.append(
            Segment(keys, values, sight.hidden, None if bias is None else bias[..., sight.first :])
        )
    return attend(query, tuple(segments), rule)


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

"""The pass that writes whole token trees, as attention sees it: its nodes are the rows of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from decoding.kept_path import KeptPath
from decoding.prompt_layout import PromptLayout
from decoding.segment_attention import Rule, Segment, attend, bias_by_distance
from decoding.tree_blocks import Piece, TreeBlock
from decoding.tree_cache import TreeCache

# Biases of prefix, prompt, path and block. Shape of each: (1, H, b, n).
_Biases = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class WholeTreePass:
    """The pass that writes nodes of whole trees.

    Attributes:
        piece: The nodes.
        prompts: The prompts.
        cache: Where the layers find prefix and prompts. Nothing is written to it.
        kept: Where the layers find the path above the nodes.
        shared_bias: Module with the relative bias table of the layers that have none themselves.
        biases: Biases of this pass by owner and block, shared between layers.
    """

    piece: Piece
    prompts: PromptLayout
    cache: TreeCache
    kept: KeptPath
    shared_bias: nn.Module | None
    biases: dict[tuple[nn.Module, int], _Biases] = field(default_factory=dict)


def attend_whole_trees(
    tree: WholeTreePass, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule
) -> Tensor:
    """Attention of every node over shared prefix, its prompt, its ancestors and itself.

    Args:
        tree: The pass.
        layer: Number of the model layer.
        query: Shape: (1, H, P, D).
        key: Shape: (1, H_kv, P, D).
        value: Shape: (1, H_kv, P, D_v).
        rule: How the layer scores.

    Returns:
        Shape: (1, H, P, D_v).
    """
    _, heads, count, _ = query.shape
    # In the order that the layer wants it in.
    attended = query.new_empty(1, count, heads, value.shape[3]).transpose(1, 2)
    prefix = tree.cache.prefix[layer] if tree.cache.prefix else None
    prompt_keys, prompt_values = tree.cache.tree_layer(layer).prompt
    above = tree.kept.seen(layer, key, value)
    for block in tree.piece.blocks:
        of, rows = block.query, slice(block.first, block.end)
        own = tree.prompts.own_lengths[of]
        stretches = (
            prefix,
            (prompt_keys[of : of + 1, :, -own:], prompt_values[of : of + 1, :, -own:]),
            tuple(part.index_select(2, block.path) for part in above),
            (key[:, :, rows], value[:, :, rows]),
        )
        segments = []
        for stretch, sight, bias in zip(
            stretches, block.sights(rule.window), _biases(tree, block, rule), strict=True
        ):
            if stretch is None or sight.first >= stretch[0].shape[2]:
                continue  # there is none, or the window has left it behind
            keys, values = (part[:, :, sight.first :] for part in stretch)
            segments.append(
                Segment(keys, values, sight.hidden, None if bias is None else bias[..., sight.first :])
            )
        attended[:, :, rows] = attend(query[:, :, rows], tuple(segments), rule)
    return attended


def _biases(tree: WholeTreePass, block: TreeBlock, rule: Rule) -> _Biases:
    owner = rule.bias_owner
    if owner is None:
        return None, None, None, None
    key = (owner, block.first)
    if key not in tree.biases:
        distances = block.distances()
        table = bias_by_distance(owner, block.largest_position, distances[0].device)
        prefix, prompt, path, own = (table[:, behind][None] for behind in distances)
        tree.biases[key] = (prefix, prompt, path, own)
    return tree.biases[key]

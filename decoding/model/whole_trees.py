"""Writes whole token trees by stock transformers models: many depths of many trees in one pass.

Prompts and attention are the token tree's; what may be looked at differs. Nodes are the rows of one
sequence, in preorder, cut into blocks: what a block sees of its tree is a path that ends above it, and part
of itself. So attention inside a tree costs in proportion to its nodes, not to their square, and needs no
padding: every block belongs to one query. One pass leaves to the next the keys and values of one path,
whatever the tree's size. Whatever architecture the tree is exact for, whole trees are exact for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from decoding.errors import PromptTooLongError
from decoding.model.segment_attention import Rule, Segment, attend, bias_by_distance
from decoding.model.token_tree import PromptLayout, Visibility
from decoding.model.tree_cache import TreeCache
from decoding.row_trees import NodeSpan, RowTrees

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


# Rows that attend together. Fewer make more and smaller products, more look at more that is hidden from them.
_ROWS_ON_CPU = 128
_ROWS_ON_DEVICE = 512

# Runs nodes through the model. Takes the pass and gives logits of shape (1, P, V).
RunPass = Callable[[WholeTreePass], Tensor]


class WholeTreeWriter:
    """Writes token trees below prompts (`decoding.language_model.TreeWriter`).

    Args:
        trees: The trees.
        prompts: The prompts.
        cache: Their keys and values, which are only read.
        run: Runs one pass.
        shared_bias: Module with the relative bias table of the layers that have none themselves.
        limit: Positions of the model, None without bound.

    Raises:
        PromptTooLongError: a tree needs more positions than the model has.
        ValueError: not one tree per prompt.
    """

    def __init__(
        self,
        trees: RowTrees,
        prompts: PromptLayout,
        cache: TreeCache,
        run: RunPass,
        shared_bias: nn.Module | None,
        limit: int | None,
    ) -> None:
        self._trees = trees
        self._prompts = prompts
        self._cache = cache
        self._run = run
        self._shared_bias = shared_bias
        self._kept = KeptPath(cache)
        self._check_fit(limit)

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        """Write nodes in one pass; see `TreeWriter.write`. Waits for no more than its tokens to be copied."""
        device = self._prompts.lengths_on_device.device
        rows_per_block = _ROWS_ON_CPU if device.type == "cpu" else _ROWS_ON_DEVICE
        piece = cut(self._trees, spans, self._kept.length, self._prompts, rows_per_block)
        self._leave_path(spans[-1], piece.rows[-1][1])
        logits = self._run(WholeTreePass(piece, self._prompts, self._cache, self._kept, self._shared_bias))
        self._kept.finish()
        return logits[0]

    def _leave_path(self, last: NodeSpan, start: int) -> None:
        """Keep what the next pass goes on behind, where a tree is left unfinished."""
        if last.end == self._trees.span(last.query).end:
            return
        path = self._trees.path(last.end)
        before = self._kept.length
        slots = [
            before + start + node - last.first if node >= last.first else int(self._trees.depths[node]) - 1
            for node in path
        ]
        device = self._prompts.lengths_on_device.device
        self._kept.leave(torch.tensor(slots, dtype=torch.int64, device=device))

    def _check_fit(self, limit: int | None) -> None:
        lengths, trees = self._prompts.lengths, self._trees
        if trees.num_queries != len(lengths):
            raise ValueError(f"there must be one tree per query, {len(lengths)}, got {trees.num_queries}")
        if limit is None:
            return
        for query, length in enumerate(lengths):
            span = trees.span(query)
            deepest = int(trees.depths[span.first : span.end].max(initial=0))
            if deepest and length + deepest > limit:
                raise PromptTooLongError(
                    f"the rows of query {query} need position {length + deepest} of {limit}: the prompt has "
                    f"{length} tokens and the longest row goes on behind {deepest} more"
                )


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The nodes that one pass writes, as the rows of a single sequence. P rows.

    Attributes:
        tokens: Shape: (1, P), int64.
        positions: Shape: (1, P), int64.
        rows: Which rows every query has, in the order of the spans: (query, first, end).
        blocks: The rows again, in blocks.
    """

    tokens: Tensor
    positions: Tensor
    rows: tuple[tuple[int, int, int], ...]
    blocks: tuple[TreeBlock, ...]


class TreeBlock:
    """What consecutive nodes of one tree may look at. b rows.

    The slots of a prompt are its own, without the padding that a batch gives it.

    Args:
        first: The first row in the pass.
        end: The row behind the last one.
        query: Whose tree it is.
        prompt: Tokens of its prompt, a shared prefix included.
        prefix: Tokens of the shared prefix, S.
        positions: Of the nodes. Shape: (b,), int64.
        least: At most the smallest of `positions`.
        largest: The largest of `positions`.
        ends: Row behind the subtree of every node. Shape: (b,), int64.
        path: Where the keys of the path above lie, from the prompt on. Shape: (k,), int64.
        path_ends: Row behind the subtree of every node of the path. Shape: (k,), int64.

    Attributes:
        first: As given.
        end: As given.
        query: As given.
        path: As given.
        largest_position: As `largest`.
    """

    __slots__ = (
        "_by_window",
        "_ends",
        "_least",
        "_path_ends",
        "_positions",
        "_prefix",
        "_prompt",
        "end",
        "first",
        "largest_position",
        "path",
        "query",
    )

    def __init__(
        self,
        first: int,
        end: int,
        query: int,
        prompt: int,
        prefix: int,
        positions: Tensor,
        least: int,
        largest: int,
        ends: Tensor,
        path: Tensor,
        path_ends: Tensor,
    ) -> None:
        self.first = first
        self.end = end
        self.query = query
        self.path = path
        self.largest_position = largest
        self._prompt = prompt
        self._prefix = prefix
        self._positions = positions
        self._least = least
        self._ends = ends
        self._path_ends = path_ends
        self._by_window: dict[int | None, tuple[Visibility, Visibility, Visibility, Visibility]] = {}

    def sights(self, window: int | None) -> tuple[Visibility, Visibility, Visibility, Visibility]:
        """What may be seen of shared prefix (S slots), prompt (T), path (k) and of the block itself (b).

        Args:
            window: A token at position p sees positions above p - window; None is unbounded.
        """
        if window is not None and self.largest_position < window:
            window = None
        if window not in self._by_window:
            self._by_window[window] = self._look(window)
        return self._by_window[window]

    def distances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """How far the slots of prefix, prompt, path and block lie behind the nodes, 0 where they do not.

        Returns:
            Shapes: (b, S), (b, T), (b, k) and (b, b), int64, each in [0, `largest_position`].
        """
        here = self._positions[:, None]
        prefix, prompt, path = self._stretches()
        own = (here - self._positions).clamp_(min=0)
        return here - prefix, here - prompt, (here - path).clamp_(min=0), own

    def _stretches(self) -> tuple[Tensor, Tensor, Tensor]:
        """Positions of the slots of prefix, prompt and path."""
        slots = torch.arange(self._prompt + len(self.path), device=self._positions.device)
        return slots[: self._prefix], slots[self._prefix : self._prompt], slots[self._prompt :]

    def _look(self, window: int | None) -> tuple[Visibility, Visibility, Visibility, Visibility]:
        rows = torch.arange(self.first, self.end, device=self._positions.device)
        not_below = rows[:, None] >= self._path_ends
        unrelated = (rows > rows[:, None]) | (rows[:, None] >= self._ends)
        if window is not None:
            _, _, path, own = self.distances()
            not_below |= path >= window
            unrelated |= own >= window
        return (
            self._of_prompt(window, 0, self._prefix),
            self._of_prompt(window, self._prefix, self._prompt),
            Visibility(0, not_below[None]),
            Visibility(0, unrelated[None]),
        )

    def _of_prompt(self, window: int | None, start: int, end: int) -> Visibility:
        """What is seen of the slots at positions [start, end)."""
        if window is None:
            return Visibility(0, None)
        seen = min(max(self._least - window + 1, start), end)
        if seen == end or self.largest_position - seen < window:
            return Visibility(seen - start, None)
        slots = torch.arange(seen, end, device=self._positions.device)
        return Visibility(seen - start, (self._positions[:, None] - slots >= window)[None])


def cut(
    trees: RowTrees,
    spans: Sequence[NodeSpan],
    kept: int,
    prompts: PromptLayout,
    rows_per_block: int,
) -> Piece:
    """Cut the nodes of one pass into blocks, with a single transfer to the device.

    Args:
        trees: The trees.
        spans: Nodes to write. Those of a tree that was begun before come first.
        kept: Nodes whose keys lie before those of the pass: the path above the first node.
        prompts: The prompts.
        rows_per_block: Most rows of a block.
    """
    lengths = np.array(prompts.lengths, dtype=np.int64)
    nodes = np.concatenate([np.arange(span.first, span.end) for span in spans])
    owners = np.repeat([span.query for span in spans], [span.end - span.first for span in spans])
    positions = lengths[owners] + trees.depths[nodes] - 1
    rows, bounds, paths = [], [], []
    start = 0
    for span in spans:
        # Where a node of this span lies among the rows of the pass.
        shift = start - span.first
        stop = span.end + shift
        rows.append((span.query, start, stop))
        for first in range(start, stop, rows_per_block):
            path = np.array(trees.path(first - shift), dtype=np.int64)
            slots = np.where(path >= span.first, kept + path + shift, trees.depths[path] - 1)
            paths.append((slots, trees.ends[path] + shift))
            bounds.append((span.query, first, min(first + rows_per_block, stop)))
        start = stop
    ends = trees.ends[nodes] + np.repeat(
        [first - span.first for (_, first, _), span in zip(rows, spans, strict=True)],
        [span.end - span.first for span in spans],
    )
    on_path = [len(slots) for slots, _ in paths]
    columns = [trees.tokens[nodes], positions, ends, *(s for s, _ in paths), *(e for _, e in paths)]
    shipped = torch.from_numpy(np.concatenate(columns)).to(prompts.lengths_on_device.device)
    parts = torch.split(shipped, [len(nodes)] * 3 + on_path * 2)
    blocks = tuple(
        TreeBlock(
            first,
            end,
            query,
            prompts.lengths[query],
            prompts.prefix_length,
            parts[1][first:end],
            int(positions[first:end].min()),
            int(positions[first:end].max()),
            parts[2][first:end],
            parts[3 + number],
            parts[3 + len(bounds) + number],
        )
        for number, (query, first, end) in enumerate(bounds)
    )
    return Piece(parts[0][None], parts[1][None], tuple(rows), blocks)


class KeptPath(Cache):
    """The path above the next node, in all layers, as transformers' own cache.

    Nodes come in preorder, so those to come descend from this path and from nothing else that was written. A
    pass leaves keys and values of one layer after the other, so no more than one layer's are ever held.

    Args:
        cache: The prompts' cache, whose length models ask for. Nothing is written to it.

    Attributes:
        length: Tokens on the path.
    """

    def __init__(self, cache: TreeCache) -> None:
        super().__init__(layers=cache.layers)
        self.length = 0
        self._slots: Tensor | None = None
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._next: dict[int, tuple[Tensor, Tensor]] = {}
        self._seen: tuple[int, tuple[Tensor, Tensor]] | None = None

    def leave(self, slots: Tensor) -> None:
        """Say what the next pass is to leave. Shape of `slots`, among the path and the pass: (k,), int64."""
        self._slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Take the keys and values of a pass in one layer.

        Args:
            key_states: Shape: (1, H_kv, P, D).
            value_states: Shape: (1, H_kv, P, D_v).
            layer_idx: Number of the model layer.

        Returns:
            The tensors passed in.
        """
        seen = (key_states, value_states)
        if self.length:
            before = self._kept.pop(layer_idx)
            keys, values = (torch.cat(pair, dim=2) for pair in zip(before, seen, strict=True))
            seen = (keys, values)
        if self._slots is not None and len(self._slots):
            keys, values = (part.index_select(2, self._slots) for part in seen)
            self._next[layer_idx] = (keys, values)
        self._seen = (layer_idx, seen)
        return key_states, value_states

    def seen(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the path and of the pass, of the layer that has just been updated.

        A layer that has written none of its own attends to what it is given.
        """
        if self._seen is not None and self._seen[0] == layer:
            return self._seen[1]
        return key, value

    def finish(self) -> None:
        """End a pass."""
        self.length = 0 if self._slots is None else len(self._slots)
        self._kept, self._next = self._next, {}
        self._slots, self._seen = None, None

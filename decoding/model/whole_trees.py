"""Writes whole token trees by stock transformers models: many depths of many trees in one pass.

Prompts and attention function are the token tree's; visibility differs. Nodes are the rows of one sequence,
in preorder, cut into blocks of one query each. A block attends to a path that ends above it and to part of
itself, so the cost grows with the nodes and not with their square, and nothing is padded. From one pass to
the next only the keys and values of one path are kept. Exact for every architecture that the token tree is
exact for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from genret.decoding.errors import PromptTooLongError
from genret.decoding.model.segment_attention import Rule, Sights, Visibility
from genret.decoding.model.token_tree import PromptLayout
from genret.decoding.model.tree_cache import TreeCache
from genret.decoding.row_trees import NodeSpan, RowTrees, take_nodes
from genret.decoding.side_by_side import max_rows

if TYPE_CHECKING:
    from genret.decoding.model.hf_session import TreeSession


@dataclass(frozen=True, slots=True, eq=False)
class WholeTreePass:
    """A pass that writes nodes of whole trees."""

    piece: Piece  # The nodes
    prompts: PromptLayout  # Layout of the prompts
    cache: TreeCache  # Keys and values of prefix and prompts; only read
    kept: KeptPath  # Keys and values of the path above the nodes


def attend_whole_trees(
    tree: WholeTreePass, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule
) -> Tensor:
    """Attend from every node to shared prefix, its prompt, its ancestors and itself.

    Shapes: query (1, H, P, D), key (1, H_kv, P, D), value (1, H_kv, P, D_v); returns (1, H, P, D_v).
    """
    _, heads, count, _ = query.shape
    # Laid out as the layer reads it.
    attended = query.new_empty(1, count, heads, value.shape[3]).transpose(1, 2)
    prompt_keys, prompt_values = tree.cache.tree_layer(layer).prompt
    above = tree.kept.seen(layer, key, value)
    for block in tree.piece.blocks:
        of, rows = block.query, slice(block.first, block.end)
        own = tree.prompts.own_lengths[of]
        stretches = (
            tree.cache.prefix_of(layer),
            (prompt_keys[of : of + 1, :, -own:], prompt_values[of : of + 1, :, -own:]),
            (above[0].index_select(2, block.path), above[1].index_select(2, block.path)),
            (key[:, :, rows], value[:, :, rows]),
        )
        attended[:, :, rows] = block.attend(query[:, :, rows], stretches, rule)
    return attended


# Rows that attend together. Fewer make more and smaller products, more compute more hidden scores.
_ROWS_ON_CPU = 128
_ROWS_ON_DEVICE = 512


class WholeTreeWriter:
    """Writes token trees below prompts (`decoding.language_model.TreeWriter`); only reads a session's cache.

    Raises:
        PromptTooLongError: a tree needs more positions than the model has.
        ValueError: not one tree per prompt.
    """

    def __init__(self, trees: RowTrees, session: TreeSession) -> None:
        self._trees = trees
        self._session = session
        self._prompts = session.prompts
        self._kept = KeptPath(session.cache)
        self._check_fit(session.model.position_limit)

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        """Write nodes in one pass; see `TreeWriter.write`. Waits for the device to copy the tokens there."""
        most, pending, written = max_rows(), list(spans), []
        while pending:
            written.append(self._write(pending if most is None else take_nodes(pending, most)))
            pending = [] if most is None else pending
        return written[0] if len(written) == 1 else torch.cat(written)

    def _write(self, spans: Sequence[NodeSpan]) -> Tensor:
        device = self._prompts.lengths_on_device.device
        rows_per_block = _ROWS_ON_CPU if device.type == "cpu" else _ROWS_ON_DEVICE
        piece = cut(self._trees, spans, self._kept.length, self._prompts, rows_per_block)
        self._leave_path(spans[-1], piece.rows[-1][1])
        session = self._session
        logits = session.run_whole_trees(WholeTreePass(piece, self._prompts, session.cache, self._kept))
        self._kept.finish()
        return logits[0]

    def _leave_path(self, last: NodeSpan, start: int) -> None:
        """Keep the path above the next node, if the last tree is unfinished."""
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
    """The nodes that one pass writes, as the rows of a single sequence. P rows."""

    tokens: Tensor  # Shape: (1, P), int64
    positions: Tensor  # Shape: (1, P), int64
    # Rows of every query, in the order of the spans: (query, first, end).
    rows: tuple[tuple[int, int, int], ...]
    blocks: tuple[TreeBlock, ...]  # The rows again, in blocks


class TreeBlock(Sights):
    """Consecutive nodes of one tree, b rows; it attends to the prefix, the prompt, a path above, and itself.

    Args:
        rows: The first row in the pass, and the row behind the last one.
        query: Number of the tree's query.
        prompt: Tokens of its prompt, without padding, a shared prefix included.
        prefix: Tokens of the shared prefix, S.
        positions: Positions of the nodes. Shape: (b,), int64.
        bounds: The smallest and the largest of `positions`.
        ends: Row behind the subtree of every node. Shape: (b,), int64.
        path: Slots of the path above, from the prompt on. Shape: (k,), int64.
        path_ends: Row behind the subtree of every node of the path. Shape: (k,), int64.
    """

    def __init__(
        self,
        rows: tuple[int, int],
        query: int,
        prompt: int,
        prefix: int,
        positions: Tensor,
        bounds: tuple[int, int],
        ends: Tensor,
        path: Tensor,
        path_ends: Tensor,
    ) -> None:
        super().__init__(positions[None], *bounds)
        self.first, self.end = rows
        self.query, self.path = query, path
        self._prompt, self._prefix = prompt, prefix
        self._ends, self._path_ends = ends, path_ends

    def distances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `Sights.distances`."""
        here = self.positions[..., None]
        slots = torch.arange(self._prompt + len(self.path), device=self.positions.device)
        prefix, prompt, path = torch.tensor_split(slots, (self._prefix, self._prompt))
        own = (here - self.positions).clamp_(min=0)
        return here - prefix, here - prompt, (here - path).clamp_(min=0), own

    def _look(self, window: int | None) -> tuple[Visibility, Visibility, Visibility, Visibility]:
        rows = torch.arange(self.first, self.end, device=self.positions.device)
        not_below = (rows[:, None] >= self._path_ends)[None]
        unrelated = ((rows > rows[:, None]) | (rows[:, None] >= self._ends))[None]
        if window is not None:
            _, _, path, own = self.distances()
            not_below |= path >= window
            unrelated |= own >= window
        return (
            self._at_positions(0, self._prefix, window),
            self._at_positions(self._prefix, self._prompt, window),
            Visibility(0, not_below),
            Visibility(0, unrelated),
        )


def cut(
    trees: RowTrees,
    spans: Sequence[NodeSpan],
    kept: int,
    prompts: PromptLayout,
    rows_per_block: int,
) -> Piece:
    """Cut the nodes of a pass into blocks of at most `rows_per_block` rows, with one transfer to the device.

    The span that continues an unfinished tree comes first; `kept` keys, of the path above the first node, lie
    before those of the pass.
    """
    lengths = np.array(prompts.lengths, dtype=np.int64)
    nodes = np.concatenate([np.arange(span.first, span.end) for span in spans])
    owners = np.repeat([span.query for span in spans], [span.end - span.first for span in spans])
    positions = lengths[owners] + trees.depths[nodes] - 1
    rows, bounds, paths = [], [], []
    start = 0
    for span in spans:
        # Node + shift is its row in the pass.
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
            (first, end),
            query,
            prompts.lengths[query],
            prompts.prefix_length,
            parts[1][first:end],
            (int(positions[first:end].min()), int(positions[first:end].max())),
            parts[2][first:end],
            parts[3 + number],
            parts[3 + len(bounds) + number],
        )
        for number, (query, first, end) in enumerate(bounds)
    )
    return Piece(parts[0][None], parts[1][None], tuple(rows), blocks)


class KeptPath(Cache):
    """The path above the next node, in all layers, as transformers' own cache, whose length models ask for.

    Nodes come in preorder, so later ones descend from this path and from no other written node. Each layer
    drops its older keys and values as the pass goes through it, so the whole pass is held for one layer at a
    time.
    """

    def __init__(self, cache: TreeCache) -> None:
        super().__init__(layers=cache.layers)
        self.length = 0  # Tokens on the path
        self._slots: Tensor | None = None
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._next: dict[int, tuple[Tensor, Tensor]] = {}
        self._seen: tuple[int, tuple[Tensor, Tensor]] | None = None

    def leave(self, slots: Tensor) -> None:
        """Set the slots to keep for the next pass, among the path and the pass. Shape: (k,), int64."""
        self._slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Take the keys and values of a pass in one layer, and return them.

        Shapes: (1, H_kv, P, D) and (1, H_kv, P, D_v).
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
        """Return keys and values of the path and of the pass for the layer that was just updated.

        A layer that writes no keys of its own attends to those it is given.
        """
        if self._seen is not None and self._seen[0] == layer:
            return self._seen[1]
        return key, value

    def finish(self) -> None:
        """End a pass: the slots set by `leave` become the path."""
        self.length = 0 if self._slots is None else len(self._slots)
        self._kept, self._next = self._next, {}
        self._slots, self._seen = None, None

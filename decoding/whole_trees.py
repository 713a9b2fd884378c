"""Whole token trees over stock transformers models: many depths of many trees in one pass.

Prompts and attention are the token tree's; what may be looked at differs (`decoding.tree_blocks`). Whatever
architecture the tree is exact for, whole trees are exact for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from decoding.errors import PromptTooLongError
from decoding.kept_path import KeptPath
from decoding.prompt_layout import PromptLayout
from decoding.row_trees import NodeSpan, RowTrees
from decoding.tree_blocks import cut
from decoding.tree_cache import TreeCache
from decoding.whole_tree_attention import WholeTreePass

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

"""Joins the passes of several sessions in one forward.

Every layer of a decoder-only model but its attention works token by token. So the tokens of several passes
run as rows of one sequence; cache and attention get each pass's rows in the shape that the pass itself has.
Sessions ask for their forwards here, so that a scheduler (`decoding.side_by_side`) can join them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from genret.decoding.side_by_side import current_call

if TYPE_CHECKING:
    from genret.decoding.model.hf_session import TreeModel
    from genret.decoding.model.tree_attention import BranchPass
    from genret.decoding.model.whole_trees import WholeTreePass


@dataclass(slots=True, eq=False)
class ModelPass:
    """One pass of a session through a decoder-only model (a `side_by_side.Forward`)."""

    model: TreeModel
    tokens: Tensor  # Shape: (Q, B), int64; (1, P) for packed frontiers and whole trees
    positions: Tensor  # Shape: as `tokens`, int64
    tree: BranchPass | WholeTreePass
    cache: Cache  # Takes the keys and values

    @property
    def num_rows(self) -> int:
        """Tokens it computes."""
        return self.tokens.numel()

    def joins(self, other: object) -> bool:
        """Whether another pass can run in the same forward."""
        return isinstance(other, ModelPass) and other.model is self.model

    def run_with(self, others: Sequence[ModelPass]) -> list[Tensor]:
        """Run this pass and others in one forward; see `run_passes`."""
        return run_passes([self, *others])


def run_pass(wanted: ModelPass) -> Tensor:
    """Run a pass, with others where calls run side by side. Returns its logits, (Q, B, V)."""
    running = current_call()
    if running is None:
        return run_passes([wanted])[0]
    logits: Tensor = running.wait(wanted, wanted.num_rows)
    return logits


def wait_for_turn(num_rows: int) -> None:
    """Let other calls go on before a forward of `num_rows` tokens that runs alone."""
    running = current_call()
    if running is not None:
        running.wait(None, num_rows)


class FusedPass:
    """Several passes of one model as the rows of one sequence (an argument of the attention function)."""

    def __init__(self, passes: Sequence[ModelPass]) -> None:
        self.passes = passes

    def split(self, states: Tensor) -> list[Tensor]:
        """Return the states of every pass in its own shape: (Q, H, B, D) of (1, H, P, D)."""
        heads, size = states.shape[1], states.shape[3]
        parts = torch.split(states, [one.num_rows for one in self.passes], dim=2)
        return [
            part.view(heads, *one.tokens.shape, size).transpose(0, 1)
            for part, one in zip((part[0] for part in parts), self.passes, strict=True)
        ]

    @staticmethod
    def join(parts: Sequence[Tensor]) -> Tensor:
        """Put the states of all passes side by side, (1, H, P, D): undoes `split`."""
        return torch.cat([part.transpose(0, 1).flatten(1, 2) for part in parts], dim=1)[None]


class _FusedWrites(Cache):
    """Gives every pass's cache the keys and values of its own rows."""

    def __init__(self, fused: FusedPass) -> None:
        super().__init__(layers=fused.passes[0].cache.layers)
        self._fused = fused

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer; shapes (1, H_kv, P, D) and (1, H_kv, P, D_v)."""
        fused = self._fused
        parts = zip(fused.passes, fused.split(key_states), fused.split(value_states), strict=True)
        for one, keys, values in parts:
            one.cache.update(keys, values, layer_idx, *args, **kwargs)
        return key_states, value_states


@torch.no_grad()
def run_passes(passes: Sequence[ModelPass]) -> list[Tensor]:
    """Run passes of one model in one forward. Returns the logits of each, (Q, B, V), in the model's type."""
    first = passes[0]
    if len(passes) == 1:
        return [first.model.forward(first.tokens, first.positions, first.tree, first.cache)]
    fused = FusedPass(passes)
    tokens, positions = (
        torch.cat([part.flatten() for part in parts])[None]
        for parts in ((one.tokens for one in passes), (one.positions for one in passes))
    )
    logits = first.model.forward(tokens, positions, fused, _FusedWrites(fused))
    rows = torch.split(logits[0], [one.num_rows for one in passes])
    return [part.view(*one.tokens.shape, -1) for part, one in zip(rows, passes, strict=True)]

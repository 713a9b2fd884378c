"""Computes one softmax over several stretches of keys: the attention of the token tree.

`Sights` says which slots of each stretch a pass may see, `attend` computes. Grouped-query heads are folded
into rows instead of repeating keys. A stretch that all queries share takes their rows in one product and is
not copied per query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# A score this far below the largest of its row is negligible: e^-64 is 1.6e-28.
_NEGLIGIBLE = 64.0


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Scoring of one layer: how query-key products become scores."""

    scaling: float  # Factor on query-key products
    window: int | None  # A token at position p attends to positions above p - window
    softcap: float | None  # Scores become softcap * tanh(score / softcap)
    bias_owner: nn.Module | None  # Module whose `compute_bias` gives T5-style relative position biases
    # Attention sinks: one score per head that takes part in the softmax and has no value. Shape: (H,).
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A stretch of keys and values with its mask and bias."""

    keys: Tensor  # Shape: (Q or 1, H_kv, n, D); 1 is a segment that all queries share
    values: Tensor  # Shape: (Q or 1, H_kv, n, D_v)
    hidden: Tensor | None  # True where a row must not attend. Shape: (Q or 1, B or 1, n), bool
    bias: Tensor | None  # Added to the scores. Shape: (Q or 1, H, B or 1, n)


@dataclass(frozen=True, slots=True, eq=False)
class Visibility:
    """The visible part of a stretch of slots."""

    first: int  # No new token attends to a slot before this one
    # True where a new token must not attend, from slot `first` on; None if nothing is hidden. Shape: (Q, L or
    # 1, n - first), bool.
    hidden: Tensor | None


class Sights(ABC):
    """The stretches of slots that the new tokens of one pass may attend to.

    `positions` are those of the new tokens, (Q, L or 1), int64. The host knows bounds of them without asking
    the device: none is below `least_position` or above `largest_position`.
    """

    def __init__(self, positions: Tensor, least_position: int, largest_position: int) -> None:
        self.positions, self.largest_position = positions, largest_position
        self._least_position = least_position
        # Layers with the same window share their masks; there are one or two windows per model.
        self._by_window: dict[int | None, tuple[Visibility, ...]] = {}
        self._biases: dict[nn.Module, tuple[Tensor, ...]] = {}  # By owner, shared between layers

    def attend(self, query: Tensor, stretches: Sequence[tuple[Tensor, Tensor] | None], rule: Rule) -> Tensor:
        """Attend to the keys and values of every stretch, None for a missing one; see `attend`."""
        sights, owner = self.sights(rule.window), rule.bias_owner
        biases = [None] * len(sights) if owner is None else self._biases_of(owner)
        segments = []
        for stretch, sight, bias in zip(stretches, sights, biases, strict=True):
            if stretch is not None and sight.first < stretch[0].shape[2]:
                keys, values = (part[:, :, sight.first :] for part in stretch)
                cut = None if bias is None else bias[..., sight.first :]
                segments.append(Segment(keys, values, sight.hidden, cut))
        return attend(query, tuple(segments), rule)

    def sights(self, window: int | None) -> tuple[Visibility, ...]:
        """Return the visibility of every stretch.

        With a window, a token at position p attends to positions above p - window only.
        """
        if window is not None and self.largest_position < window:
            window = None
        if window not in self._by_window:
            self._by_window[window] = self._look(window)
        return self._by_window[window]

    @abstractmethod
    def distances(self) -> tuple[Tensor, ...]:
        """Distances from the new tokens back to the slots of every stretch.

        Returns:
            Shapes: (Q or 1, L or 1, n), int64, each in [0, `largest_position`].
        """

    @abstractmethod
    def _look(self, window: int | None) -> tuple[Visibility, ...]: ...

    def _at_positions(self, start: int, end: int, window: int | None) -> Visibility:
        """Visibility of slots that hold the tokens at positions [start, end) of every query."""
        if window is None:
            return Visibility(0, None)
        seen = min(max(self._least_position - window + 1, start), end)
        if seen == end or self.largest_position - seen < window:
            return Visibility(seen - start, None)
        slots = torch.arange(seen, end, device=self.positions.device)
        return Visibility(seen - start, self.positions[..., None] - slots >= window)

    def _biases_of(self, owner: nn.Module) -> tuple[Tensor, ...]:
        """Relative biases of every stretch. Shape of each: (Q or 1, H, L or 1, n)."""
        if owner not in self._biases:
            table = bias_by_distance(owner, self.largest_position, self.positions.device)
            # (H, Q or 1, L or 1, n) to (Q or 1, H, L or 1, n)
            self._biases[owner] = tuple(table[:, behind].transpose(0, 1) for behind in self.distances())
        return self._biases[owner]


def attend(query: Tensor, segments: tuple[Segment, ...], rule: Rule) -> Tensor:
    """Attend over several segments with one softmax. Without gradients: scores are written in place.

    The rule's window and bias are already in the segments. Shapes: query (Q, H, B, D); returns (Q, H, B,
    D_v).
    """
    queries, heads, branches, size = query.shape
    kv_heads = segments[0].keys.shape[1]
    folded = (query * rule.scaling).reshape(queries, kv_heads, -1, size)
    lengths = [segment.keys.shape[2] for segment in segments]
    total = sum(lengths)
    # One array for all segments, so that nothing is put together afterwards; sinks are its last column.
    scores = query.new_empty(
        queries,
        heads,
        branches,
        total + (rule.sinks is not None),
        dtype=torch.promote_types(query.dtype, torch.float32),
    )
    by_kv_head = scores.view(queries, kv_heads, -1, scores.shape[-1])
    of_keys = scores[..., :total]
    for part, segment in zip(torch.split(by_kv_head[..., :total], lengths, dim=-1), segments, strict=True):
        _multiply(folded, segment.keys.mT, part)
    if rule.softcap is not None:
        of_keys.div_(rule.softcap).tanh_().mul_(rule.softcap)
    if rule.sinks is not None:
        scores[..., -1] = rule.sinks[:, None]
    for part, segment in zip(torch.split(of_keys, lengths, dim=-1), segments, strict=True):
        if segment.bias is not None:
            part.add_(segment.bias)
        if segment.hidden is not None:
            part.masked_fill_(segment.hidden[:, None], -torch.inf)
    _lift_negligible(scores)
    weights = torch.split(by_kv_head.softmax(dim=-1)[..., :total].to(query.dtype), lengths, dim=-1)
    attended = query.new_empty(queries, kv_heads, folded.shape[2], segments[0].values.shape[3])
    for number, (part, segment) in enumerate(zip(weights, segments, strict=True)):
        _multiply(part, segment.values, attended, add=number > 0)
    return attended.view(queries, heads, branches, -1)


def _lift_negligible(scores: Tensor) -> None:
    """Keep weights out of the denormal numbers of float32, in which a CPU computes many times slower.

    In trained models one weight in a hundred may be denormal, and triple the time of a layer. Lifted scores,
    and hidden ones with them, get a share of e^-64, far below rounding.
    """
    if scores.is_cpu and scores.dtype == torch.float32:
        scores.clamp_(min=scores.amax(dim=-1, keepdim=True).sub_(_NEGLIGIBLE))


def _multiply(rows: Tensor, matrix: Tensor, out: Tensor, add: bool = False) -> None:
    """Write `rows` @ `matrix` into `out`, or add it; a matrix of all queries is not copied Q times.

    Shapes: rows (Q, H_kv, r, n), matrix (Q or 1, H_kv, n, m), out (Q, H_kv, r, m), of any type.
    """
    queries, heads, count, _ = rows.shape
    if matrix.shape[0] < queries:
        together = rows.transpose(0, 1).reshape(heads, queries * count, -1) @ matrix[0]
        product = together.view(heads, queries, count, -1).transpose(0, 1)
    elif out.dtype != rows.dtype:
        product = rows @ matrix
    else:
        flat, left, right = out.view(queries * heads, count, -1), rows.flatten(0, 1), matrix.flatten(0, 1)
        if add:
            flat.baddbmm_(left, right)
        else:
            torch.bmm(left, right, out=flat)
        return
    if add:
        out.add_(product)
    else:
        out.copy_(product)


def causal_mask(length: int, window: int | None, device: torch.device, before: int = 0) -> Tensor:
    """Return the causal mask of `length` tokens over themselves and `before` earlier ones; True hides.

    A window lets a token at position p attend to positions above p - window. Shape: (length, before +
    length), bool.
    """
    slots = torch.arange(before + length, device=device)
    behind = slots[before:, None] - slots[None, :]
    hidden = behind < 0
    return hidden if window is None else hidden | (behind >= window)


def bias_by_distance(owner: nn.Module, farthest: int, device: torch.device) -> Tensor:
    """Return T5's relative bias of a causal layer as a table over distances. Shape: (H, farthest + 1).

    The bias depends on the distance alone (T5, section 2.1), so the row of the last of `farthest + 1`
    consecutive tokens, read backwards, holds every distance.
    """
    row: Tensor = owner.compute_bias(1, farthest + 1, device=device, past_seen_tokens=farthest)  # type: ignore[operator]
    return row[0, :, 0].flip(-1)

"""One softmax over several stretches of keys: how the token tree attends.

Grouped-query heads are folded into rows instead of repeating keys. A stretch that all queries share takes the
rows of all of them in one product, and is not copied per query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
        keys: Shape: (Q or 1, H_kv, n, D); 1 is a segment that all queries share.
        values: Shape: (Q or 1, H_kv, n, D_v).
        hidden: True where a row may not look. Shape: (Q or 1, B or 1, n), bool.
        bias: Added to the scores. Shape: (Q or 1, H, B or 1, n).
    """

    keys: Tensor
    values: Tensor
    hidden: Tensor | None
    bias: Tensor | None


def attend(query: Tensor, segments: tuple[Segment, ...], rule: Rule) -> Tensor:
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
    parts = [_scores(folded, segment, (queries, heads, branches), rule.softcap) for segment in segments]
    scores = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
    weights = scores.softmax(dim=-1).to(query.dtype).reshape(queries, kv_heads, -1, scores.shape[-1])
    shares = torch.split(weights, [segment.keys.shape[2] for segment in segments], dim=-1)
    attended = _product(shares[0], segments[0].values)
    for share, segment in zip(shares[1:], segments[1:], strict=True):
        attended = attended + _product(share, segment.values)
    return attended.reshape(queries, heads, branches, -1)


def _scores(folded: Tensor, segment: Segment, shape: tuple[int, int, int], softcap: float | None) -> Tensor:
    """Masked scores of one segment, at least float32. Shape: (Q, H, B, n)."""
    scores = _product(folded, segment.keys.mT).reshape(*shape, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if segment.bias is not None:
        scores = scores + segment.bias
    if segment.hidden is not None:
        scores = scores.masked_fill(segment.hidden[:, None], -torch.inf)
    return scores


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """`rows` @ `matrix`, where one matrix may stand for all queries.

    Args:
        rows: Shape: (Q, H_kv, r, n).
        matrix: Shape: (Q or 1, H_kv, n, m). A plain product would copy a single one Q times.

    Returns:
        Shape: (Q, H_kv, r, m).
    """
    if matrix.shape[0] == rows.shape[0]:
        return rows @ matrix
    queries, heads, count, _ = rows.shape
    together = rows.transpose(0, 1).reshape(heads, queries * count, -1) @ matrix[0]
    return together.view(heads, queries, count, -1).transpose(0, 1)


def causal_mask(length: int, window: int | None, device: torch.device, before: int = 0) -> Tensor:
    """True where a token may not look.

    Args:
        length: Consecutive tokens that look, t.
        window: A token at position p sees positions above p - window; None is unbounded.
        device: Where the mask is needed.
        before: Consecutive tokens that stand before them and are looked at too, s.

    Returns:
        Shape: (t, s + t), bool.
    """
    slots = torch.arange(before + length, device=device)
    behind = slots[before:, None] - slots[None, :]
    hidden = behind < 0
    return hidden if window is None else hidden | (behind >= window)


def bias_by_distance(owner: nn.Module, farthest: int, device: torch.device) -> Tensor:
    """T5's relative bias of a causal layer as a table over distances. Shape: (H, farthest + 1).

    The bias depends on the distance alone (T5, section 2.1), so the row of the last of `farthest + 1`
    consecutive tokens, read backwards, holds every distance.
    """
    row: Tensor = owner.compute_bias(1, farthest + 1, device=device, past_seen_tokens=farthest)  # type: ignore[operator]
    return row[0, :, 0].flip(-1)

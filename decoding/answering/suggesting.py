"""Choosing what a draft model proposes: as `decide`, without what only the model itself must say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.answering.choice_points import ChoicePoint, grouped
from decoding.answering.choosing import draw

# Tokens to choose from where the likeliest is taken and the budget rules it out.
_OFFERED = 4


@dataclass(frozen=True, slots=True, eq=False)
class Suggestion:
    """What the draft model says at one place.

    Attributes:
        tokens: What to propose; the likeliest tokens in order where the likeliest is taken. All are allowed
            and have positive probability; none where the draft model gives no allowed token any.
        probabilities: What the token was drawn from, over the tokens as the point orders them; None where the
            likeliest is taken. Shape: (M,).
        broken: Whether its logits cannot be used.
    """

    tokens: tuple[int, ...]
    probabilities: Tensor | None
    broken: bool


def suggest(logits: Tensor, points: Sequence[ChoicePoint]) -> list[Suggestion]:
    """Choose at some places. Waits for the device, once.

    Args:
        logits: Shape: (Q, R, V).
        points: Where to choose, all greedily or each with a temperature.
    """
    groups = [
        group
        for sampled in (False, True)
        for group in grouped(
            [point for point in points if (point.temperature > 0) is sampled], logits.shape[-1], logits.device
        )
    ]
    said: list[Tensor] = []
    rows: list[Tensor | None] = []
    for group in groups:
        scores = group.scores(logits)
        if group.points[0].temperature > 0:
            probabilities = torch.softmax(scores / group.temperature.to(scores.dtype), dim=-1)
            places = draw(probabilities.nan_to_num(), group)
            values = scores.amax(dim=1, keepdim=True)  # NaN if any is
            rows += probabilities
        else:
            values, places = scores.topk(min(_OFFERED, scores.shape[1]), dim=1)
            rows += [None] * len(scores)
        tokens = places if group.tokens is None else group.tokens.gather(1, places)
        pair = torch.stack([tokens.double(), values.double()])
        said.append(torch.nn.functional.pad(pair, (0, _OFFERED - pair.shape[2]), value=-torch.inf))
    numbers = torch.cat(said, dim=1).tolist()
    found = {
        id(point): _suggestion(tokens, values, row)
        for point, tokens, values, row in zip(
            (point for group in groups for point in group.points), *numbers, rows, strict=True
        )
    }
    return [found[id(point)] for point in points]


def _suggestion(tokens: list[float], values: list[float], probabilities: Tensor | None) -> Suggestion:
    offered = tuple(
        int(token) for token, value in zip(tokens, values, strict=True) if -torch.inf < value < torch.inf
    )
    return Suggestion(offered, probabilities, broken=not values[0] < torch.inf)

"""Where tokens are to be chosen in one pass: by which logits, among which tokens, with which numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Masks that allow at most so many tokens are lists of them: their logits are gathered, and nothing of the
# size of the vocabulary is touched.
MAX_LISTED = 512
_WORD_BITS = 32

PackedMask = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What was proposed at one place.

    Attributes:
        token: The token.
        probabilities: What it was drawn from, over the tokens as the choice point orders them; None where no
            other token would have been proposed. Shape: (M,).
    """

    token: int
    probabilities: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class ChoicePoint:
    """One place of one query.

    Attributes:
        query: Row of the query in the pass.
        row: Which of the query's logits.
        mask: The allowed tokens, packed: bit t % 32 of word t // 32. Shape: (ceil(V / 32),), uint32.
        temperature: Divides the logits; 0: the likeliest token is taken.
        seed: Of the query.
        step: Number of the token in the answer.
        stream: Keeps numbers that are drawn for different ends at one step apart.
        proposal: What is to be verified; None: nothing.
        listed: The allowed tokens, ascending; None where there are too many to list. Shape: (M,), int64.
    """

    query: int
    row: int
    mask: PackedMask
    temperature: float
    seed: int
    step: int
    stream: int
    proposal: Proposal | None = None
    listed: NDArray[np.int64] | None = None

    @staticmethod
    def listing(mask: PackedMask) -> NDArray[np.int64] | None:
        """The allowed tokens of a mask, ascending, if there are few."""
        if int(np.bitwise_count(mask).sum()) > MAX_LISTED:
            return None
        words = np.flatnonzero(mask)
        bits = np.unpackbits(mask[words].astype("<u4").view(np.uint8), bitorder="little")
        places: NDArray[np.int64] = np.flatnonzero(bits)
        return words[places // _WORD_BITS] * _WORD_BITS + places % _WORD_BITS


@dataclass(frozen=True, slots=True, eq=False)
class PointGroup:
    """Choice points whose allowed tokens are held the same way, on the device. n points, M tokens each.

    Attributes:
        points: The points.
        query: Shape: (n,), int64.
        row: Shape: (n,), int64.
        tokens: The tokens that are looked at, where they are listed. Shape: (n, M), int64; None: all of V.
        hidden: True where a token is not allowed. Shape: (n, M), bool.
        temperature: 1 where the likeliest token is taken. Shape: (n, 1), float64.
        seed: Shape: (n, 1), int64.
        step: Shape: (n, 1), int64.
        stream: Shape: (n, 1), int64.
        proposed: Place of the proposed token among the tokens; 0 without one. Shape: (n, 1), int64.
    """

    points: tuple[ChoicePoint, ...]
    query: Tensor
    row: Tensor
    tokens: Tensor | None
    hidden: Tensor
    temperature: Tensor
    seed: Tensor
    step: Tensor
    stream: Tensor
    proposed: Tensor

    @staticmethod
    def of(points: Sequence[ChoicePoint], vocab_size: int, device: torch.device) -> PointGroup:
        """Send points to the device, all of which list their tokens or none of which does."""
        listed = [point.listed for point in points if point.listed is not None]
        width = max(map(len, listed)) if listed else (len(points[0].mask) + 1) // 2
        facts = np.zeros((len(points), 6 + width), dtype=np.int64)
        for line, point in zip(facts, points, strict=True):
            line[:6] = (
                point.query,
                point.row,
                point.seed,
                point.step,
                point.stream,
                0 if point.proposal is None else _place(point, point.proposal.token),
            )
            if point.listed is None:
                line[6:].view("<u4")[: len(point.mask)] = point.mask
            else:
                line[6 : 6 + len(point.listed)] = point.listed
                line[6 + len(point.listed) :] = -1
        sent = torch.from_numpy(facts).to(device)
        temperature = [[point.temperature or 1.0] for point in points]
        query, row, seed, step, stream, proposed = (sent[:, place, None] for place in range(6))
        tokens: Tensor | None = sent[:, 6:]
        if listed:
            hidden = sent[:, 6:] < 0
            tokens = sent[:, 6:].clamp(min=0)
        else:
            packed = sent[:, 6:].contiguous().view(torch.uint8)
            bits = torch.arange(8, dtype=torch.uint8, device=device)
            hidden = ((packed[..., None] >> bits) & 1 == 0).flatten(1)[:, :vocab_size]
            tokens = None
        return PointGroup(
            points=tuple(points),
            query=query[:, 0],
            row=row[:, 0],
            tokens=tokens,
            hidden=hidden,
            temperature=torch.tensor(temperature, dtype=torch.float64, device=device),
            seed=seed,
            step=step,
            stream=stream,
            proposed=proposed,
        )

    def scores(self, logits: Tensor) -> Tensor:
        """Logits of the tokens that are looked at, -inf where not allowed. Shapes: (Q, R, V) to (n, M)."""
        at = self.query, self.row
        scores = logits[at] if self.tokens is None else logits[(*(i[:, None] for i in at), self.tokens)]
        return scores.masked_fill(self.hidden, -torch.inf)


def grouped(points: Sequence[ChoicePoint], vocab_size: int, device: torch.device) -> list[PointGroup]:
    """Points by how their tokens are held; the points of the groups in order are all points."""
    kinds = ([point for point in points if (point.listed is None) is dense] for dense in (False, True))
    return [PointGroup.of(kind, vocab_size, device) for kind in kinds if kind]


def _place(point: ChoicePoint, token: int) -> int:
    return token if point.listed is None else int(np.searchsorted(point.listed, token))

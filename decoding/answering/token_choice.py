"""Chooses tokens under masks on the device: greedy, sampled, and verified against a draft's proposals.

All results of one pass go to the host in one transfer. Places are decided independently: the host drops
whatever lies behind the first refused proposal.

A proposal x, drawn from q, is accepted with probability min(1, p(x) / q(x)); if it is refused, the token is
drawn from the normalised positive part of p - q. Together that is one exact draw from p (Leviathan, Kalman
and Matias, 2023, appendix A.1); p and q are the distributions under the mask. `suggest` makes the draft
model's proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genret.decoding.counter_rng import uniforms
from genret.decoding.grammar.vocabulary import tokens_of

# Spare tokens per place, in case the budget rules out the first.
SPARE = 7
# Random numbers of a place: one to accept, one to draw the token, the rest for spares.
_ACCEPT, _FIRST, _SPARES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Choice:
    """Decision at one place."""

    accepted: bool  # Whether the proposal stands; False without one
    token: int  # The token otherwise. Greedy: the likeliest allowed one
    logprob: float  # Its log-probability under the model alone
    # Replacements of `token`, in order: independent draws from p, or the likeliest tokens, `token` included.
    spare_tokens: tuple[int, ...]
    spare_logprobs: tuple[float, ...]
    # Log-probability of all allowed tokens together under the model alone; NaN if the logits cannot be used.
    log_mass: float


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Results of one pass."""

    choices: list[Choice]  # In the order of the choice points
    known: list[list[float]]  # Log-probabilities of known tokens, by query and row; NaN for unusable logits


def decide(logits: Tensor, following: Sequence[Sequence[int]], points: Sequence[ChoicePoint]) -> Decisions:
    """Choose at some places, and return the log-probabilities of known tokens. Waits for the device, once.

    `logits` are (Q, R, V); `following` the known tokens that follow the first rows of every query.
    """
    device = logits.device
    groups = grouped(points, logits.shape[-1], device)
    normalisers = torch.logsumexp(logits, dim=-1)  # (Q, R)
    # +inf would make every other token's probability a plausible 0.
    normalisers = normalisers.masked_fill(~normalisers.isfinite(), torch.nan)
    parts = []
    longest = max(map(len, following), default=0)
    if longest:
        padded = [[*tokens, *[0] * (longest - len(tokens))] for tokens in following]
        known = logits[:, :longest].gather(2, torch.tensor(padded, device=device)[..., None])[..., 0]
        parts.append((known - normalisers[:, :longest]).flatten().double())
    parts += [_decide_group(logits, normalisers, group).flatten() for group in groups]
    numbers: list[float] = torch.cat(parts).tolist() if parts else []
    split = len(following) * longest
    by_query = [numbers[row * longest : row * longest + len(tokens)] for row, tokens in enumerate(following)]
    width = 4 + 2 * SPARE
    found = {
        id(point): _choice(point, numbers[first : first + width])
        for first, point in zip(
            range(split, len(numbers), width), (p for group in groups for p in group.points), strict=True
        )
    }
    return Decisions(choices=[found[id(point)] for point in points], known=by_query)


def _decide_group(logits: Tensor, normalisers: Tensor, group: PointGroup) -> Tensor:
    """The numbers that `_choice` reads for every point, (n, 4 + 2 * SPARE), float64."""
    scores = group.scores(logits)
    places, accepted = _greedy(scores, group)
    if any(point.temperature > 0 for point in group.points):
        drawn, passed = _sampled(torch.softmax(scores / group.temperature.to(scores.dtype), dim=-1), group)
        sampled = torch.tensor([[point.temperature > 0] for point in group.points], device=logits.device)
        places, accepted = torch.where(sampled, drawn, places), torch.where(sampled, passed, accepted)
    normaliser = normalisers[group.query, group.row][:, None]
    logprobs = scores.gather(1, places) - normaliser
    tokens = places if group.tokens is None else group.tokens.gather(1, places)
    mass = torch.logsumexp(scores, dim=-1, keepdim=True) - normaliser
    return torch.cat([accepted.double(), mass.double(), tokens.double(), logprobs.double()], dim=1)


def _greedy(scores: Tensor, group: PointGroup) -> tuple[Tensor, Tensor]:
    """Places of the likeliest token and of the likeliest in order, (n, 1 + SPARE); agreement, (n, 1)."""
    best = scores.argmax(dim=1, keepdim=True)
    spare = scores.topk(min(SPARE, scores.shape[1]), dim=1).indices
    missing = spare[:, -1:].expand(-1, SPARE - spare.shape[1])
    return torch.cat([best, spare, missing], dim=1), best == group.proposed


def _sampled(probabilities: Tensor, group: PointGroup) -> tuple[Tensor, Tensor]:
    """Places of a drawn token and of spares, (n, 1 + SPARE), and acceptance of proposals, (n, 1)."""
    numbers = torch.arange(_SPARES + SPARE, device=probabilities.device)
    drawn = uniforms(group.seed, group.step, group.stream, numbers)
    whole = probabilities.cumsum(dim=1, dtype=torch.float64)
    proposals = [point.proposal for point in group.points]
    if not any(proposals):
        return _inverse(whole, drawn[:, _FIRST:]), torch.zeros_like(group.proposed, dtype=torch.bool)
    # A proposal without probabilities was certain.
    certain = [[proposal is not None and proposal.probabilities is None] for proposal in proposals]
    other = torch.zeros_like(probabilities)
    other.scatter_(1, group.proposed, torch.tensor(certain, device=other.device).to(other.dtype))
    for line, proposal in zip(other, proposals, strict=True):
        if proposal is not None and proposal.probabilities is not None:
            line[: len(proposal.probabilities)] = proposal.probabilities[: len(line)]
    mine, theirs = (part.gather(1, group.proposed).double() for part in (probabilities, other))
    accepted = drawn[:, _ACCEPT, None] * theirs < mine
    accepted &= theirs > 0  # there was a proposal
    rest = (probabilities - other).clamp(min=0)
    # Nothing is left if the draft's distribution is the same; only rounding can refuse a proposal then.
    rest = torch.where((rest > 0).any(dim=1, keepdim=True), rest, probabilities)
    first = _inverse(rest.cumsum(dim=1, dtype=torch.float64), drawn[:, _FIRST, None])
    return torch.cat([first, _inverse(whole, drawn[:, _SPARES:])], dim=1), accepted


def _inverse(cumulated: Tensor, drawn: Tensor) -> Tensor:
    """Places of positive weight that uniforms select. Shapes: (n, M) and (n, m) to (n, m)."""
    total = cumulated[:, -1:].contiguous()
    last = torch.searchsorted(cumulated, total)
    places = torch.searchsorted(cumulated, (drawn * total).contiguous(), right=True)
    return torch.minimum(places, last).clamp(max=cumulated.shape[1] - 1)


def _choice(point: ChoicePoint, numbers: Sequence[float]) -> Choice:
    tokens, logprobs = numbers[2 : 3 + SPARE], numbers[3 + SPARE :]
    return Choice(
        accepted=point.proposal is not None and bool(numbers[0]),
        token=int(tokens[0]),
        logprob=logprobs[0],
        spare_tokens=tuple(map(int, tokens[1:])),
        spare_logprobs=tuple(logprobs[1:]),
        log_mass=numbers[1],
    )


# Most allowed tokens that are listed: then only their logits are gathered, not the whole vocabulary.
MAX_LISTED = 512

PackedMask = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A proposed token."""

    token: int
    # Distribution it was drawn from, over the tokens in the choice point's order; None if it was certain.
    # Shape: (M,).
    probabilities: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class ChoicePoint:
    """One place of one query at which a token is chosen."""

    query: int  # Row of the query in the pass
    row: int  # Row of the query's logits
    mask: PackedMask  # The allowed tokens, packed: bit t % 32 of word t // 32. Shape: (ceil(V / 32),), uint32
    temperature: float  # Divides the logits; 0: the likeliest token is taken
    seed: int  # Seed of the query
    step: int  # Number of the token in the answer
    stream: int  # Stream of the random numbers, one per use
    proposal: Proposal | None = None  # The token to be verified, if any
    # The allowed tokens, ascending; None if there are too many to list. Shape: (M,), int64.
    listed: NDArray[np.int64] | None = None

    @staticmethod
    def listing(mask: PackedMask) -> NDArray[np.int64] | None:
        """Return the allowed tokens of a mask, ascending, if there are few."""
        if int(np.bitwise_count(mask).sum()) > MAX_LISTED:
            return None
        return tokens_of(mask)


@dataclass(frozen=True, slots=True, eq=False)
class PointGroup:
    """Choice points on the device, all with listed tokens or all without. n points, M tokens each."""

    points: tuple[ChoicePoint, ...]
    query: Tensor  # Shape: (n,), int64
    row: Tensor  # Shape: (n,), int64
    # The listed tokens. Shape: (n, M), int64; None: all of V.
    tokens: Tensor | None
    hidden: Tensor  # True where a token is not allowed. Shape: (n, M), bool
    temperature: Tensor  # 1 for greedy points. Shape: (n, 1), float64
    seed: Tensor  # Shape: (n, 1), int64
    step: Tensor  # Shape: (n, 1), int64
    stream: Tensor  # Shape: (n, 1), int64
    proposed: Tensor  # Place of the proposed token among the tokens; 0 without one. Shape: (n, 1), int64

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
        """Logits of the tokens, -inf for those not allowed. Shapes: (Q, R, V) to (n, M)."""
        at = self.query, self.row
        scores = logits[at] if self.tokens is None else logits[(*(i[:, None] for i in at), self.tokens)]
        return scores.masked_fill(self.hidden, -torch.inf)


def grouped(points: Sequence[ChoicePoint], vocab_size: int, device: torch.device) -> list[PointGroup]:
    """Return the points in groups with listed tokens and without."""
    kinds = ([point for point in points if (point.listed is None) is dense] for dense in (False, True))
    return [PointGroup.of(kind, vocab_size, device) for kind in kinds if kind]


def _place(point: ChoicePoint, token: int) -> int:
    return token if point.listed is None else int(np.searchsorted(point.listed, token))


# Tokens that a greedy suggestion offers, in case the budget rules out the first.
_OFFERED = 4


@dataclass(frozen=True, slots=True, eq=False)
class Suggestion:
    """The draft model's proposals at one place."""

    # Tokens to propose: the drawn one, or the likeliest in order, all allowed and of positive probability.
    # Empty if no allowed token has any.
    tokens: tuple[int, ...]
    # Distribution the token was drawn from, in the order of the point's tokens; None if greedy. Shape: (M,).
    probabilities: Tensor | None
    broken: bool  # Whether its logits cannot be used


def suggest(logits: Tensor, points: Sequence[ChoicePoint]) -> list[Suggestion]:
    """Choose the draft model's proposals at some places. Waits for the device, once.

    `logits`: (Q, R, V). `points`: the choice points, all greedy or each with a temperature.
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
            number = torch.arange(_FIRST, _FIRST + 1, device=scores.device)
            drawn = uniforms(group.seed, group.step, group.stream, number)
            places = _inverse(probabilities.nan_to_num().cumsum(dim=1, dtype=torch.float64), drawn)
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

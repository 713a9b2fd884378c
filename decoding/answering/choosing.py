"""Choosing tokens under masks on the device: greedy, sampled, and verified against what a draft proposed.

Everything one pass has to say goes to the host in one transfer. What happens at a place does not depend on
what was decided before it: the host drops what lies behind the first refused proposal.

A proposal x, drawn from q, is accepted with probability min(1, p(x) / q(x)); where it is refused, the token
is drawn from the normalised positive part of p - q. Both together are one exact draw from p (Leviathan,
Kalman and Matias, 2023, appendix A.1); p and q are the distributions under the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.answering.choice_points import ChoicePoint, PointGroup, grouped
from decoding.counter_rng import uniforms

# Further tokens per place, in case the host refuses the first for a reason of its own, such as the budget.
SPARE = 7
# Numbers of a place: one to accept, one to draw the token, the rest for spares.
_ACCEPT, _FIRST, _SPARES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided at one place.

    Attributes:
        accepted: Whether the proposal stands; False without one.
        token: The token otherwise. Greedy: the likeliest allowed one.
        logprob: Its log-probability under the model alone.
        spare_tokens: What to take, in order, where `token` will not do: independent draws from p, or the
            likeliest tokens in order, `token` among them.
        spare_logprobs: Theirs.
        log_mass: Log of the probability of all allowed tokens together under the model alone; -inf where
            they have none, NaN where the logits cannot be used.
    """

    accepted: bool
    token: int
    logprob: float
    spare_tokens: tuple[int, ...]
    spare_logprobs: tuple[float, ...]
    log_mass: float


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """What one pass says.

    Attributes:
        choices: In the order of the points asked for.
        known: Log-probabilities of the tokens that were known, by query and row; NaN where the logits cannot
            be used.
    """

    choices: list[Choice]
    known: list[list[float]]


def decide(logits: Tensor, following: Sequence[Sequence[int]], points: Sequence[ChoicePoint]) -> Decisions:
    """Choose at some places, and say how likely tokens are that are known. Waits for the device, once.

    Args:
        logits: Shape: (Q, R, V).
        following: For the first rows of every query, the tokens that follow them. Length Q.
        points: Where to choose.
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
    """Numbers of `_choice` for every point, (n, 4 + 2 * SPARE), float64."""
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


def draw(probabilities: Tensor, group: PointGroup) -> Tensor:
    """Draw one token at every point; its place. Shapes: (n, M) to (n, 1)."""
    numbers = torch.arange(_FIRST, _FIRST + 1, device=probabilities.device)
    drawn = uniforms(group.seed, group.step, group.stream, numbers)
    return _inverse(probabilities.cumsum(dim=1, dtype=torch.float64), drawn)


def _greedy(scores: Tensor, group: PointGroup) -> tuple[Tensor, Tensor]:
    """Places of the likeliest token and of the likeliest in order, (n, 1 + SPARE); agreement, (n, 1)."""
    best = scores.argmax(dim=1, keepdim=True)
    spare = scores.topk(min(SPARE, scores.shape[1]), dim=1).indices
    missing = spare[:, -1:].expand(-1, SPARE - spare.shape[1])
    return torch.cat([best, spare, missing], dim=1), best == group.proposed


def _sampled(probabilities: Tensor, group: PointGroup) -> tuple[Tensor, Tensor]:
    """Places of a drawn token and of spares, (n, 1 + SPARE), and which proposals stand, (n, 1)."""
    numbers = torch.arange(_SPARES + SPARE, device=probabilities.device)
    drawn = uniforms(group.seed, group.step, group.stream, numbers)
    whole = probabilities.cumsum(dim=1, dtype=torch.float64)
    proposals = [point.proposal for point in group.points]
    if not any(proposals):
        return _inverse(whole, drawn[:, _FIRST:]), torch.zeros_like(group.proposed, dtype=torch.bool)
    # One that was not drawn was certain.
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
    # Nothing is left where the draft said the same; only rounding can refuse a proposal there.
    rest = torch.where((rest > 0).any(dim=1, keepdim=True), rest, probabilities)
    first = _inverse(rest.cumsum(dim=1, dtype=torch.float64), drawn[:, _FIRST, None])
    return torch.cat([first, _inverse(whole, drawn[:, _SPARES:])], dim=1), accepted


def _inverse(cumulated: Tensor, drawn: Tensor) -> Tensor:
    """Places that uniforms fall on, of positive weight all. Shapes: (n, M) and (n, m) to (n, m)."""
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

"""Answers about mentions: what a reply of the retriever comes to, wherever in the documents it was asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retrieval.errors import InputError
from retrieval.linking.options import LinkOptions
from retrieval.types import RetrievalResult

if TYPE_CHECKING:
    from retrieval.types import Candidate, Entity

# A candidate, what it is ordered by, and its probability.
Weighed = tuple["Candidate", float, float]
Weigher = Callable[[Sequence["Candidate"]], list[Weighed]]


@dataclass(frozen=True, slots=True)
class LinkCandidate:
    """One entity that a mention may stand for.

    Attributes:
        entity_id: The entity.
        title: Its title.
        logprob: Natural log of the model's probability of its surface forms; None where no model was asked.
        score: What the list is ordered by; None where no model was asked.
        probability: That it is the one meant, of the entities that are called so (`named_entities`). Where
            any entity may be meant, and with `disc`: that of the reply. `auto` by the index's ranking: the
            calibrated probability that it is meant; `disc`: its share of the samples; `beam`: its share of
            the probability of the candidates listed, which is at least its share among all titles;
            `shortlist`, and `auto` without a ranking: of that of all that was scored, which is so too.
    """

    entity_id: str
    title: str
    logprob: float | None
    score: float | None
    probability: float | None


@dataclass(frozen=True, slots=True)
class LinkAnswer:
    """What a mention is linked to; kept for further mentions that are asked about in the same words.

    Attributes:
        nil_reason: Why there is no link, one of `retrieval.linking.rows.NIL_REASONS`; None: the first
            candidate is the link.
        surface: The surface form of the first candidate that was written.
        candidates: Best first.
        certified: Whether they are proven; None where that was not looked at.
        mass: Of `disc`.
        method: "auto", "beam", "disc", "shortlist" or "name".
        error: Why the mention failed.
    """

    nil_reason: str | None
    surface: str | None = None
    candidates: tuple[LinkCandidate, ...] = ()
    certified: bool | None = None
    mass: float | None = None
    method: str = "beam"
    error: str | None = None

    @property
    def best(self) -> LinkCandidate | None:
        """What the mention is linked to; None: NIL."""
        return self.candidates[0] if self.nil_reason is None else None


def answer_of(
    reply: RetrievalResult | Exception, options: LinkOptions, weigh: Weigher | None = None
) -> LinkAnswer:
    """Return what a reply comes to under the options: a link, or NIL with the reason.

    Args:
        reply: To the request that links the mention.
        options: How mentions are linked.
        weigh: Puts the candidates in order; None: they stay as they are.
    """
    if not isinstance(reply, RetrievalResult):
        return failure(reply, options.method)
    listed = (_as_listed if weigh is None else weigh)(reply.candidates)[: options.k]
    candidates = tuple(
        LinkCandidate(c.entity_id, c.title, c.logprob, score, probability) for c, score, probability in listed
    )
    return LinkAnswer(
        nil_reason="abstained" if reply.abstained else _nil_reason(candidates, options),
        surface=listed[0][0].surface if listed else None,
        candidates=candidates,
        certified=reply.certified,
        mass=reply.bounded_mass,
        method=reply.method,
    )


def failure(error: Exception, method: str) -> LinkAnswer:
    """Return the answer to a mention that failed; its text is one line."""
    # What a request calls its query is a mention to whoever links documents.
    is_query = isinstance(error, InputError) and error.field == "query"
    text = f"mention: {error.message}" if is_query and isinstance(error, InputError) else str(error)
    return LinkAnswer("error", method=method, error=" ".join(text.split()) or type(error).__name__)


def only_entity(entity: Entity, surface: str) -> LinkAnswer:
    """Return the answer to a mention that only one entity has as a name; no model is asked."""
    alone = LinkCandidate(entity.entity_id, entity.title, None, None, 1.0)
    return LinkAnswer(None, surface, (alone,), certified=True, method="name")


def nobody(method: str) -> LinkAnswer:
    """Return the answer to a mention that no entity has as a name."""
    return LinkAnswer("no_name", method=method)


def _nil_reason(candidates: tuple[LinkCandidate, ...], options: LinkOptions) -> str | None:
    if not candidates:
        return "no_match"
    best = candidates[0]
    if options.min_logprob is not None and best.logprob is not None and best.logprob < options.min_logprob:
        return "min_logprob"
    least = options.min_probability
    if least is not None and best.probability is not None and best.probability < least:
        return "min_probability"
    return None


def _as_listed(candidates: Sequence[Candidate]) -> list[Weighed]:
    """Return candidates with what the samples gave each, or its share of the probability of those listed."""
    shares = [c.probability for c in candidates if c.probability is not None]
    if len(shares) < len(candidates):
        shares = probabilities([c.logprob for c in candidates])
    return [(c, c.score, share) for c, share in zip(candidates, shares, strict=True)]


def probabilities(logs: Sequence[float]) -> list[float]:
    """Return probabilities in proportion to numbers whose logs are given; equal ones where all are 0."""
    total = float(np.logaddexp.reduce(logs))
    if total == -math.inf:
        return [1 / len(logs)] * len(logs)
    return [math.exp(value - total) for value in logs]

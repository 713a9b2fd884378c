"""Exact scores of entities: every surface form of theirs, those that no decoder found in one token tree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError
from decoding.language_model import DecodeSession
from decoding.row_scores import score_rows
from decoding.types import Hypothesis
from retrieval.entity_rows import EntityRows
from retrieval.filters.entity_filter import EntityFilter, mask_of
from retrieval.index.owners import FormOwners
from retrieval.index.reader import Index
from retrieval.tallies import OwnForm, Tally, log_sum
from retrieval.types import RetrieveRequest

# Surface forms of one query; of entities with more together, some aliases of those with the most are left
# out. Two thousand entities of four forms each fit.
MAX_SCORED_FORMS = 8_192


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What the surface forms of a query's entities score.

    Attributes:
        tallies: The forms of each entity; those are left out that are longer than the model has room for or
            that it cannot write, and entities without any other.
        logprob: Natural log of the probability of all distinct forms; -inf without any.
        num_forms: How many these are, whether a decoder had found them or not.
        num_nodes: Tokens the model computed behind the prompt.
        has_all_listed: Whether all forms were looked at, rather than as many as one query may have.
        is_complete: Whether besides none of them is longer than the model has room for.
    """

    tallies: dict[int, Tally]
    logprob: float = -math.inf
    num_forms: int = 0
    num_nodes: int = 0
    has_all_listed: bool = True
    is_complete: bool = True


class EntityScorer:
    """Scores entities of one index.

    Args:
        index: An open index.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._rows = EntityRows(index)

    def score(
        self,
        session: DecodeSession,
        requests: Sequence[RetrieveRequest],
        filters: Sequence[EntityFilter | None],
        entities: Sequence[Sequence[int]],
        found: Sequence[Mapping[int, Hypothesis]],
        cancel: Sequence[CancelToken | None],
        room: Sequence[int | None],
    ) -> list[Scored | DecodingCancelledError]:
        """Score the entities of every query of a session. All lists have one entry per query.

        Args:
            session: Stays as it is; branches that it has are not seen.
            requests: How entities share a form.
            filters: The entities among which they share it.
            entities: Entity numbers, none of a query's twice.
            found: By rank, the rows whose log-probabilities are known: the model is not asked again.
            cancel: Polled between forwards.
            room: Most tokens that may follow each prompt.

        Raises:
            InvalidLogitsError: the model returned broken logits.
        """
        wanted = [self._rows.of_all(mine, MAX_SCORED_FORMS) for mine in entities]
        every = [{rank for rows in mine for rank in rows} for mine, _ in wanted]
        # In rank order neighbours share the longest beginnings.
        ranks = [sorted(mine.difference(known)) for mine, known in zip(every, found, strict=True)]
        texts = [self._index.rows.token_ids_of(np.array(mine, dtype=np.int64)) for mine in ranks]
        outcomes: list[Scored | DecodingCancelledError] = []
        for query, scores in enumerate(score_rows(session, texts, cancel, room)):
            if isinstance(scores, DecodingCancelledError):
                outcomes.append(scores)
                continue
            forms = {rank: form for rank, form in found[query].items() if rank in every[query]}
            forms |= {
                rank: Hypothesis(row, rank, logprob)
                for rank, row, logprob in zip(ranks[query], texts[query], scores.logprobs, strict=True)
                if logprob is not None
            }
            rows, is_whole = wanted[query]
            owners = FormOwners(self._index, mask_of(filters[query]), requests[query].role_weight)
            tallies = _tallies(entities[query], rows, forms, owners)
            outcomes.append(
                Scored(
                    tallies=tallies,
                    logprob=log_sum([form.logprob for form in forms.values()]),
                    num_forms=len(forms),
                    num_nodes=scores.num_nodes,
                    has_all_listed=is_whole,
                    is_complete=is_whole and None not in scores.logprobs,
                )
            )
        return outcomes


def _tallies(
    entities: Sequence[int],
    rows: Sequence[Sequence[int]],
    forms: dict[int, Hypothesis],
    owners: FormOwners,
) -> dict[int, Tally]:
    """Return the forms of every entity that the model can write, each with the entity's share."""
    owners_of = {rank: owners(rank) for rank, form in forms.items() if form.logprob > -math.inf}
    tallies = {}
    for entity, mine in zip(entities, rows, strict=True):
        written = {
            rank: OwnForm(forms[rank], owners_of[rank].log_share(entity))
            for rank in mine
            if rank in owners_of
        }
        if written:
            tallies[entity] = Tally(written)
    return tallies

"""Entities whose name a mention is: the only candidates, where that is asked for.

Three things say which of them is meant (docs/numbers.md): the model, P(e | q); the mention, a form m that the
author wrote, so that what the model gives this form is raised by `mention` and shared as P(e | m); and the
text around it, where it holds another word of a title ("... Illinois ... Cairo"):

    P(e | mention, text)  ∝  (P(e | q) + mention · P(e | m)) · context^[a word of e is nearby]

In P(e | m) the entities that are spelled like the mention, letter case included, are a role of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from genret.decoding.params import MAX_K
from genret.retrieval.arguments import IdList, checked_ids
from genret.retrieval.index.owners import log_or_nothing, shares_by_role, weights_of
from genret.retrieval.linking.finding.find_options import ENGLISH_STOP_WORDS
from genret.retrieval.linking.finding.folding import fold_name, fold_piece, is_boundary
from genret.retrieval.linking.link_answers import (
    LinkAnswer,
    LinkCandidate,
    OpenQuestion,
    Weighed,
    probabilities,
)
from genret.retrieval.linking.link_options import LinkOptions
from genret.retrieval.types import Candidate, Entity

if TYPE_CHECKING:
    from genret.retrieval.retriever import Retriever

# How much text on either side of a mention is looked at for words of titles.
NEARBY_CHARS = 600
# Names whose entities are kept at hand.
_KEPT_NAMES = 4096
_WORD = re.compile(r"[^\W\d_]{2,}")


class NamesakeMatch(NamedTuple):
    """An entity as one of several of a name."""

    number: int  # number of the entity
    is_title: bool  # whether the name is its title
    is_spelled: bool  # whether its name is spelled as the mention is, letter case included
    words: tuple[str, ...]  # the words of its title that the name does not have


class NamedEntities:
    """Looks up the entities of a mention's name, and answers where the model has nothing to choose.

    A mention that is the name of one entity needs no model, and is linked with probability 1. The model is
    asked all the same where the options want what only it can say (`min_logprob`, `min_mass`), and under a
    filter, which the entity may not pass.
    """

    def __init__(
        self, retriever: Retriever, entity_ids: Callable[[str], tuple[str, ...]], options: LinkOptions
    ) -> None:
        self._index, config = retriever.index, retriever.config
        self._entity_ids = entity_ids
        self._nobody = LinkAnswer("no_name", method=options.method)
        needed = (options.min_logprob, options.min_mass, options.filter)
        self._may_skip_model = all(value is None for value in needed)
        self._title_weight = config.title_weight if options.title_weight is None else options.title_weight
        self._evidence = config.name_evidence
        self.called = lru_cache(_KEPT_NAMES)(self._read_called)

    def ids(self, mention: str) -> IdList:
        """Return the ids of the entities that a mention may stand for."""
        return checked_ids("allow_ids", self._entity_ids(mention))

    def near(self, mention: str, left: str, right: str) -> frozenset[str]:
        """Return the ids of the entities with another word of their title near a mention.

        `NEARBY_CHARS` of the text on either side are enough. None are returned for a name of more entities
        than a list can hold.
        """
        ids = self.ids(mention)
        if not 1 < len(ids) <= MAX_K:
            return frozenset()
        text = f"{fold_piece(left).text}\n{fold_piece(right).text}"
        called = self.called(mention, ids)
        return frozenset(entity_id for entity_id, one in called.items() if _holds_any(text, one.words))

    def weigh(self, question: OpenQuestion, candidates: Sequence[Candidate]) -> list[Weighed]:
        """Return the candidates of a reply, ordered by probability, best first."""
        if not candidates:
            return []
        shares = self._shares(question, [candidate.entity_id for candidate in candidates])
        mention, context = math.log(self._evidence.mention), math.log(self._evidence.context)
        scores = [
            float(np.logaddexp(candidate.logprob, mention + log_or_nothing(share)))
            + (context if candidate.entity_id in question.key.near else 0.0)
            for share, candidate in zip(shares, candidates, strict=True)
        ]
        weighed = zip(candidates, scores, probabilities(scores), strict=True)
        return sorted(weighed, key=lambda one: -one[1])  # of equal ones the reply's order stays

    def _shares(self, question: OpenQuestion, ids: Sequence[str]) -> list[float]:
        """Return P(e | m) of the entities that share a name."""
        every = question.named if question.named and len(question.named) <= MAX_K else IdList(ids)
        called = self.called(question.mention.mention, every)
        mine = [called[entity_id] for entity_id in ids]
        weights = weights_of(self._index, [one.number for one in mine])
        strengths = [
            (self._title_weight if one.is_title else 1.0)
            * (self._evidence.spelling if one.is_spelled else 1.0)
            for one in mine
        ]
        roles = np.array([2 * one.is_title + one.is_spelled for one in mine])
        return list(shares_by_role(weights, roles, np.array(strengths)).tolist())

    def is_settled(self, ids: IdList | None) -> bool:
        """Whether the model has nothing to choose among these."""
        return ids is not None and (not ids or (len(ids) == 1 and self._may_skip_model))

    def answers(self, questions: Sequence[OpenQuestion]) -> list[LinkAnswer]:
        """Answer questions that are settled; the ids of all of them are looked up together."""
        wanted = sorted({question.named[0] for question in questions if question.named})
        numbers = self._index.entities.find(wanted).tolist() if wanted else []
        known = dict(zip(wanted, numbers, strict=True))
        return [
            self._answer(question.mention.mention, known[question.named[0]])
            if question.named
            else self._nobody
            for question in questions
        ]

    def _answer(self, mention: str, number: int) -> LinkAnswer:
        if number < 0:  # the finder is of another index
            return self._nobody
        entity = self._index.entity(number)
        alone = LinkCandidate(entity.entity_id, entity.title, None, None, 1.0)
        return LinkAnswer(None, _surface(entity, mention), (alone,), certified=True, method="name")

    def _read_called(self, mention: str, ids: IdList) -> dict[str, NamesakeMatch]:
        """Return the entities of a name by id; ids that the index lacks are left out."""
        name, spelling = fold_name(mention), fold_name(mention, keep_case=True)
        own = ENGLISH_STOP_WORDS.union(_WORD.findall(name))
        found = {}
        for entity_id, number in zip(ids, self._index.entities.find(ids).tolist(), strict=True):
            if number >= 0:
                entity = self._index.entity(number)
                title, forms = fold_name(entity.title), (entity.title, *entity.aliases)
                found[entity_id] = NamesakeMatch(
                    number=number,
                    is_title=title == name,
                    is_spelled=any(fold_name(form, keep_case=True) == spelling for form in forms),
                    words=tuple(word for word in _WORD.findall(title) if word not in own),
                )
        return found


def _holds_any(text: str, words: Iterable[str]) -> bool:
    """Whether one of the words stands in a folded text as a word of its own."""
    for word in words:
        at = text.find(word)
        while at >= 0:
            if is_boundary(text, at) and is_boundary(text, at + len(word)):
                return True
            at = text.find(word, at + 1)
    return False


def _surface(entity: Entity, mention: str) -> str:
    """Return the form that is spelled like the mention, in the same letter case where there is one."""
    forms = (entity.title, *entity.aliases)
    for keep_case in (True, False):
        spelled = fold_name(mention, keep_case)
        for form in forms:
            if fold_name(form, keep_case) == spelled:
                return form
    return entity.title

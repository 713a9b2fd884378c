"""From what labels say to entities of an index: titles and ids are looked up once, for the whole set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from retrieval.evaluation.tokens import encode_token
from retrieval.evaluation.types import MISSING, LabelledQuery
from retrieval.types import Mention


class TitleResolver(Protocol):
    """Finds entities of an index by what labels call them, many at once: an index is passed over once."""

    def by_ids(self, entity_ids: Sequence[str]) -> list[str | None]:
        """Return the id of each entity, or None where the index has no such entity."""

    def by_titles(self, titles: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the ids of all entities that each title names, in the index's order; () where none does.

        Those whose title it is after the text policy; where there are none, those whose alias it is.
        """


@dataclass(frozen=True, slots=True)
class Answer:
    """What a label calls an entity.

    Attributes:
        entity_id: Its id, where the label has one.
        title: Its title, where the label has one; at least one of the two is there.
        grade: Above 0: relevant.
    """

    entity_id: str | None
    title: str | None
    grade: int = 1


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A query as the files have it.

    Attributes:
        query_id: Unique in the set.
        text: The query; of a mention, its own text.
        answers: What is judged for it.
        mention: The mention in its context.
        evidence: Sets of places in `answers`.
        is_nil: Whether the label says that nothing answers.
        document: What it is part of.
        line: Number of its first line; 0 where no reader counts.
    """

    query_id: str
    text: str
    answers: tuple[Answer, ...]
    mention: Mention | None = None
    evidence: tuple[tuple[int, ...], ...] = ()
    is_nil: bool = False
    document: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """What the index says to every id and title of a set."""

    ids: Mapping[str, str | None]
    titles: Mapping[str, tuple[str, ...]]
    trusts_ids: bool

    def find(self, answer: Answer) -> tuple[str, ...]:
        """Return the entities an answer may mean; () where the index has none."""
        if answer.entity_id is not None and (self.trusts_ids or answer.title is None):
            found = self.ids[answer.entity_id]
            if found is not None:
                return (found,)
        return self.titles[answer.title] if answer.title is not None else ()


def find_answers(
    queries: Sequence[FileQuery], resolver: TitleResolver
) -> tuple[tuple[LabelledQuery, ...], int]:
    """Find the answers of all queries in the index.

    An id is looked up first, a title where the index lacks the id. The ids of a set are often not those of
    the index, and may by chance name other entities: where more of them contradict the titles beside them
    than agree with them, only titles count.

    Returns:
        The labelled queries, and the number of relevant answers that the index lacks.
    """
    known = _look_up(queries, resolver)
    labelled, num_missing = [], 0
    for query in queries:
        found, missing = _labelled(query, known)
        labelled.append(found)
        num_missing += missing
    return tuple(labelled), num_missing


def _look_up(queries: Sequence[FileQuery], resolver: TitleResolver) -> _Known:
    answers = [answer for query in queries for answer in query.answers]
    ids = list(dict.fromkeys(a.entity_id for a in answers if a.entity_id is not None))
    titles = list(dict.fromkeys(a.title for a in answers if a.title is not None))
    known_ids = dict(zip(ids, resolver.by_ids(ids), strict=True))
    known_titles = dict(zip(titles, resolver.by_titles(titles), strict=True))
    agree = contradict = 0
    for answer in dict.fromkeys((a.entity_id, a.title) for a in answers):
        entity_id, title = answer
        if entity_id is None or title is None or known_ids[entity_id] is None or not known_titles[title]:
            continue
        if known_ids[entity_id] in known_titles[title]:
            agree += 1
        else:
            contradict += 1
    return _Known(known_ids, known_titles, trusts_ids=contradict <= agree)


def _labelled(query: FileQuery, known: _Known) -> tuple[LabelledQuery, int]:
    gold: dict[str, int] = {}
    namesakes: dict[str, str] = {}
    chosen: list[str] = []
    for answer in query.answers:
        found = known.find(answer)
        # An entity that stands for others already goes on to do so, whatever label names it.
        first = next((namesakes.get(e, e) for e in found if e in gold or e in namesakes), None)
        if first is None:
            first = found[0] if found else MISSING + encode_token(answer.title or answer.entity_id or "")
        gold[first] = max(gold.get(first, answer.grade), answer.grade)
        chosen.append(first)
        for entity_id in found:
            if entity_id not in gold:
                namesakes.setdefault(entity_id, first)
    evidence = tuple(dict.fromkeys(frozenset(chosen[i] for i in places) for places in query.evidence))
    labelled = LabelledQuery(
        query_id=query.query_id,
        text=query.text,
        mention=query.mention,
        gold=gold,
        evidence=evidence,
        is_nil=query.is_nil,
        document=query.document,
        namesakes=namesakes,
    )
    return labelled, sum(grade > 0 and entity.startswith(MISSING) for entity, grade in gold.items())

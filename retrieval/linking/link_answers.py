"""Puts mentions to the retriever, turns its replies into answers, keeps the answers, and makes rows of them.

A window holds mentions that were read ahead: the rows already known, and the questions still open. Mentions
that are put to the model in the same words share one question and its answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from genret.decoding.bounded_cache import BoundedCache
from genret.retrieval.arguments import IdList, check_filled
from genret.retrieval.errors import InputError
from genret.retrieval.linking.documents.text_document import BadDocument, Document, DocumentPlace, Span
from genret.retrieval.linking.link_options import LinkOptions
from genret.retrieval.linking.run_progress import LinkListener
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.tables import Shown
from genret.retrieval.types import Candidate, Mention, RetrievalResult, RetrieveRequest, with_options

Documents = Iterable[Document | BadDocument]
# A candidate, what it is ordered by, and its probability.
Weighed = tuple[Candidate, float, float]
Weigher = Callable[[Sequence[Candidate]], list[Weighed]]


class PlacedMention(NamedTuple):
    """A mention on its way to an answer. Holds no document, however long that is."""

    source: str  # the document's input file
    row: int  # its line or row there
    doc_id: str  # its id
    place: DocumentPlace  # where the mention is in the whole document
    context: Mention  # the mention, and as much text around it as the model may see
    mention_id: str | None  # what the input calls it
    origin: str  # "given", "found" or "generated"

    @classmethod
    def of(cls, document: Document, span: Span, context: Mention, origin: str) -> PlacedMention:
        """Return the mention of a span of a document."""
        place = document.place(span)
        return cls(document.source, document.row, document.doc_id, place, context, span.mention_id, origin)

    def complaint(self, reason: str) -> str:
        """Return a line that says what is wrong with the mention, and where it is."""
        at = f"characters [{self.place.start}, {self.place.end})"
        return f"{self.source}, line {self.row}: document {self.doc_id!r}, {at}: {reason}"


def is_counted(document: Document | BadDocument, listener: LinkListener) -> TypeGuard[Document]:
    """Count a document once, with the part that it begins with; complain of a bad one: False."""
    if isinstance(document, BadDocument):
        listener.counts.num_bad_documents += 1
        listener.complain(str(document))
        return False
    listener.counts.num_documents += document.offset == 0 and document.begin == 0
    return True


class MentionContexts:
    """Makes requests out of spans, in the words of one prompt template.

    The context is cut at exactly the template's width, even within a word, as in `Retriever.link` and in
    `genret train --mentions`. A template that is not there is an `InputError`.
    """

    def __init__(self, config: CheckpointConfig, options: LinkOptions) -> None:
        template = config.prompt(config.mention_prompt if options.prompt is None else options.prompt)
        if options.context_chars is not None:
            template = replace(template, context_chars=options.context_chars)
        self._template = template
        self._asks_evidence = options.asks_evidence
        self._asked = with_options(options.k, options.method, template.name, options.request_options())

    def around(self, text: str, start: int, end: int) -> Mention:
        """Return a span with as much of the text around it as the template shows."""
        width = self._template.context_chars
        return Mention(text[start:end], text[max(0, start - width) : start], text[end : end + width])

    def query(self, mention: Mention) -> str:
        """Return what the model reads of a mention: equal queries have equal answers."""
        query = self._template.mention_query(mention)
        return query.lower() if self._template.lowercase else query

    def request(self, mention: Mention) -> RetrieveRequest:
        """Return the request that links a mention; an empty mention raises `InputError`."""
        check_filled("mention", mention.mention)
        asked = replace(self._asked, query=self._template.mention_query(mention))
        return replace(asked, shortlist_query=mention.mention) if self._asks_evidence else asked

    def narrowed(
        self, mention: Mention, request: RetrieveRequest, check: Callable[[RetrieveRequest], object]
    ) -> RetrieveRequest:
        """Return a request that the model refused with as much context as it takes.

        `check` raises an `InputError` where a request cannot be taken; it is raised here for a mention that
        is too long even without context.
        """

        def is_too_wide(width: int) -> bool:
            try:
                check(self._cut(mention, request, width))
            except InputError:
                return True
            return False

        check(self._cut(mention, request, 0))
        widths = range(1, max(len(mention.left), len(mention.right)))
        return self._cut(mention, request, bisect_left(widths, True, key=is_too_wide))

    def _cut(self, mention: Mention, request: RetrieveRequest, width: int) -> RetrieveRequest:
        left = mention.left[-width:] if width else ""
        query = self._template.mention_query(Mention(mention.mention, left, mention.right[:width]))
        return replace(request, query=query)


class LinkCandidate(NamedTuple):
    """One entity that a mention may stand for."""

    entity_id: str
    title: str
    logprob: float | None  # log of the model's probability of its surface forms; None where none was asked
    score: float | None  # the number that the list is ordered by; None where no model was asked
    # Probability that it is the one meant, among the entities of this name (`named_entities`). Where any
    # entity may be meant, and with `disc`, that of the reply: `auto` by the index's ranking: calibrated;
    # `disc`: share of the samples; `beam`: share among the candidates listed; `shortlist`, and `auto` without
    # a ranking: share of all that was scored. The last two are at least the share among all titles.
    probability: float | None


@dataclass(frozen=True, slots=True, repr=False)
class LinkAnswer(Shown):
    """The link of a mention; kept for further mentions that are asked about in the same words."""

    # Reason for no link, one of those of `part_files.SCHEMA`; None: the first candidate is the link.
    nil_reason: str | None
    surface: str | None = None  # the surface form of the first candidate that was written
    candidates: tuple[LinkCandidate, ...] = ()  # best first
    certified: bool | None = None  # whether they are proven; None where that was not looked at
    mass: float | None = None  # mass of `disc`
    method: str = "beam"  # "auto", "beam", "disc", "shortlist" or "name"
    error: str | None = None  # why the mention failed

    _told, _rows, _has_ranks = ("nil_reason", "method", "certified", "mass", "error"), "candidates", True

    @property
    def best(self) -> LinkCandidate | None:
        """The entity that the mention is linked to; None: NIL."""
        return self.candidates[0] if self.nil_reason is None else None


def answer_of(
    reply: RetrievalResult | Exception, options: LinkOptions, weigh: Weigher | None = None
) -> LinkAnswer:
    """Return the link that a reply gives under the options, or NIL with the reason.

    `weigh` puts the candidates in order; None: they stay as they are.
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
    # The query of a request is a mention to the user of linking.
    is_query = isinstance(error, InputError) and error.field == "query"
    text = f"mention: {error.message}" if is_query and isinstance(error, InputError) else str(error)
    return LinkAnswer("error", method=method, error=" ".join(text.split()) or type(error).__name__)


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
    """Pair candidates with the samples' shares, or with their shares of the probability of those listed."""
    shares = [c.probability for c in candidates if c.probability is not None]
    if len(shares) < len(candidates):
        shares = probabilities([c.logprob for c in candidates])
    return [(c, c.score, share) for c, share in zip(candidates, shares, strict=True)]


def probabilities(logs: Sequence[float]) -> list[float]:
    """Return probabilities in proportion to numbers given by their logs; equal ones where all are 0."""
    total = float(np.logaddexp.reduce(logs))
    if total == -math.inf:
        return [1 / len(logs)] * len(logs)
    return [math.exp(value - total) for value in logs]


class QuestionKey(NamedTuple):
    """A question; the same one with the same options has the same answer."""

    query: str
    name: str  # name that the candidates have; "": all are candidates
    proposed_by: str  # query to the evidence; "": none is asked
    near: frozenset[str]  # of the entities of that name those that the text around the mention speaks for


AnswerCache = BoundedCache[QuestionKey, LinkAnswer]


class OpenQuestion(NamedTuple):
    """The question about one mention, and about those of the window that are put in the same words."""

    key: QuestionKey  # identity of the question
    mention: Mention  # the first of the mentions
    request: RetrieveRequest
    named: IdList | None  # ids of the entities that the mention may stand for; None: all
    places: list[int]  # places of the mentions in the window


class Window:
    """Mentions in their order, with known rows and open questions. Holds no document."""

    def __init__(self, maker: RowMaker, cache: AnswerCache) -> None:
        self._maker = maker
        self._cache = cache
        self._mentions: list[PlacedMention] = []
        self._rows: list[dict[str, Any] | None] = []
        self.questions: dict[QuestionKey, OpenQuestion] = {}

    def __len__(self) -> int:
        return len(self._mentions)

    def add(self, mention: PlacedMention) -> int:
        """Take in a mention that nothing is known of yet, and return its place."""
        self._mentions.append(mention)
        self._rows.append(None)
        return len(self._mentions) - 1

    def fill(self, place: int, answer: LinkAnswer, is_cached: bool = False) -> None:
        """Make the row of one mention."""
        self._rows[place] = self._maker.make(self._mentions[place], answer, is_cached)

    def settle(self, questions: Sequence[OpenQuestion], answers: Iterable[LinkAnswer]) -> None:
        """Make the rows of all mentions of some questions, and keep the answers, except failures."""
        for question, answer in zip(questions, answers, strict=True):
            if answer.error is None:
                self._cache.put(question.key, answer)
            for number, place in enumerate(question.places):
                self.fill(place, answer, is_cached=number > 0 and answer.error is None)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows to be written, once all questions are settled."""
        return [row for row in self._rows if row is not None]


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes rows of `retrieval.linking.output.part_files.SCHEMA` and counts them."""

    options: LinkOptions
    index_digest: str
    listener: LinkListener

    def make(
        self, mention: PlacedMention, answer: LinkAnswer, is_cached: bool = False
    ) -> dict[str, Any] | None:
        """Return the row of a mention, counted; None where it is not to be written."""
        counts = self.listener.counts
        counts.num_mentions += 1
        counts.num_linked += answer.best is not None
        counts.num_nil += answer.best is None
        counts.num_cached += is_cached
        counts.num_unproven += self.options.exact and answer.certified is False
        if answer.error is not None:
            counts.num_failed += 1
            self.listener.complain(mention.complaint(answer.error))
        if answer.best is None and not self.options.keep_nil:
            return None
        counts.num_rows += 1
        return self._row(mention, answer)

    def _row(self, mention: PlacedMention, answer: LinkAnswer) -> dict[str, Any]:
        best = answer.best
        return {
            "source": mention.source,
            "row": mention.row,
            "doc_id": mention.doc_id,
            "mention_id": mention.mention_id,
            **mention.place._asdict(),
            "mention": mention.context.mention,
            "entity_id": best.entity_id if best else None,
            "title": best.title if best else None,
            "surface": answer.surface if best else None,
            "logprob": best.logprob if best else None,
            "score": best.score if best else None,
            "probability": best.probability if best else None,
            "nil_reason": answer.nil_reason,
            "candidates": [candidate._asdict() for candidate in answer.candidates],
            "certified": answer.certified,
            "mass": answer.mass,
            "mention_source": mention.origin,
            "method": answer.method,
            "error": answer.error,
            "index_digest": self.index_digest,
        }

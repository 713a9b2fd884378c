"""Rows of mentions that are linked one by one: batches across documents, answers kept for repeated ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from decoding.params import MAX_K
from retrieval.errors import InputError
from retrieval.linking.answer_cache import AnswerCache, Question
from retrieval.linking.answers import LinkAnswer, answer_of, failure
from retrieval.linking.contexts import MentionContexts
from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.document import BadDocument, Document, Span
from retrieval.linking.mention_stream import MentionStream, PlacedMention
from retrieval.linking.named_entities import NEARBY_CHARS, NamedEntities
from retrieval.linking.options import LinkOptions, WorkerOptions
from retrieval.linking.row_maker import RowMaker
from retrieval.linking.window import OpenQuestion, Window
from retrieval.request_checks import DEFAULT_SHORTLIST_SIZE
from retrieval.types import Mention, RetrieveRequest

if TYPE_CHECKING:
    from retrieval.batch_answerer import Reply
    from retrieval.linking.finding.finder import SpanFinder
    from retrieval.retriever import Retriever

# Questions read ahead and sorted by length, in batches: neighbours then need little padding.
_WINDOW_BATCHES = 16
# Mentions held at most for each question of a window, most of them answered already: what repeats itself is
# read on until there is enough to ask, but not for ever.
_MENTIONS_PER_QUESTION = 16


class MentionRows:
    """Links mentions that documents mark, or that a finder finds.

    Mentions that are put to the model in the same words are asked about once, within a window and for as long
    as the cache keeps the answer. A context that is too long for the model is cut evenly around its mention.

    Args:
        retriever: Index and model.
        options: How mentions are linked.
        worker: Batch size and size of the cache.
        finder: Finds mentions where the options ask for that; None: nothing is found. Knows who is called
            what where only those named so are candidates.

    Raises:
        InputError: an option does not fit the checkpoint, the index or the finder; it is named.
        GenretError: evidence of the index cannot be used, or it has none and the method needs some.
    """

    def __init__(
        self,
        retriever: Retriever,
        options: LinkOptions,
        worker: WorkerOptions,
        finder: SpanFinder | None = None,
    ) -> None:
        if options.filter is not None:
            retriever.check_filter(options.filter)  # else every mention would fail of it
        _check_evidence(retriever, options)
        self._retriever = retriever
        self._options = options
        self._batch_size = worker.batch_size
        self._cache = AnswerCache(worker.cache_entries)
        self._contexts = MentionContexts(retriever.config, options)
        self._stream = MentionStream(options.mentions, self._contexts, finder)
        self._named: NamedEntities | None = None
        if options.candidates == "named" and finder is None:
            raise InputError("candidates", "named needs a finder, which knows the names; got none")
        if options.candidates != "all" and finder is not None:
            self._named = NamedEntities(retriever.index, finder, options, retriever.config)

    def link(
        self,
        documents: Iterable[Document | BadDocument],
        counts: LinkCounts,
        complain: Callable[[str], None],
        report: Callable[[LinkCounts], None],
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield rows a window of mentions at a time; see `DocumentLinker.link`."""
        most = self._batch_size * _WINDOW_BATCHES
        maker = RowMaker(self._options, self._retriever.index.digest, counts, complain)
        window = Window(maker, self._cache)
        for mention, document, span in self._stream.read(documents, counts, complain, report):
            self._take_in(mention, window.add(mention), window, document, span)
            if window.num_questions >= most or len(window) >= most * _MENTIONS_PER_QUESTION:
                yield from self._rows_of(window, counts, report)
                window = Window(maker, self._cache)
        yield from self._rows_of(window, counts, report)

    def _take_in(
        self, placed: PlacedMention, place: int, window: Window, document: Document, span: Span
    ) -> None:
        """Answer a mention from the cache, or let it wait for an answer."""
        mention, names = placed.context, self._names_of(placed)
        name = mention.mention if names is not None else ""
        near = frozenset[str]()
        if names is not None and span.num_names != 1:
            left = document.text[max(span.start - NEARBY_CHARS, 0) : span.start]
            near = names.near(name, left, document.text[span.end : span.end + NEARBY_CHARS])
        proposed_by = mention.mention if self._options.asks_evidence else ""
        key = (self._contexts.query(mention), name, proposed_by, near)
        if window.join(key, place):
            return
        answer = self._cache.get(key)
        if answer is not None:
            window.fill(place, answer, is_cached=True)
            return
        try:
            window.ask(self._question(key, mention, names, place))
        except InputError as error:
            window.fill(place, failure(error, self._options.method))

    def _names_of(self, placed: PlacedMention) -> NamedEntities | None:
        """Return what knows whom a mention may stand for; None: it may be anybody."""
        return self._named if self._options.candidates == "named" or placed.origin == "found" else None

    def _question(
        self, key: Question, mention: Mention, names: NamedEntities | None, place: int
    ) -> OpenQuestion:
        request, named = self._contexts.request(mention), None
        if names is not None:
            named = names.ids(mention.mention)
            # All of them are listed, so that their probabilities add up.
            request = replace(request, allow_ids=named, k=min(max(request.k, len(named)), MAX_K))
            if request.is_ranked:
                # To evidence, which sees the mention alone, those named so are alike: `NamedEntities` orders.
                request = replace(request, vector_weight=0.0)
        return OpenQuestion(key, mention, request, named, key[-1], [place])

    def _rows_of(
        self, window: Window, counts: LinkCounts, report: Callable[[LinkCounts], None]
    ) -> Iterator[list[dict[str, Any]]]:
        """Answer what is open in a window, and yield its rows."""
        left = window.questions
        if self._named is not None:
            known = [question for question in left if self._named.is_settled(question.named)]
            window.settle(known, self._named.answers(known))
            left = [question for question in left if not self._named.is_settled(question.named)]
            report(counts)
        left.sort(key=lambda question: len(question.request.query))
        for at in range(0, len(left), self._batch_size):
            batch = left[at : at + self._batch_size]
            window.settle(batch, self._answers(batch))
            report(counts)
        if rows := window.rows():
            yield rows

    def _answers(self, batch: Sequence[OpenQuestion]) -> list[LinkAnswer]:
        """Ask the model; what is too long for it is asked again with less context."""
        replies = self._retriever.retrieve_batch([question.request for question in batch])
        shorter: dict[int, RetrieveRequest] = {}
        for i, (question, reply) in enumerate(zip(batch, replies, strict=True)):
            if isinstance(reply, InputError) and reply.field == "query":
                narrowed = self._narrowed(question)
                if isinstance(narrowed, InputError):
                    replies[i] = narrowed
                else:
                    shorter[i] = narrowed
        if shorter:
            again: list[Reply] = self._retriever.retrieve_batch(list(shorter.values()))
            for i, reply in zip(shorter, again, strict=True):
                replies[i] = reply
        return [self._answer(question, reply) for question, reply in zip(batch, replies, strict=True)]

    def _answer(self, question: OpenQuestion, reply: Reply) -> LinkAnswer:
        """Return what a reply comes to; samples say by themselves how probable an entity is."""
        if self._named is None or question.named is None or self._options.decoding == "disc":
            return answer_of(reply, self._options)
        return answer_of(reply, self._options, partial(self._named.weigh, question))

    def _narrowed(self, question: OpenQuestion) -> RetrieveRequest | InputError:
        check = self._retriever.prompt_tokens
        try:
            return self._contexts.narrowed(question.mention, question.request, check)
        except InputError as error:
            return error


def _check_evidence(retriever: Retriever, options: LinkOptions) -> None:
    """Refuse to link without evidence that the index has, or that the method cannot do without.

    A worker that cannot use the evidence of the index would make other rows than the next one.
    """
    if not options.asks_evidence:
        return
    retriever.ranker.require_all()
    only_named = options.candidates == "named" or (options.candidates, options.mentions) == ("auto", "found")
    few = retriever.index.num_entities <= (options.shortlist_size or DEFAULT_SHORTLIST_SIZE)
    if options.method == "shortlist" and not only_named and not few:
        retriever.ranker.require(retriever.index)

"""Links documents: `open_linker` for files of documents, `link_documents` for texts of a program.

`MentionRows` links mentions that are marked or found, in batches across documents; `GeneratedRows` makes rows
of the links that the model writes itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genret.decoding.params import MAX_K
from genret.retrieval.arguments import check_text
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.linking.documents.text_document import BadDocument, Document, Span
from genret.retrieval.linking.finding.finder import MentionFinder, open_finder
from genret.retrieval.linking.link_answers import (
    AnswerCache,
    Documents,
    LinkAnswer,
    LinkCandidate,
    MentionContexts,
    OpenQuestion,
    PlacedMention,
    QuestionKey,
    RowMaker,
    Window,
    answer_of,
    failure,
    is_counted,
)
from genret.retrieval.linking.link_options import GenerateOptions, LinkOptions, WorkerOptions
from genret.retrieval.linking.named_entities import NEARBY_CHARS, NamedEntities
from genret.retrieval.linking.run_progress import LinkCounts, LinkListener
from genret.retrieval.types import DEFAULT_SHORTLIST_SIZE, Mention, RetrieveRequest

if TYPE_CHECKING:
    from genret.retrieval.linking.generating.generator import Generated, GeneratedMention
    from genret.retrieval.methods.batches import Reply
    from genret.retrieval.retriever import Retriever


RowBlocks = Iterator[list[dict[str, Any]]]


def open_linker(
    retriever: Retriever, options: LinkOptions, worker: WorkerOptions
) -> MentionRows | GeneratedRows:
    """Return what links the mentions of documents with one retriever. Used by one thread at a time.

    Raises:
        InputError: an option does not fit the checkpoint or the index; it is named.
        GenretError: evidence of the index cannot be used, or it has none and the method needs some.
    """
    if options.mentions == "generated":
        return GeneratedRows(retriever, options, worker)
    return MentionRows(retriever, options, worker)


_LOG = logging.getLogger(__name__)
_SOURCE = "documents"


def link_documents(
    retriever: Retriever,
    documents: Iterable[str | Document],
    options: LinkOptions | None = None,
    *,
    batch_size: int = 32,
    cache_entries: int = 100_000,
    counts: LinkCounts | None = None,
    complain: Callable[[str], None] = _LOG.warning,
) -> Iterator[dict[str, Any]]:
    """Link the mentions of texts, and yield one row per mention, in the order of the texts.

    Documents are read as they are needed: a generator of millions is linked in bounded memory. `genret link`
    does the same with files, in several processes, and can be resumed. docs/linking.md has examples.

    Args:
        retriever: Index and model; not used for anything else meanwhile.
        documents: Texts, whose mentions are found by the names of the index, or documents, which may mark
            them. Texts are called "documents:1", "documents:2", ….
        options: How mentions are linked.
        batch_size: Mentions per forward.
        cache_entries: Answers kept for mentions that are put to the model in the same words.
        counts: Added to on the way.
        complain: Gets one line for every mention that failed; its row holds the error.

    Yields:
        The columns of `part_files.SCHEMA` by name. A mention without an entity has `entity_id` None and a
        `nil_reason`.

    Raises:
        InputError: an option is out of range or does not fit, or a document is none: it is named.
    """
    chosen = options or LinkOptions()
    worker = WorkerOptions(str(retriever.index.path), batch_size=batch_size, cache_entries=cache_entries)
    linker = open_linker(retriever, chosen, worker)
    linked = linker.link(_checked(documents), LinkListener(counts or LinkCounts(), complain))
    return (row for rows in linked for row in rows)


def _checked(documents: Iterable[str | Document]) -> Iterator[Document | BadDocument]:
    if isinstance(documents, str | bytes):
        raise InputError("documents", f"must be a sequence of documents, got {type(documents).__name__}")
    for number, item in enumerate(documents, 1):
        name = f"documents[{number - 1}]"
        if isinstance(item, str):
            check_text(name, item)
            yield Document(_SOURCE, number, f"{_SOURCE}:{number}", item)
            continue
        if not isinstance(item, Document):
            raise InputError(name, f"must be a str or a Document, got {type(item).__name__}")
        check_text(f"{name}.text", item.text)
        for place, span in enumerate(item.spans or ()):
            if not 0 <= span.start < span.end <= len(item.text):
                raise InputError(
                    f"{name}.spans[{place}]",
                    f"must lie in the text, 0 <= start < end <= {len(item.text)}; "
                    f"got start {span.start}, end {span.end}",
                )
        yield item


# Questions read ahead and sorted by length, in batches: neighbours then need little padding.
_WINDOW_BATCHES = 16
# Most mentions held for each question of a window: where most repeat themselves, reading goes on this far.
_MENTIONS_PER_QUESTION = 16
# Documents without a mention make no batch: so often they are reported all the same.
_REPORT_DOCUMENTS = 1000


class MentionRows:
    """Links mentions that documents mark or a finder finds; arguments and errors as of `open_linker`.

    Mentions that are put to the model in the same words are asked about once, within a window and for as long
    as the cache keeps the answer. A context that is too long for the model is cut evenly around its mention.
    """

    def __init__(self, retriever: Retriever, options: LinkOptions, worker: WorkerOptions) -> None:
        if options.filter is not None:
            retriever.check_filter(options.filter)  # else every mention would fail of it
        _check_evidence(retriever, options)
        self._retriever = retriever
        self._options = options
        self._cache_dir = None if worker.cache_dir is None else Path(worker.cache_dir)
        self._batch_size = worker.batch_size
        self._cache = AnswerCache(worker.cache_entries)
        self._contexts = MentionContexts(retriever.config, options)
        self._named: NamedEntities | None = None
        if options.candidates != "all":
            self._named = NamedEntities(retriever, lambda name: self._finder.entity_ids(name), options)

    @cached_property
    def _finder(self) -> MentionFinder:
        """Opened at the first search: documents that mark their mentions need no table of names."""
        return open_finder(self._retriever.index, self._options.find, self._cache_dir)

    def link(self, documents: Documents, listener: LinkListener) -> RowBlocks:
        """Yield rows of `part_files.SCHEMA`, in the order of the documents and their spans.

        At most a window of mentions is held.
        """
        most = self._batch_size * _WINDOW_BATCHES
        maker = RowMaker(self._options, self._retriever.index.digest, listener)
        window = Window(maker, self._cache)
        for mention, document, span in self._mentions(documents, listener):
            self._take_in(mention, window.add(mention), window, document, span)
            if len(window.questions) >= most or len(window) >= most * _MENTIONS_PER_QUESTION:
                yield from self._rows_of(window, listener)
                window = Window(maker, self._cache)
        yield from self._rows_of(window, listener)

    def _mentions(
        self, documents: Documents, listener: LinkListener
    ) -> Iterator[tuple[PlacedMention, Document, Span]]:
        """Yield mentions in the order of the documents and of the spans in each."""
        for number, document in enumerate(documents, 1):
            if number % _REPORT_DOCUMENTS == 0:
                listener.report(listener.counts)
            if is_counted(document, listener):
                origin, spans = self._spans(document)
                for span in spans:
                    context = self._contexts.around(document.text, span.start, span.end)
                    yield PlacedMention.of(document, span, context, origin), document, span

    def _spans(self, document: Document) -> tuple[str, Sequence[Span]]:
        source, begin, end = self._options.mentions, document.begin, document.end
        if source == "given" or (source == "auto" and document.spans is not None):
            # The others are in the text around this part, and another part's.
            return "given", [span for span in document.spans or () if begin <= span.start < end]
        return "found", self._finder.find(document.text, begin, end)

    def _take_in(
        self, placed: PlacedMention, place: int, window: Window, document: Document, span: Span
    ) -> None:
        """Answer a mention from the cache, or let it wait for an answer."""
        mention, names = placed.context, self._named  # which limit the candidates
        if self._options.candidates != "named" and placed.origin != "found":
            names = None  # any entity may be meant
        name = mention.mention if names is not None else ""
        near = frozenset[str]()
        if names is not None and span.num_names != 1:
            left = document.text[max(span.start - NEARBY_CHARS, 0) : span.start]
            near = names.near(name, left, document.text[span.end : span.end + NEARBY_CHARS])
        proposed_by = mention.mention if self._options.asks_evidence else ""
        key = QuestionKey(self._contexts.query(mention), name, proposed_by, near)
        if (asked := window.questions.get(key)) is not None:
            asked.places.append(place)
            return
        answer = self._cache.get(key)
        if answer is not None:
            window.fill(place, answer, is_cached=True)
            return
        try:
            window.questions[key] = self._question(key, mention, names, place)
        except InputError as error:
            window.fill(place, failure(error, self._options.method))

    def _question(
        self, key: QuestionKey, mention: Mention, names: NamedEntities | None, place: int
    ) -> OpenQuestion:
        request, named = self._contexts.request(mention), None
        if names is not None:
            named = names.ids(mention.mention)
            # All of them are listed, so that their probabilities add up.
            request = replace(request, allow_ids=named, k=min(max(request.k, len(named)), MAX_K))
            if request.is_ranked:
                # To evidence, which sees the mention alone, those named so are alike: `NamedEntities` orders.
                request = replace(request, vector_weight=0.0)
        return OpenQuestion(key, mention, request, named, [place])

    def _rows_of(self, window: Window, listener: LinkListener) -> RowBlocks:
        """Answer what is open in a window, and yield its rows."""
        left = list(window.questions.values())
        if self._named is not None:
            known = [question for question in left if self._named.is_settled(question.named)]
            window.settle(known, self._named.answers(known))
            left = [question for question in left if not self._named.is_settled(question.named)]
            listener.report(listener.counts)
        left.sort(key=lambda question: len(question.request.query))
        for at in range(0, len(left), self._batch_size):
            batch = left[at : at + self._batch_size]
            window.settle(batch, self._answers(batch))
            listener.report(listener.counts)
        if rows := window.rows():
            yield rows

    def _answers(self, batch: Sequence[OpenQuestion]) -> list[LinkAnswer]:
        """Ask the model; a prompt that is too long is asked again with less context."""
        replies = self._retriever.retrieve_batch([question.request for question in batch])
        shorter: dict[int, RetrieveRequest] = {}
        for i, (question, reply) in enumerate(zip(batch, replies, strict=True)):
            if isinstance(reply, InputError) and reply.field == "query":
                check = self._retriever.prompt_tokens
                try:
                    shorter[i] = self._contexts.narrowed(question.mention, question.request, check)
                except InputError as error:
                    replies[i] = error
        if shorter:
            again: list[Reply] = self._retriever.retrieve_batch(list(shorter.values()))
            for i, reply in zip(shorter, again, strict=True):
                replies[i] = reply
        return [self._answer(question, reply) for question, reply in zip(batch, replies, strict=True)]

    def _answer(self, question: OpenQuestion, reply: Reply) -> LinkAnswer:
        """Return the answer in a reply. Samples already say how probable each entity is."""
        if self._named is None or question.named is None or self._options.decoding == "disc":
            return answer_of(reply, self._options)
        return answer_of(reply, self._options, partial(self._named.weigh, question))


def _check_evidence(retriever: Retriever, options: LinkOptions) -> None:
    """Refuse to link without evidence that the index has, or that the method needs.

    A worker that cannot use the evidence of the index would make other rows than the next one.
    """
    if not options.asks_evidence:
        return
    retriever.ranker.require_all()
    only_named = options.candidates == "named" or (options.candidates, options.mentions) == ("auto", "found")
    few = retriever.index.num_entities <= (options.shortlist_size or DEFAULT_SHORTLIST_SIZE)
    if options.method == "shortlist" and not only_named and not few:
        retriever.ranker.require(retriever.index)


# Options that the generation of mentions looks at; it refuses the others.
_TAKEN = {"mentions", "find", "method", "k", "beam_size", "seed"}
_TAKEN |= {"prompt", "min_logprob", "filter", "keep_nil"}


class GeneratedRows:
    """Makes rows of the links that a `MentionGenerator` writes; arguments and errors as of `open_linker`.

    The entities of the title that was written are candidates. The model has said no more than the title: a
    candidate's probability is its share in it, P(e | title), and its log-probability is that of the title
    plus the log of the share. A text that failed has one row, which spans the part that was to be linked.
    The method `auto` is `beam` here, and `beam` with a beam size of 1 is greedy.
    """

    def __init__(self, retriever: Retriever, options: LinkOptions, worker: WorkerOptions) -> None:
        from genret.retrieval.linking.generating.generator import MentionGenerator

        self._options = options
        self._method, asked = _generate_options(options, worker)
        self._generator = MentionGenerator(retriever, asked)
        self._index_digest = retriever.index.digest

    def link(self, documents: Documents, listener: LinkListener) -> RowBlocks:
        """Yield the rows of every document that has any; see `MentionRows.link`."""
        maker = RowMaker(self._options, self._index_digest, listener)
        for document, generated in self._generator.annotate_documents(documents):
            if not is_counted(document, listener):
                continue
            made = (maker.make(mention, answer) for mention, answer in self._answers(document, generated))
            if rows := [row for row in made if row is not None]:
                yield rows
            listener.report(listener.counts)

    def _answers(
        self, document: Document, generated: Generated
    ) -> Iterator[tuple[PlacedMention, LinkAnswer]]:
        if isinstance(generated, GenretError):
            whole = Span(document.begin, document.end)
            failed = failure(generated, self._method)
            yield PlacedMention.of(document, whole, Mention(""), "generated"), failed
            return
        for link in generated:
            span, mention = Span(link.start, link.end), Mention(link.mention)
            yield PlacedMention.of(document, span, mention, "generated"), self._answer(link)

    def _answer(self, link: GeneratedMention) -> LinkAnswer:
        candidates = tuple(
            LinkCandidate(entity.entity_id, entity.title, logprob, logprob, share)
            for entity, share in zip(link.entities, link.shares, strict=True)
            for logprob in (link.logprob + math.log(share),)
        )[: self._options.k]
        reason = "min_logprob" if link.is_nil else None
        return LinkAnswer(reason, link.title, candidates, method=self._method)


def _generate_options(options: LinkOptions, worker: WorkerOptions) -> tuple[str, GenerateOptions]:
    """Return the method in the words of rows, and the options of the generator."""
    method = options.decoding
    if method is None:
        raise InputError("method", f"{options.method} does not go with generated mentions")
    for one in fields(options):
        if one.name not in _TAKEN and (value := getattr(options, one.name)) != one.default:
            raise InputError(one.name, f"does not go with generated mentions, got {value!r}")
    made = GenerateOptions(
        prompt=options.prompt,
        method="greedy" if method == "beam" and options.beam_size == 1 else method,
        seed=options.seed,
        min_logprob=options.min_logprob,
        filter=options.filter,
        batch_size=worker.batch_size,
    )
    return method, made if options.beam_size is None else replace(made, beam_size=options.beam_size)

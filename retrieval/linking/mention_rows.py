"""Rows of mentions that are linked one by one: batches across documents, answers kept for repeated ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retrieval.errors import InputError
from retrieval.linking.answer_cache import AnswerCache, Question
from retrieval.linking.answers import LinkAnswer, answer_of, failure
from retrieval.linking.contexts import MentionContexts
from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.document import BadDocument, Document
from retrieval.linking.mention_stream import MentionStream, PlacedMention
from retrieval.linking.named_entities import NamedEntities, NameTable
from retrieval.linking.options import LinkOptions, WorkerOptions
from retrieval.linking.row_maker import RowMaker
from retrieval.types import Mention, RetrieveRequest

if TYPE_CHECKING:
    from retrieval.batch_runner import Reply
    from retrieval.linking.finding.finder import SpanFinder
    from retrieval.retriever import Retriever

# Questions read ahead and sorted by length, in batches: neighbours then need little padding.
_WINDOW_BATCHES = 16
# Mentions held at most for each question of a window, most of them answered already: what repeats itself is
# read on until there is enough to ask, but not for ever.
_MENTIONS_PER_QUESTION = 16


@dataclass(slots=True)
class _Open:
    """A question that the model is to answer, and the mentions of the window that wait for it."""

    mention: Mention
    request: RetrieveRequest
    places: list[int]


@dataclass(slots=True)
class _Window:
    """Mentions read ahead, in order, with the rows that are known of them."""

    mentions: list[PlacedMention] = field(default_factory=list)
    rows: list[dict[str, Any] | None] = field(default_factory=list)
    open: dict[Question, _Open] = field(default_factory=dict)


class MentionRows:
    """Links mentions that documents mark, or that a finder finds.

    Mentions that are put to the model in the same words are asked about once, within a window and for as long
    as the cache keeps the answer. A context that is too long for the model is cut evenly around its mention.

    Args:
        retriever: Index and model.
        options: How mentions are linked.
        worker: Batch size and size of the cache.
        finder: Finds mentions where the options ask for that; None: nothing is found. Knows who is called
            what where candidates are "named".

    Raises:
        InputError: an option does not fit the checkpoint, the index or the finder; it is named.
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
        self._retriever = retriever
        self._options = options
        self._batch_size = worker.batch_size
        self._cache = AnswerCache(worker.cache_entries)
        self._contexts = MentionContexts(retriever.config, options)
        self._stream = MentionStream(options.mentions, self._contexts, finder)
        self._rows = RowMaker(options, retriever.index.digest)
        self._named: NamedEntities | None = None
        if options.candidates == "named":
            if not isinstance(finder, NameTable):
                raise InputError("candidates", f"named needs a finder that knows the names, got {finder!r}")
            self._named = NamedEntities(retriever.index, finder, options)

    def link(
        self,
        documents: Iterable[Document | BadDocument],
        counts: LinkCounts,
        complain: Callable[[str], None],
        report: Callable[[LinkCounts], None],
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield rows a window of mentions at a time; see `DocumentLinker.link`."""
        most = self._batch_size * _WINDOW_BATCHES
        window = _Window()
        for mention in self._stream.read(documents, counts, complain, report):
            self._take_in(mention, window, counts, complain)
            if len(window.open) >= most or len(window.mentions) >= most * _MENTIONS_PER_QUESTION:
                yield from self._rows_of(window, counts, complain, report)
                window = _Window()
        yield from self._rows_of(window, counts, complain, report)

    def _take_in(
        self, mention: PlacedMention, window: _Window, counts: LinkCounts, complain: Callable[[str], None]
    ) -> None:
        """Put a mention into the window: with its row, or waiting for an answer."""
        place = len(window.mentions)
        window.mentions.append(mention)
        window.rows.append(None)
        name = mention.context.mention if self._named else ""
        question = (self._contexts.query(mention.context), name)
        if waiting := window.open.get(question):
            waiting.places.append(place)
            return
        answer = self._cache.get(question)
        if answer is not None:
            counts.num_cached += 1
        else:
            asked = self._ask(mention.context)
            if isinstance(asked, RetrieveRequest):
                window.open[question] = _Open(mention.context, asked, [place])
                return
            answer = asked
            if answer.error is None:
                self._cache.put(question, answer)
        window.rows[place] = self._rows.make(mention, answer, counts, complain)

    def _ask(self, mention: Mention) -> RetrieveRequest | LinkAnswer:
        """Return what to ask the model, or the answer where that is known without it."""
        allowed = None
        try:
            if self._named is not None and mention.mention.strip():
                known = self._named.look_up(mention.mention)
                if isinstance(known, LinkAnswer):
                    return known
                allowed = known
            return self._contexts.request(mention, allowed)
        except InputError as error:
            return failure(error, self._options.method)

    def _rows_of(
        self,
        window: _Window,
        counts: LinkCounts,
        complain: Callable[[str], None],
        report: Callable[[LinkCounts], None],
    ) -> Iterator[list[dict[str, Any]]]:
        """Answer what is open in a window, and yield its rows."""
        order = sorted(window.open.items(), key=lambda item: len(item[1].request.query))
        for at in range(0, len(order), self._batch_size):
            batch = order[at : at + self._batch_size]
            replies = self._replies([asked for _, asked in batch])
            for (question, asked), reply in zip(batch, replies, strict=True):
                answer = answer_of(reply, self._options)
                if answer.error is None:
                    self._cache.put(question, answer)
                    counts.num_cached += len(asked.places) - 1
                for place in asked.places:
                    mention = window.mentions[place]
                    window.rows[place] = self._rows.make(mention, answer, counts, complain)
            report(counts)
        if rows := [row for row in window.rows if row is not None]:
            yield rows

    def _replies(self, batch: Sequence[_Open]) -> list[Reply]:
        """Ask the model; what is too long for it is asked again with less context."""
        replies = self._retriever.retrieve_batch([asked.request for asked in batch])
        shorter: dict[int, RetrieveRequest] = {}
        for i, (asked, reply) in enumerate(zip(batch, replies, strict=True)):
            if not (isinstance(reply, InputError) and reply.field == "query"):
                continue
            try:
                check = self._retriever.prompt_tokens
                shorter[i] = self._contexts.narrowed(asked.mention, asked.request, check)
            except InputError as error:
                replies[i] = error
        if shorter:
            again = self._retriever.retrieve_batch(list(shorter.values()))
            for i, reply in zip(shorter, again, strict=True):
                replies[i] = reply
        return replies

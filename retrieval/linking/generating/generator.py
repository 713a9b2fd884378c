"""`MentionGenerator`: end-to-end linking by a model that writes a text again with links in it."""

from __future__ import annotations

import hashlib
import itertools
import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from genret.decoding.answering.speller import Speller
from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.markup.annotation_grammar import AnnotationGrammar
from genret.decoding.markup.link_syntax import Link, MentionRules, read_annotated, spelled_text, spelled_title
from genret.decoding.markup.link_titles import LinkTitles
from genret.decoding.sorted_texts import SortedTexts
from genret.retrieval.arguments import Restriction
from genret.retrieval.errors import GenretError, InputError, ModelError
from genret.retrieval.filters.entity_filter import EntityFilter
from genret.retrieval.filters.predicate import parse
from genret.retrieval.index.entities import title_batches
from genret.retrieval.index.layout import TITLE
from genret.retrieval.index.owners import title_owners
from genret.retrieval.linking.documents.text_document import BadDocument, Document
from genret.retrieval.linking.generating.windows import (
    WindowJob,
    WrittenWindow,
    cut_windows,
    halves,
    write_windows,
)
from genret.retrieval.linking.link_options import GenerateOptions
from genret.retrieval.loaded_model import Limits
from genret.retrieval.methods.decoded_methods import owners_best_first
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Entity

# Expected tokens of the text with its links, for one token of the text.
_WRITTEN_PER_TOKEN = 1.5
_LEAST_TOKENS = 8
# Most tokens written by a model without a limit of positions: so many per token of the text, and some more.
_MOST_PER_TOKEN, _MOST_AND = 8, 256
# Most documents that are held until those before them are written.
_MOST_WAITING = 4096
# For more titles, tokens are found in compiled loops, which take a second or two to compile.
_MANY_TITLES = 50_000


@dataclass(frozen=True, slots=True)
class GeneratedMention:
    """One link."""

    start: int  # first code point of the mention in the text that was given
    end: int  # code point behind its last one
    mention: str  # the text between
    title: str  # the title that was written
    # All entities of that title that the filter allows and that have a share in it, the greatest first.
    entities: tuple[Entity, ...]  # never empty
    shares: tuple[float, ...]  # P(e | title) of each, which sum to 1: the model has said the title alone
    # Log-probability of the title under the model alone, given all that was written before it: the sum over
    # the tokens that write some of the title or the parenthesis behind it.
    logprob: float
    # The same of the tokens before these that write the mention and the brackets around it: how sure the
    # model is of the mention itself.
    mention_logprob: float
    # Whether `logprob` plus the log of the first entity's share is below the least one asked for.
    is_nil: bool = False


Generated = list[GeneratedMention] | GenretError


@dataclass(slots=True, eq=False)
class _Work:
    document: Document | BadDocument
    mentions: list[GeneratedMention] = field(default_factory=list)  # its links so far
    num_open: int = 0  # windows that are not written yet
    is_cut: bool = False  # whether all of its windows are known
    # Reason for having no links; the rest of the document is not written then.
    error: GenretError | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or (self.is_cut and not self.num_open)

    @property
    def result(self) -> Generated:
        return self.mentions if self.error is None else self.error


class _Window(NamedTuple):
    work: _Work
    begin: int
    job: WindowJob
    text: str


class MentionGenerator:
    """Finds mentions and links them in one go. Used by one thread at a time, as its retriever is.

    Raises:
        InputError: the template or the filter cannot be used with this retriever.
        ModelError: the model has too few positions for any text, or its tokenizer cannot write a title.
    """

    def __init__(self, retriever: Retriever, options: GenerateOptions | None = None) -> None:
        self.options = options or GenerateOptions()
        self._model = retriever.model
        self._tokenizer = retriever.tokenizer
        self._prefixes = retriever.prefixes
        self._vocabulary = retriever.answerer.engine.vocabulary
        self._speller = Speller(self._tokenizer.encode_bytes, self._vocabulary)
        self._template = retriever.config.annotate_template(self.options.prompt)
        self._limits = Limits.of(retriever.model)
        self._num_shared = len(self._template.shared_tokens(self._tokenizer))
        self._titles = open_titles(retriever, self.options.filter)
        self._rules = MentionRules(
            self.options.max_mention_chars, self.options.max_mentions, self.options.word_boundaries
        )
        self._index = retriever.index
        self._window_tokens = self._find_window_tokens()

    def annotate(self, texts: Sequence[str]) -> list[list[GeneratedMention]]:
        """Return the links of each text, in its order, none overlapping another.

        Raises the error of a text that cannot be annotated; `annotate_each` gives the others' links.
        """
        found = []
        for number, generated in enumerate(self.annotate_each(texts)):
            if isinstance(generated, InputError):
                raise InputError(f"texts[{number}]", generated.message)
            if isinstance(generated, GenretError):
                raise generated
            found.append(generated)
        return found

    def annotate_each(self, texts: Sequence[str]) -> list[Generated]:
        """Return the links of each text, or the error that concerns this text alone."""
        documents = (Document("texts", number + 1, str(number), text) for number, text in enumerate(texts))
        return [generated for _, generated in self.annotate_documents(documents)]

    def annotate_documents(
        self, documents: Iterable[Document | BadDocument]
    ) -> Iterator[tuple[Document | BadDocument, Generated]]:
        """Yield documents in their order, each with its links or its error; a bad document has no links.

        Of a part of a document, the text between `begin` and `end` is annotated; offsets are those of
        `Document.text`. Windows of several documents share forwards; documents are read as they are needed.
        """
        waiting: deque[_Work] = deque()
        batch: list[_Window] = []
        for window in self._windows(documents, waiting):
            if window is not None:
                batch.append(window)
            # Documents without windows must not pile up behind one that has some.
            if len(batch) >= self.options.batch_size or len(waiting) >= _MOST_WAITING:
                self._write(batch)
                batch = []
            while waiting and waiting[0].is_over:
                work = waiting.popleft()
                yield work.document, work.result
        self._write(batch)
        for work in waiting:
            yield work.document, work.result

    def _windows(
        self, documents: Iterable[Document | BadDocument], waiting: deque[_Work]
    ) -> Iterator[_Window | None]:
        """Yield the windows of all documents, and None behind each document, which is put into `waiting`."""
        for document in documents:
            work = _Work(document)
            waiting.append(work)
            if isinstance(document, Document):
                yield from self._windows_of(work, document)
            work.is_cut = True
            yield None

    def _windows_of(self, work: _Work, document: Document) -> Iterator[_Window]:
        cut = cut_windows(
            document.text, document.begin, document.end, self._window_tokens, self._count_tokens
        )
        try:
            for begin, end in cut:
                for window in self._fitting(work, document, begin, end):
                    work.num_open += 1
                    yield window
                    if work.error is not None:
                        return
        except GenretError as error:
            work.error = error

    def _fitting(self, work: _Work, document: Document, begin: int, end: int) -> Iterator[_Window]:
        """Yield a window, or parts of it where the model has no room to write it."""
        text = document.text[begin:end]
        if not text.strip():
            return  # nothing can be linked
        job = self._job(text)
        if job is not None:
            yield _Window(work, begin, job, text)
            return
        parts = halves(document.text, begin, end)
        if parts is None:
            raise ModelError(f"the model has no positions to write {text!r} again behind its prompt")
        for part in parts:
            yield from self._fitting(work, document, *part)

    def _job(self, text: str) -> WindowJob | None:
        """Return the job of writing a window; None where it does not fit the model."""
        try:
            grammar = AnnotationGrammar(text, self._titles, self._rules)
            prompt = self._template.encode(self._tokenizer, text)
        except UnicodeEncodeError as error:
            raise InputError("text", f"is not Unicode: {error.reason}") from None
        except VocabularyError as error:
            raise ModelError(str(error)) from error
        longest = (
            self._limits.encoder_positions if self._limits.is_encoder_decoder else self._limits.positions
        )
        if longest is not None and len(prompt) > longest:
            return None
        if max(prompt, default=0) >= self._model.vocab_size:
            raise InputError("text", f"holds token {max(prompt)}, which the model does not know")
        most = _MOST_PER_TOKEN * grammar.tokens_to_finish(grammar.start) + _MOST_AND
        room = self._limits.room(len(prompt))
        budget = most if room is None else min(most, room)
        if grammar.tokens_to_finish(grammar.start) > budget:
            return None
        copy = self._tokenizer.encode_bytes(grammar.copy) or []
        return WindowJob(prompt, grammar, budget, self._seed(text), tuple(copy))

    def _write(self, batch: Sequence[_Window]) -> None:
        """Write a batch and put its links where they belong."""
        live = [window for window in batch if window.work.error is None]
        if not live:
            return
        prefix = self._prefixes.before(live[0].job.prompt, self._num_shared)
        jobs = [window.job for window in live]
        outcomes = write_windows(self._model, jobs, self.options, prefix, self._speller)
        for window, outcome in zip(live, outcomes, strict=True):
            work = window.work
            work.num_open -= 1
            try:
                if not isinstance(outcome, WrittenWindow):
                    raise outcome
                work.mentions += self._read(window.text, window.begin, outcome)
            except GenretError as error:
                work.error = work.error or error

    def _seed(self, text: str) -> int:
        """Return the seed of a window: the same text is written alike wherever it stands."""
        if self.options.method in ("greedy", "beam"):
            return 0
        said = hashlib.blake2b(f"{self.options.seed} {text}".encode(), digest_size=8).digest()
        return int.from_bytes(said, "big", signed=True)

    def _count_tokens(self, pieces: Sequence[str]) -> list[int]:
        """Return the numbers of tokens of pieces as they are copied."""
        # Surrogates are refused where the window is encoded.
        spelled = [
            spelled_text(piece.encode("utf-8", "replace")).decode("utf-8", "replace") for piece in pieces
        ]
        return [len(tokens) for tokens in self._tokenizer.encode_texts(spelled)]

    def _find_window_tokens(self) -> int:
        """Return the most tokens of a window that fits the model twice, the second time with links in it."""
        markup = len(self._template.encode(self._tokenizer, ""))
        limits, most = self._limits, [self.options.window_tokens]
        if limits.encoder_positions is not None and limits.is_encoder_decoder:
            most.append(limits.encoder_positions - markup)
        if limits.positions is not None:
            read = 0 if limits.is_encoder_decoder else 1
            taken = 0 if limits.is_encoder_decoder else markup
            most.append(int((limits.positions - taken) / (read + _WRITTEN_PER_TOKEN)))
        if min(most) < min(_LEAST_TOKENS, self.options.window_tokens):
            raise ModelError(
                f"the model has too few positions to write texts again: behind the {markup} tokens of the "
                f"template {self._template.name!r} there is room for {max(min(most), 0)} tokens of text"
            )
        return min(most)

    def _read(self, window: str, offset: int, written: WrittenWindow) -> list[GeneratedMention]:
        """Return the links of a window, whose first character is at `offset` in the whole text.

        A ModelError says that it was not written again with real titles in it, as the constraint ensures.
        """
        pieces = [self._vocabulary.written(token) for token in written.token_ids]
        try:
            annotated = read_annotated(b"".join(pieces))
        except ValueError as error:
            raise ModelError(f"what was written is no annotation of the text: {error}") from error
        if annotated.text != window.encode():
            raise ModelError("what was written is not the text")
        places = [*itertools.accumulate((len(character.encode()) for character in window), initial=0)]
        ends = [*itertools.accumulate(map(len, pieces))]
        return [
            self._mention(link, window, offset, places, _costs(link, ends, written.logprobs))
            for link in annotated.links
        ]

    def _mention(
        self, link: Link, window: str, offset: int, places: Sequence[int], costs: tuple[float, float]
    ) -> GeneratedMention:
        start, end = bisect_left(places, link.begin), bisect_left(places, link.end)
        entities, shares = self._entities(link.title)
        if not entities:
            raise ModelError(f"{link.title!r} was written, which is no title")
        mention_logprob, logprob = costs
        least = self.options.min_logprob
        return GeneratedMention(
            start=offset + start,
            end=offset + end,
            mention=window[start:end],
            title=link.title.decode(),
            entities=entities,
            shares=shares,
            logprob=logprob,
            mention_logprob=mention_logprob,
            is_nil=least is not None and logprob + math.log(shares[0]) < least,
        )

    def _entities(self, title: bytes) -> tuple[tuple[Entity, ...], tuple[float, ...]]:
        """Return the entities of a title and their shares in it, the greatest first.

        Those without a share are left out. There are none where it is no title that may be named.
        """
        owners = title_owners(self._index, self._titles.members(title))
        shares = {e: share for e, share in owners_best_first(self._index, owners).items() if share}
        return tuple(map(self._index.entity, shares)), tuple(shares.values())


def _costs(link: Link, ends: Sequence[int], logprobs: Sequence[float]) -> tuple[float, float]:
    """Return the log-probabilities of a link's mention and of its title; `ends` are the tokens' ends."""
    first = bisect_right(ends, link.opened)
    titled = bisect_right(ends, link.titled)
    behind = bisect_left(ends, link.closed) + 1
    return math.fsum(logprobs[first:titled]), math.fsum(logprobs[titled:behind])


def open_titles(retriever: Retriever, predicate: str | None) -> LinkTitles:
    """Return the titles of a retriever's index whose entities pass a predicate; None: all.

    A tokenizer that cannot write one of the titles is a `ModelError`.
    """
    index = retriever.index
    searcher = retriever.answerer.engine.searcher
    order = index.title_order
    if order is None:
        raise InputError(
            "index",
            f"is of format version {index.manifest.format_version}, which has no order of titles; "
            "rebuild it, or update it with genret update",
        )
    batches = title_batches(index.entities.stored_column(TITLE))
    try:
        searcher.require(batches, spelled_title)
    except VocabularyError as error:
        raise ModelError(str(error)) from error
    texts = SortedTexts(batches, order)
    if predicate is not None:
        restriction = Restriction(parse(predicate))
        retriever.filters.check(restriction)
        ((allowed,),) = retriever.filters.batches([restriction], 1)
        assert isinstance(allowed, EntityFilter)  # only a cancelled or an open restriction has none
        texts = texts.among(allowed.allowed)
    if len(texts) > _MANY_TITLES:
        searcher.warm_up()
    titles = LinkTitles(texts, searcher)
    titles.prepare()
    return titles

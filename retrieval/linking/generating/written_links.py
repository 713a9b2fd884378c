"""Reads the links of a written window: mentions in the text, and the entities of the titles they name."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.markup.link_syntax import Link, read_annotated, spelled_title
from genret.decoding.markup.link_titles import LinkTitles
from genret.decoding.sorted_texts import SortedTexts
from genret.retrieval.arguments import Restriction
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.filters.entity_filter import EntityFilter
from genret.retrieval.filters.predicate import parse
from genret.retrieval.index.entities import title_batches
from genret.retrieval.index.layout import TITLE
from genret.retrieval.index.owners import title_owners
from genret.retrieval.index.reader import Index
from genret.retrieval.linking.generating.windows import WrittenWindow
from genret.retrieval.methods.decoded_methods import owners_best_first
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Entity


@dataclass(frozen=True, slots=True)
class GeneratedMention:
    """One link.

    Attributes:
        start: First code point of the mention in the text that was given.
        end: Code point behind its last one.
        mention: The text between.
        title: The title that was written.
        entities: All entities of that title that the filter allows and that have a share in it, the greatest
            first; never empty.
        shares: P(e | title) of each of them, which sum to 1: the model has said no more than the title.
        logprob: Log-probability of the title under the model alone, given all that was written before it:
            the sum over the tokens that write some of the title or the parenthesis behind it.
        mention_logprob: The same of the tokens before these that write the mention and the brackets around
            it: how sure the model is of the mention itself.
        is_nil: Whether the log-probability of the first entity, `logprob` plus the log of its share, is below
            the least one asked for.
    """

    start: int
    end: int
    mention: str
    title: str
    entities: tuple[Entity, ...]
    shares: tuple[float, ...]
    logprob: float
    mention_logprob: float
    is_nil: bool = False


@dataclass(frozen=True, slots=True)
class WindowReader:
    """Reads links to `titles` from tokens of `vocabulary`.

    A link whose likeliest entity has a log-probability below `min_logprob` is NIL; None: none is.
    """

    titles: IndexTitles
    vocabulary: Vocabulary
    min_logprob: float | None

    def read(self, window: str, offset: int, written: WrittenWindow) -> list[GeneratedMention]:
        """Return the links of a window, whose first character is at `offset` in the whole text.

        Raises:
            ModelError: the window was not written again with real titles in it, as the constraint ensures.
        """
        pieces = [self.vocabulary.written(token) for token in written.token_ids]
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
        entities, shares = self.titles.entities(link.title)
        if not entities:
            raise ModelError(f"{link.title!r} was written, which is no title")
        mention_logprob, logprob = costs
        return GeneratedMention(
            start=offset + start,
            end=offset + end,
            mention=window[start:end],
            title=link.title.decode(),
            entities=entities,
            shares=shares,
            logprob=logprob,
            mention_logprob=mention_logprob,
            is_nil=self.min_logprob is not None and logprob + math.log(shares[0]) < self.min_logprob,
        )


def _costs(link: Link, ends: Sequence[int], logprobs: Sequence[float]) -> tuple[float, float]:
    """Return the log-probabilities of a link's mention and of its title; `ends` are the tokens' ends."""
    first = bisect_right(ends, link.opened)
    titled = bisect_right(ends, link.titled)
    behind = bisect_left(ends, link.closed) + 1
    return math.fsum(logprobs[first:titled]), math.fsum(logprobs[titled:behind])


# For more titles, tokens are found in compiled loops, which take a second or two to compile.
_MANY_TITLES = 50_000


@dataclass(frozen=True, slots=True)
class IndexTitles:
    """Titles as links name them, with the index that knows their entities."""

    titles: LinkTitles
    index: Index

    def entities(self, title: bytes) -> tuple[tuple[Entity, ...], tuple[float, ...]]:
        """Return the entities of a title and their shares in it, the greatest first.

        Those without a share are left out. There are none where it is no title that may be named.
        """
        owners = title_owners(self.index, self.titles.members(title))
        shares = {e: share for e, share in owners_best_first(self.index, owners).items() if share}
        return tuple(map(self.index.entity, shares)), tuple(shares.values())


def open_titles(retriever: Retriever, predicate: str | None) -> IndexTitles:
    """Return the titles of a retriever's index whose entities pass a predicate; None: all.

    Raises:
        InputError: the predicate cannot be read, or does not fit the index; or the index is of a format
            without an order of titles.
        ModelError: the tokenizer cannot write one of the titles, which is named.
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
        if not isinstance(allowed, EntityFilter):  # only a cancelled or an open restriction has none
            raise InputError("filter", f"{predicate!r} could not be applied")
        texts = texts.among(allowed.allowed)
    if len(texts) > _MANY_TITLES:
        searcher.warm_up()
    titles = LinkTitles(texts, searcher)
    titles.prepare()
    return IndexTitles(titles, index)

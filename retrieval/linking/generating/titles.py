"""The titles of an index that links may name, under a filter or not."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.grammar.errors import VocabularyError
from decoding.grammar.holes.sorted_texts import SortedTexts
from decoding.markup.spelling import spelled_title
from decoding.markup.titles import LinkTitles
from retrieval.errors import InputError, ModelError
from retrieval.filters.entity_filter import EntityFilter
from retrieval.filters.parser import parse
from retrieval.filters.restriction import Restriction
from retrieval.index.layout import TITLE
from retrieval.index.owners import title_owners
from retrieval.index.reader import Index
from retrieval.index.title_order import title_batches
from retrieval.retriever import Retriever
from retrieval.tallies import owners_best_first
from retrieval.types import Entity

# Of more titles than these tokens are found in compiled loops, which take a second or two to compile.
_MANY_TITLES = 50_000


@dataclass(frozen=True, slots=True)
class IndexTitles:
    """Titles with the index that they are of.

    Attributes:
        titles: As links name them.
        index: Knows the entities.
    """

    titles: LinkTitles
    index: Index

    def entities(self, title: bytes) -> tuple[tuple[Entity, ...], tuple[float, ...]]:
        """The entities of a title and their shares in it, the greatest first.

        Those without a share are left out. There are none where it is no title that may be named.
        """
        owners = title_owners(self.index, self.titles.members(title))
        shares = {e: share for e, share in owners_best_first(self.index, owners).items() if share}
        return tuple(map(self.index.entity, shares)), tuple(shares.values())


def open_titles(retriever: Retriever, predicate: str | None) -> IndexTitles:
    """Return the titles of a retriever's index.

    Args:
        retriever: Index and model.
        predicate: What their entities must pass; None: nothing.

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

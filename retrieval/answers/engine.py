"""What the schemas of one model share: its vocabulary, the leaves over it, the indexes they may name."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from decoding.answering.speller import Speller
from decoding.grammar.errors import VocabularyError
from decoding.grammar.holes.text_searcher import TextSearcher
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.vocabulary.vocabulary import Vocabulary
from retrieval.answers.index_set import IndexSet, NamedIndex
from retrieval.answers.schemas import DEFAULT_GRAMMAR_CACHE_BYTES, SchemaStore
from retrieval.answers.shortlist import Finder
from retrieval.errors import ModelError
from retrieval.filters.store import FilterStore
from retrieval.holes import TitleHoles
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer

T = TypeVar("T")


class AnswerEngine:
    """Made on first use: a server that answers no JSON pays nothing for it. Safe to use from many threads.

    Args:
        tokenizer: The model's tokenizer.
        end_token_id: Its end token.
        vocab_size: Logits of the model.
        grammar_cache_bytes: Bound on the memory of grammars kept.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        end_token_id: int,
        vocab_size: int,
        grammar_cache_bytes: int = DEFAULT_GRAMMAR_CACHE_BYTES,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_token_id = end_token_id
        self._vocab_size = vocab_size
        self._grammar_cache_bytes = grammar_cache_bytes
        self._parts: dict[str, object] = {}
        self._lock = threading.RLock()
        self._indexes = IndexSet({}, self._open_holes)

    @property
    def indexes(self) -> IndexSet:
        """The indexes that schemas may name now."""
        return self._indexes

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens as bytes.

        Raises:
            ModelError: the tokenizer cannot write JSON.
        """
        return self._made("vocabulary", self._new_vocabulary)

    @property
    def leaves(self) -> Leaves:
        """What strings, numbers and keys may be, in this vocabulary."""
        return self._made("leaves", lambda: Leaves(self.vocabulary))

    @property
    def holes(self) -> TitleHoles:
        """The titles that schemas may name."""
        return self._indexes.holes

    @property
    def schemas(self) -> SchemaStore:
        """Grammars of the schemas that were asked for."""
        return self._made("schemas", lambda: SchemaStore(self.leaves, self._grammar_cache_bytes))

    @property
    def speller(self) -> Speller:
        """Spells what is forced, as the tokenizer would."""
        return self._made("speller", lambda: Speller(self._tokenizer.encode_bytes, self.vocabulary))

    @property
    def searcher(self) -> TextSearcher:
        """Finds tokens of titles that are chosen for one request."""
        return self._made("searcher", lambda: TextSearcher(self.vocabulary))

    def finder(self, name: str) -> Finder:
        """What finds the likeliest entities of an index.

        Raises:
            InputError: nothing does.
        """
        return self._indexes.finder(name)

    def add_index(self, name: str, index: Index, filters: FilterStore, find: Finder | None = None) -> None:
        """Let schemas name an index; the first one added is also called "titles".

        Another index of that name is replaced, and what is kept of it forgotten; answers that are being
        written stay with the one they have.

        Args:
            name: What schemas call it.
            index: Open as long as it is used.
            filters: Its filters.
            find: Finds its likeliest titles, for shortlists; None: there are none over this index.
        """
        with self._lock:
            replaced = [named for named in self._indexes if named.name == name]
            self.adopt(self._indexes.with_index(NamedIndex(name, index, filters, find)))
            for named in replaced:
                self.forget(named)

    def adopt(self, indexes: IndexSet) -> None:
        """Let schemas of requests that come from now on name these indexes."""
        with self._lock:
            self._indexes = indexes

    def forget(self, named: NamedIndex) -> None:
        """Give up what is kept of a version of an index that nobody asks for any more."""
        with self._lock:
            if "schemas" in self._parts:
                self.schemas.forget(named)
            if self._indexes.opened_holes is not None:
                self._indexes.opened_holes.forget(named.index)

    def title(self, spelled: bytes) -> str:
        """The text of a JSON string."""
        return str(json.loads(spelled))

    def warm_up(self, indexes: IndexSet | None = None) -> None:
        """Make everything, and compile what is compiled, so that no request waits for it.

        Args:
            indexes: Those that requests will name; None: those they may name now.
        """
        self.leaves.warm_up()
        (indexes or self._indexes).holes.warm_up()

    def _made(self, name: str, make: Callable[[], T]) -> T:
        """Return a part, made by whoever asks for it first while all others wait."""
        part = self._parts.get(name)
        if part is None:
            with self._lock:
                part = self._parts.get(name)
                if part is None:
                    part = self._parts[name] = make()
        return cast(T, part)

    def _new_vocabulary(self) -> Vocabulary:
        try:
            return Vocabulary.from_tokenizer(self._tokenizer.serialized, self._end_token_id, self._vocab_size)
        except VocabularyError as error:
            raise ModelError(f"{self._tokenizer.source}: {error}") from error

    def _open_holes(self, indexes: IndexSet) -> TitleHoles:
        """Holes over indexes, which share what is known of those there are now."""
        with self._lock:
            known = self._indexes.opened_holes or self._made("holes", lambda: TitleHoles(self.leaves))
            return known.among((named.name, named.index, named.filters) for named in indexes)

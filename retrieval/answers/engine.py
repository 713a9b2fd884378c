"""What the schemas of one model share: its vocabulary, the leaves over it, the indexes they may name."""

from __future__ import annotations

import json
import threading
from functools import cached_property

from decoding.answering.speller import Speller
from decoding.grammar.errors import VocabularyError
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.vocabulary.vocabulary import Vocabulary
from retrieval.answers.schemas import DEFAULT_GRAMMAR_CACHE_BYTES, SchemaStore
from retrieval.errors import ModelError
from retrieval.filters.store import FilterStore
from retrieval.holes import TitleHoles
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer


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
        self._indexes: dict[str, tuple[Index, FilterStore]] = {}
        self._lock = threading.RLock()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens as bytes.

        Raises:
            ModelError: the tokenizer cannot write JSON.
        """
        with self._lock:
            try:
                return Vocabulary.from_tokenizer(
                    self._tokenizer.serialized, self._end_token_id, self._vocab_size
                )
            except VocabularyError as error:
                raise ModelError(f"{self._tokenizer.source}: {error}") from error

    @cached_property
    def leaves(self) -> Leaves:
        """What strings, numbers and keys may be, in this vocabulary."""
        with self._lock:
            return Leaves(self.vocabulary)

    @cached_property
    def holes(self) -> TitleHoles:
        """The titles that schemas may name."""
        with self._lock:
            holes = TitleHoles(self.leaves)
            for name, (index, filters) in self._indexes.items():
                holes.add(name, index, filters)
            return holes

    @cached_property
    def schemas(self) -> SchemaStore:
        """Grammars of the schemas that were asked for."""
        with self._lock:
            return SchemaStore(self.leaves, self.holes, self._grammar_cache_bytes)

    @cached_property
    def speller(self) -> Speller:
        """Spells what is forced, as the tokenizer would."""
        return Speller(self._tokenizer.encode_bytes, self.vocabulary)

    def add_index(self, name: str, index: Index, filters: FilterStore) -> None:
        """Let schemas name an index; the first one added is also called "titles"."""
        with self._lock:
            self._indexes[name] = index, filters
            if "holes" in self.__dict__:
                self.holes.add(name, index, filters)

    def index(self, name: str) -> Index:
        """The index that a schema means by a name."""
        return self.holes.index(name)

    def title(self, spelled: bytes) -> str:
        """The text of a JSON string."""
        return str(json.loads(spelled))

    def warm_up(self) -> None:
        """Make everything, and compile what is compiled, so that no request waits for it."""
        self.leaves.warm_up()
        self.holes.warm_up()

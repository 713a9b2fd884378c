"""Which tokens of a vocabulary go on with one of some sorted texts.

In Python or, once `warm_up` has been called where numba is there, in compiled loops: compiling takes seconds,
so no request ever does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from decoding.grammar.errors import VocabularyError
from decoding.grammar.holes.place import Place
from decoding.grammar.holes.search import Search
from decoding.grammar.holes.sorted_texts import SortedTexts
from decoding.grammar.holes.text_batches import TextBatches
from decoding.grammar.leaves.leaf import FEW_TOKENS, Exit, LeafTokens
from decoding.grammar.vocabulary.token_node import TokenNode

if TYPE_CHECKING:
    from decoding.grammar.holes.compiled_search import CompiledSearch
    from decoding.grammar.vocabulary.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


class TextSearcher:
    """Walks one vocabulary's trie beside sorted texts.

    Args:
        vocabulary: Whose trie.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._compiled: CompiledSearch | None = None

    def require(self, texts: TextBatches, spelled: Callable[[bytes], bytes]) -> None:
        """Check that the vocabulary can write every text, by one pass over their bytes.

        A vocabulary that has all bytes of UTF-8 is not compared with the texts.

        Args:
            texts: Any texts.
            spelled: How a byte, or a character, of a text is written.

        Raises:
            VocabularyError: names the first text that it cannot write, and what is missing.
        """
        writable = self.vocabulary.writable
        if writable.has_all_bytes:
            return
        for unit in texts.units(writable.is_of_bytes):
            missing = writable.missing(spelled(unit))
            if missing:
                title = texts.first_with(unit).decode("utf-8", "backslashreplace")
                character = missing.decode("utf-8", "backslashreplace")
                lacked = f"byte {missing.hex()}" if writable.is_of_bytes else f"character {character!r}"
                raise VocabularyError(
                    f"the model's tokenizer cannot write the title {title!r}: "
                    f"it has no token for the {lacked}"
                )

    def warm_up(self) -> None:
        """Compile the loops where numba is there and works."""
        if self._compiled is not None:
            return
        try:
            from decoding.grammar.holes.compiled_search import CompiledSearch
        except ImportError:
            return
        try:
            self._compiled = CompiledSearch(self.vocabulary)
        except Exception as error:  # an installation that does not fit together fails in ways of its own
            logger.warning("numba is installed but does not work: %r; titles are searched in Python", error)

    def narrow(self, texts: SortedTexts, place: Place, byte: int) -> Place | None:
        """The place behind one byte of JSON, None where no text goes on with it."""
        if self._compiled is not None:
            return self._compiled.narrow(texts, place, byte)
        return Search(texts).narrow(place, byte)

    def tokens(self, texts: SortedTexts, place: Place, node: TokenNode) -> LeafTokens:
        """The tokens below a node that go on with some text (`Leaf.tokens`)."""
        if self._compiled is not None:
            tokens, mask, exits = self._compiled.walk(texts, place, node.positions)
        else:
            tokens, mask, exits = Search(texts).walk(place, self.vocabulary.trie, node.positions)
        rests = (Exit(0, self.vocabulary.rest(exits)),) if exits else ()
        if tokens is None:
            return LeafTokens((), mask, rests)
        if len(tokens) <= FEW_TOKENS:
            return LeafTokens(tuple(sorted(tokens)), None, rests)
        many = self.vocabulary.packed(tokens)
        many.flags.writeable = False
        return LeafTokens((), many, rests)

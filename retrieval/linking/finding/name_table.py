"""`NameTable`: which names there are, how they are written, and which entities have them."""

from __future__ import annotations

from dataclasses import dataclass

import marisa_trie
import numpy as np
import numpy.typing as npt

from retrieval.linking.finding.folding import fold_name

# Bits of `NameTable.written`.
AS_FOLDED = 1  # some entity writes the name as it is folded
WITHOUT_CAPITALS = 2  # some entity writes the name without a capital letter


@dataclass(frozen=True, slots=True)
class NameTable:
    """The titles and aliases of an index, folded. A key is the number of a folded name.

    K keys, P pairs of a key and an entity.

    Attributes:
        names: Folded name -> key.
        spellings: Names as they are written, folded but for their case, where that differs from the folded
            name.
        offsets: Entities of key k are entities[offsets[k]:offsets[k + 1]]. Shape: (K + 1,), int64.
        entities: Entity numbers, ascending within a key. Shape: (P,), int32.
        written: Bits about the spellings of a key. Shape: (K,), uint8.
        max_chars: Length of the longest folded name.
        first_marks: Characters, neither letters nor digits, that names begin with.
    """

    names: marisa_trie.Trie
    spellings: marisa_trie.Trie
    offsets: npt.NDArray[np.int64]
    entities: npt.NDArray[np.int32]
    written: npt.NDArray[np.uint8]
    max_chars: int
    first_marks: str

    def key_of(self, folded: str) -> int | None:
        """Return the key of a folded name, None where nobody is called so."""
        key: int | None = self.names.get(folded)
        return key

    def num_entities(self, key: int) -> int:
        """Return how many entities have a name."""
        return int(self.offsets[key + 1] - self.offsets[key])

    def entities_of(self, key: int) -> npt.NDArray[np.int32]:
        """Return the numbers of the entities that have a name, ascending."""
        return self.entities[self.offsets[key] : self.offsets[key + 1]]

    def is_written(self, key: int, folded: str, text: str) -> bool:
        """Whether some entity writes a name in the letter case of `text`.

        Args:
            key: Of the name.
            folded: The folded name.
            text: A text that is folded like the name.
        """
        spelling = fold_name(text, keep_case=True)
        if spelling == folded:
            return bool(self.written[key] & AS_FOLDED)
        return spelling in self.spellings

    def has_lower_case(self, key: int) -> bool:
        """Whether some entity writes a name without a capital letter."""
        return bool(self.written[key] & WITHOUT_CAPITALS)

"""How many tokens it takes to end a text, from everywhere; kept by state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.automaton.configurations import Configuration, Configurations
from decoding.grammar.automaton.containers import Frames
from decoding.grammar.automaton.finishing import Finishing
from decoding.grammar.automaton.levels import Levels
from decoding.grammar.automaton.memory import Memory
from decoding.grammar.automaton.spelling import fewest_tokens
from decoding.grammar.automaton.walker import Walk
from decoding.grammar.vocabulary.vocabulary import Vocabulary

_ENTRY_BYTES = 200
# Completions of more bytes are not written out to be counted in tokens: a schema may ask for 10^9 items.
_LONGEST_WRITTEN = 1 << 16


class Budgets:
    """Bounds on the tokens that end texts.

    Args:
        vocabulary: Whose tokens.
        levels: Of the grammar.
        frames: Of the grammar.
        configurations: Of the grammar.
        memory: Counts what is kept.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        levels: Levels,
        frames: Frames,
        configurations: Configurations,
        memory: Memory,
    ) -> None:
        self._vocabulary = vocabulary
        self._levels = levels
        self._configurations = configurations
        self._memory = memory
        self._finishing = Finishing(frames, configurations, memory)
        self._enough: dict[Configuration, int] = {}
        self._most: dict[Configuration, int | None] = {}

    def clear(self) -> None:
        """Forget what has been found."""
        self._finishing.clear()
        self._enough = {}
        self._most = {}

    def enough(self, configuration: Configuration) -> int:
        """Tokens of the shortest completion, end token included; `cheap_bound` where that is very long.

        Raises:
            VocabularyError: no tokens write it.
        """
        found = self._enough.get(configuration)
        if found is None:
            if self._finishing.distance(configuration) > _LONGEST_WRITTEN:
                return self.cheap_bound(configuration)
            text = self._finishing.text(configuration)
            found = self._enough[configuration] = fewest_tokens(text, self._vocabulary.root) + 1
            self._memory.num_bytes += _ENTRY_BYTES
        return found

    def cheap_bound(self, configuration: Configuration) -> int:
        """No less than `enough`, and found without writing the completion.

        Every token writes a byte, and there is a blank for a comma or a colon at most.
        """
        return 2 * self._finishing.distance(configuration) + 1

    def most_behind(self, configuration: Configuration) -> int | None:
        """No allowed token leads to where `enough` is more; None where no bound is known."""
        if configuration in self._most:
            return self._most[configuration]
        walk = Walk(
            self._levels, self._configurations, configuration, self._vocabulary.root, is_recorded=True
        )
        farthest = self._finishing.farthest(walk)
        most = self._most[configuration] = None if farthest is None else 2 * farthest + 1
        self._memory.num_bytes += _ENTRY_BYTES
        return most

    def fitting(
        self, configuration: Configuration, tokens: NDArray[np.int64], left: int
    ) -> NDArray[np.bool_]:
        """Behind which of some allowed tokens `enough` is less than `left`. Shape: (n,), bool."""
        end, bytes_of = self._vocabulary.end_token_id, self._vocabulary.bytes_of
        known: dict[Configuration, bool] = {}
        fits = []
        for token in tokens.tolist():
            if token == end:
                fits.append(left > 0)
                continue
            after = self._configurations.after(configuration, bytes_of(token) or b"")
            assert after is not None  # the token is allowed
            found = known.get(after)
            if found is None:
                found = known[after] = self.cheap_bound(after) < left or self.enough(after) < left
            fits.append(found)
        return np.array(fits, dtype=np.bool_)

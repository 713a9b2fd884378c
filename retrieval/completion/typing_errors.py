"""Counts typing errors letter by letter: an automaton that is the same for all typed words.

Errors are letters left out, put in, replaced, or two neighbours swapped (optimal string alignment). With i
letters typed and j letters of a word read, D[i][j] is the least number of errors between them. Only
i - j = -d … d matters for at most d errors, and how D goes on depends only on which of those typed letters
equal the next letter of the word. So all states and transitions are known before anything is typed (Schulz
and Mihov, Fast String Correction with Levenshtein-Automata, 2002), and many words are read at once by one
look into a table.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

# D of the band, then D of the band's letters if the next letter completes a swap; `errors + 1`: too many.
_State = tuple[tuple[int, ...], tuple[int, ...]]

# Typed letters from which on one error and two errors are forgiven.
ONE_FROM, TWO_FROM = 3, 8
# Typed letters at the beginning among which two errors are too many.
BEGINNING = 3


def errors_forgiven(letters: int) -> int:
    """Return the most typing errors in a word of so many letters."""
    return (letters >= ONE_FROM) + (letters >= TWO_FROM)


class ErrorAutomaton:
    """The automaton for at most `errors` errors; state 0 is the end of all hope.

    Attributes:
        width: Letters of the band, 2 * errors + 1; band letter t at depth j is typed letter j - errors + t,
            counted from 1.
        start: State before the first letter.
        count: D of each state and band letter. Shape: (states, width), uint8.
        promise: Least D of the band letters before each, swaps included: what can still become of a word.
            Shape: (states, width), uint8.
    """

    def __init__(self, errors: int) -> None:
        self.errors, self.width = errors, 2 * errors + 1
        dead: _State = ((errors + 1,) * self.width,) * 2
        first: _State = (
            tuple(max(0, t - errors) if t >= errors else errors + 1 for t in range(self.width)),
            dead[1],
        )
        number: dict[_State, int] = {dead: 0, first: 1}
        rows: list[list[int]] = []
        clamps: list[list[int]] = []
        states = [dead, first]
        for state in states:  # grows while it is read
            moves = [self._moved(state, bits) for bits in range(1 << self.width)]
            held = [self._held(state, depth) for depth in range(BEGINNING + errors + 1)]
            for one in (*moves, *held):
                if one not in number:
                    number[one] = len(states)
                    states.append(one)
            rows.append([number[one] for one in moves])
            clamps.append([number[one] for one in held])
        self.start = 1
        table = np.array(rows, np.uint16)
        self._moves: list[npt.NDArray[np.uint16]] = [table]
        self._moves[:0] = [of_depth[table] for of_depth in np.array(clamps, np.uint16).T]
        self.count = np.array([band for band, _ in states], np.uint8)
        swaps = np.array([swap for _, swap in states], np.uint8)
        least = np.minimum(self.count, np.roll(swaps, -1, axis=1))
        self.promise = np.minimum.accumulate(np.insert(least, 0, errors + 1, axis=1), axis=1)[:, :-1]

    def moves(self, depth: int) -> npt.NDArray[np.uint16]:
        """Return the state after one more letter of a word, its `depth`-th, by state and equal band letters.

        Shape: (states, 2 ** width); bit t says that band letter t equals the letter.
        """
        return self._moves[min(depth, len(self._moves) - 1)]

    def _moved(self, state: _State, bits: int) -> _State:
        band, swap = state
        most = self.errors + 1
        new: list[int] = []
        new_swap: list[int] = []
        for t in range(self.width):
            is_equal = bits >> t & 1
            least = band[t] + 1 - is_equal
            if t:
                least = min(least, new[t - 1] + 1)
                if bits >> (t - 1) & 1 and t + 1 < self.width:
                    least = min(least, swap[t + 1])
            if t + 1 < self.width:
                least = min(least, band[t + 1] + 1)
            new.append(min(least, most))
            new_swap.append(min(band[t - 1] + 1, most) if is_equal and t else most)
        return tuple(new), tuple(new_swap)

    def _held(self, state: _State, depth: int) -> _State:
        """Return a state at a depth without two errors among the first typed letters."""
        most = self.errors + 1
        letters = range(depth - self.errors, depth + self.errors + 1)
        band = (most if n <= BEGINNING and d > 1 else d for n, d in zip(letters, state[0], strict=True))
        return tuple(band), state[1]


@cache
def automaton(errors: int) -> ErrorAutomaton:
    """Return the automaton for at most so many errors, made on first use."""
    return ErrorAutomaton(errors)

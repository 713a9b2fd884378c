"""The words of all names: sorted, with the trie that they form, walked level by level with typing errors.

A trie node is a run of words in order. Levels hold the nodes that share their parent's run with other words;
a word that is alone is followed by its letters.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.retrieval.completion.typing_errors import automaton, errors_forgiven
from genret.retrieval.index.layout import as_numpy

IntArray = npt.NDArray[np.int64]
Words = npt.NDArray[np.signedinteger]  # int32 where there are many
States = npt.NDArray[np.uint16]
Bits = npt.NDArray[np.uint8]
Letters = npt.NDArray[np.unsignedinteger]

# Longer words are looked for as they are typed: the letters of a walk are bits of one integer.
_LONGEST_WALK = 48
_MANY_CHILDREN = 1 << 12
_MANY_WORDS = 1 << 13
UNMATCHED = np.uint8(255)


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Runs of words that are meant by a typed one, with their errors. Shapes: (n,).

    Runs of equal errors do not overlap. A word in several runs has the least of their errors.
    """

    begin: IntArray
    end: IntArray
    errors: npt.NDArray[np.uint8]  # ascending

    def of(self, errors: int) -> Matches:
        """Return the runs with so many errors."""
        low, high = np.searchsorted(self.errors, [errors, errors + 1]).tolist()
        return Matches(self.begin[low:high], self.end[low:high], self.errors[low:high])

    def steps(self, num_words: int) -> ErrorSteps:
        """Return the least errors of every word."""
        begin = np.unique(np.concatenate([[0, num_words], self.begin, self.end]))
        errors = np.full(len(begin) - 1, UNMATCHED)
        low, high = np.searchsorted(begin, self.begin), np.searchsorted(begin, self.end)
        runs = zip(low.tolist(), high.tolist(), self.errors.tolist(), strict=True)
        for first, last, count in reversed([*runs]):
            errors[first:last] = count
        return ErrorSteps(begin, errors)


class ErrorSteps(NamedTuple):
    """The least errors of all words: equal from one beginning to the next. Shapes: (n + 1,), (n,)."""

    begin: IntArray  # ascending, from 0 to the number of words
    errors: Bits  # UNMATCHED: not meant

    def of(self, words: Words) -> Bits:
        """Return the errors of words. Shapes: (n,) -> (n,)."""
        if len(words) < _MANY_WORDS:
            return self.errors[np.searchsorted(self.begin, words, side="right") - 1]
        return np.repeat(self.errors, np.diff(self.begin))[words]


class _Level(NamedTuple):
    """The nodes at one depth, in order, and an end."""

    start: Words  # first word of each; the number of words at the end
    letter: Letters  # that leads to it
    child: Words  # first node of the next level that lies below it


class _Frontier(NamedTuple):
    """Beginnings of words that may still become what was typed. Shapes: (n,)."""

    node: Words  # of the level; of no meaning where one word is left
    low: Words  # its words: [low, high)
    high: Words
    state: States  # of the automaton, never 0

    def kept(self, mask: npt.NDArray[np.bool_]) -> _Frontier:
        return _Frontier(self.node[mask], self.low[mask], self.high[mask], self.state[mask])


# Begins and ends of runs of words, and their errors.
_Hits = tuple[Words, Words, Bits]


class SortedWords:
    """Distinct words in the order of their code points. Safe to use from several threads.

    Args:
        words: The words, ascending by their UTF-8 bytes, none of them empty. Type: string.
    """

    def __init__(self, words: pa.Array) -> None:
        self.size = len(words)
        codes = np.frombuffer("".join(words.to_pylist()).encode("utf-32-le"), np.uint32)
        alphabet, self._letters = _coded(codes)
        self._code_of = {letter: number for number, letter in enumerate(alphabet)}
        self.length: Words = as_numpy(pc.utf8_length(words)).astype(np.int16)  # of names: at most 16,384
        self._offset: Words = np.zeros(self.size + 1, np.int32 if len(codes) < 2**31 else np.int64)
        np.cumsum(self.length, out=self._offset[1:])
        self._levels = self._made_levels()
        self._roots, self._roots_begin = self._roots_by_second_letter()

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        arrays = [
            self._letters,
            self._offset,
            self.length,
            self._roots,
            *(a for level in self._levels for a in level),
        ]
        return sum(array.nbytes for array in arrays)

    def exact(self, word: str, is_prefix: bool) -> tuple[int, int]:
        """Return the run of the words that are `word`, or begin with it; an empty one where none is."""
        codes = [self._code_of.get(letter, -1) for letter in word]
        if -1 in codes:
            return 0, 0
        begin = self._place(codes)
        if not is_prefix:
            is_there = begin < self.size and self._codes(begin) == codes
            return begin, begin + is_there
        return begin, self._place([*codes[:-1], codes[-1] + 1])

    def matches(self, word: str, is_prefix: bool) -> Matches:
        """Return the words that are `word`, or begin with it, with as many errors as its length forgives."""
        errors = errors_forgiven(len(word))
        if not errors or len(word) > _LONGEST_WALK or not self.size:
            begin, end = np.array([self.exact(word, is_prefix)]).T
            return Matches(begin, end, np.zeros(1, np.uint8))
        typed = [self._code_of.get(letter, -1) for letter in word]
        return _joined(self._walk(typed, errors, is_prefix))

    def _codes(self, word: int) -> list[int]:
        found: list[int] = self._letters[self._offset[word] : self._offset[word + 1]].tolist()
        return found

    def _place(self, codes: list[int]) -> int:
        """Return the first word that is not before some letters."""
        return bisect_left(range(self.size), codes, key=self._codes)

    def _made_levels(self) -> list[_Level]:
        length = self.length
        shared = np.zeros(self.size + 1, np.int32)  # letters that each word shares with the one before
        pairs: Words = np.arange(1, self.size)
        for depth in range(int(length.max(initial=0))):
            pairs = pairs[(length[pairs] > depth) & (length[pairs - 1] > depth)]
            at = self._offset[pairs] + depth, self._offset[pairs - 1] + depth
            pairs = pairs[self._letters[at[0]] == self._letters[at[1]]]
            if not len(pairs):
                break
            shared[pairs] = depth + 1
        has_neighbour = np.maximum(shared[:-1], shared[1:])
        starts = []
        words: Words = np.arange(self.size, dtype=np.int32)
        depth = 0
        while len(words):
            starts.append(words[shared[words] <= depth])
            depth += 1
            words = words[(length[words] > depth) & (has_neighbour[words] >= depth)]
        levels = []
        for depth, start in enumerate(starts):
            below = starts[depth + 1] if depth + 1 < len(starts) else start[:0]
            end = np.int32(self.size)
            child = np.searchsorted(below, np.append(start, end)).astype(np.int32)
            levels.append(_Level(np.append(start, end), self._letters[self._offset[start] + depth], child))
        return levels

    def _roots_by_second_letter(self) -> tuple[Words, IntArray]:
        """Return the nodes at depth 0 by the second letters of their words, and where those of each begin."""
        word = np.flatnonzero(self.length > 1)
        second = self._letters[self._offset[word] + 1]
        root = np.searchsorted(self._levels[0].start, word, side="right") - 1 if len(word) else word
        pairs = np.unique(second.astype(np.int64) << 32 | root)
        begin = np.searchsorted(pairs, np.arange(len(self._code_of) + 1) << 32)
        return (pairs & 0xFFFFFFFF).astype(np.int32), begin

    def _promising_roots(self, typed: list[int], errors: int, equal: Bits) -> Words:
        """Return the nodes at depth 0 behind which a walk can go on. `equal`: by letter, as at depth 1."""
        letter = self._levels[0].letter
        is_promising = np.zeros(len(letter), np.bool_)
        first = np.array(typed[: errors + 1])
        node = np.minimum(np.searchsorted(letter, first), len(letter) - 1)
        is_promising[node[letter[node] == first]] = True
        # Any other first letter is an error, behind which few letters go on.
        machine = automaton(errors)
        goes_on = machine.moves(2)[machine.moves(1)[machine.start, 0]] > 0
        for code in np.flatnonzero(goes_on[equal]):
            is_promising[self._roots[self._roots_begin[code] : self._roots_begin[code + 1]]] = True
        return np.flatnonzero(is_promising)

    def _walk(self, typed: list[int], errors: int, is_prefix: bool) -> list[_Hits]:
        """Go through the trie level by level; return the runs of words that are met."""
        machine = automaton(errors)
        bits = np.zeros(len(self._code_of), np.uint64)
        for place, code in enumerate(typed):
            if code >= 0:
                bits[code] |= np.uint64(1 << (place + errors))
        found: list[_Hits] = []
        band_mask = np.uint64((1 << machine.width) - 1)
        equals = [((bits >> np.uint64(depth)) & band_mask).astype(np.uint8) for depth in (0, 1)]
        roots = self._promising_roots(typed, errors, equals[1])
        low, high = np.zeros(1, np.int32), np.full(1, self.size, np.int32)
        root = _Frontier(low, low, high, np.full(1, machine.start, np.uint16))
        frontier = _lived(self._levels[0], roots, roots * 0, root, equals[0], machine.moves(1))
        for depth in range(1, len(typed) + errors):  # nothing ends at depth 0
            equal = ((bits >> np.uint64(depth)) & band_mask).astype(np.uint8)
            moves = machine.moves(depth + 1)
            is_alone = frontier.high - frontier.low == 1
            alone = self._next_letters(depth, frontier.kept(is_alone), equal, moves)
            if not is_alone.all():
                below = self._below(depth, frontier.kept(~is_alone), equal, moves)
                alone = _Frontier(*(np.concatenate(pair) for pair in zip(below, alone, strict=True)))
            frontier = alone
            band = len(typed) - (depth + 1) + errors
            if not len(frontier.state):
                break
            if band < machine.width:
                count = machine.count[frontier.state, band]
                ends = np.ones(len(count), np.bool_) if is_prefix else self.length[frontier.low] == depth + 1
                hits = np.flatnonzero((count <= errors) & ends)
                begin = frontier.low[hits]
                found.append((begin, frontier.high[hits] if is_prefix else begin + 1, count[hits]))
                if is_prefix:  # what cannot become better ends here
                    most = np.minimum(count, errors + 1)
                    frontier = frontier.kept(machine.promise[frontier.state, band] < most)
        return found

    def _next_letters(self, depth: int, frontier: _Frontier, equal: Bits, moves: States) -> _Frontier:
        """Return what becomes of words that are alone by their next letters."""
        frontier = frontier.kept(self.length[frontier.low] > depth)
        state = moves[frontier.state, equal[self._letters[self._offset[frontier.low] + depth]]]
        return frontier._replace(state=state).kept(state > 0)

    def _below(self, depth: int, frontier: _Frontier, equal: Bits, moves: States) -> _Frontier:
        """Return the nodes of a level below some of the one above, those with live states."""
        level, above = self._levels[depth], self._levels[depth - 1].child
        first = above[frontier.node]
        count = above[frontier.node + 1] - first
        # Many nodes may have room for no further error: their children are found by the letters that go on.
        is_bound = moves[frontier.state, 0] == 0
        if int(count[is_bound].sum()) < _MANY_CHILDREN:
            return _lived(level, *spread(first, count), frontier, equal, moves)
        free, bound = np.flatnonzero(~is_bound), np.flatnonzero(is_bound)
        codes = np.flatnonzero(equal).astype(level.letter.dtype)
        which, letter = np.nonzero(moves[frontier.state[bound, None], equal[codes]])
        parent, code = bound[which], codes[letter]
        end = first[parent] + count[parent]
        child = _placed(level.letter, first[parent], end, code)
        is_there = (child < end) & (level.letter.take(child, mode="clip") == code)
        children, which = spread(first[free], count[free])
        children = np.concatenate([child[is_there], children])
        parents = np.concatenate([parent[is_there], free[which]])
        return _lived(level, children, parents, frontier, equal, moves)


def _placed(letters: Letters, low: Words, high: Words, code: Letters) -> Words:
    """Return where in each run [low, high) of ascending letters those before its code end."""
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        is_before = (middle < high) & (letters.take(middle, mode="clip") < code)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
    return low


def spread(first: npt.NDArray[np.integer], count: npt.NDArray[np.integer]) -> tuple[IntArray, Words]:
    """Return the numbers from each first one on, and which run each belongs to."""
    end = np.cumsum(count, dtype=np.int32)
    run = np.repeat(np.arange(len(count), dtype=np.int32), count)
    return np.arange(len(run), dtype=np.int32) + (first - (end - count))[run], run


def _lived(
    level: _Level, child: Words, parent: Words, above: _Frontier, equal: Bits, moves: States
) -> _Frontier:
    state = moves[above.state[parent], equal[level.letter[child]]]
    kept = np.flatnonzero(state)
    child, parent = child[kept], parent[kept]
    high = np.minimum(level.start[child + 1], above.high[parent])
    return _Frontier(child, level.start[child], high, state[kept])


def _coded(codes: npt.NDArray[np.uint32]) -> tuple[list[str], Letters]:
    """Return the distinct letters, ascending, and each code point's number among them."""
    seen = np.zeros(0x110000, np.bool_)
    seen[codes] = True
    alphabet = np.flatnonzero(seen)
    number: Letters = np.zeros(len(seen), np.uint16 if len(alphabet) < 1 << 16 else np.uint32)
    number[alphabet] = np.arange(len(alphabet))
    return list(map(chr, alphabet.tolist())), number[codes]


def _joined(found: list[_Hits]) -> Matches:
    """Return runs by errors; a run within another one of no more errors than its own is left out."""
    if not found:
        return Matches(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))
    begin, end, errors = (np.concatenate(some).astype(np.int64) for some in zip(*found, strict=True))
    order = np.lexsort((-end, begin, errors))
    begin, end, errors = begin[order], end[order], errors[order]
    # Runs are nested or apart: one that ends before the farthest end so far lies within another.
    reach = end + (errors << 32)
    kept = np.diff(np.maximum.accumulate(reach), prepend=-1) > 0
    return Matches(begin[kept], end[kept], errors[kept].astype(np.uint8))

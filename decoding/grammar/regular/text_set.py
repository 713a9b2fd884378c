"""Sets of strings as schemas describe them: a range of lengths, and possibly an automaton."""

from __future__ import annotations

from genret.decoding.grammar.regular.dfa import ENDLESS, Dfa
from genret.decoding.grammar.regular.ranges import SCALAR_VALUES, Ranges, complement, intersection, union

_NUM_CHARS = 0x110000 - 0x800
# There are at least 2 ** _CHAR_BITS characters.
_CHAR_BITS = 20
_ALL_LENGTHS: Ranges = ((0, ENDLESS),)


class TextSet:
    """A set of texts. Closed under `&`, `|`, `-`, `~`; hashable; equal sets made alike are equal.

    A set is either some ranges of lengths or an automaton, never both: lengths stay numbers as long as
    possible, so that `maxLength: 65536` costs nothing.
    """

    __slots__ = ("_dfa", "_ranges")

    def __init__(self, ranges: Ranges, dfa: Dfa | None) -> None:
        """Not to be called: `of` brings a set into its only form."""
        self._ranges = ranges
        self._dfa = dfa

    @staticmethod
    def of(least: int = 0, most: int | None = None, automaton: Dfa | None = None) -> TextSet:
        """Texts of `least` to `most` code points (None: no bound) that the automaton accepts.

        Raises AutomatonLimitError if an automaton that counts that far has too many states.
        """
        top = ENDLESS if most is None else most
        ranges: Ranges = ((max(least, 0), top),) if max(least, 0) <= top else ()
        if automaton is None:
            return TextSet(ranges, None)
        return _limited(automaton, ranges)

    @staticmethod
    def everything() -> TextSet:
        """All texts."""
        return _EVERYTHING

    @staticmethod
    def nothing() -> TextSet:
        """No text."""
        return _NOTHING

    @property
    def lengths(self) -> tuple[int, int | None] | None:
        """The bounds of the length, for a set without an automaton; else None."""
        if self._dfa is not None or len(self._ranges) != 1:
            return None
        least, most = self._ranges[0]
        return least, None if most == ENDLESS else most

    @property
    def num_bytes(self) -> int:
        """Approximate memory."""
        return 100 * len(self._ranges) + (0 if self._dfa is None else self._dfa.num_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether the set has no text."""
        return self._dfa is None and not self._ranges

    @property
    def is_everything(self) -> bool:
        """Whether the set has every text."""
        return self._dfa is None and self._ranges == _ALL_LENGTHS

    def automaton(self) -> Dfa:
        """The set as one automaton. Raises AutomatonLimitError for too many states."""
        if self._dfa is not None:
            return self._dfa
        return Dfa.of_lengths(self._ranges)

    def count(self, most: int | None = None) -> int | None:
        """Count the texts, at most up to `most`; None: infinitely many."""
        if self._dfa is not None:
            return self._dfa.count(most)
        if self._ranges and self._ranges[-1][1] == ENDLESS:
            return None
        total = 0
        for least, last in self._ranges:
            if most is not None and last * _CHAR_BITS >= most.bit_length():
                return most
            # c^least + ... + c^last.
            total += (int(_NUM_CHARS ** (last + 1)) - int(_NUM_CHARS**least)) // (_NUM_CHARS - 1)
        return total if most is None else min(total, most)

    def accepts(self, text: str) -> bool:
        """Whether the set has the text."""
        if self._dfa is not None:
            return self._dfa.accepts(text)
        if any("\ud800" <= char <= "\udfff" for char in text):
            return False
        return any(least <= len(text) <= most for least, most in self._ranges)

    def __and__(self, other: TextSet) -> TextSet:
        if self._dfa is None and other._dfa is None:
            return TextSet(intersection(self._ranges, other._ranges), None)
        if self._dfa is None:
            return _limited(other.automaton(), self._ranges)
        if other._dfa is None:
            return _limited(self._dfa, other._ranges)
        return _of_dfa(self._dfa & other._dfa)

    def __or__(self, other: TextSet) -> TextSet:
        if self._dfa is None and other._dfa is None:
            return TextSet(union(self._ranges, other._ranges), None)
        if self.is_empty or other.is_everything:
            return other
        if other.is_empty or self.is_everything:
            return self
        return _of_dfa(self.automaton() | other.automaton())

    def __sub__(self, other: TextSet) -> TextSet:
        if other._dfa is None:
            return self & ~other
        if self.is_empty:
            return self
        if self.is_everything:
            return ~other
        lengths = other._dfa.lengths()
        if self._dfa is None and lengths is not None and lengths[1] is not None:
            # Only lengths that the other set has can differ; no automaton need count beyond them.
            common = intersection(self._ranges, ((lengths[0], lengths[1]),))
            if not common:
                return self
        return _of_dfa(self.automaton() - other._dfa)

    def __invert__(self) -> TextSet:
        if self._dfa is None:
            return TextSet(complement(self._ranges, _ALL_LENGTHS), None)
        return _of_dfa(~self._dfa)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TextSet):
            return NotImplemented
        return self._ranges == other._ranges and self._dfa == other._dfa

    def __hash__(self) -> int:
        return hash((self._ranges, self._dfa))

    def __repr__(self) -> str:
        if self._dfa is not None:
            return f"TextSet({self._dfa!r})"
        shown = ", ".join(f"{least}-{'' if most == ENDLESS else most}" for least, most in self._ranges)
        return f"TextSet(lengths {shown or 'none'})"


_EVERYTHING = TextSet(_ALL_LENGTHS, None)
_NOTHING = TextSet((), None)


def _of_dfa(dfa: Dfa) -> TextSet:
    """The set of an automaton, as lengths if only these matter."""
    if dfa.is_empty:
        return _NOTHING
    if dfa.is_everything:
        return _EVERYTHING
    ranges = _lengths_alone(dfa)
    return TextSet((), dfa) if ranges is None else TextSet(ranges, None)


def _lengths_alone(dfa: Dfa) -> Ranges | None:
    """The lengths of an automaton's texts, if it accepts all texts of these lengths; None otherwise.

    Nothing may change from some length on.
    """
    state = 0
    ranges: list[tuple[int, int]] = []
    for depth in range(dfa.num_states):
        if dfa.ends[state] >= 0:
            ranges.append((depth, depth))
        row = dfa.rows[state]
        if not row:
            return union(ranges)
        target = row[0][2]
        if row != tuple((first, last, target) for first, last in SCALAR_VALUES) or target < state:
            return None
        if target == state:
            return union(ranges, ((depth, ENDLESS),)) if dfa.ends[state] >= 0 else union(ranges)
        state = target
    return None


def _limited(dfa: Dfa, ranges: Ranges) -> TextSet:
    """Texts of an automaton with some lengths; bounds that the automaton has itself are not counted again."""
    bounds = dfa.lengths()
    if bounds is None or not ranges:
        return _NOTHING
    top = ENDLESS if bounds[1] is None else bounds[1]
    wanted = intersection(ranges, ((bounds[0], top),))
    if not wanted:
        return _NOTHING
    if wanted == ((bounds[0], top),):
        return _of_dfa(dfa)
    if wanted[-1][1] == top:
        wanted = (*wanted[:-1], (wanted[-1][0], ENDLESS))
    return _of_dfa(dfa & Dfa.of_lengths(wanted))

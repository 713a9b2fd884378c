"""Sets of strings as schemas describe them: a range of lengths, and possibly an automaton."""

from __future__ import annotations

from genret.decoding.grammar.regular.completions import Completions
from genret.decoding.grammar.regular.dfa import ENDLESS, Dfa
from genret.decoding.grammar.regular.ranges import SCALAR_VALUES, Ranges, complement, intersection, union

_ALL_LENGTHS: Ranges = ((0, ENDLESS),)
# States up to which an automaton counts itself: such sets are equal if they have the same texts.
_FEW_STATES = 512


class TextSet:
    """A set of texts. Closed under `&`, `|`, `-`, `~`; hashable; equal sets made alike are equal.

    A set is the texts of an automaton, those of some lengths, or those of both. Lengths stay numbers where
    counting in the automaton would take many states: `maxLength: 65536` costs nothing. A set of both has no
    only form, and is counted out for `~`, and for `|` and `-` with most others.
    """

    __slots__ = ("dfa", "lengths")

    def __init__(self, lengths: Ranges, dfa: Dfa | None) -> None:
        """Not to be called with both: `of` brings a set into its form."""
        self.lengths = lengths  # In code points; the last may be `ENDLESS`
        self.dfa = dfa  # None: all texts

    @staticmethod
    def of(least: int = 0, most: int | None = None, automaton: Dfa | None = None) -> TextSet:
        """Texts of `least` to `most` code points (None: no bound) that the automaton accepts."""
        top = ENDLESS if most is None else most
        lengths: Ranges = ((max(least, 0), top),) if max(least, 0) <= top else ()
        return TextSet(lengths, None) if automaton is None else _limited(automaton, lengths)

    @staticmethod
    def everything() -> TextSet:
        """All texts."""
        return _EVERYTHING

    @staticmethod
    def nothing() -> TextSet:
        """No text."""
        return _NOTHING

    @property
    def num_bytes(self) -> int:
        """Approximate memory."""
        return 100 * len(self.lengths) + (0 if self.dfa is None else self.dfa.num_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether the set has no text."""
        return not self.lengths

    @property
    def is_of_any_length(self) -> bool:
        """Whether lengths do not matter beside the automaton."""
        return self.lengths == _ALL_LENGTHS

    @property
    def is_everything(self) -> bool:
        """Whether the set has every text."""
        return self.dfa is None and self.is_of_any_length

    def automaton(self) -> Dfa:
        """The set as one automaton. Raises AutomatonLimitError for too many states."""
        if self.dfa is None:
            return Dfa.of_lengths(self.lengths)
        return self.dfa if self.is_of_any_length else self.dfa & Dfa.of_lengths(self.lengths)

    def accepts(self, text: str) -> bool:
        """Whether the set has the text."""
        if any("\ud800" <= char <= "\udfff" for char in text):
            return False
        return any(least <= len(text) <= most for least, most in self.lengths) and (
            self.dfa is None or self.dfa.accepts(text)
        )

    def __and__(self, other: TextSet) -> TextSet:
        lengths = intersection(self.lengths, other.lengths)
        if self.dfa is None or other.dfa is None:
            dfa = self.dfa or other.dfa
        else:
            dfa = self.dfa & other.dfa
        return TextSet(lengths, None) if dfa is None else _limited(dfa, lengths)

    def __or__(self, other: TextSet) -> TextSet:
        if self.is_empty or other.is_everything:
            return other
        if other.is_empty or self.is_everything:
            return self
        if self.dfa == other.dfa:
            lengths = union(self.lengths, other.lengths)
            return TextSet(lengths, None) if self.dfa is None else _limited(self.dfa, lengths)
        return _of_dfa(self.automaton() | other.automaton())

    def __sub__(self, other: TextSet) -> TextSet:
        if other.dfa is None:
            return self & ~other
        if self.is_empty:
            return self
        if self.is_everything:
            return ~other
        bounds = other.dfa.lengths() or (0, None)
        common = ((bounds[0], ENDLESS if bounds[1] is None else bounds[1]),)
        if self.dfa is None and not intersection(self.lengths, common):
            return self  # no automaton need count that far
        return _of_dfa(self.automaton() - other.automaton())

    def __invert__(self) -> TextSet:
        if self.dfa is None:
            return TextSet(complement(self.lengths, _ALL_LENGTHS), None)
        return _of_dfa(~self.automaton())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TextSet):
            return NotImplemented
        return self.lengths == other.lengths and self.dfa == other.dfa

    def __hash__(self) -> int:
        return hash((self.lengths, self.dfa))

    def __repr__(self) -> str:
        if self.dfa is not None and self.is_of_any_length:
            return f"TextSet({self.dfa!r})"
        shown = ", ".join(f"{least}-{'' if most == ENDLESS else most}" for least, most in self.lengths)
        return f"TextSet(lengths {shown or 'none'}{'' if self.dfa is None else f', {self.dfa!r}'})"


_EVERYTHING = TextSet(_ALL_LENGTHS, None)
_NOTHING = TextSet((), None)


def _of_dfa(dfa: Dfa) -> TextSet:
    """The set of an automaton, as lengths if only these matter."""
    if dfa.is_empty:
        return _NOTHING
    if dfa.is_everything:
        return _EVERYTHING
    lengths = _lengths_alone(dfa)
    return TextSet(_ALL_LENGTHS, dfa) if lengths is None else TextSet(lengths, None)


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


def _limited(dfa: Dfa, lengths: Ranges) -> TextSet:
    """Texts of an automaton with some lengths; bounds that the automaton has itself are not counted again."""
    bounds = dfa.lengths()
    if bounds is None or not lengths:
        return _NOTHING
    top = ENDLESS if bounds[1] is None else bounds[1]
    wanted = intersection(lengths, ((bounds[0], top),))
    if not wanted:
        return _NOTHING
    if wanted == ((bounds[0], top),):
        return _of_dfa(dfa)
    if wanted[-1][1] == top:
        wanted = (*wanted[:-1], (wanted[-1][0], ENDLESS))
    counted = wanted[-1][0] if wanted[-1][1] == ENDLESS else wanted[-1][1]
    if dfa.num_states * counted <= _FEW_STATES or _lengths_alone(dfa) is not None:
        return _of_dfa(dfa & Dfa.of_lengths(wanted))
    if wanted[0][0] > bounds[0] and wanted[-1][1] < ENDLESS:
        # It may have no text of these lengths, for all that it has shorter and longer ones.
        costs = Completions.of_characters(dfa).costs(wanted[-1][0])
        if all(costs.fewest(least, 0) > most for least, most in wanted):
            return _NOTHING
    return TextSet(wanted, dfa)

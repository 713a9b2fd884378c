"""Spells arrays and objects of bounded depth as automata, one text for each value: items that must differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import NamedTuple

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import UnsupportedSchemaError
from genret.decoding.grammar.leaves.leaf_factory import LITERAL_TEXTS
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.json_spelling import spell_texts
from genret.decoding.grammar.regular.nfa import Nfa
from genret.decoding.grammar.regular.number_set import written
from genret.decoding.grammar.schema.case_expansion import Expansion, item_value, member_value
from genret.decoding.grammar.schema.cases import ArrayCase, Cases, Conjunction, ObjectCase
from genret.decoding.grammar.schema.formula import Place

# Items of an array within an item that are counted in the automaton.
_MAX_COUNTED = 64


class ObjectKeys(NamedTuple):
    """The keys of an object case: those with a name, and whether there may be others."""

    names: tuple[str, ...]
    has_others: bool


class ValueTexts:
    """The texts of sets of values, members always in one order, blanks as `json.dumps` or not at all.

    `place` is the `uniqueItems` for which this is asked, for messages.
    """

    def __init__(
        self,
        expansion: Expansion,
        options: GrammarOptions,
        keys_of: Callable[[ObjectCase], ObjectKeys],
        place: Place,
    ) -> None:
        self._expansion = expansion
        self._is_narrow = options.inexact == "narrow"
        blank = b"" if options.whitespace == "compact" else b" "
        self._comma, self._colon = b"," + blank, b":" + blank
        self._keys_of = keys_of
        self._place = place
        self._known: dict[Conjunction, ByteDfa] = {}
        self._open: set[Conjunction] = set()
        # The order of members is that in which their keys are met, so that alternatives agree on it.
        self._rank: dict[str, int] = {}

    def containers(self, cases: Cases) -> ByteDfa:
        """The texts of the arrays and objects of a set.

        Raises:
            UnsupportedSchemaError: they are nested without end, or told apart by what no automaton knows.
            AutomatonLimitError: there would be too many states.
        """
        return _any_of([*map(self._array, cases.arrays), *map(self._object, cases.objects)])

    def _value(self, conjunction: Conjunction) -> ByteDfa:
        known = self._known.get(conjunction)
        if known is not None:
            return known
        if conjunction in self._open:
            raise self._refused("refer to themselves")
        self._open.add(conjunction)
        cases = self._expansion.cases(conjunction)
        if cases.holes:
            raise self._refused("are arrays or objects with titles in them")
        found = [ByteDfa.literals((text, 0) for bit, text in LITERAL_TEXTS if cases.literals & bit)]
        if cases.numbers is not None:
            numbers = written(cases.numbers) if self._is_narrow else cases.numbers
            found.append(numbers.spelled(canonical=True))
        if cases.texts is not None:
            found.append(spell_texts(cases.texts.automaton()))
        found.append(self.containers(cases))
        self._open.discard(conjunction)
        known = self._known[conjunction] = _any_of(found)
        return known

    def _array(self, case: ArrayCase) -> ByteDfa:
        if case.unique is not None and (case.most is None or case.most > 1):
            raise self._refused("are arrays whose own items must differ")
        if case.quotas:
            raise self._refused("are arrays whose own items are counted")
        places = max([len(rule.prefix) for rule in case.rules], default=0)
        num_counted = max(places, case.least, 1 if case.most is None else case.most)
        if num_counted > _MAX_COUNTED:
            raise self._refused(f"are arrays with a bound of more than {_MAX_COUNTED} items")
        made = _Sequence(b"[")
        at = made.begin
        for number in range(num_counted):
            if number >= case.least:
                made.text(at, b"]", made.end)
            values = self._value(item_value(case, number))
            if case.most == number or values.is_empty:
                break
            after = made.state()
            made.one_of(made.text(at, self._comma) if number else at, values, after)
            at = after
        else:
            made.text(at, b"]", made.end)
            if case.most is None:
                made.one_of(made.text(at, self._comma), self._value(item_value(case, num_counted)), at)
        return made.automaton()

    def _object(self, case: ObjectCase) -> ByteDfa:
        keys = self._keys_of(case)
        if keys.has_others:
            raise self._refused("are objects with keys that are not declared")
        if case.quotas or case.most is not None or case.least > len(case.required):
            raise self._refused("are objects whose members are counted")
        for name in keys.names:
            self._rank.setdefault(name, len(self._rank))
        required = set(case.required)
        values: Mapping[str, ByteDfa] = {name: self._value(member_value(case, name)) for name in keys.names}
        if not required.issubset(name for name, texts in values.items() if not texts.is_empty):
            return ByteDfa.literals([])
        made = _Sequence(b"{")
        first: int | None = made.begin  # no member is written yet; None: one is for certain
        later: int | None = None
        for name in sorted(values, key=self._rank.__getitem__):
            texts, after = values[name], made.state()
            if texts.is_empty:
                continue
            key = encode_basestring(name).encode() + self._colon
            begun = made.state()
            if first is not None:
                made.text(first, key, begun)
            if later is not None:
                made.text(later, self._comma + key, begun)
                if name not in required:
                    made.step(later, after)
            made.one_of(begun, texts, after)
            if name in required:
                first = None
            later = after
        for at in (first, later):
            if at is not None:
                made.text(at, b"}", made.end)
        return made.automaton()

    def _refused(self, what: str) -> UnsupportedSchemaError:
        return UnsupportedSchemaError.at(self._place, f"items cannot be compared that {what}")


def _any_of(parts: list[ByteDfa]) -> ByteDfa:
    found = ByteDfa.literals([])
    for part in parts:
        if not part.is_empty:
            found = part if found.is_empty else found | part
    return found


class _Sequence(Nfa):
    """Automata one behind the other, from the opening bracket on."""

    def __init__(self, opening: bytes) -> None:
        super().__init__()
        self._start = self.state()
        self.begin = self.text(self._start, opening)
        self.end = self.state(0)

    def text(self, source: int, text: bytes, target: int | None = None) -> int:
        """Write a text; return the state behind it, a new one unless it is given."""
        for number, byte in enumerate(text, start=1):
            after = self.state() if target is None or number < len(text) else target
            self.edge(source, ((byte, byte),), after)
            source = after
        return source

    def one_of(self, source: int, texts: ByteDfa, target: int) -> None:
        """Write one of some texts, if there is any."""
        begin, ends = self.embed(texts.rows, texts.ends)
        self.step(source, begin)
        for end in ends:
            self.step(end, target)

    def automaton(self) -> ByteDfa:
        """The texts that lead to the end."""
        return ByteDfa(*self.determinise(self._start))

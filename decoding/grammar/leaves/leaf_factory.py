"""Makes the leaves of one vocabulary: equal languages are one object, so their token masks are shared."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from json.encoder import encode_basestring  # what json.dumps(ensure_ascii=False) calls
from weakref import WeakValueDictionary

from genret.decoding.grammar.compile_options import AutomatonLimitError
from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.leaves.counted_text import CountableTexts, CountedTextLeaf
from genret.decoding.grammar.leaves.dfa_leaf import DfaLeaf, LabelledKeys, RestrictedKeys
from genret.decoding.grammar.leaves.distinct_leaf import (
    AlikeExits,
    DistinctLeaf,
    DistinctSlotLeaf,
    Texts,
    Writings,
)
from genret.decoding.grammar.leaves.leaf import Leaf, SparseLeaf
from genret.decoding.grammar.leaves.table_walk import TableWalker
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import ENDLESS, Dfa
from genret.decoding.grammar.regular.json_spelling import (
    spell_any_text,
    spell_texts,
    written_with,
)
from genret.decoding.grammar.regular.number_set import WRITTEN_INTEGERS, WRITTEN_NUMBERS, NumberSet
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.vocabulary import Vocabulary

LITERAL_TEXTS = ((1, b"null"), (2, b"false"), (4, b"true"))
"""`null`, `false` and `true`, by the bits of `JsonType`."""
# Bytes that every JSON container needs.
_STRUCTURE = b'{}[]":,'
# The leaves made last outlive their grammars while they are small together.
_NUM_RECENT = 64
_RECENT_BYTES = 64 << 20
_CHECKED_EVERY = 16
_MANY_CHARACTERS = 32
MAX_SHORTEST = 1 << 20
"""Largest minimal length of a string, in characters: shortest texts are written out."""
_NUMBERS = NumberSet.of()
_INTEGERS = NumberSet.of(integers=True)
_SHARED_NUMBERS = frozenset((_NUMBERS, _INTEGERS, WRITTEN_NUMBERS, WRITTEN_INTEGERS))


class Leaves:
    """Makes leaves, and finds those again that some grammar still holds.

    Safe to use from several threads: two that ask for the same new leaf get the same one.

    Raises VocabularyError if the tokenizer cannot write the brackets, quotes, colons and commas of JSON.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        vocabulary.require(_STRUCTURE)
        self.vocabulary = vocabulary
        self.walker = TableWalker(vocabulary)
        self._any_text = {
            canonical: CountableTexts(
                written_with(
                    spell_texts(Dfa.everything()) if canonical else spell_any_text(),
                    vocabulary.writable_texts,
                ),
                self.walker,
                is_shared=True,
            )
            for canonical in (False, True)
        }
        self._countable: WeakValueDictionary[Dfa, CountableTexts] = WeakValueDictionary()
        self._kept: WeakValueDictionary[Hashable, Leaf] = WeakValueDictionary()
        self._labelled: WeakValueDictionary[Hashable, LabelledKeys] = WeakValueDictionary()
        self._recent: deque[Leaf] = deque(maxlen=_NUM_RECENT)
        self._shared: dict[Hashable, Leaf] = {}
        self._num_made = 0
        self._alike_exits = AlikeExits(vocabulary)
        self._writings: WeakValueDictionary[tuple[Leaf, Texts, bool], Writings] = WeakValueDictionary()
        self._distinct_leaves: WeakValueDictionary[tuple[Writings, frozenset[int]], DistinctLeaf] = (
            WeakValueDictionary()
        )
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory that belongs to no grammar: vocabulary, shared leaves, the leaves made last."""
        walker = self.walker.num_bytes
        strings = sum(any_text.num_bytes for any_text in self._any_text.values())
        leaves = sum(leaf.num_bytes for leaf in [*self._shared.values(), *self._recent])
        return self.vocabulary.num_bytes + walker + strings + leaves

    def literals(self, bits: int) -> Leaf:
        """`null`, `false` and `true`, by the bits of `JsonType`; all of them have label 0.

        Raises ValueError for none of them, VocabularyError if the tokenizer cannot write one.
        """
        texts = {text: 0 for bit, text in LITERAL_TEXTS if bits & bit}
        return self._of(("literals", bits), lambda: self._sparse(texts, is_shared=True))

    def texts(self, texts: TextSet, canonical: bool = False) -> Leaf:
        """Strings of a set that is not empty, quotes included, with label 0.

        `canonical`: every text has one spelling; sets with more than bounds on the length always have.

        Raises AutomatonLimitError for too many states, VocabularyError if none of the texts can be written.
        """
        return self._of(("texts", texts, canonical), lambda: self._new_texts(texts, canonical))

    def numbers(self, numbers: NumberSet, canonical: bool = False) -> Leaf:
        """Numbers of a set that is not empty, with label 0; in one spelling each if `canonical`.

        Raises AutomatonLimitError for too many states, VocabularyError if none of the numbers can be written.
        """
        is_shared = numbers in _SHARED_NUMBERS
        return self._of(
            ("numbers", numbers, canonical), lambda: self._automaton(numbers.spelled(canonical), is_shared)
        )

    def spelled(self, automaton: ByteDfa) -> Leaf:
        """The texts of an automaton that is not empty, with its labels; raises VocabularyError if none can be
        written.
        """
        return self._of(("automaton", automaton.digest), lambda: self._automaton(automaton))

    def literal_keys(self, names: Iterable[tuple[str, int]]) -> Leaf:
        """Different strings with labels, quotes included. Raises VocabularyError for one that cannot be
        written.
        """
        pairs = tuple(names)
        return self._of(
            ("texts one by one", pairs),
            lambda: self._sparse({encode_basestring(name).encode(): label for name, label in pairs}),
        )

    def keys(self, automaton: ByteDfa, allowed: frozenset[int]) -> Leaf:
        """Those keys of an object, quotes included, that have certain labels.

        Raises ValueError if no key has such a label, VocabularyError if none of the keys can be written.
        """
        bits = sum(1 << label for label in allowed)
        return self._of(("keys", automaton.digest, bits), lambda: self._new_keys(automaton, bits))

    def remembering(self, leaf: Leaf, texts: Texts, are_alike: bool = False) -> DistinctLeaf:
        """A leaf of the same values, labelled by the number in `texts` of the written text.

        Its strings have one spelling, also if the leaf itself allows all of JSON's escapes.

        Args:
            leaf: The leaf; numbers must have one spelling, if equal values are to have equal labels.
            texts: One object for all leaves whose labels are compared.
            are_alike: Whether texts are items of an array, all places of which have the same leaves: within
                tokens, texts may then have the label `SOME_TEXT` if there are more than can be written.
        """
        leaf = self._spelled_one_way(leaf)
        are_alike = are_alike and _is_endless(leaf)
        key = (leaf, texts, are_alike)
        with self._lock:
            writings = self._writings.get(key)
            if writings is None:
                alike = self._alike_exits if are_alike else None
                writings = self._writings[key] = Writings(leaf, texts, self.vocabulary, alike)
        return self._distinct(writings, frozenset())

    def excluding(self, leaf: DistinctLeaf, numbers: frozenset[int]) -> DistinctLeaf | None:
        """A leaf of `remembering` without the texts with these numbers as well; None when none is left."""
        found = self._distinct(leaf.writings, leaf.excluded | numbers)
        return None if found.is_empty else found

    def _spelled_one_way(self, leaf: Leaf) -> Leaf:
        if leaf is self._any_text[False].unbounded:
            return self._any_text[True].unbounded
        if isinstance(leaf, CountedTextLeaf) and leaf.texts is self._any_text[False]:
            return self.texts(TextSet(leaf.lengths, None), canonical=True)
        return leaf

    def _distinct(self, writings: Writings, excluded: frozenset[int]) -> DistinctLeaf:
        key = (writings, excluded)
        found = self._distinct_leaves.get(key)
        if found is None:
            kind = DistinctSlotLeaf if writings.is_title_slot else DistinctLeaf
            made = kind(writings, excluded)
            with self._lock:
                found = self._distinct_leaves.setdefault(key, made)
        return found

    def warm_up(self) -> None:
        """Compile what is compiled, and find the tokens of strings and numbers."""
        self.walker.warm_up()
        for any_text in self._any_text.values():
            any_text.warm_up()
        for numbers in _SHARED_NUMBERS:
            for canonical in (False, True):
                self.numbers(numbers, canonical).tokens(0, self.vocabulary.root)

    def _new_texts(self, texts: TextSet, canonical: bool) -> Leaf:
        if texts.dfa is None:
            countable = self._any_text[canonical]
            if texts.is_everything:
                return countable.unbounded
        elif texts.is_of_any_length:
            return self._automaton(spell_texts(texts.dfa))
        else:
            countable = self._counted(texts.dfa)
        if texts.lengths[0][0] > MAX_SHORTEST:
            raise AutomatonLimitError(f"its shortest text has more than {MAX_SHORTEST:,} characters")
        leaf = CountedTextLeaf(countable, texts.lengths)
        if leaf.is_empty:
            raise _unwritable()
        return leaf

    def _counted(self, dfa: Dfa) -> CountableTexts:
        """The texts of an automaton, of any length, whose characters can be counted."""
        made = self._countable.get(dfa)
        if made is None:
            automaton = written_with(spell_texts(dfa), self.vocabulary.writable_texts)
            if automaton.is_empty:
                raise _unwritable()
            strings = self._any_text[True]
            made = CountableTexts(automaton, self.walker, strings=(strings.unbounded, strings.body))
            self._countable[dfa] = made
        return made

    def _new_keys(self, automaton: ByteDfa, bits: int) -> Leaf:
        key = ("all keys", automaton.digest)
        labelled = self._labelled.get(key)
        if labelled is None:
            whole = self.spelled(automaton)
            if not isinstance(whole, DfaLeaf):
                raise TypeError(f"expected the leaf of an automaton, got {type(whole).__name__}")
            labelled = LabelledKeys(whole)
            self._labelled[key] = labelled
        if not labelled.reachable[0] & bits:
            raise ValueError("no key has a label that is allowed")
        if not labelled.reachable[0] & ~bits:
            return labelled.leaf
        return RestrictedKeys(labelled, bits, self.walker)

    def _automaton(self, automaton: ByteDfa, is_shared: bool = False) -> DfaLeaf:
        """The leaf of the writable part of an automaton."""
        if automaton.is_empty:
            raise ValueError("there is no such text")
        automaton = written_with(automaton, self.vocabulary.writable_texts)
        if automaton.is_empty:
            raise _unwritable()
        strings = self._any_text[True]
        return DfaLeaf(automaton, self.walker, is_shared, (strings.unbounded, strings.body))

    def _sparse(self, texts: dict[bytes, int], is_shared: bool = False) -> SparseLeaf:
        for text in texts:
            self.vocabulary.require(text)
        return SparseLeaf(("texts", tuple(texts.items())), texts, is_shared)

    def _of(self, key: Hashable, make: Callable[[], Leaf]) -> Leaf:
        """The leaf with this key, found or made; an equal leaf with another description is reused."""
        leaf = self._kept.get(key)
        if leaf is not None:
            return leaf
        made = make()
        with self._lock:
            leaf = self._kept.get(key) or self._kept.get(made.key) or made
            self._kept[key] = self._kept[leaf.key] = leaf
            if leaf.is_shared and not isinstance(leaf, CountedTextLeaf):
                self._shared[leaf.key] = leaf
            else:
                self._recent.append(leaf)
                self._num_made += 1
                if self._num_made % _CHECKED_EVERY == 0:
                    self._forget_large()
        return leaf

    def _forget_large(self) -> None:
        """Drop the oldest of the leaves made last that are too large together."""
        held = 0
        for number, leaf in enumerate(reversed(self._recent)):
            held += leaf.num_bytes
            if held > _RECENT_BYTES and number:
                for _ in range(len(self._recent) - number):
                    self._recent.popleft()
                return


def _unwritable() -> VocabularyError:
    return VocabularyError("the tokenizer cannot write any of the texts that are allowed")


def _is_endless(leaf: Leaf) -> bool:
    """Whether a leaf has more texts than anyone can write."""
    if isinstance(leaf, CountedTextLeaf):
        # JSON's own punctuation can always be written.
        most, texts = leaf.lengths[-1][1], leaf.texts
        if texts.unbounded.is_shared:
            return most >= _MANY_CHARACTERS
        return most == ENDLESS and not texts.automaton.is_finite
    return isinstance(leaf, DfaLeaf) and not leaf.automaton.is_finite

"""Compiles a JSON Schema to a grammar over one vocabulary: the tokens that may come, and where each leads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.automaton.containers import ValueKinds
from genret.decoding.grammar.automaton.finishing import Budgets
from genret.decoding.grammar.automaton.parse_stacks import (
    ByteCount,
    ParseStack,
    ParseStacks,
    StackSegments,
    forced,
)
from genret.decoding.grammar.automaton.title_slot_values import TitleSlotValue, title_slot_values
from genret.decoding.grammar.automaton.token_masks import Masks
from genret.decoding.grammar.compile_options import GrammarOptions, compile_budget
from genret.decoding.grammar.leaves.leaf import TitleSlotOpener
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.schema_document import canonical_text
from genret.decoding.grammar.schema.schema_report import SchemaReport, explain_schema
from genret.decoding.grammar.schema.value_nodes import compile_value
from genret.decoding.grammar.shapes import ValueNode
from genret.decoding.grammar.vocabulary import Vocabulary

# Memory of compiled schemas beside their leaves, measured with tracemalloc on real ones of 0.4 to 23 kB.
_GRAPH_BYTES = 10_000
_GRAPH_BYTES_PER_CHARACTER = 10


def compile_schema(
    schema: str | bytes | Mapping[str, Any] | bool,
    leaves: Leaves,
    options: GrammarOptions | None = None,
    holes: TitleSlotOpener | None = None,
) -> Grammar:
    """Compile a JSON Schema for one vocabulary.

    Args:
        schema: Its text, or what `json.loads` makes of it; the order of properties matters.
        leaves: The vocabulary's leaves.
        options: Options of reading and writing.
        holes: Opens the sets that `x-genret-index` names.

    Raises:
        SchemaError: it cannot be compiled; names keyword and JSON pointer.
        CompileTimeoutError: it took longer than `options.limits.seconds`.
        VocabularyError: the tokenizer cannot write any answer.
    """
    read_as = options or GrammarOptions()
    with compile_budget(read_as.limits):
        formulas = FormulaTable(schema, read_as)
        value = compile_value(formulas, read_as, leaves, holes)
    # A mapping may change later; the text that explains the grammar must not.
    text = schema if isinstance(schema, str | bytes) else canonical_text(formulas.document)
    explain = partial(explain_schema, text, read_as)
    base_bytes = _GRAPH_BYTES + _GRAPH_BYTES_PER_CHARACTER * len(text)
    return Grammar(value, leaves.vocabulary, read_as, explain, base_bytes=base_bytes)


_ENTRY_BYTES = 100
_DICT_BYTES = 232
_EMPTY_BYTES = 6500
_REFUSED = -1
_FINISHED = 1


class Grammar:
    """Configurations of the automaton as ints, with their token masks and successors, made on demand.

    Immutable to its users and safe to use from several threads: results are computed under a lock once and
    kept. State ids are small and dense, and stay valid as long as the grammar lives.

    Args:
        value: The values that the document may be, with leaves of the vocabulary.
        options: Say which whitespace is written.
        explain: Makes the report on the schema's keywords.
        max_bytes: Masks, successors and whatever else can be found again are forgotten when the grammar
            holds more.
        base_bytes: Memory of `value` and all it leads to.

    Attributes:
        start: The state of the empty text.
        finished: The state behind the end token.
        vocab_size: Logits of the model, V.

    Raises:
        VocabularyError: blanks must be written, and the vocabulary cannot.
    """

    start = 0
    finished = _FINISHED

    def __init__(
        self,
        value: ValueNode,
        vocabulary: Vocabulary,
        options: GrammarOptions | None = None,
        explain: Callable[[], SchemaReport] | None = None,
        max_bytes: int = 64 << 20,
        base_bytes: int = 0,
    ) -> None:
        self._value = value
        self.vocabulary = vocabulary
        self.vocab_size = vocabulary.vocab_size
        self._options = options or GrammarOptions()
        if self._options.whitespace == "spaced":
            vocabulary.require(b" ")
        self._explain = explain
        self._max_bytes = self._limit = max_bytes
        self._base_bytes = base_bytes + _EMPTY_BYTES
        self._lock = threading.RLock()
        self._memory = ByteCount()
        self._memory.num_bytes = self._base_bytes
        self._leaves_counted = (-1, 0)
        self._frames = ValueKinds(self._options)
        self._levels = levels = StackSegments(value, self._frames, self._memory)
        self._configurations = ParseStacks(levels, self._memory)
        self._masks_by_levels = Masks(vocabulary, self._configurations, self._memory)
        # Read without the lock. Entries are only ever added, or the whole dictionary is replaced.
        self._masks: dict[int, NDArray[np.uint32]] = {}
        self._moves: dict[int, dict[int, int]] = {}
        self._budgets = Budgets(vocabulary, self._frames, self._configurations, self._memory)
        self._to_finish: dict[int, int] = {}
        self._configurations.number(self._configurations.start)
        self._by_state = self._configurations.by_state
        self._by_state.append(None)
        self._masks[_FINISHED] = vocabulary.nothing

    def __del__(self) -> None:
        # Its segments go at once, and do not wait for the collector of cycles.
        levels: StackSegments | None = self.__dict__.get("_levels")
        if levels is not None:  # the vocabulary could write blanks
            levels.drop()

    def mask(self, state: int) -> NDArray[np.uint32]:
        """Tokens that may come next, by reference: bit t % 32 of word t // 32 is token t.

        The end token is allowed exactly where the text is complete; other special tokens never are.
        Shape: (ceil(V / 32),), uint32, read-only.
        """
        try:
            return self._masks[state]
        except KeyError:
            return self._find_mask(state)

    def tokens(self, state: int) -> NDArray[np.int64]:
        """The same as `mask`, as ids, ascending. Shape: (n,), int64."""
        if state == self.finished:
            return np.empty(0, dtype=np.int64)
        with self._lock:
            return self._masks_by_levels.mask(self._configuration(state)).tokens()

    def advance(self, state: int, token: int) -> int:
        """The state behind one token, -1 where it is not allowed. Behind the end token: `finished`."""
        try:
            return self._moves[state][token]
        except KeyError:
            return self._find_move(state, token)

    def is_complete(self, state: int) -> bool:
        """Whether the text so far is a whole answer, so that the end token may follow."""
        if state == self.finished:
            return False
        with self._lock:
            return self._configuration(state).is_complete

    def advance_bytes(self, state: int, text: bytes) -> int:
        """The state behind some bytes, -1 where they are not allowed."""
        if state < 0 or state == self.finished:
            return state if state >= 0 and not text else _REFUSED
        with self._lock:
            found = self._configurations.after(self._configuration(state), text)
            return _REFUSED if found is None else self._configurations.number(found)

    def forced_bytes(self, state: int, limit: int = 1024) -> bytes:
        """The bytes that must follow, up to the next choice or the end."""
        if state == self.finished:
            return b""
        with self._lock:
            return forced(self._configurations, self._configuration(state), limit)

    def tokens_to_finish(self, state: int) -> int:
        """Tokens that suffice to complete the text, end token included.

        An upper bound that can always be kept: wherever it is n > 1, some allowed token leads to a state
        where it is at most n - 1. It belongs to the shortest of all completions, in bytes, of those the
        first in byte order, written in as few tokens as it can be.

        Raises:
            VocabularyError: the vocabulary cannot write that completion.
        """
        try:
            return self._to_finish[state]
        except KeyError:
            pass
        if state == self.finished:
            return 0
        with self._lock:
            enough = self._budgets.enough(self._configuration(state))
            self._to_finish[state] = enough
            self._memory.num_bytes += _ENTRY_BYTES
            if self._memory.num_bytes > self._limit:
                self._forget()
        return enough

    def can_finish(self, state: int, tokens: int) -> bool:
        """Whether `tokens_to_finish` is at most `tokens`; quicker where there are many more than needed."""
        if state == self.finished:
            return tokens >= 0
        with self._lock:
            if self._budgets.cheap_bound(self._configuration(state)) <= tokens:
                return True
        return self.tokens_to_finish(state) <= tokens

    def most_tokens_to_finish(self, state: int) -> int | None:
        """Upper bound of `tokens_to_finish` behind any allowed token; None where none is known.

        A bound that costs little, for callers with budgets to spare. `fitting_tokens` is exact.
        """
        if state == self.finished:
            return 0
        with self._lock:
            return self._budgets.most_behind(self._configuration(state))

    def fitting_tokens(self, state: int, left: int) -> NDArray[np.int64]:
        """The tokens of `tokens(state)` behind which `tokens_to_finish` is less than `left`, each looked at.

        Shape: (n,), int64, ascending.
        """
        tokens = self.tokens(state)
        with self._lock:
            return tokens[self._budgets.fitting(self._configuration(state), tokens, left)]

    def holes(self, text: bytes) -> tuple[TitleSlotValue, ...]:
        """The strings of a complete answer that came out of holes, in order.

        Where several alternatives allow the answer, so that a string may have come out of several sets, or
        out of none, every set is listed. What stands under a key that comes again in its object is left out.

        Raises:
            ValueError: the text is not a complete answer.
        """
        with self._lock:
            found = title_slot_values(self._configurations, text)
        if found is None:
            raise ValueError("text: expected a complete answer under the grammar")
        return tuple(found)

    def text(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that tokens write; the end token writes none."""
        return b"".join(map(self.vocabulary.written, token_ids))

    @property
    def num_bytes(self) -> int:
        """Memory held by this grammar alone, masks and states that were added later included."""
        return self._memory.num_bytes + self._leaf_bytes()

    def report(self) -> SchemaReport | None:
        """The report on every keyword; None for a grammar that was not made from a schema."""
        return None if self._explain is None else self._explain()

    def _leaf_bytes(self) -> int:
        """Memory of leaves that no other grammar has; counted again when the grammar has grown."""
        counted_at, num_bytes = self._leaves_counted
        now = self._memory.num_bytes
        if counted_at != now:
            with self._lock:
                num_bytes = sum(leaf.num_bytes for leaf in self._frames.own_leaves.values())
            self._leaves_counted = (now, num_bytes)
        return num_bytes

    def _configuration(self, state: int) -> ParseStack:
        configuration = self._by_state[state] if 0 <= state < len(self._by_state) else None
        if configuration is None:
            raise _unknown(state)
        return configuration

    # These two are most of a request's work at every token: they look the configuration up themselves, and a
    # `with` on the lock would take three times as long as calling it.
    def _find_mask(self, state: int) -> NDArray[np.uint32]:
        self._lock.acquire()
        try:
            by_state = self._by_state
            configuration = by_state[state] if 0 <= state < len(by_state) else None
            if configuration is None:
                if state == _FINISHED:
                    return self.vocabulary.nothing
                raise _unknown(state)
            packed = self._masks[state] = self._masks_by_levels.mask(configuration).packed
            memory = self._memory
            memory.num_bytes += _ENTRY_BYTES
            if memory.num_bytes > self._limit:
                self._forget()
        finally:
            self._lock.release()
        return packed

    def _find_move(self, state: int, token: int) -> int:
        if state < 0 or not 0 <= token < self.vocab_size:
            return _REFUSED
        self._lock.acquire()
        try:
            by_state = self._by_state
            configuration = by_state[state] if state < len(by_state) else None
            if configuration is None:
                if state == _FINISHED:
                    return _REFUSED
                raise _unknown(state)
            text = self.vocabulary.bytes_of(token)
            if text is not None:
                found = self._configurations.after(configuration, text)
                if found is None:
                    return _REFUSED
                following = found.state
                if following < 0:
                    following = self._configurations.number(found)
            elif token == self.vocabulary.end_token_id and configuration.is_complete:
                following = _FINISHED
            else:
                return _REFUSED
            memory, moves = self._memory, self._moves.get(state)
            if moves is None:
                self._moves[state] = {token: following}
                memory.num_bytes += _ENTRY_BYTES + _DICT_BYTES
            else:
                moves[token] = following
                memory.num_bytes += _ENTRY_BYTES
            if memory.num_bytes > self._limit:
                self._forget()
        finally:
            self._lock.release()
        return following

    def _forget(self) -> None:
        memory = self._memory
        self._masks = {_FINISHED: self.vocabulary.nothing}
        self._moves = {}
        self._to_finish = {}
        self._masks_by_levels.clear()
        self._budgets.clear()
        memory.num_bytes = self._base_bytes
        self._levels.clear(self._configurations.clear())
        # States that were handed out stay; where they alone take that much, forgetting often does not help.
        self._limit = max(self._max_bytes, 2 * memory.num_bytes)


def _unknown(state: int) -> ValueError:
    return ValueError(f"state must be one that was handed out, got {state}")

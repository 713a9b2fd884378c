"""Keeps whole grammars between requests, in a bounded number of bytes.

A key of `GrammarCache` holds everything that makes a grammar: the schema with its order of properties, the
vocabulary, the options and the sets behind its holes. The texts that schemas were sent as are remembered
beside it, so that the same text again is one look-up, and another spelling of it finds the same grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Generic, Protocol, TypeVar

from genret.decoding.bounded_cache import BoundedCache, CacheCounts
from genret.decoding.grammar.errors import SchemaError

# Cost of an entry beside its grammar and its texts: dictionary slots, counters.
_ENTRY_BYTES = 1024
_TEXT_BYTES = 256
# Most spellings remembered of one schema.
MAX_TEXTS = 8


class Measured(Protocol):
    """A grammar, or something that holds one."""

    @property
    def num_bytes(self) -> int:
        """Memory it holds alone; may grow while it is used. Cheap to ask."""


G = TypeVar("G", bound=Measured)


class _Entry(Generic[G]):
    """A grammar, or the error a schema is refused with, and the texts that find it."""

    __slots__ = ("outcome", "text_bytes", "texts")

    def __init__(self, outcome: G | SchemaError, key_bytes: int) -> None:
        self.outcome = outcome
        self.texts: list[Hashable] = []
        self.text_bytes = _ENTRY_BYTES + key_bytes

    def add_text(self, text: Hashable, text_bytes: int) -> None:
        self.texts.append(text)
        self.text_bytes += text_bytes + _TEXT_BYTES

    @property
    def num_bytes(self) -> int:
        return self.text_bytes + (0 if isinstance(self.outcome, SchemaError) else self.outcome.num_bytes)


class GrammarCache(Generic[G]):
    """A cache of grammars that drops the least recently used first. Safe to use from any number of threads.

    `max_bytes` bounds the memory of all that is held, masks that grow later included; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be at least 0, got {max_bytes}")
        self._held: BoundedCache[Hashable, _Entry[G]] = BoundedCache(
            max_bytes, lambda key, entry: entry.num_bytes, single_flight=True, on_evict=self._evicted
        )
        self._by_text: dict[Hashable, Hashable] = {}  # keys of what is held
        self._evictions = 0

    def get(
        self,
        text: Hashable,
        text_bytes: int,
        key: Callable[[], tuple[Hashable, int]],
        compile_grammar: Callable[[], G],
    ) -> G:
        """Return a grammar, compiling it unless it is there or on its way.

        Args:
            text: The schema as sent, with all else that the key depends on.
            text_bytes: Its size.
            key: Reads the text: returns the grammar's key and its size. Called unless the text is known.
            compile_grammar: Compiles it. Called by one caller at a time for one key, on its own thread.

        Raises:
            SchemaError: the schema is refused; asked again, it is refused without compiling.
            CompileTimeoutError: it took too long; whoever waited for it gets the same.
        """
        found = self.find(text)
        if found is not None:
            self.settle(found)
            return found
        name, key_bytes = key()
        entry = self._held.get_or_make(
            name, partial(self._compile, compile_grammar, key_bytes, text, text_bytes)
        )
        self._remember_text(name, entry, text, text_bytes)
        return self._outcome(entry)

    def find(self, text: Hashable) -> G | None:
        """Return the grammar of a text that is known; None: it must be compiled, or read at least.

        Takes microseconds. Raises SchemaError if the schema was refused.
        """
        with self._held.lock:
            name = self._by_text.get(text)
            entry = None if name is None else self._held.get(name)
        return None if entry is None else self._outcome(entry)

    def _outcome(self, entry: _Entry[G]) -> G:
        if isinstance(entry.outcome, SchemaError):
            raise _again(entry.outcome)
        return entry.outcome

    def settle(self, grammar: G) -> None:
        """Count the growth of a grammar, and make room for it. To be called when a request ends."""
        with self._held.lock:
            for key, entry in self._held.items():  # used last, found first
                if entry.outcome is grammar:
                    self._held.settle(key)
                    return

    @property
    def stats(self) -> CacheCounts:
        """Counts so far, and the present content; refusals are no entries, and are not counted as dropped."""
        with self._held.lock:
            entries = sum(not isinstance(entry.outcome, SchemaError) for _, entry in self._held.items())
            return replace(self._held.counts, evictions=self._evictions, entries=entries)

    def discard(self, where: Callable[[Hashable], bool]) -> None:
        """Drop the grammars, and the refusals, for whose key `where` is true; counts stay."""
        with self._held.lock:
            for entry in self._held.discard(where):
                self._forget_texts(entry)

    def _compile(
        self, compile_grammar: Callable[[], G], key_bytes: int, text: Hashable, text_bytes: int
    ) -> _Entry[G]:
        outcome: G | SchemaError
        try:
            outcome = compile_grammar()
        except SchemaError as error:
            outcome = _again(error)
        entry: _Entry[G] = _Entry(outcome, key_bytes)
        entry.add_text(text, text_bytes)  # before it is measured: text and grammar are kept together or not
        return entry

    def _remember_text(self, key: Hashable, entry: _Entry[G], text: Hashable, text_bytes: int) -> None:
        with self._held.lock:
            if self._held.peek(key) is not entry:  # too large to be kept, or dropped meanwhile
                return
            if text not in entry.texts:
                if len(entry.texts) == MAX_TEXTS:
                    return
                entry.add_text(text, text_bytes)
            self._by_text[text] = key
            self._held.settle(key)

    def _evicted(self, entry: _Entry[G]) -> None:
        self._evictions += not isinstance(entry.outcome, SchemaError)
        self._forget_texts(entry)

    def _forget_texts(self, entry: _Entry[G]) -> None:
        for text in entry.texts:
            self._by_text.pop(text, None)


def _again(rejection: SchemaError) -> SchemaError:
    """The same refusal as a new object: raised ones collect tracebacks of every request."""
    return type(rejection)(rejection.keyword, rejection.pointer, rejection.reason)

"""Keeps whole grammars between requests, and parts of them between schemas, in a bounded number of bytes.

A key of `GrammarCache` holds everything that makes a grammar: the schema with its order of properties, the
vocabulary, the options and the sets behind its holes. A grammar is compiled once however many requests ask
for it. The texts that schemas were sent as are remembered beside it, so that the same text again is one
look-up, and another spelling of it finds the same grammar.

`Remembered` keeps results of one function, such as the automata of patterns. Its bound is in bytes because
counting results would not do: an automaton takes a hundred bytes or a hundred million.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from decoding.grammar.errors import SchemaError

# What an entry costs beside its grammar and its texts: dictionary slots, counters.
_ENTRY_BYTES = 1024
_TEXT_BYTES = 256


class Measured(Protocol):
    """A grammar, or something that holds one."""

    @property
    def num_bytes(self) -> int:
        """Memory it holds alone; may grow while it is used. Cheap to ask."""


G = TypeVar("G", bound=Measured)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was made, and what it holds now.

    Attributes:
        hits: Requests answered from the cache, rejections among them.
        waits: Requests that waited for a compilation another one had begun.
        compilations: Schemas compiled, with success or not.
        rejections: Schemas refused, each time they were asked for.
        timeouts: Compilations that took too long; asked for again they are tried again.
        evictions: Grammars dropped to make room.
        not_kept: Grammars larger than the whole cache.
        entries: Grammars held.
        held_bytes: Memory of the grammars held, their keys and texts included.
        max_bytes: The bound.
    """

    hits: int
    waits: int
    compilations: int
    rejections: int
    timeouts: int
    evictions: int
    not_kept: int
    entries: int
    held_bytes: int
    max_bytes: int


class _Entry(Generic[G]):
    """A grammar, or the error a schema is refused with, and everything that finds it."""

    __slots__ = ("grammar", "key", "num_bytes", "rejection", "text_bytes", "texts")

    def __init__(self, key: Hashable, grammar: G | None, rejection: SchemaError | None) -> None:
        self.key = key
        self.grammar = grammar
        self.rejection = rejection
        self.texts: list[Hashable] = []
        self.text_bytes = _ENTRY_BYTES
        self.num_bytes = 0

    def measured(self) -> int:
        return self.text_bytes + (0 if self.grammar is None else self.grammar.num_bytes)


class GrammarCache(Generic[G]):
    """Least recently used grammars go first. Safe to use from any number of threads.

    Args:
        max_bytes: Most memory of all that is held, masks that grow later included; 0 keeps nothing.
        max_texts: Most spellings remembered of one schema.
    """

    def __init__(self, max_bytes: int, max_texts: int = 8) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be at least 0, got {max_bytes}")
        self._max_bytes = max_bytes
        self._max_texts = max_texts
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[G]] = OrderedDict()
        self._by_text: dict[Hashable, _Entry[G]] = {}
        self._running: dict[Hashable, Future[G]] = {}
        self._held = 0
        self._counts = dict.fromkeys(
            ("hits", "waits", "compilations", "rejections", "timeouts", "evictions", "not_kept"), 0
        )

    def get(
        self,
        text: Hashable,
        text_bytes: int,
        key: Callable[[], tuple[Hashable, int]],
        compile_grammar: Callable[[], G],
    ) -> G:
        """Return a grammar, compiling it unless it is there or on its way.

        Args:
            text: What was sent, with all else that the key depends on.
            text_bytes: Its size.
            key: Reads the text: what identifies the grammar, and its size. Called unless the text is known.
            compile_grammar: Compiles it. Called by one caller at a time for one key, on its own thread.

        Raises:
            SchemaError: the schema is refused; asked again, it is refused without compiling.
            CompileTimeoutError: it took too long; whoever waited for it gets the same.
        """
        with self._lock:
            entry = self._by_text.get(text)
            if entry is not None:
                return self._hit(entry)
        name, key_bytes = key()
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                self._entries.move_to_end(entry.key)  # first, or making room could drop it
                self._remember_text(entry, text, text_bytes)
                return self._hit(entry)
            running = self._running.get(name)
            if running is None:
                self._running[name] = mine = Future[G]()
            else:
                self._counts["waits"] += 1
        if running is not None:
            return running.result()
        return self._compile(name, key_bytes, (text, text_bytes), compile_grammar, mine)

    def settle(self, grammar: G) -> None:
        """Count what a grammar has grown by, and make room for it. To be called when a request ends."""
        with self._lock:
            for entry in reversed(self._entries.values()):  # used last, found first
                if entry.grammar is grammar:
                    self._measure(entry)
                    self._make_room()
                    return

    @property
    def stats(self) -> CacheStats:
        """What has happened, and what is held."""
        with self._lock:
            return CacheStats(
                **self._counts,
                entries=sum(entry.grammar is not None for entry in self._entries.values()),
                held_bytes=self._held,
                max_bytes=self._max_bytes,
            )

    def clear(self) -> None:
        """Drop everything that is held; counts stay."""
        with self._lock:
            self._entries.clear()
            self._by_text.clear()
            self._held = 0

    def discard(self, where: Callable[[Hashable], bool]) -> None:
        """Drop the grammars, and the refusals, whose key is `where`; counts stay."""
        with self._lock:
            for entry in [entry for key, entry in self._entries.items() if where(key)]:
                del self._entries[entry.key]
                self._let_go(entry)

    def _let_go(self, entry: _Entry[G]) -> None:
        self._held -= entry.num_bytes
        for text in entry.texts:
            self._by_text.pop(text, None)

    def _hit(self, entry: _Entry[G]) -> G:
        self._counts["hits"] += 1
        if entry.key in self._entries:  # it may just have outgrown the whole cache
            self._entries.move_to_end(entry.key)
        if entry.grammar is None:
            self._counts["rejections"] += 1
            raise _again(entry.rejection)
        if entry.measured() != entry.num_bytes:
            self._measure(entry)
            self._make_room()
        return entry.grammar

    def _compile(
        self,
        name: Hashable,
        key_bytes: int,
        text: tuple[Hashable, int],
        compile_grammar: Callable[[], G],
        mine: Future[G],
    ) -> G:
        rejection: SchemaError | None = None
        grammar: G | None = None
        try:
            grammar = compile_grammar()
        except SchemaError as error:
            rejection = error
        except BaseException as error:
            with self._lock:
                del self._running[name]
                self._counts["compilations"] += 1
                self._counts["timeouts"] += isinstance(error, TimeoutError)
            mine.set_exception(error if isinstance(error, Exception) else RuntimeError("interrupted"))
            raise
        entry: _Entry[G] = _Entry(name, grammar, rejection)
        entry.text_bytes += key_bytes
        with self._lock:
            del self._running[name]
            self._counts["compilations"] += 1
            self._counts["rejections"] += rejection is not None
            self._insert(entry, *text)
        if grammar is None:
            mine.set_exception(_again(rejection))
            raise _again(rejection)
        mine.set_result(grammar)
        return grammar

    def _insert(self, entry: _Entry[G], text: Hashable, text_bytes: int) -> None:
        if entry.measured() + text_bytes + _TEXT_BYTES > self._max_bytes:
            self._counts["not_kept"] += 1  # alone it would push out everything else, and still not fit
            return
        self._entries[entry.key] = entry
        self._measure(entry)
        self._remember_text(entry, text, text_bytes)

    def _remember_text(self, entry: _Entry[G], text: Hashable, text_bytes: int) -> None:
        if len(entry.texts) == self._max_texts:
            return
        entry.texts.append(text)
        entry.text_bytes += text_bytes + _TEXT_BYTES
        self._by_text[text] = entry
        self._measure(entry)
        self._make_room()

    def _measure(self, entry: _Entry[G]) -> None:
        now = entry.measured()
        self._held += now - entry.num_bytes
        entry.num_bytes = now

    def _make_room(self) -> None:
        while self._held > self._max_bytes and self._entries:
            _, entry = self._entries.popitem(last=False)
            self._counts["evictions"] += entry.grammar is not None
            self._let_go(entry)


def _again(rejection: SchemaError | None) -> SchemaError:
    """The same refusal as a new object: raised ones collect tracebacks of every request."""
    if rejection is None:
        raise ValueError("a schema without a grammar must have been refused")
    return type(rejection)(rejection.keyword, rejection.pointer, rejection.reason)


T = TypeVar("T")

# A key and its place in the table.
_RESULT_BYTES = 500


class Remembered(Generic[T]):
    """What a function has returned, by its arguments; those not asked for longest leave first.

    Safe to use from several threads: two that ask for the same at once both make it.

    Args:
        make: The function. What it raises is not kept.
        measure: Memory of a result and of the arguments behind it that led there, in bytes, about.
        max_bytes: Most memory of all results. One that takes more than a quarter of it is not kept.
    """

    def __init__(
        self,
        make: Callable[..., T],
        measure: Callable[..., int],
        max_bytes: int = 16 << 20,
    ) -> None:
        self._make = make
        self._measure = measure
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0

    def __call__(self, *arguments: Hashable) -> T:
        """Return the result, made now or before."""
        with self._lock:
            found = self._kept.get(arguments)
            if found is not None:
                self._kept.move_to_end(arguments)
                return found[0]
        made = self._make(*arguments)
        size = _RESULT_BYTES + self._measure(made, *arguments)
        if size > self._max_bytes // 4:
            return made
        with self._lock:
            kept, _ = self._kept.setdefault(arguments, (made, size))
            if kept is made:
                self.num_bytes += size
                while self.num_bytes > self._max_bytes:
                    _, (_, freed) = self._kept.popitem(last=False)
                    self.num_bytes -= freed
        return kept

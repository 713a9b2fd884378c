"""The cache of grammars: one compilation for all, true bytes, least recently used, refusals kept."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.bounded_cache import Remembered
from genret.decoding.grammar.errors import CompileTimeoutError, SchemaError, UnsupportedSchemaError
from genret.decoding.grammar.grammar_cache import MAX_TEXTS, GrammarCache
from tests.leaf_oracle import in_threads


class Sized:
    """Stands for a grammar: all the cache knows of one is how large it is."""

    def __init__(self, num_bytes: int = 1000) -> None:
        self.num_bytes = num_bytes


def ask(cache: GrammarCache[Sized], name: str, make: Any = Sized, text: str | None = None) -> Sized:
    text = name if text is None else text
    return cache.get(text, len(text), lambda: (("key", name), len(name)), make)


def test_the_same_text_is_compiled_once_and_another_spelling_of_it_finds_the_same_grammar() -> None:
    cache = GrammarCache[Sized](1 << 20)
    first = ask(cache, "a")
    assert ask(cache, "a") is first
    assert ask(cache, "a", text=" a ") is first
    assert ask(cache, "b") is not first
    stats = cache.stats
    assert (stats.hits, stats.misses, stats.entries) == (2, 2, 2)


def test_thirty_two_threads_asking_for_one_new_schema_compile_it_once_and_get_one_object() -> None:
    cache = GrammarCache[Sized](1 << 20)
    compiled = []

    def make() -> Sized:
        compiled.append(1)
        time.sleep(0.05)
        return Sized()

    got = in_threads(lambda: ask(cache, "same", make), 32)
    assert len(compiled) == 1
    assert len(set(map(id, got))) == 1
    assert cache.stats.misses + cache.stats.hits == 32


def test_grammars_that_grow_are_counted_when_they_settle_and_when_they_are_hit() -> None:
    cache = GrammarCache[Sized](100_000)
    old, grown = Sized(10_000), Sized(10_000)
    ask(cache, "old", lambda: old)
    ask(cache, "grown", lambda: grown)
    before = cache.stats.num_bytes
    grown.num_bytes = 50_000
    cache.settle(grown)
    assert cache.stats.num_bytes == before + 40_000
    grown.num_bytes = 90_000
    ask(cache, "grown")
    stats = cache.stats
    assert stats.num_bytes <= 100_000
    assert (stats.entries, stats.evictions) == (1, 1)  # the one used least recently made room


def test_one_that_outgrows_the_whole_cache_is_dropped_and_those_who_hold_it_keep_it() -> None:
    cache = GrammarCache[Sized](20_000)
    giant = Sized(1_000)
    ask(cache, "giant", lambda: giant)
    giant.num_bytes = 1 << 30
    assert ask(cache, "giant") is giant
    assert cache.stats.num_bytes == 0
    assert cache.stats.entries == 0


def test_texts_and_keys_are_counted_and_every_text_of_a_schema() -> None:
    """A schema may be larger than its grammar, and may be sent in many spellings."""
    cache = GrammarCache[Sized](1 << 20)
    ask(cache, "a" * 5_000)
    first = cache.stats.num_bytes
    assert first >= 1_000 + 2 * 5_000  # the grammar, the key and the text
    ask(cache, "a" * 5_000, text="b" * 7_000)
    assert cache.stats.num_bytes - first >= 7_000
    second = cache.stats.num_bytes
    for number in range(MAX_TEXTS):
        ask(cache, "a" * 5_000, text=chr(ord("c") + number) * 7_000)
    more = MAX_TEXTS - 2
    assert more * 7_000 <= cache.stats.num_bytes - second < (more + 1) * 7_000


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache = GrammarCache[Sized](0)
    assert ask(cache, "a") is not ask(cache, "a")
    assert (cache.stats.num_bytes, cache.stats.misses) == (0, 2)


def test_refusals_are_kept_with_keyword_and_pointer_and_never_compiled_again() -> None:
    cache = GrammarCache[Sized](1 << 20)
    compiled = []

    def refuse() -> Sized:
        compiled.append(1)
        raise UnsupportedSchemaError("uniqueItems", "#/a/uniqueItems", "not here")

    errors: list[SchemaError] = []
    for _ in range(3):
        with pytest.raises(UnsupportedSchemaError) as caught:
            ask(cache, "bad", refuse)
        errors.append(caught.value)
    assert len(compiled) == 1
    assert {(e.keyword, e.pointer, e.reason) for e in errors} == {
        ("uniqueItems", "#/a/uniqueItems", "not here")
    }
    assert len(set(map(id, errors))) == 3  # tracebacks of one request never hang on another's error


def test_timeouts_and_bugs_are_not_kept() -> None:
    cache = GrammarCache[Sized](1 << 20)

    def slow() -> Sized:
        raise CompileTimeoutError("too long")

    with pytest.raises(CompileTimeoutError):
        ask(cache, "slow", slow)
    assert ask(cache, "slow").num_bytes == 1000
    with pytest.raises(ZeroDivisionError):
        ask(cache, "bug", lambda: Sized(1 // 0))
    assert ask(cache, "bug").num_bytes == 1000


def test_those_who_wait_for_a_compilation_that_is_interrupted_are_told_and_others_may_try_again() -> None:
    cache = GrammarCache[Sized](1 << 20)
    begun = threading.Event()
    go_on = threading.Event()

    def interrupted() -> Sized:
        begun.set()
        go_on.wait(60)
        raise KeyboardInterrupt

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            ask(cache, "x", interrupted)

    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(lead)
        begun.wait(60)
        waiter = pool.submit(ask, cache, "x")
        while cache.stats.misses < 2:
            time.sleep(0.001)
        go_on.set()
        leader.result(60)
        with pytest.raises(RuntimeError):
            waiter.result(60)
    assert ask(cache, "x").num_bytes == 1000


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 30_000), st.booleans()), min_size=1, max_size=60
    )
)
def test_the_bound_holds_whatever_is_asked_and_however_grammars_grow(
    asked: list[tuple[str, int, bool]],
) -> None:
    cache = GrammarCache[Sized](60_000)
    live: dict[str, Sized] = {}
    for name, size, grows in asked:
        got = ask(cache, name, lambda size=size: Sized(size))
        live[name] = got
        if grows:
            got.num_bytes += size
            cache.settle(got)
        stats = cache.stats
        assert 0 <= stats.num_bytes <= 60_000
        held = [entry for _, entry in cache._held.items()]
        assert stats.num_bytes == sum(entry.num_bytes for entry in held)
        assert set(cache._by_text) == {text for entry in held for text in entry.texts}


def test_what_is_discarded_is_compiled_again_and_its_memory_is_free() -> None:
    cache = GrammarCache[Sized](1 << 20)
    kept = ask(cache, "kept")
    before = cache.stats.num_bytes
    first = ask(cache, "gone")
    ask(cache, "gone", text=" gone ")
    with pytest.raises(UnsupportedSchemaError):
        ask(cache, "refused", make=refuse)
    cache.discard(lambda key: key in (("key", "gone"), ("key", "refused"), ("key", "never there")))
    assert (cache.stats.entries, cache.stats.num_bytes, cache.stats.evictions) == (1, before, 0)
    assert ask(cache, "kept") is kept
    assert ask(cache, "gone", text=" gone ") is not first
    assert ask(cache, "refused") is not None, "it may be compiled where it was refused before"


def refuse() -> Sized:
    raise UnsupportedSchemaError("if", "#", "no")


ENTRY = 500
LARGEST = 4000


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000))))
def test_results_are_those_of_the_function_and_bounded(asked: list[tuple[int, int]]) -> None:
    made: list[tuple[int, int]] = []

    def make(name: int, size: int) -> list[int]:
        made.append((name, size))
        return [name, size]

    remembered = Remembered(make, lambda result, name, size: size, max_bytes=4 * LARGEST)
    last: tuple[int, int] | None = None
    for arguments in asked:
        before = len(made)
        assert remembered(*arguments) == list(arguments)
        if arguments == last and arguments[1] + ENTRY <= LARGEST:
            assert len(made) == before  # nothing came in between that could have pushed it out
        if arguments[1] + ENTRY > LARGEST:
            assert len(made) == before + 1
        assert 0 <= remembered.num_bytes <= 4 * LARGEST
        last = arguments

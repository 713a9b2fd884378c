"""What grammars hold: counted truly, bounded, and forgotten without invalidating states."""

from __future__ import annotations

import gc
import random

import pytest

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import Grammar
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.value_nodes import compile_value
from tests.grammar_oracle import COMPACT, FLEXIBLE, SCHEMAS, brute_force, json_leaves, unpacked
from tests.own_process import TracedMemory, alone

LEAVES = json_leaves()
VALUES = {
    name: compile_value(FormulaTable(SCHEMAS[name], FLEXIBLE), FLEXIBLE, LEAVES)
    for name in ("any", "tree", "any of", "nested")
}


def grammar_of(name: str, options: GrammarOptions = FLEXIBLE, **memory: int) -> Grammar:
    return Grammar(VALUES[name], LEAVES.vocabulary, options, **memory)


def explore(grammar: Grammar, steps: int, seed: int = 0) -> list[int]:
    """Walk at random; returns the states met."""
    rng = random.Random(seed)
    end = grammar.vocabulary.end_token_id
    states, state = [grammar.start], grammar.start
    for _ in range(steps):
        following = sorted(unpacked(grammar, state) - {end})
        state = grammar.advance(state, rng.choice(following)) if following else grammar.start
        states.append(state)
    return states


@pytest.mark.parametrize("name", ["any", "tree", "any of", "nested"])
def test_what_is_counted_is_what_is_held(name: str) -> None:
    counted, held = alone(counted_and_held, name)
    assert 0.6 * held < counted < 1.6 * held


def counted_and_held(name: str) -> tuple[int, int]:
    """Bytes of a grammar that has met some states, its leaves' not among them."""
    explore(grammar_of(name), 400)  # leaves and the trie's nodes are made
    gc.collect()
    with TracedMemory() as memory:
        grammar = grammar_of(name)
        explore(grammar, 400)
        gc.collect()
    own_leaves = sum(leaf.num_bytes for leaf in grammar._frames.own_leaves.values())
    return grammar.num_bytes - own_leaves, memory.held


@pytest.mark.parametrize("name", ["tree", "nested", "any of"])
def test_growth_is_bounded_and_states_stay_valid(name: str) -> None:
    """The same walk in a grammar that forgets all the time, and in one that never does."""
    roomy = grammar_of(name)
    there = explore(roomy, 1500)
    forgetful = grammar_of(name, max_bytes=roomy.num_bytes // 2)
    pairs = dict(zip(explore(forgetful, 1500), there, strict=True))
    assert forgetful.num_bytes < roomy.num_bytes
    for mine, other in random.Random(1).sample(sorted(pairs.items()), min(150, len(pairs))):
        assert unpacked(forgetful, mine) == unpacked(roomy, other)
        assert forgetful.is_complete(mine) == roomy.is_complete(other)
        assert forgetful.tokens_to_finish(mine) == roomy.tokens_to_finish(other)
    state = random.Random(2).choice(sorted(pairs))
    assert unpacked(forgetful, state) == brute_force(forgetful, state)


def test_states_are_the_same_after_forgetting() -> None:
    grammar = grammar_of("nested", COMPACT, max_bytes=60_000)
    before = explore(grammar, 300, seed=5)
    explore(grammar, 300, seed=6)
    assert explore(grammar, 300, seed=5) == before


@pytest.mark.parametrize("name", ["any", "tree", "nested"])
def test_what_was_found_goes_with_the_grammar(name: str) -> None:
    """At once, though levels, nodes and frames know each other."""
    gone, configurations = alone(gone_with_a_grammar, name)
    assert gone > 2 * configurations


def gone_with_a_grammar(name: str) -> tuple[int, int]:
    """Objects that go without the collector, and the configurations that there were."""
    grammar = grammar_of(name)
    explore(grammar, 100)
    gc.collect()
    gc.disable()
    held = len(gc.get_objects())
    configurations = len(grammar._configurations._known)
    del grammar
    return held - len(gc.get_objects()), configurations

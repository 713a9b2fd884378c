"""Grammars as constraints: DISC's law, beam search, budgets, batches of branches, and devices."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

from genret.decoding.answering.answer import AnswerText
from genret.decoding.answering.writer import write_answers
from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.disc import disc
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import AnswerParams, BeamParams, DiscParams
from tests.fakes import TableModel, chi_square, normalise
from tests.grammar_oracle import COMPACT, SCHEMAS, SPACED, array, json_leaves, unpacked
from tests.text_grammar import rows_of
from tests.tiny_transformers import ARCHITECTURES, build

ALPHA = 1e-4
PROMPT = (1,)
TINY_PIECES = [b'"', b"a", b"b", b"ab", b'"a', b'b"', b"1", b"12", b"2", b"[", b"]", b",", b",1"]
# The last four cannot be used; JSON is not written without them.
TINY = Leaves(Vocabulary([*TINY_PIECES, None, b"{", b"}", b":", b"\\"], 13, 19))
Row = tuple[int, ...]


def grammar_of(name: str) -> Grammar:
    return compile_schema(SCHEMAS[name], json_leaves(), SPACED)


@cache
def tiny_grammar() -> Grammar:
    """Numbers that go on, strings with several spellings in tokens, and short arrays."""
    texts = {"enum": ["a", "ab", "aab", 1, 12, 121]}
    return compile_schema({"anyOf": [texts, array({"enum": [1, 12]}, maxItems=2)]}, TINY, COMPACT)


def model_of(seed: int) -> TableModel:
    """Random logits, higher for tokens that the tiny grammar allows, so that enough draws are accepted."""
    grammar = tiny_grammar()

    def function(prompt: Row, written: Row) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((seed, prompt, written)) % 2**63)
        logits = torch.randn(grammar.vocab_size, generator=generator)
        state = grammar.start
        for token in written:
            state = grammar.advance(state, token)
        if state >= 0:
            logits[sorted(unpacked(grammar, state))] += 3
        return logits

    return TableModel(grammar.vocab_size, function)


@pytest.mark.statistical
@pytest.mark.parametrize("budget", [7, 4])
def test_disc_follows_the_model_restricted_to_the_grammar(budget: int) -> None:
    rows, model = rows_of(tiny_grammar(), budget), model_of(5)
    assert len(rows) > 10
    law = normalise({row: math.exp(model.logprob(PROMPT, row)) for row in rows})
    prompts = [PROMPT] * 20
    constraint = GrammarConstraint([tiny_grammar()] * 20, budget)
    params = [DiscParams(num_samples=250, num_draws=4, seed=seed) for seed in range(20)]
    counts = Counter(
        sample.hypothesis.token_ids
        for result in disc(model.prefill(prompts), constraint, params)
        for sample in result.samples
        if sample.accepted
    )
    assert sum(counts.values()) > 500
    assert set(counts) <= set(law)
    assert chi_square(counts, law) > ALPHA


@pytest.mark.parametrize("budget", [7, 5, 4])
@pytest.mark.parametrize("seed", range(4))
def test_beam_search_finds_the_best_rows(seed: int, budget: int) -> None:
    rows, model = rows_of(tiny_grammar(), budget), model_of(seed)
    truth = sorted(((model.logprob(PROMPT, row), row) for row in rows), reverse=True)
    params = BeamParams(k=5, beam_size=8, exact=True, exact_budget=10_000)
    (result,) = beam_search(model.prefill([PROMPT]), GrammarConstraint([tiny_grammar()], budget), [params])
    assert result.certified
    found = [(h.logprob, h.token_ids) for h in result.hypotheses]
    assert [row for _, row in found] == [row for _, row in truth[:5]]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in truth[:5]], abs=1e-4)


def test_every_query_has_its_own_grammar_and_budget() -> None:
    grammars = [grammar_of(name) for name in ("person", "number", "any of")]
    budgets = [60, 5, 30]
    constraint = GrammarConstraint(grammars, budgets)
    assert constraint.max_depth == 60
    states = constraint.start(torch.tensor([2, 0, 1, 0]))
    for allowed, which in zip(constraint.allowed(states), (2, 0, 1, 0), strict=True):
        fitting = grammars[which].fitting_tokens(grammars[which].start, budgets[which])
        assert torch.nonzero(allowed).flatten().tolist() == fitting.tolist()


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_batches_agree_with_the_grammar(name: str) -> None:
    """Children, verified tokens and packed masks say the same of every state."""
    grammar = grammar_of(name)
    vocab = grammar.vocab_size
    constraint = GrammarConstraint([grammar], 200)
    rng = random.Random(name)
    states, places = constraint.start(torch.zeros(6, dtype=torch.int64)), [grammar.start] * 6
    for _ in range(12):
        states = torch.where(torch.tensor([rng.random() < 0.1 for _ in range(6)]), -1, states)
        is_live = (states >= 0).tolist()
        allowed = constraint.allowed(states)
        children = constraint.children(states)
        everything = torch.arange(-2, vocab + 2).expand(6, -1)
        verified = constraint.verify(states, everything)
        assert not (verified[:, :2] >= 0).any()
        assert not (verified[:, -2:] >= 0).any()
        assert torch.equal(verified[:, 2:-2] >= 0, allowed)
        owner, token = torch.nonzero(allowed, as_tuple=True)
        assert torch.equal(children.owner, owner)
        assert torch.equal(children.token, token)
        assert torch.equal(children.next_state, verified[owner, token + 2])
        for i in range(6):
            expected = unpacked(grammar, places[i]) if is_live[i] else set()
            assert set(torch.nonzero(allowed[i]).flatten().tolist()) == expected
            packed = constraint.packed(states[i : i + 1])[0].numpy().view(np.uint32)
            assert not is_live[i] or np.array_equal(packed, grammar.mask(places[i]))
        chosen = [rng.choice(sorted(unpacked(grammar, p))) if live and unpacked(grammar, p) else 0
                  for p, live in zip(places, is_live, strict=True)]  # fmt: skip
        states = constraint.advance(states, torch.tensor(chosen))
        places = [grammar.advance(p, t) if p >= 0 else -1 for p, t in zip(places, chosen, strict=True)]
        places = [p if live else -1 for p, live in zip(places, is_live, strict=True)]
        assert constraint.is_final(states).tolist() == [p == grammar.finished for p in places]
    assert constraint.row(states).tolist() == [-1] * 6


def test_what_is_asked_for_must_fit_together() -> None:
    grammar = tiny_grammar()
    with pytest.raises(ValueError, match="expected one per query, got none"):
        GrammarConstraint([], 5)
    with pytest.raises(ValueError, match="expected 1 numbers, got 2"):
        GrammarConstraint([grammar], [5, 6])
    with pytest.raises(ValueError, match="over one vocabulary"):
        GrammarConstraint([grammar, grammar_of("number")], 50)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]
ASCII_PIECES = [bytes([byte]) for byte in range(32, 127)] + [b'{"', b'": ', b'", "', b'"}', b"true", b"12"]
VOCAB = len(ASCII_PIECES) + 1
ASCII = Leaves(Vocabulary([*ASCII_PIECES, None], VOCAB - 1, VOCAB))
MEMBERS = {"a": {"enum": ["x", "yes"]}, "b": {"type": "integer", "maximum": 99}, "c": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": MEMBERS, "required": ["a", "b"]}
GRAMMAR = compile_schema(SCHEMA, ASCII, GrammarOptions.for_writing())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_are_those_of_the_cpu(architecture: str, device: str) -> None:
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    params = AnswerParams(max_tokens=50)
    texts, lists = [], []
    for place in ("cpu", device):
        model = HFLanguageModel(build(architecture, VOCAB).to(place))
        answers = write_answers(model, prompts, [GRAMMAR] * 3, params)
        assert all(isinstance(answer, AnswerText) for answer in answers)
        texts.append([answer.text for answer in answers if isinstance(answer, AnswerText)])
        constraint = GrammarConstraint([GRAMMAR] * 3, 50, model.device)
        found = beam_search(model.prefill(prompts), constraint, [BeamParams(k=2, beam_size=3)] * 3)
        rows = [result.hypotheses for result in found if isinstance(result, BeamResult)]
        lists.append([[hypothesis.token_ids for hypothesis in hypotheses] for hypotheses in rows])
    assert texts[0] == texts[1]
    assert lists[0] == lists[1]
    for text in texts[0]:
        json.loads(text)

"""Grammars and answers on CUDA: the same masks, the same greedy answers, the same lists as on the CPU."""

from __future__ import annotations

import json
import random

import pytest
import torch

from genret.decoding.answering.answer import AnswerText
from genret.decoding.answering.writer import write_answers
from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import AnswerParams, BeamParams
from tests.tiny_transformers import ARCHITECTURES, build

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]
PIECES = [bytes([byte]) for byte in range(32, 127)] + [b'{"', b'": ', b'", "', b'"}', b"true", b"12"]
VOCAB = len(PIECES) + 1
LEAVES = Leaves(Vocabulary([*PIECES, None], VOCAB - 1, VOCAB))
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"enum": ["x", "yes"]},
        "b": {"type": "integer", "maximum": 99},
        "c": {"type": "boolean"},
    },
    "required": ["a", "b"],
}


def grammar() -> Grammar:
    return compile_schema(json.dumps(SCHEMA), LEAVES, GrammarOptions.for_writing())


@pytest.mark.parametrize("device", DEVICES)
def test_masks_of_a_batch_are_those_of_the_grammar(device: str) -> None:
    one, budget = grammar(), 60
    constraint = GrammarConstraint([one, one], [budget, budget], torch.device(device))
    chosen = random.Random(3)
    states = constraint.start(torch.tensor([0, 1, 0], device=device))
    mine = [one.start] * 3
    while not bool(constraint.is_final(states).all()):
        allowed = constraint.allowed(states)
        assert allowed.device.type == device
        picked = []
        for row, state in enumerate(mine):
            tokens = torch.nonzero(allowed[row]).squeeze(1).tolist()
            if state == one.finished:
                assert tokens == []
                picked.append(0)
                continue
            assert tokens == one.tokens(state).tolist()
            picked.append(chosen.choice(tokens))
        following = constraint.advance(states, torch.tensor(picked, device=device))
        over = torch.tensor([state == one.finished for state in mine], device=device)
        states = torch.where(over, states, following)
        mine = [s if s == one.finished else one.advance(s, t) for s, t in zip(mine, picked, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_are_those_of_the_cpu(architecture: str, device: str) -> None:
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    params = AnswerParams(max_tokens=50)
    texts, lists = [], []
    for place in ("cpu", device):
        model = HFLanguageModel(build(architecture, VOCAB).to(place))
        answers = write_answers(model, prompts, [grammar()] * 3, params)
        assert all(isinstance(answer, AnswerText) for answer in answers)
        texts.append([answer.text for answer in answers if isinstance(answer, AnswerText)])
        constraint = GrammarConstraint([grammar()] * 3, 50, model.device)
        found = beam_search(model.prefill(prompts), constraint, [BeamParams(k=2, beam_size=3)] * 3)
        rows = [result.hypotheses for result in found if isinstance(result, BeamResult)]
        lists.append([[hypothesis.token_ids for hypothesis in hypotheses] for hypotheses in rows])
    assert texts[0] == texts[1]
    assert lists[0] == lists[1]
    for text in texts[0]:
        json.loads(text)

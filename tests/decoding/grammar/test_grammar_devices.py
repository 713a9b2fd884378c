"""Grammars and answers on CUDA: the same masks, the same greedy answers, the same lists as on the CPU."""

from __future__ import annotations

import json

import pytest
import torch

from genret.decoding.answering.answer import AnswerText
from genret.decoding.answering.writer import write_answers
from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.grammar.json_grammar import compile_schema
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
MEMBERS = {"a": {"enum": ["x", "yes"]}, "b": {"type": "integer", "maximum": 99}, "c": {"type": "boolean"}}
SCHEMA = {"type": "object", "properties": MEMBERS, "required": ["a", "b"]}
GRAMMAR = compile_schema(SCHEMA, LEAVES, GrammarOptions.for_writing())


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

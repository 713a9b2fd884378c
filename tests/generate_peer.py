"""Beam search of transformers by `generate` under a dict trie, and ours on the same models and catalogues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_oracles import Listed, Truth, check_certificate
from tests.fakes import tokens_after
from tests.tiny_transformers import END, PAD, Enumeration, Row, build, random_prompts, random_titles

VOCAB = 30
PROMPTS = random_prompts([9, 4, 1], VOCAB)
CATALOGUES = {
    "equal": random_titles(40, (3,), num_letters=5),
    "mixed": random_titles(40, (1, 2, 3, 4), num_letters=4),
    "long": random_titles(40, (9,), num_letters=2),
}
PENALTIES = (-1.0, 0.5, 2.0)
NUM_TITLES = 40
TOLERANCE = 1e-4  # float32, sums of up to five log-probabilities


Allowed = Callable[[int, Tensor], list[int]]


@cache
def plain(name: str) -> PreTrainedModel:
    """The model as transformers runs it."""
    return build(name, VOCAB)


@cache
def ours(name: str) -> HFLanguageModel:
    return HFLanguageModel(build(name, VOCAB))


@cache
def truth(name: str, catalogue: str) -> list[Enumeration]:
    """Exhaustive scores per prompt; no two scores that a beam compares are close to a tie."""
    enumerations = [Enumeration(plain(name), prompt, CATALOGUES[catalogue]) for prompt in PROMPTS]
    assert min(enumeration.smallest_gap() for enumeration in enumerations) > 1e-5
    return enumerations


def _padded(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Prompts in one batch: padded on the left for a decoder, on the right for an encoder."""
    width = max(map(len, prompts))
    right = model.config.is_encoder_decoder
    rows = [([*p, *[PAD] * (width - len(p))] if right else [*[PAD] * (width - len(p)), *p]) for p in prompts]
    ids = torch.tensor(rows)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def prompt_width(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> int:
    return 1 if model.config.is_encoder_decoder else max(map(len, prompts))


def run(model: PreTrainedModel, prompts: Sequence[Sequence[int]], **options: Any) -> tuple[Tensor, Any]:
    """Generate; return what was written behind the prompts, and all of what `generate` says."""
    output = model.generate(
        **_padded(model, prompts),
        **{
            "max_new_tokens": 5,
            "do_sample": False,
            "length_penalty": 0.0 if options.get("num_beams", 1) > 1 else None,
            "eos_token_id": END,
            "pad_token_id": PAD,
            "return_dict_in_generate": True,
            "output_scores": True,
            **options,
        },
    )
    return output.sequences[:, prompt_width(model, prompts) :], output


def dict_trie(rows: Sequence[Row]) -> dict[Row, list[int]]:
    return {prefix: sorted(tokens) for prefix, tokens in tokens_after(rows).items()}


def allowed_fn(width: int, *catalogues: Sequence[Row]) -> Allowed:
    """The argument of `prefix_allowed_tokens_fn`: one catalogue per query, or one for all."""
    tries = [dict_trie(rows) for rows in catalogues]

    def allowed(query: int, written: Tensor) -> list[int]:
        trie = tries[query if len(tries) > 1 else 0]
        return trie.get(tuple(written[width:].tolist()), [END])  # idle beams run on after their end

    return allowed


def generate(
    model: PreTrainedModel, prompt: Sequence[int], rows: Sequence[Row], beams: int, penalty: float = 0.0
) -> list[Listed]:
    """Everything Hugging Face returns for k = beams, filler included."""
    written, output = run(
        model,
        [prompt],
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=penalty,
        early_stopping="never",
        max_new_tokens=max(len(row) for row in rows),
        prefix_allowed_tokens_fn=allowed_fn(prompt_width(model, [prompt]), rows),
    )
    pairs = zip(written.tolist(), output.sequences_scores.tolist(), strict=True)
    return [Listed(score, cut(sequence)) for sequence, score in pairs]


def cut(sequence: Sequence[int]) -> Row:
    """A sequence up to its first end token."""
    return tuple(sequence[: list(sequence).index(END) + 1]) if END in sequence else tuple(sequence)


def search(name: str, catalogue: str, k: int, width: int, penalty: float = 0.0) -> list[BeamResult]:
    """All prompts in one batch; every list and its certificate are held to exhaustive scores."""
    rows = CATALOGUES[catalogue]
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = BeamParams(k, width, penalty)
    results = beam_search(ours(name).prefill(PROMPTS), trie, [params] * len(PROMPTS))
    for enumeration, result in zip(truth(name, catalogue), results, strict=True):
        check_certificate(result, Truth({row: enumeration.logprob(row) for row in rows}, rows), params)
    return results


def scored(result: BeamResult, penalty: float = 0.0) -> list[Listed]:
    return [Listed(hypothesis.score(penalty), hypothesis.token_ids) for hypothesis in result.hypotheses]


def assert_same(got: Sequence[Listed], expected: Sequence[Listed]) -> None:
    assert [entry.row for entry in got] == [entry.row for entry in expected]
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.score == pytest.approx(theirs.score, abs=TOLERANCE)

"""`genret.generate`: texts behind prompts, against `generate` of transformers and plain forward passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import genret
from genret.decoding.free_text import FreeText
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.generation import GeneratedText
from genret.retrieval.text import TextTokenizer
from tests.generate_peer import CATALOGUES, PROMPTS, TOLERANCE, VOCAB, cut, plain, run
from tests.tiny_transformers import ARCHITECTURES, END, Enumeration, build


def texts(name: str, tokenizer: Path, k: int, **options: Any) -> list[list[GeneratedText]]:
    """Texts behind PROMPTS by a random model, none of whose tokens has a text of its own."""
    model = build(name, VOCAB)
    constraint = FreeText(VOCAB, options.pop("max_tokens"), END, options.pop("min_tokens", 0))
    return genret.generate(model, PROMPTS, k, tokenizer=tokenizer, constraint=constraint, **options)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_texts_of_one_length_are_those_of_transformers(checkpoint: Path, name: str, penalty: float) -> None:
    for beams, length in ((2, 6), (5, 4)):
        mine = texts(
            name,
            checkpoint,
            beams,
            beam_size=beams,
            max_tokens=length,
            min_tokens=length,
            length_penalty=penalty,
        )
        for prompt, found in zip(PROMPTS, mine, strict=True):
            written, output = run(
                plain(name), [prompt], num_beams=beams, num_return_sequences=beams, length_penalty=penalty,
                max_new_tokens=length, min_new_tokens=length, early_stopping="never",
            )  # fmt: skip
            assert [text.token_ids for text in found] == [tuple(row) for row in written.tolist()]
            assert [text.score for text in found] == pytest.approx(
                output.sequences_scores.tolist(), abs=TOLERANCE
            )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_texts_that_end_are_no_worse_than_those_of_transformers(checkpoint: Path, name: str) -> None:
    """Transformers keeps an ended text only where it ranks among the beams of its step; ours all."""
    num_ended = 0
    for prompt, found in zip(PROMPTS, texts(name, checkpoint, 12, beam_size=12, max_tokens=3), strict=True):
        _, output = run(
            plain(name),
            [prompt],
            num_beams=12,
            num_return_sequences=12,
            early_stopping="never",
            max_new_tokens=3,
        )
        theirs = output.sequences_scores.tolist()
        assert all(a.score >= b - TOLERANCE for a, b in zip(found, theirs, strict=True))
        num_ended += sum(text.token_ids[-1] == END for text in found)
        rows = [text.token_ids for text in found]
        assert all(cut(row) == row and (row[-1] == END or len(row) == 3) for row in rows)
        said = Enumeration(plain(name), prompt, rows)
        assert [text.logprob for text in found] == pytest.approx(
            [said.logprob(row) for row in rows], abs=TOLERANCE
        )
    assert num_ended


def test_a_trie_is_a_constraint_and_batches_change_nothing(checkpoint: Path) -> None:
    rows = CATALOGUES["mixed"]
    trie = TitleTrie.from_rows(rows, VOCAB)
    model = HFLanguageModel(build("llama", VOCAB))
    options: dict[str, Any] = {"tokenizer": checkpoint, "constraint": trie, "beam_size": len(rows)}
    for prompt, found in zip(PROMPTS, genret.generate(model, PROMPTS, 5, **options), strict=True):
        best = Enumeration(plain("llama"), prompt, rows).ranking()[:5]
        assert [(text.token_ids, rows[text.row]) for text in found] == [(one.row, one.row) for one in best]
        assert [text.logprob for text in found] == pytest.approx([one.score for one in best], abs=TOLERANCE)
    shared = [[*range(3, 25), *prompt] for prompt in PROMPTS]  # a beginning that is run once
    alone = [genret.generate(model, [prompt], 5, **options)[0] for prompt in shared]
    for together in (genret.generate(model, shared, 5, batch_size=size, **options) for size in (2, 3)):
        for one, other in zip(alone, together, strict=True):
            assert [text.token_ids for text in one] == [text.token_ids for text in other]
            assert [t.logprob for t in one] == pytest.approx([t.logprob for t in other], abs=TOLERANCE)


def assert_equal(found: list[list[GeneratedText]], expected: list[list[GeneratedText]]) -> None:
    """Two calls give equal texts; the last bits of a sum may differ from one call to the next."""
    for one, other in zip(found, expected, strict=True):
        assert [(text.text, text.token_ids) for text in one] == [(t.text, t.token_ids) for t in other]
        assert [text.logprob for text in one] == pytest.approx([t.logprob for t in other], abs=TOLERANCE)


def test_prompts_are_tokenised_as_transformers_does(checkpoint: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(checkpoint)
    loaded = HFLanguageModel.load(checkpoint, device="cpu")
    prompts = ["the prince of denmark", "Query: a river</s>"]
    ids = [theirs(prompt, add_special_tokens=False).input_ids for prompt in prompts]
    frame = TextTokenizer.load(checkpoint).frame[0]
    for tokenizer in (checkpoint, theirs, TextTokenizer.load(checkpoint)):
        found = genret.generate(loaded, prompts, 2, tokenizer=tokenizer, max_tokens=6)
        by_ids = genret.generate(
            loaded, [[*frame, *row] for row in ids], 2, tokenizer=tokenizer, max_tokens=6
        )
        assert_equal(found, by_ids)
    named = genret.generate(str(checkpoint), prompts[0], 2, max_tokens=6, device="cpu")
    assert_equal(named, found[:1])
    assert all(text.text == theirs.decode(text.token_ids, skip_special_tokens=True) for text in named[0])
    assert all(math.isclose(text.score, text.logprob) and text.row == -1 for text in named[0])
    ended = genret.generate(loaded, prompts, 1, tokenizer=theirs, max_tokens=3, min_tokens=3)
    assert [len(row[0].token_ids) for row in ended] == [3, 3]
    assert genret.generate(loaded, [], tokenizer=theirs) == []


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ("a", {"k": 0}, r"k: must be in \[1, 1000\]"),
        ("a", {"max_tokens": 0}, "max_tokens: must be in"),
        ("a", {"max_tokens": 5, "min_tokens": 6}, r"min_tokens: must be in \[0, 5\]"),
        ("a", {"length_penalty": math.nan}, "length_penalty: must be in"),
        ("a", {"tokenizer": 7}, "tokenizer: a loaded model needs its tokenizer.*got int"),
        ("a", {"end_token": "no such"}, "end_token: 'no such' is not in the vocabulary"),
        ("a", {"constraint": FreeText(VOCAB, 3, END), "min_tokens": 1}, "constraint: says itself where"),
        (["a", ""], {}, r"prompts\[1\]: must not be empty"),
        (["a", 7], {}, r"prompts\[1\]: must be text or a list of token ids, got int"),
        ([[3, -1]], {}, r"prompts\[0\]\[1\]: must be in"),
        ([[3, 70_000]], {}, r"prompts\[0\]: holds token 70000; the model knows"),
        (
            ["a", [3] * 10_000],
            {"max_tokens": 9},
            r"prompts\[1\]: too long: 10000 tokens, and 9 more, do not fit",
        ),
        (7, {}, "prompts: must be text or a list, got int"),
    ],
)
def test_refusals_name_what_is_wrong(
    checkpoint: Path, prompts: Any, options: dict[str, Any], message: str
) -> None:
    model = HFLanguageModel.load(checkpoint, device="cpu")
    with pytest.raises(InputError, match=message):
        genret.generate(model, prompts, **{"tokenizer": checkpoint, **options})


def test_what_is_no_model_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(InputError, match="model: must be a checkpoint or a loaded model, got int"):
        genret.generate(7, "a", tokenizer=checkpoint)  # type: ignore[arg-type]
    with pytest.raises(ModelError):
        genret.generate(tmp_path / "nothing", "a")

"""Beam search on transformers against Hugging Face `generate` and against exhaustive scoring.

`generate` keeps a finished title only when it ranks among the best `num_beams` continuations of its step;
ours keeps every one. So both must agree where titles are of one length, or the beam is as wide as the
catalogue, under every length penalty: it divides by the same length, the end token's included, and
`generate` is asked to stop only when no length could help.
"""

from __future__ import annotations

import pytest

from genret.decoding.beam_search import beam_search
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from tests.generate_peer import (
    CATALOGUES,
    NUM_TITLES,
    PENALTIES,
    PROMPTS,
    VOCAB,
    assert_same,
    generate,
    ours,
    plain,
    scored,
    search,
    truth,
)
from tests.tiny_transformers import ARCHITECTURES, ForwardMeter, build


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("penalty", [0.0, *PENALTIES])
@pytest.mark.parametrize(
    ("catalogue", "beams"), [("equal", 2), ("equal", 5), ("equal", NUM_TITLES), ("mixed", NUM_TITLES)]
)
def test_titles_of_one_length_or_unpruned_equal_generate(
    name: str, penalty: float, catalogue: str, beams: int
) -> None:
    results = search(name, catalogue, beams, beams, penalty)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.certified or beams < NUM_TITLES
        theirs = generate(plain(name), prompt, CATALOGUES[catalogue], beams, penalty)
        assert len(theirs) == beams
        assert_same(scored(result, penalty), theirs)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exact_lists_are_those_of_the_widest_generate(name: str) -> None:
    """On real sessions the continuation writes behind branches of every level."""
    rows = CATALOGUES["mixed"]
    trie = TitleTrie.from_rows(rows, VOCAB)
    for penalty in (0.0, 1.0):
        params = [BeamParams(3, 1, penalty, exact=True) for _ in PROMPTS]
        results = beam_search(ours(name).prefill(PROMPTS), trie, params)
        assert any(result.num_exact_nodes > 3 for result in results)
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert result.certified
            theirs = generate(plain(name), prompt, rows, NUM_TITLES, penalty)
            assert_same(scored(result, penalty), theirs[:3])


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("catalogue", CATALOGUES)
@pytest.mark.parametrize(
    ("k", "width"), [(1, 1), (1, 24), (3, 3), (3, 28), (10, 10), (7, NUM_TITLES), (NUM_TITLES, NUM_TITLES)]
)
def test_scores_and_certified_lists_equal_exhaustive_scoring(
    name: str, catalogue: str, k: int, width: int
) -> None:
    results = search(name, catalogue, k, width)
    for enumeration, result in zip(truth(name, catalogue), results, strict=True):
        assert result.certified or width < NUM_TITLES
        if result.certified:
            assert_same(scored(result), enumeration.ranking()[:k])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_prompts_run_once_and_steps_compute_live_prefixes_only(name: str) -> None:
    model = build(name, VOCAB)
    language_model = HFLanguageModel(model)
    meter = ForwardMeter(model)
    rows = CATALOGUES["mixed"]
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [BeamParams(NUM_TITLES, 100)] * len(PROMPTS)
    beam_search(language_model.prefill(PROMPTS), trie, params)
    queries, longest = len(PROMPTS), max(map(len, PROMPTS))
    prompts = [(queries, longest)]
    if model.config.is_encoder_decoder:
        prompts.append((queries, len(language_model.decoder_prompt)))
    assert [*meter.encoder, meter.decoder[0]] == prompts
    # A beam wider than the catalogue holds every prefix that some title continues.
    depths = range(1, max(map(len, rows)))
    prefixes = [len({row[:depth] for row in rows if len(row) > depth}) for depth in depths]
    assert meter.decoder[1:] == [(queries, count) for count in prefixes]

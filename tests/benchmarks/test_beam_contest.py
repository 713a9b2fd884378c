"""What `benchmarks/beam_search.py` is made of: models that share weights, free text, traces, agreement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from genret.decoding.constraints import WideConstraint
from genret.decoding.model.token_tree import CollectionPolicy

VOCAB, LENGTH, END = 300, 6, 1


@pytest.fixture
def harness(benchmark_path: None) -> SimpleNamespace:
    import beam_search_figures.settings
    import beam_search_figures.trace
    import harness.beam_contest
    import harness.equal_titles
    import harness.free_text
    import harness.traced_session
    import harness.twin_models

    return SimpleNamespace(
        contest=harness.beam_contest,
        titles=harness.equal_titles,
        free_text=harness.free_text,
        traced=harness.traced_session,
        twins=harness.twin_models,
        settings=beam_search_figures.settings,
        trace=beam_search_figures.trace,
    )


@pytest.fixture
def twins(harness: SimpleNamespace) -> Any:
    sizes = harness.twins.Sizes(VOCAB, 64, 1, 1, 128, 256)
    return harness.twins.Twins.random(sizes)


def test_both_models_have_the_same_weights_and_the_stock_one_its_own_attention(twins: Any) -> None:
    pairs = zip(twins.stock.parameters(), twins.own.parameters(), strict=True)
    assert all(one is other for one, other in pairs)
    twins.model()
    assert twins.stock.config._attn_implementation == "sdpa"
    assert twins.own.config._attn_implementation == "genret_tree"
    assert twins.token_bytes == 2 * 64 * 4


def test_logits_are_spread_as_wide_as_is_said(twins: Any) -> None:
    with torch.no_grad():
        logits = twins.stock(torch.arange(2, 40).unsqueeze(0)).logits
    assert 3.0 < float(logits.std()) < 9.0


@pytest.mark.parametrize("prefilled", [False, True])
def test_titles_and_scores_are_those_of_generate(
    harness: SimpleNamespace, twins: Any, prefilled: bool
) -> None:
    titles = harness.titles.EqualTitles.make(400, VOCAB)
    prompts = harness.settings.Setting(9, 4, 2).prompts(VOCAB)
    ours = harness.contest.search(twins.model(), titles.trie, prompts, 4)
    peer = harness.contest.generate(twins.stock, prompts, 4, titles.tokens, titles.dictionary, prefilled)
    agreement = harness.contest.Agreement.of(ours.lists, peer.lists)
    assert agreement.holds(1e-3)
    assert all(len(found) == 4 for found in peer.lists)
    assert peer.kv_bytes == 2 * 4 * (9 + titles.tokens - 1) * twins.token_bytes


def test_free_text_and_scores_are_those_of_generate(harness: SimpleNamespace, twins: Any) -> None:
    prompts = harness.settings.Setting(9, 4, 2).prompts(VOCAB)
    constraint = harness.free_text.FreeText(LENGTH, VOCAB, END)
    ours = harness.contest.search(twins.model(), constraint, prompts, 4)
    peer = harness.contest.generate(twins.stock, prompts, 4, LENGTH, None)
    assert harness.contest.Agreement.of(ours.lists, peer.lists).holds(1e-3)
    assert all(len(row) == LENGTH and END not in row for found in peer.lists for row in found)


def test_a_difference_is_seen(harness: SimpleNamespace) -> None:
    of = harness.contest.Agreement.of
    assert of([{(2, 1): -1.0}], [{(2, 1): -1.0}]).holds(0.0)
    assert not of([{(2, 1): -1.0}], [{(3, 1): -1.0}]).holds(1.0)
    assert not of([{(2, 1): -1.0}], [{(2, 1): -1.5}]).holds(0.4)


def test_free_text_lists_what_it_verifies(harness: SimpleNamespace) -> None:
    text = harness.free_text.FreeText(2, 5, 1)
    assert isinstance(text, WideConstraint)
    states = torch.tensor([0, -1, 1, 2])
    children = text.children(states)
    assert children.owner.tolist() == [0] * 4 + [2] * 4
    assert children.token.tolist() == [0, 2, 3, 4] * 2
    assert children.next_state.tolist() == [1] * 4 + [2] * 4
    verified = text.verify(states, torch.arange(5).expand(4, 5))
    assert verified.tolist() == [[1, -1, 1, 1, 1], [-1] * 5, [2, -1, 2, 2, 2], [-1] * 5]
    assert text.is_final(states).tolist() == [False, False, False, True]


def test_a_trace_counts_live_tokens(harness: SimpleNamespace, twins: Any) -> None:
    session = twins.model(CollectionPolicy.never()).prefill([[2, 3, 4]])
    traced = harness.traced.TracedSession(session)
    traced.step(torch.tensor([[0, 0, 0]]), torch.tensor([[2, 3, 4]]))
    traced.step(torch.tensor([[0, 0, 2]]), torch.tensor([[2, 3, 4]]))
    traced.step(torch.tensor([[1, 1, -1]]), torch.tensor([[2, 3, 4]]))
    assert [moment.branches for moment in traced.moments] == [3, 3, 2]
    assert [moment.live for moment in traced.moments] == [3, 5, 4]
    assert [moment.written for moment in traced.moments] == [3, 6, 8]
    assert traced.usage == session.usage


def test_settings_are_read_and_costs_are_guessed(harness: SimpleNamespace, twins: Any) -> None:
    setting = harness.settings.Setting.parse("512/15/8")
    assert (setting.prompt, setting.beams, setting.batch) == (512, 15, 8)
    assert setting.text() == "512/15/8"
    for text in ("512", "512/15", "512/15/0", "a/b/c"):
        with pytest.raises(ValueError, match="PROMPT/BEAMS/BATCH"):
            harness.settings.Setting.parse(text)
    ours = harness.contest.Run(2.0, 1.0, 0, [])
    plain, once = (
        harness.settings.PeerCost.of(setting, ours, twins, 10, prefilled) for prefilled in (False, True)
    )
    assert plain.cache_bytes == once.cache_bytes == 8 * 15 * 522 * twins.token_bytes
    assert plain.seconds - once.seconds == pytest.approx(14 * 2.0)
    assert plain.refusal(1e9) is None
    assert "--max-cell-seconds is 3" in plain.refusal(3.0)
    assert "memory" in harness.settings.PeerCost(1.0, 1 << 50, 1 << 50).refusal(1e9)


def test_prompts_of_the_default_model_end_in_queries(harness: SimpleNamespace) -> None:
    import beam_search_figures.sample_prompts as sample

    prompts = sample.sample_prompts(64, 3)
    assert prompts.shape == (3, 64)
    assert len({tuple(row) for row in prompts.tolist()}) == 3
    assert prompts[0].tolist()[-1] == prompts[1].tolist()[-1]  # the template's end

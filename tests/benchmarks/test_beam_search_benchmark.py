"""`beam_search.py`: its parts, and runs too small to measure anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beam_search import main
from harness.beam_contest import Agreement
from harness.twin_models import Sizes, Twins

from tests.commands import run

VOCAB, LENGTH, END = 300, 6, 1
TINY = ["--hidden", "64", "--layers", "1", "--titles", "2000", "--repeats", "1"]
SHORT = ["--new-tokens", "12", "--settings", "64/5/2"]


@pytest.fixture
def twins() -> Twins:
    return Twins.random(Sizes(VOCAB, 64, 1, 1, 128, 256))


def test_both_models_have_the_same_weights_and_the_stock_one_its_own_attention(twins: Twins) -> None:
    pairs = zip(twins.stock.parameters(), twins.own.parameters(), strict=True)
    assert all(one is other for one, other in pairs)
    twins.model()
    assert twins.stock.config._attn_implementation == "sdpa"
    assert twins.own.config._attn_implementation == "genret_tree"
    assert twins.token_bytes == 2 * 64 * 4


def test_logits_are_spread_as_wide_as_is_said(twins: Twins) -> None:
    with torch.no_grad():
        logits = twins.stock(torch.arange(2, 40).unsqueeze(0)).logits
    assert 3.0 < float(logits.std()) < 9.0


def test_a_difference_is_seen() -> None:
    of = Agreement.of
    assert of([{(2, 1): -1.0}], [{(2, 1): -1.0}]).holds(0.0)
    assert not of([{(2, 1): -1.0}], [{(3, 1): -1.0}]).holds(1.0)
    assert not of([{(2, 1): -1.0}], [{(2, 1): -1.5}]).holds(0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--settings", "512/15"], "PROMPT/BEAMS/BATCH"),
        (["--hidden", "100"], "--hidden must be a multiple of 64, got 100"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: list[str], message: str) -> None:
    refused = run(main, *options)
    assert refused.exit_code == 2
    assert message in refused.output


@pytest.mark.slow
def test_lists_agree_with_generate_and_everything_is_reported(figures_of: Callable[..., Any]) -> None:
    figures = figures_of(main, *TINY, *SHORT)
    assert figures["titles"]["agreement"] == {
        "compared": 2,
        "different": [],
        "largest_difference": pytest.approx(0.0, abs=1e-3),
    }
    (cell,) = figures["titles"]["cells"]
    for peer in ("generate", "generate, prompt run once"):
        assert cell[peer]["same_rows"]
        assert 0 < cell[peer]["kv_share"] < 1
        assert cell[peer]["total_s"]["median"] > cell[peer]["prefill_s"]["median"] > 0
    assert figures["free"]["agreement"]["compared"] == 4
    assert figures["free"]["agreement"]["different"] == []
    for cell in figures["prefix"]:
        assert cell["shared_bytes"] < cell["again_bytes"]
        assert cell["largest_difference"] < 1e-3

"""The masks for engines' samplers, against what every title's probability is by enumeration."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.engines.title_masks import (
    DISC,
    MASK,
    SINK,
    TitleArguments,
    masked_logits,
    tap_path,
)
from genret.retrieval.errors import InputError

VOCAB, END, REJECT = 8, 1, 0


def logits_behind(seed: int, prefix: tuple[int, ...]) -> torch.Tensor:
    """Logits that depend on the prefix alone. Shape: (VOCAB,)."""
    generator = torch.Generator().manual_seed(hash((seed, *prefix)) % 2**31)
    return torch.randn(VOCAB, generator=generator) * 2.5


def walk(
    constraint: TitleTrie | FilteredTrie, seed: int, mode: int
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Every sequence that a sampler could write in a mode, with its log-probability and the model's own."""
    found: dict[tuple[int, ...], tuple[float, float]] = {}
    todo = [((), int(constraint.start(torch.zeros(1, dtype=torch.int64))), 0.0, 0.0, 0.0)]
    width = max(constraint.width_at(depth) for depth in range(constraint.max_depth))
    while todo:
        prefix, state, log_x, processed, own = todo.pop()
        raw = logits_behind(seed, prefix)
        masked, mass = masked_logits(
            raw[None].clone(),
            constraint,
            torch.tensor([state]),
            torch.tensor([mode]),
            torch.tensor([log_x], dtype=torch.float64),
            width,
            REJECT,
        )
        chances = torch.log_softmax(masked[0].double(), 0)
        model = torch.log_softmax(raw.double(), 0)
        for token in range(VOCAB):
            if chances[token] == -math.inf:
                continue
            sequence = (*prefix, token)
            total = (processed + float(chances[token]), own + float(model[token]))
            following = int(constraint.advance(torch.tensor([state]), torch.tensor([token])))
            if token in (END, REJECT):
                found[sequence] = total
            else:
                assert following >= 0
                todo.append((sequence, following, log_x + float(mass[0]), *total))
    return found


titles = st.sets(
    st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=4).map(lambda row: (*row, END)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(rows=titles, seed=st.integers(0, 999), keep=st.integers(0, 2**12 - 1))
def test_every_mode_gives_each_title_the_probability_it_promises(
    rows: set[tuple[int, ...]], seed: int, keep: int
) -> None:
    ordered = sorted(rows)
    trie = TitleTrie.from_rows(ordered, VOCAB)
    mask = torch.tensor([bool(keep >> place & 1) for place in range(len(ordered))]).numpy()
    filtered = FilteredTrie(trie, [RowFilter.from_mask(mask)])
    allowed = {row for row, is_kept in zip(ordered, mask, strict=True) if is_kept}
    for constraint, expected in ((trie, set(ordered)), (filtered, allowed)):
        if not expected:
            continue
        by_mask = walk(constraint, seed, MASK)
        assert set(by_mask) == expected
        assert math.isclose(sum(math.exp(p) for p, _ in by_mask.values()), 1.0, abs_tol=1e-5)
        by_disc = walk(constraint, seed, DISC)
        accepted = {row: both for row, both in by_disc.items() if row[-1] == END}
        assert set(accepted) == expected
        for processed, own in accepted.values():  # DISC's law: P(accepted draw of a title) = P_L(title)
            assert processed == pytest.approx(own, abs=1e-4)
        assert math.isclose(sum(math.exp(p) for p, _ in by_disc.values()), 1.0, abs_tol=1e-5)
        by_sink = walk(constraint, seed, SINK)
        assert {row for row in by_sink if row[-1] == END} == expected
        for row, (processed, own) in by_sink.items():
            if row[-1] == END:
                assert processed == pytest.approx(own, abs=1e-4)


def test_rows_without_a_state_stay_as_they_are() -> None:
    trie = TitleTrie.from_rows([(2, END)], VOCAB)
    logits = torch.randn(2, VOCAB)
    root = int(trie.start(torch.zeros(1, dtype=torch.int64)))
    masked, _ = masked_logits(
        logits.clone(),
        trie,
        torch.tensor([-1, root]),
        torch.tensor([DISC, MASK]),
        torch.zeros(2).double(),
        3,
        0,
    )
    assert torch.equal(masked[0], logits[0])
    assert masked[1].isfinite().nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize(
    ("extra", "field", "words"),
    [
        ({"genret_mode": "disc"}, "genret", "must name the index"),
        ({"genret": "a", "genret_mode": "tap"}, "genret_mode", "must be mask, disc or sink, got 'tap'"),
        ({"genret": "a", "genret_beams": 3}, "genret_beams", "unknown argument"),
        ({"genret": "a", "genret_written": -1}, "genret_written", "at least 0, got -1"),
        ({"genret": "a", "genret_written": 2, "genret_mode": "disc"}, "genret_written", "for mask and sink"),
        ({"genret": "a", "genret_filter": "kind ="}, "filter", ""),
        ({"genret": "a", "genret_allow": "x"}, "genret_allow", "sequence of ids"),
        ({"genret_tap": "../../etc"}, "genret_tap", "32 hexadecimal digits, got '../../etc'"),
        ({"genret_tap": "0" * 32, "genret": "a"}, "genret_tap", "must stand alone"),
    ],
)
def test_wrong_arguments_are_named(extra: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        TitleArguments.of(extra)
    assert caught.value.field == field
    assert words in str(caught.value)


def test_other_requests_have_no_arguments_of_ours() -> None:
    assert TitleArguments.of(None) is None
    assert TitleArguments.of({"other": 1}) is None
    asked = TitleArguments.of({"genret": "a", "genret_mode": "sink"})
    asked.check_sampling(1.0, 1.0, 0, 0.0)
    with pytest.raises(InputError, match="sink needs temperature 1"):
        asked.check_sampling(0.7, 1.0, 0, 0.0)


def test_a_tap_is_named_by_key_and_sequence() -> None:
    names = {tap_path(Path("/t"), key, row).name for key in ("a", "b") for row in ([1], [1, 2], [2, 1])}
    assert len(names) == 6

"""Attention where a model is sure of something: tiny weights cost nothing and change nothing."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from decoding.model import segment_attention
from decoding.model.segment_attention import Rule, Segment, attend

RULE = Rule(scaling=1.0, window=None, softcap=None, bias_owner=None)


def segments(dtype: torch.dtype) -> tuple[Tensor, tuple[Segment, ...]]:
    """Scores that spread over hundreds, the largest of them hidden."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(2, 4, n, 8, generator=generator, dtype=torch.float64) for n in (5, 9, 9)
    )
    query *= 40
    hidden = torch.zeros(2, 5, 9, dtype=torch.bool)
    hidden[:, :, 3] = True
    keys[:, :, 3] = 10 * query.mean(2)
    whole = Segment(keys.to(dtype), values.to(dtype), hidden, None)
    part = Segment(keys[:, :, :4].to(dtype) * 0.9, values[:, :, :4].to(dtype), None, None)
    return query.to(dtype), (whole, part)


def test_sure_attention_is_as_exact_as_any() -> None:
    exact, rounded = (attend(*segments(dtype), RULE) for dtype in (torch.float64, torch.float32))
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=2e-4)


def test_a_sink_takes_its_share_and_adds_nothing() -> None:
    """The same as one more key with that score, whose value is zero; compared in float64."""
    query, (whole, part) = segments(torch.float64)
    sinks = torch.tensor([-3.0, 0.0, 40.0, 900.0], dtype=torch.float64)
    keys, values = torch.cat([whole.keys, part.keys], 2), torch.cat([whole.values, part.values], 2)
    assert whole.hidden is not None
    hidden = torch.nn.functional.pad(whole.hidden, (0, part.keys.shape[2]))[:, None]
    scores = (query @ keys.mT).masked_fill(hidden, -torch.inf)
    with_sink = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    expected = with_sink.softmax(-1)[..., :-1] @ values
    got = attend(query, (whole, part), dataclasses.replace(RULE, sinks=sinks))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    assert float((got - attend(query, (whole, part), RULE)).abs().max()) > 0.1


def test_no_weight_is_denormal(monkeypatch) -> None:
    seen: list[Tensor] = []
    plain = segment_attention._lift_negligible

    def watched(scores: Tensor) -> None:
        before = scores.softmax(-1)
        assert ((before > 0) & (before < torch.finfo(torch.float32).tiny)).any()
        plain(scores)
        seen.append(scores.softmax(-1))

    monkeypatch.setattr(segment_attention, "_lift_negligible", watched)
    attend(*segments(torch.float32), RULE)
    (weights,) = seen
    assert (weights >= torch.finfo(torch.float32).tiny).all()

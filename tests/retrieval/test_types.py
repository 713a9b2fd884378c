"""Requests are validated where they are made."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from decoding import params
from retrieval import types
from retrieval.errors import InputError
from retrieval.types import Mention, RetrievalResult, RetrieveRequest


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"query": ""}, "query", "must not be empty"),
        ({"query": " \n\t\u3000"}, "query", "must not be empty"),
        ({"query": None}, "query", "must be text, got NoneType"),
        ({"query": b"x"}, "query", "must be text, got bytes"),
        ({"query": "ab\ud800c"}, "query", "not valid Unicode: half a surrogate pair at character 3"),
        ({"k": 0}, "k", "must be in [1, 1000], got 0"),
        ({"k": -1}, "k", "must be in [1, 1000], got -1"),
        ({"k": 10**6}, "k", "must be in [1, 1000], got 1000000"),
        ({"k": 2.0}, "k", "must be an integer, got 2.0"),
        ({"k": True}, "k", "must be an integer, got True"),
        ({"k": None}, "k", "must be an integer, got None"),
        ({"k": "5"}, "k", "must be an integer, got '5'"),
        ({"method": "best"}, "method", "must be one of beam, disc; got 'best'"),
        ({"method": None}, "method", "must be one of beam, disc; got None"),
        ({"beam_size": 0}, "beam_size", "must be in [1, 1000], got 0"),
        ({"beam_size": 1001}, "beam_size", "must be in [1, 1000], got 1001"),
        ({"num_draws": 0}, "num_draws", "must be in [1, 256], got 0"),
        ({"num_draws": None}, "num_draws", "must be an integer, got None"),
        ({"num_samples": 257}, "num_samples", "must be in [1, 256], got 257"),
        ({"top_m": 0}, "top_m", "must be in [1, 2147483647], got 0"),
        ({"seed": 2**63}, "seed", f"must be in [{-(2**63)}, {2**63 - 1}], got {2**63}"),
        ({"seed": 1.5}, "seed", "must be an integer, got 1.5"),
        ({"temperature": 0.0}, "temperature", "must be in [0.01, 100], got 0.0"),
        ({"temperature": math.nan}, "temperature", "must be in [0.01, 100], got nan"),
        ({"temperature": math.inf}, "temperature", "must be in [0.01, 100], got inf"),
        ({"temperature": "hot"}, "temperature", "must be a number, got 'hot'"),
        ({"temperature": None}, "temperature", "must be a number, got None"),
        ({"min_mass": 0.2}, "min_mass", "needs the method disc, got the method beam"),
        ({"min_mass": 0.0}, "min_mass", "needs the method disc, got the method beam"),
        ({"adaptive": True}, "adaptive", "needs the method disc, got the method beam"),
        ({"method": "disc", "min_mass": -0.1}, "min_mass", "must be in [0, 1], got -0.1"),
        ({"method": "disc", "min_mass": 1.01}, "min_mass", "must be in [0, 1], got 1.01"),
        ({"method": "disc", "min_mass": math.nan}, "min_mass", "must be in [0, 1], got nan"),
        ({"method": "disc", "min_mass": "low"}, "min_mass", "must be a number, got 'low'"),
        ({"method": "disc", "min_mass": True}, "min_mass", "must be a number, got True"),
        ({"method": "disc", "adaptive": 1}, "adaptive", "must be True or False, got 1"),
        (
            {"method": "disc", "adaptive": True, "top_m": 50},
            "adaptive",
            "excludes top_m and a beam_size above 1, got top_m 50",
        ),
        (
            {"method": "disc", "adaptive": True, "beam_size": 2},
            "adaptive",
            "excludes top_m and a beam_size above 1, got beam_size 2",
        ),
        (
            {"method": "disc", "adaptive": True, "beam_size": 2, "top_m": 50},
            "adaptive",
            "excludes top_m and a beam_size above 1, got top_m 50 and beam_size 2",
        ),
        ({"method": "disc", "beam_size": 0}, "beam_size", "must be in [1, 64] with the method disc, got 0"),
        (
            {"method": "disc", "beam_size": 1001},
            "beam_size",
            "must be in [1, 64] with the method disc, got 1001",
        ),
        ({"method": "disc", "beam_size": "4"}, "beam_size", "must be an integer, got '4'"),
        ({"method": "disc", "beam_size": 65}, "beam_size", "must be in [1, 64] with the method disc, got 65"),
        (
            {"method": "disc", "num_samples": 256, "num_draws": 33},
            "num_samples",
            "times num_draws times beam_size must be at most 8192, got 8448 (with num_draws 33)",
        ),
        (
            {"method": "disc", "num_draws": 16, "beam_size": 64},
            "num_samples",
            "times num_draws times beam_size must be at most 8192, got 16384 "
            "(with num_draws 16 and beam_size 64)",
        ),
        ({"prompt": 3}, "prompt", "must be text, got int"),
        ({"filter": b"x"}, "filter", "must be text, got bytes"),
        ({"filter": " "}, "filter", "must not be empty"),
        ({"filter": "x = '\ud800'"}, "filter", "not valid Unicode: half a surrogate pair at character 6"),
        ({"filter": "x ="}, "filter", "at character 4: expected a value, got the end"),
        ({"allow_ids": "Q1"}, "allow_ids", "must be a sequence of ids, got str"),
        ({"deny_ids": None}, "deny_ids", "must be a sequence of ids, got NoneType"),
        ({"deny_ids": ("a", 1)}, "deny_ids[1]", "must be text, got int"),
    ],
)
def test_wrong_field_is_named_with_what_was_expected_and_got(
    fields: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        RetrieveRequest(**{"query": "x", **fields})
    assert error.value.field == field
    assert error.value.message == message
    assert str(error.value) == f"{field}: {message}"
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    "fields",
    [
        {"k": 1},
        {"k": 1000, "beam_size": 1000},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"temperature": 0.01},
        {"temperature": 100},
        {"num_draws": 256, "num_samples": 256, "top_m": 2**31 - 1},
        {"method": "disc", "min_mass": 0.0},
        {"method": "disc", "min_mass": 1.0, "adaptive": True, "beam_size": 1},
        {"method": "disc", "num_samples": 32, "num_draws": 4, "beam_size": 64, "top_m": 1},
    ],
)
def test_bounds_are_included(fields: dict[str, Any]) -> None:
    request = RetrieveRequest("x", **fields)
    assert {name: getattr(request, name) for name in fields} == fields


def test_numpy_numbers_become_plain_ones() -> None:
    request = RetrieveRequest(
        "x",
        k=np.int64(3),
        seed=np.uint32(7),
        temperature=np.float32(0.5),  # type: ignore[arg-type]
    )
    assert [type(v) for v in (request.k, request.seed, request.temperature)] == [int, int, float]
    assert request == RetrieveRequest("x", k=3, seed=7, temperature=0.5)


def test_lists_of_ids_become_tuples() -> None:
    request = RetrieveRequest("x", allow_ids=["a"], deny_ids={"b"})  # type: ignore[arg-type]
    assert (request.allow_ids, request.deny_ids) == (("a",), ("b",))
    assert not request.restriction.is_open
    assert RetrieveRequest("x").restriction.is_open


def test_limits_are_those_of_the_decoders() -> None:
    for name in ("MAX_K", "MAX_BEAM_SIZE", "MAX_DRAWS", "MAX_SAMPLES"):
        assert getattr(types, name) == getattr(params, name)
    params.BeamParams(k=types.MAX_K, beam_size=types.MAX_BEAM_SIZE)
    draws = types.MAX_TOTAL_DRAWS // types.MAX_SAMPLES
    params.DiscParams(num_samples=types.MAX_SAMPLES, num_draws=draws)
    widest = {"num_samples": 32, "num_draws": 4, "beam_size": params.MAX_DISC_BEAM_SIZE}
    assert RetrieveRequest("x", method="disc", **widest).width == types.MAX_TOTAL_DRAWS  # type: ignore[arg-type]
    assert params.DiscParams(**widest).width == types.MAX_TOTAL_DRAWS
    for k in (1, 10, 11, types.MAX_K):
        assert RetrieveRequest("x", k=k).width == params.BeamParams(k=k).width


def test_requests_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        RetrieveRequest("x").k = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mention": None}, "mention: must be text, got NoneType"),
        ({"mention": "x", "left": 3}, "left: must be text, got int"),
        ({"mention": "x", "right": "\udfff"}, "right: not valid Unicode"),
    ],
)
def test_mentions_are_text(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mention(**fields)


def test_no_match_is_an_empty_list() -> None:
    assert RetrievalResult(query="x", method="beam", candidates=()).no_match


@pytest.mark.parametrize(
    ("mass", "lower", "upper", "bounded"),
    [(0.5, 0.2, 0.9, 0.5), (0.1, 0.2, 0.9, 0.2), (1.1, 0.2, 0.9, 0.9), (1.1, None, None, 1.0)],
)
def test_the_best_figure_for_the_mass_is_within_its_bounds(
    mass: float, lower: float | None, upper: float | None, bounded: float
) -> None:
    result = RetrievalResult("x", "disc", (), mass=mass, mass_lower=lower, mass_upper=upper)
    assert result.bounded_mass == bounded
    assert RetrievalResult("x", "beam", ()).bounded_mass is None

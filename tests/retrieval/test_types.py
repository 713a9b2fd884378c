"""Requests, for retrieval and for JSON answers, are validated where they are made."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding import params
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.arguments import INT64, options_of
from genret.retrieval.complete_types import CompleteRequest
from genret.retrieval.errors import InputError, nearest
from genret.retrieval.retriever import Retriever
from genret.retrieval.score_types import ScoreRequest
from genret.retrieval.types import (
    Auto,
    Beam,
    Disc,
    KvShare,
    Mention,
    RequestOptions,
    RetrievalResult,
    RetrieveRequest,
    Shortlist,
    with_options,
)


def test_every_option_is_in_the_docstring_and_in_the_signature() -> None:
    for function, skipped in ((Retriever.retrieve, set()), (Retriever.link, {"prompt"})):
        options = options_of(RetrieveRequest)
        told = (function.__doc__ or "").split("\nOptions:\n")[1]
        lines = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", told, re.M)
        assert [name for name, _ in lines] == [name for name in options if name not in skipped]
        parameters = inspect.signature(function).parameters
        for name, text in lines:
            option, flat = options[name], " ".join(text.split())
            default = parameters[name].default
            assert default == (1 if (function, name) == (Retriever.link, "k") else option.default)
            assert f"Default: {option.unset.replace('--length-', 'length_') or default}." in flat
            assert all(word in flat for word in option.choices)
            if option.range != INT64:
                low, high = (
                    f"{bound:,}" if isinstance(bound, int) else f"{bound:g}" for bound in option.range
                )
                assert f"In [{low}, {high}]." in flat
        assert "--" not in told
        assert not {"self", "batch_size"} - parameters.keys()
        assert set(RequestOptions.__annotations__) <= parameters.keys()


@pytest.mark.parametrize(
    ("kind", "option", "hint"),
    [
        (None, "bem_size", "did you mean beam_size?"),
        (None, "Beam_Size", "did you mean beam_size?"),
        (None, "lenght_penalty", "did you mean length_penalty?"),
        (None, "xyzzy", "there are: query, k, method, beam_size, "),
        (None, "restriction", "there are: query, "),
        (RetrieveRequest, "top_k", "did you mean k? there are: query, k, "),
        (RetrieveRequest, "evidence", "did you mean method? there are: query, "),
        (Mention, "text", "there are: mention, left, right"),
        (Beam, "width", "did you mean beam_size? there are: beam_size, exact, "),
        (Disc, "samples", "did you mean num_samples?"),
        (Auto, "shortlist", "did you mean shortlist_size?"),
        (Shortlist, "size", "did you mean shortlist_size? there are: shortlist_size, "),
        (AnswerRequest, "tokens", "did you mean max_tokens?"),
        (CompleteRequest, "top_k", "did you mean k?"),
        (ScoreRequest, "title", "did you mean titles? there are: query, titles, prompt"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_one(kind: Any, option: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"^{option}: there is no such option; {re.escape(hint)}"):
        kind(**{option: 3}) if kind else with_options(3, "beam", None, {option: 3})  # type: ignore[misc]


@pytest.mark.parametrize(("method", "near"), [("bem", "beam"), ("DISC", "disc"), ("short-list", "shortlist")])
def test_an_unknown_method_is_answered_with_the_nearest_one(method: str, near: str) -> None:
    with pytest.raises(InputError, match=f"; got '{method}', did you mean '{near}'\\?$"):
        RetrieveRequest("q", method=method)


@given(st.sets(st.text(max_size=12), max_size=5), st.text(max_size=12))
def test_the_nearest_name_is_a_known_one(known: set[str], name: str) -> None:
    assert nearest(name, known) in known | {""}
    assert not known or nearest(min(known), known).casefold() == min(known).casefold()


ALONE = "explain: with disc, excludes adaptive and a beam_size above 1, got"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": ""}, "query: must not be empty"),
        ({"query": " \n\t\u3000"}, "query: must not be empty"),
        ({"query": None}, "query: must be text, got NoneType"),
        ({"query": "ab\ud800c"}, "query: not valid Unicode: half a surrogate pair at character 3"),
        ({"k": 0}, "k: must be in [1, 1000], got 0"),
        ({"k": 2.0}, "k: must be an integer, got 2.0"),
        ({"k": True}, "k: must be an integer, got True"),
        ({"method": "best"}, "method: must be one of auto, beam, disc, shortlist; got 'best'"),
        ({"vector_weight": -1}, "vector_weight: must be in [0, 1000], got -1"),
        ({"shortlist_query": 3}, "shortlist_query: must be text, got int"),
        ({"shortlist_query": " "}, "shortlist_query: must not be empty"),
        ({"decoder": "auto"}, "decoder: must be one of beam, disc; got 'auto'"),
        (
            {"method": "shortlist", "explain": True},
            "explain: needs a decoder, got the method shortlist, which walks no token tree",
        ),
        ({"method": "disc", "explain": True, "adaptive": True, "beam_size": 1}, f"{ALONE} adaptive"),
        ({"method": "disc", "explain": True, "beam_size": 4}, f"{ALONE} beam_size 4"),
        ({"explain": 1}, "explain: must be True or False, got 1"),
        ({"decoder": "disc", "beam_size": 65}, "beam_size: must be in [1, 64] with the method disc, got 65"),
        ({"beam_size": 0}, "beam_size: must be in [1, 1000], got 0"),
        ({"seed": 2**63}, f"seed: must be in [{-(2**63)}, {2**63 - 1}], got {2**63}"),
        ({"temperature": 0.0}, "temperature: must be in [0.01, 100], got 0.0"),
        ({"temperature": math.nan}, "temperature: must be in [0.01, 100], got nan"),
        ({"temperature": "hot"}, "temperature: must be a number, got 'hot'"),
        ({"method": "disc", "min_mass": -0.1}, "min_mass: must be in [0, 1], got -0.1"),
        ({"method": "disc", "min_mass": True}, "min_mass: must be a number, got True"),
        (
            {"method": "disc", "adaptive": True, "beam_size": 2},
            "adaptive: excludes top_m and a beam_size above 1, got beam_size 2",
        ),
        (
            {"method": "disc", "adaptive": True, "beam_size": 2, "top_m": 50},
            "adaptive: excludes top_m and a beam_size above 1, got top_m 50 and beam_size 2",
        ),
        ({"method": "disc", "beam_size": 0}, "beam_size: must be in [1, 64] with the method disc, got 0"),
        (
            {"method": "disc", "num_samples": 256, "num_draws": 33},
            "num_samples: times num_draws times beam_size must be at most 8192, got 8448 (with num_draws 33)",
        ),
        (
            {"method": "disc", "num_draws": 16, "beam_size": 64},
            "num_samples: times num_draws times beam_size must be at most 8192, got 16384 "
            "(with num_draws 16 and beam_size 64)",
        ),
        ({"exact": True, "exact_budget": -1}, "exact_budget: must be in [0, 1000000], got -1"),
        ({"exact_budget": 5}, "exact_budget: needs exact, which is not asked for; got 5"),
        ({"length_penalty": 4.5}, "length_penalty: must be in [-4, 4], got 4.5"),
        ({"aggregate": "mean"}, "aggregate: must be one of sum, max; got 'mean'"),
        (
            {"aggregate": "sum", "length_penalty": 0.5},
            "aggregate: must be max with a length_penalty, as a sum of probabilities has no "
            "length; got sum with length_penalty 0.5",
        ),
        ({"prompt": 3}, "prompt: must be text, got int"),
        ({"filter": b"x"}, "filter: must be text such as kind = 'film', got bytes"),
        ({"filter": "x = '\ud800'"}, "filter: not valid Unicode: half a surrogate pair at character 6"),
        ({"filter": "x ="}, "filter: at character 4: expected a value, got the end"),
        ({"allow_ids": "Q1"}, "allow_ids: must be a sequence of ids, got str"),
        ({"deny_ids": None}, "deny_ids: must be a sequence of ids, got NoneType"),
    ],
)
def test_wrong_field_is_named_with_what_was_expected_and_got(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        RetrieveRequest(**{"query": "x", **fields})
    assert f"{error.value.field}: {error.value.message}" == str(error.value) == message
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("fields", "name", "takers", "got"),
    [
        ({"method": "shortlist", "decoder": "beam"}, "decoder", "auto", "shortlist"),
        ({"method": "beam", "shortlist_size": 3}, "shortlist_size", "auto or shortlist", "beam"),
        ({"method": "disc", "vector_weight": 1.0}, "vector_weight", "auto or shortlist", "disc"),
        ({"method": "beam", "shortlist_query": "x"}, "shortlist_query", "auto or shortlist", "beam"),
        ({"method": "shortlist", "exact": True}, "exact", "beam", "shortlist"),
        ({"method": "shortlist", "min_mass": 0.5}, "min_mass", "disc", "shortlist"),
        ({"decoder": "disc", "aggregate": "max"}, "aggregate", "beam", "auto with the decoder disc"),
        ({"method": "beam", "adaptive": True}, "adaptive", "disc", "beam"),
        ({"method": "disc", "exact_budget": 0}, "exact_budget", "beam", "disc"),
        ({"method": "disc", "length_penalty": -1}, "length_penalty", "beam", "disc"),
    ],
)
def test_options_of_other_methods_are_refused(
    fields: dict[str, Any], name: str, takers: str, got: str
) -> None:
    with pytest.raises(InputError) as error:
        RetrieveRequest("x", **fields)
    assert error.value.field == name
    assert error.value.message == f"needs the method {takers}, got the method {got}"


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
        {"exact": True, "exact_budget": 0, "length_penalty": -4.0},
        {"exact": True, "exact_budget": 10**6, "length_penalty": 4.0, "aggregate": "max"},
        {"aggregate": "sum", "length_penalty": 0.0},
        {"method": "disc", "min_mass": 1.0, "adaptive": True, "beam_size": 1},
        {"method": "disc", "num_samples": 32, "num_draws": 4, "beam_size": 64, "top_m": 1},
    ],
)
def test_bounds_are_included(fields: dict[str, Any]) -> None:
    request = RetrieveRequest("x", **fields)
    assert {name: getattr(request, name) for name in fields} == fields


def test_an_object_of_a_method_asks_as_its_options_do() -> None:
    disc = Disc(num_samples=64, seed=7)
    for method, told in (
        (Beam(exact=True, exact_budget=9), {"method": "beam", "exact": True, "exact_budget": 9}),
        (disc, {"method": "disc", "num_samples": 64, "seed": 7}),
        (Shortlist(shortlist_size=5), {"method": "shortlist", "shortlist_size": 5}),
        (Auto(decoder=disc), {"method": "auto", "decoder": "disc", "num_samples": 64, "seed": 7}),
    ):
        assert with_options(3, method, None, {"explain": False}) == RetrieveRequest("-", k=3, **told)
    with pytest.raises(
        InputError, match=r"seed: must stand in Disc\(.*seed=7.*\), as its field; got 8 beside it"
    ):
        with_options(3, disc, None, {"seed": 8})
    with pytest.raises(InputError, match="exact: needs the method beam"):
        with_options(3, disc, None, {"exact": True})
    with pytest.warns(UserWarning, match="seed has no effect: needs method disc, got the method auto with"):
        assert with_options(3, "auto", None, {"seed": 0}).seed == 0  # not refused: clients may always send it


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Disc(num_draws=0), r"num_draws: must be in \[1, 256\], got 0"),
        (
            lambda: Auto(decoder=Beam(exact_budget=9)),
            "exact_budget: needs exact, which is not asked for; got 9",
        ),
        (lambda: BuildOptions(Path(), threads=0), "threads: must be an integer of at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused_when_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_numpy_numbers_become_plain_ones() -> None:
    request = RetrieveRequest(
        "x",
        k=np.int64(3),
        seed=np.uint32(7),
        temperature=np.float32(0.5),  # type: ignore[arg-type]
    )
    assert [type(v) for v in (request.k, request.seed, request.temperature)] == [int, int, float]
    assert request == RetrieveRequest("x", k=3, seed=7, temperature=0.5)
    with pytest.raises(FrozenInstanceError):
        request.k = 3  # type: ignore[misc]


def test_lists_of_ids_become_tuples() -> None:
    request = RetrieveRequest("x", allow_ids=["a"], deny_ids={"b"})  # type: ignore[arg-type]
    assert (request.allow_ids, request.deny_ids) == (("a",), ("b",))
    assert not request.restriction.is_open
    assert RetrieveRequest("x").restriction.is_open


def test_a_request_is_as_wide_as_its_decoder() -> None:
    for k in (1, 10, 11, params.MAX_K):
        beam = params.BeamParams(k=k, length_penalty=params.MAX_LENGTH_PENALTY)
        assert RetrieveRequest("x", k=k).width == beam.width
    draws = params.MAX_TOTAL_DRAWS // params.MAX_SAMPLES
    for options in (
        {"num_samples": params.MAX_SAMPLES, "num_draws": draws},
        {"num_samples": 32, "num_draws": 4, "beam_size": params.MAX_DISC_BEAM_SIZE},
    ):
        assert RetrieveRequest("x", method="disc", **options).width == params.MAX_TOTAL_DRAWS  # type: ignore[arg-type]
        assert params.DiscParams(**options).width == params.MAX_TOTAL_DRAWS


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


@pytest.mark.parametrize(
    ("mass", "lower", "upper", "bounded"),
    [(0.5, 0.2, 0.9, 0.5), (0.1, 0.2, 0.9, 0.2), (1.1, 0.2, 0.9, 0.9), (1.1, None, None, 1.0)],
)
def test_the_best_figure_for_the_mass_is_within_its_bounds(
    mass: float, lower: float | None, upper: float | None, bounded: float
) -> None:
    result = RetrievalResult("x", "disc", (), mass=mass, mass_lower=lower, mass_upper=upper)
    assert result.bounded_mass == bounded
    nothing = RetrievalResult("x", "beam", ())
    assert (nothing.bounded_mass, nothing.no_match, nothing.kv) == (None, True, KvShare())


@pytest.mark.parametrize(
    ("fields", "aggregation", "budget"),
    [
        ({}, "sum", 0),
        ({"aggregate": "max"}, "max", 0),
        ({"length_penalty": 0.5}, "max", 0),
        ({"length_penalty": -0.0}, "sum", 0),
        ({"exact": True}, "sum", params.DEFAULT_EXACT_BUDGET),
        ({"exact": True, "exact_budget": 0}, "sum", 0),
        ({"exact": True, "exact_budget": 7}, "sum", 7),
    ],
)
def test_what_is_left_open_has_a_value_in_force(
    fields: dict[str, Any], aggregation: str, budget: int
) -> None:
    request = RetrieveRequest("x", **fields)
    assert (request.aggregation, request.budget) == (aggregation, budget)


def test_what_is_in_force_with_each_method() -> None:
    auto, beam = RetrieveRequest("q"), RetrieveRequest("q", method="beam")
    disc = RetrieveRequest("q", decoder="disc", shortlist_query="words", vector_weight=2)
    shortlist = RetrieveRequest("q", method="shortlist", shortlist_size=7)
    assert [r.decoding for r in (auto, disc, shortlist, beam)] == ["beam", "disc", None, "beam"]
    assert [r.proposals for r in (auto, disc, shortlist, beam)] == [24, 24, 7, 0]
    assert RetrieveRequest("q", method="shortlist").proposals == 100
    assert [r.similarity_weight for r in (auto, disc, shortlist)] == [0.0, 2.0, 0.0]
    assert [r.evidence_text for r in (auto, disc)] == ["q", "words"]
    assert [r.width for r in (auto, disc, shortlist)] == [10, 64, 1]
    assert auto.method == "auto"


@pytest.mark.parametrize(
    ("fields", "is_ranked"),
    [
        ({}, True),
        ({"decoder": "disc", "seed": 3, "temperature": 2.0}, True),
        ({"shortlist_size": 3, "title_weight": 1.0, "beam_size": 40, "filter": "a = 1"}, True),
        ({"length_penalty": 0.0}, True),
        ({"vector_weight": 0.0}, False),
        ({"vector_weight": 2.0, "decoder": "disc"}, False),
        ({"exact": True}, False),
        ({"length_penalty": -1.0}, False),
        ({"aggregate": "sum"}, False),
        ({"aggregate": "max"}, False),
        ({"method": "shortlist"}, False),
        ({"method": "beam"}, False),
        ({"method": "disc"}, False),
    ],
)
def test_a_ranking_makes_the_order_of_auto_unless_a_request_has_one(
    fields: dict[str, Any], is_ranked: bool
) -> None:
    assert RetrieveRequest("q", **fields).is_ranked is is_ranked


def test_a_mapping_is_kept_as_text_with_its_order() -> None:
    schema = MappingProxyType({"type": "object", "properties": {"b": True, "a": {"const": "ü"}}})
    text = AnswerRequest("q", schema).schema
    assert text == '{"type": "object", "properties": {"b": true, "a": {"const": "ü"}}}'
    assert AnswerRequest("q", True).schema == "true"
    assert AnswerRequest("q", ' {"a":1}').schema == ' {"a":1}'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": ""}, "query: must not be empty"),
        ({"schema": None}, "schema: needs either a schema or the name of one, got neither"),
        ({"schema_name": "x"}, "schema: needs either a schema or the name of one, got both"),
        ({"schema": 5}, "schema: must be JSON text, a mapping or a boolean, got int"),
        ({"schema": {"a": float("nan")}}, "schema: is no JSON: "),
        ({"schema": {"a": object()}}, "schema: is no JSON: a object is no JSON value"),
        ({"schema": "\ud800"}, "schema: not valid Unicode"),
        ({"method": "best"}, "method: must be one of greedy, sample, beam, disc; got 'best'"),
        ({"max_tokens": 0}, r"max_tokens: must be in \[1, 65536\], got 0"),
        ({"temperature": 0.0}, r"temperature: must be in \[0.01, 100\], got 0.0"),
        ({"beam_size": 0}, r"beam_size: must be in \[1, 1000\], got 0"),
        ({"num_draws": 257}, r"num_draws: must be in \[1, 256\], got 257"),
        ({"shortlist": -1}, r"shortlist: must be in \[0, 1000\], got -1"),
        ({"whitespace": "tabs"}, "whitespace: must be one of compact, spaced, flexible; got 'tabs'"),
        ({"property_order": "az"}, "property_order: must be one of schema, any; got 'az'"),
        ({"formats": True}, "formats: must be one of assert, annotate; got True"),
        ({"extra_properties": "no"}, "extra_properties: must be one of allowed, declared; got 'no'"),
        ({"forced_spans": 1}, "forced_spans: must be True or False, got 1"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AnswerRequest(**{"query": "q", "schema": "true", **fields})


def test_a_deep_mapping_is_refused_in_words() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    with pytest.raises(InputError, match="schema: is no JSON"):
        AnswerRequest("q", schema)


def test_the_width_of_a_request_is_its_branches() -> None:
    widths = {"greedy": 1, "sample": 1, "beam": 7, "disc": 3}
    for method, width in widths.items():
        assert AnswerRequest("q", True, method=method, beam_size=7, num_draws=3).width == width

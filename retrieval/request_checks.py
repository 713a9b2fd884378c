"""What a request may ask for: ranges of its fields, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from decoding.params import (
    MAX_BEAM_SIZE,
    MAX_DISC_BEAM_SIZE,
    MAX_DRAWS,
    MAX_EXACT_BUDGET,
    MAX_K,
    MAX_LENGTH_PENALTY,
    MAX_SAMPLES,
    MAX_TOTAL_DRAWS,
)
from retrieval.arguments import check_text, integer, number
from retrieval.errors import InputError
from retrieval.filters.parser import parse
from retrieval.filters.restriction import Restriction, checked_ids

if TYPE_CHECKING:
    from retrieval.types import RetrieveRequest

METHODS = ("auto", "beam", "disc", "shortlist")
DECODERS = ("beam", "disc")
SCORED_METHODS = ("auto", "shortlist")  # they score every surface form of what they list
AGGREGATES = ("sum", "max")
DEFAULT_NUM_SAMPLES = 16
DEFAULT_SHORTLIST_SIZE = 100
# What evidence puts further behind is hardly ever right, and every candidate costs the model some tokens.
DEFAULT_AUTO_SIZE = 24
# Of what evidence and decoder find together, `auto` has the model score so many, at least k.
DEFAULT_NUM_RANKED = 10
MAX_SHORTLIST_SIZE = 2000
MAX_VECTOR_WEIGHT = 1000.0
# Fitted on labelled mentions (docs/numbers.md): the entity that a name is the title of is meant ten times as
# often as those that have it as an alias, all together.
DEFAULT_TITLE_WEIGHT = 10.0
MIN_TITLE_WEIGHT, MAX_TITLE_WEIGHT = 1e-6, 1e6

# Integer fields: name, least, most, whether None is allowed.
_INTEGERS = (
    ("k", 1, MAX_K, False),
    ("num_draws", 1, MAX_DRAWS, False),
    ("num_samples", 1, MAX_SAMPLES, True),
    ("top_m", 1, 2**31 - 1, True),
    ("seed", -(2**63), 2**63 - 1, True),
    ("exact_budget", 0, MAX_EXACT_BUDGET, True),
    ("shortlist_size", 1, MAX_SHORTLIST_SIZE, True),
)
# Other numbers, likewise.
_NUMBERS = (
    ("temperature", 0.01, 100.0, False),
    ("min_mass", 0.0, 1.0, True),
    ("length_penalty", -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY, False),
    ("vector_weight", 0.0, MAX_VECTOR_WEIGHT, True),
    ("title_weight", MIN_TITLE_WEIGHT, MAX_TITLE_WEIGHT, True),
)


def checked_fields(request: RetrieveRequest) -> dict[str, Any]:
    """Return fields of a request as they are kept: plain numbers, ids read once, the restriction made.

    Raises:
        InputError: a field is out of range, or does not go with another one; it is named.
    """
    check_text("query", request.query)
    if not request.query.strip():
        raise InputError("query", "must not be empty")
    if request.method not in METHODS:
        raise InputError("method", f"must be one of {', '.join(METHODS)}; got {request.method!r}")
    fields = _checked_numbers(request)
    for name in ("adaptive", "exact", "explain"):
        if not isinstance(value := getattr(request, name), bool):
            raise InputError(name, f"must be True or False, got {value!r}")
    if request.aggregate is not None and request.aggregate not in AGGREGATES:
        raise InputError("aggregate", f"must be one of {', '.join(AGGREGATES)}; got {request.aggregate!r}")
    if request.prompt is not None:
        check_text("prompt", request.prompt)
    _check_shortlist(request)
    fields |= _checked_restriction(request)
    return fields | _CHECKED_BY[request.decoding](request)


def _check_shortlist(request: RetrieveRequest) -> None:
    if request.decoder is not None:
        if request.decoder not in DECODERS:
            raise InputError("decoder", f"must be one of {', '.join(DECODERS)}; got {request.decoder!r}")
        if request.method != "auto":
            raise InputError("decoder", f"needs the method auto, got the method {request.method}")
    if request.method not in SCORED_METHODS:
        for name in ("shortlist_size", "vector_weight", "shortlist_query"):
            if getattr(request, name) is not None:
                needed = " or ".join(SCORED_METHODS)
                raise InputError(name, f"needs the method {needed}, got the method {request.method}")
    if request.shortlist_query is not None:
        check_text("shortlist_query", request.shortlist_query)
        if not request.shortlist_query.strip():
            raise InputError("shortlist_query", "must not be empty")


def _checked_numbers(request: RetrieveRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, least, most, optional in _INTEGERS:
        if not ((value := getattr(request, name)) is None and optional):
            fields[name] = integer(name, value, least, most)
    for name, low, high, optional in _NUMBERS:
        if not ((value := getattr(request, name)) is None and optional):
            fields[name] = number(name, value, low, high)
    return fields


def _checked_restriction(request: RetrieveRequest) -> dict[str, Any]:
    predicate = None
    if request.filter is not None:
        check_text("filter", request.filter)
        predicate = parse(request.filter)
    allowed = None if request.allow_ids is None else checked_ids("allow_ids", request.allow_ids)
    denied = checked_ids("deny_ids", request.deny_ids)
    return {
        "allow_ids": allowed,
        "deny_ids": denied,
        "restriction": Restriction(predicate, allowed, denied),
    }


def _checked_beam_size(request: RetrieveRequest, most: int, when: str = "") -> dict[str, Any]:
    if request.beam_size is None:
        return {}
    return {"beam_size": integer("beam_size", request.beam_size, 1, most, when)}


def _checked_beam(request: RetrieveRequest) -> dict[str, Any]:
    """Refuse what changes the meaning of an answer and is not done here."""
    fields = _checked_beam_size(request, MAX_BEAM_SIZE)
    _refuse_disc_options(request)
    if request.exact_budget is not None and not request.exact:
        raise InputError("exact_budget", f"needs exact, which is not asked for; got {request.exact_budget}")
    if request.aggregate == "sum" and request.length_penalty:
        raise InputError(
            "aggregate",
            "must be max with a length_penalty, as a sum of probabilities has no length; "
            f"got sum with length_penalty {request.length_penalty:g}",
        )
    return fields


def _method(request: RetrieveRequest) -> str:
    """Return what an error says that the method is."""
    if request.method == "auto":
        return f"the method auto with the decoder {request.decoding}"
    return f"the method {request.method}"


def _refuse_beam_options(request: RetrieveRequest) -> None:
    asked = {
        "exact": request.exact,
        "exact_budget": request.exact_budget is not None,
        "length_penalty": request.length_penalty != 0,
        "aggregate": request.aggregate is not None,
    }
    for name, is_set in asked.items():
        if is_set:
            raise InputError(name, f"needs the method beam, got {_method(request)}")


def _refuse_disc_options(request: RetrieveRequest) -> None:
    for name, is_set in (("min_mass", request.min_mass is not None), ("adaptive", request.adaptive)):
        if is_set:
            raise InputError(name, f"needs the method disc, got {_method(request)}")


def _checked_shortlist(request: RetrieveRequest) -> dict[str, Any]:
    _refuse_disc_options(request)
    _refuse_beam_options(request)
    if request.explain:
        raise InputError("explain", "needs a decoder, got the method shortlist, which walks no token tree")
    return _checked_beam_size(request, MAX_BEAM_SIZE)


def _checked_disc(request: RetrieveRequest) -> dict[str, Any]:
    _refuse_beam_options(request)
    fields = _checked_beam_size(request, MAX_DISC_BEAM_SIZE, " with the method disc")
    clashes = [f"top_m {request.top_m}"] if request.top_m is not None else []
    clashes += [f"beam_size {request.prefixes}"] if request.prefixes > 1 else []
    if request.adaptive and clashes:
        got = " and ".join(clashes)
        raise InputError("adaptive", f"excludes top_m and a beam_size above 1, got {got}")
    _check_explained_draws(request)
    if (total := request.width) > MAX_TOTAL_DRAWS:
        prefixes = f" and beam_size {request.prefixes}" if request.prefixes > 1 else ""
        raise InputError(
            "num_samples",
            f"times num_draws times beam_size must be at most {MAX_TOTAL_DRAWS}, got {total} "
            f"(with num_draws {request.num_draws}{prefixes})",
        )
    return fields


def _check_explained_draws(request: RetrieveRequest) -> None:
    """Refuse draws that have no one way through the token tree and no one sample that they are of."""
    if not request.explain:
        return
    clashes = ["adaptive"] if request.adaptive else []
    clashes += [f"a beam_size of {request.prefixes}"] if request.prefixes > 1 else []
    if clashes:
        raise InputError(
            "explain",
            "cannot be combined with adaptive or a beam_size above 1 with the method disc; "
            f"got {' and '.join(clashes)}",
        )


_CHECKED_BY: dict[str | None, Callable[[RetrieveRequest], dict[str, Any]]] = {
    "beam": _checked_beam,
    "disc": _checked_disc,
    None: _checked_shortlist,
}

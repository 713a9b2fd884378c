"""What a request may ask for: ranges of its fields, and which of them go together."""

from __future__ import annotations

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

METHODS = ("beam", "disc")
AGGREGATES = ("sum", "max")
DEFAULT_NUM_SAMPLES = 16

# Integer fields: name, least, most, whether None is allowed.
_INTEGERS = (
    ("k", 1, MAX_K, False),
    ("num_draws", 1, MAX_DRAWS, False),
    ("num_samples", 1, MAX_SAMPLES, True),
    ("top_m", 1, 2**31 - 1, True),
    ("seed", -(2**63), 2**63 - 1, True),
    ("exact_budget", 0, MAX_EXACT_BUDGET, True),
)
# Other numbers, likewise.
_NUMBERS = (
    ("temperature", 0.01, 100.0, False),
    ("min_mass", 0.0, 1.0, True),
    ("length_penalty", -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY, False),
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
    fields |= _checked_restriction(request)
    return fields | (_checked_disc if request.method == "disc" else _checked_beam)(request)


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
    for name, is_set in (("min_mass", request.min_mass is not None), ("adaptive", request.adaptive)):
        if is_set:
            raise InputError(name, "needs the method disc, got the method beam")
    if request.exact_budget is not None and not request.exact:
        raise InputError("exact_budget", f"needs exact, which is not asked for; got {request.exact_budget}")
    if request.aggregate == "sum" and request.length_penalty:
        raise InputError(
            "aggregate",
            "must be max with a length_penalty, as a sum of probabilities has no length; "
            f"got sum with length_penalty {request.length_penalty:g}",
        )
    return fields


def _checked_disc(request: RetrieveRequest) -> dict[str, Any]:
    asked = {
        "exact": request.exact,
        "exact_budget": request.exact_budget is not None,
        "length_penalty": request.length_penalty != 0,
        "aggregate": request.aggregate is not None,
    }
    for name, is_set in asked.items():
        if is_set:
            raise InputError(name, "needs the method beam, got the method disc")
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

"""The options that `Retriever.retrieve` and `Retriever.link` take beside their own arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from retrieval.types import RetrieveRequest


class RequestOptions(TypedDict, total=False):
    """Fields of `retrieval.types.RetrieveRequest`, which says what they mean and checks them."""

    beam_size: int | None
    num_draws: int
    num_samples: int | None
    temperature: float
    top_m: int | None
    seed: int | None
    min_mass: float | None
    adaptive: bool
    exact: bool
    exact_budget: int | None
    length_penalty: float
    aggregate: str | None
    filter: str | None
    allow_ids: Iterable[str] | None
    deny_ids: Iterable[str]
    explain: bool
    shortlist_size: int | None
    decoder: str | None
    vector_weight: float | None
    shortlist_query: str | None
    title_weight: float | None


def with_options(k: int, method: str, prompt: str | None, options: RequestOptions) -> RetrieveRequest:
    """Return a request that stands for all that are asked with the same options; its query is a placeholder.

    Raises:
        InputError: an option is out of range; it is named.
    """
    fields: dict[str, Any] = dict(options)  # a request takes any iterable of ids, and reads it once
    return RetrieveRequest("-", k=k, method=method, prompt=prompt, **fields)

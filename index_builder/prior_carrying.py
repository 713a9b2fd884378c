"""Priors of the version before, for the entities of a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from index_builder.changes import equal_entities
from index_builder.version_run import VersionRun
from retrieval.entity_rows import EntityRows
from retrieval.index.layout import ALIASES, TITLE
from retrieval.index.owners import FormOwners
from retrieval.index.priors import Prior
from retrieval.index.reader import Index

_AT_ONCE = 1 << 16
_FORMS = [TITLE, ALIASES]


def carried_over(prior: Prior, old: Index, new: Index, number_of_old: npt.NDArray[np.int64]) -> Prior:
    """Return the prior of a new version: that of entities with the same forms and the same shares in them.

    An entity that shares a form gains or loses probability when another owner comes, goes or changes.

    Args:
        prior: The old version's.
        old: The version before.
        new: The new version.
        number_of_old: For every new entity the number it had, or -1. Shape: (num_entities,).
    """
    logprobs = np.full(new.num_entities, np.nan, np.float32)
    known = np.flatnonzero(number_of_old >= 0)
    is_shared = _has_shared_forms(new)[known] | _has_shared_forms(old)[number_of_old[known]]
    shares_of_new, shares_of_old = (_shares_in(index, prior.title_weight) for index in (new, old))
    run_of_new, run_of_old = VersionRun(new), VersionRun(old)
    for begin in range(0, len(known), _AT_ONCE):
        mine = known[begin : begin + _AT_ONCE]
        theirs = number_of_old[mine]
        same = equal_entities(
            run_of_new.entities_at(mine).select(_FORMS), run_of_old.entities_at(theirs).select(_FORMS)
        )
        for at in np.flatnonzero(same & is_shared[begin : begin + _AT_ONCE]).tolist():
            same[at] = shares_of_new(int(mine[at])) == shares_of_old(int(theirs[at]))
        logprobs[mine[same]] = prior.logprobs[theirs[same]]
    return replace(prior, logprobs=logprobs)


def _has_shared_forms(index: Index) -> npt.NDArray[np.bool_]:
    """Return which entities share a form with another one. Shape: (num_entities,)."""
    has_shared = np.zeros(index.num_entities, np.bool_)
    if not index.is_one_to_one:
        owners = np.diff(index.postings.offsets)
        has_shared[index.postings.entity[np.repeat(owners > 1, owners)]] = True
    return has_shared


def _shares_in(index: Index, title_weight: float) -> Callable[[int], dict[tuple[int, ...], float]]:
    """Return what gives an entity's log share in each of its rows."""
    rows, owners = EntityRows(index), FormOwners(index, None, title_weight)
    return lambda entity: {
        index.row_token_ids(rank): owners(rank).log_share(entity) for rank in rows.of(entity)
    }

"""KILT's metrics over evidence sets (Petroni et al. 2021, section 5, and its scripts/eval_retrieval).

An evidence set holds the pages that together support one answer. Pages that are guessed twice count once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from retrieval.evaluation.types import LabelledQuery


def evidence_sets(query: LabelledQuery) -> tuple[frozenset[str], ...]:
    """Return the distinct sets of a query; where it has none, every relevant entity is one."""
    distinct = tuple(pages for pages in dict.fromkeys(query.evidence) if pages)
    if distinct:
        return distinct
    return tuple(frozenset([entity]) for entity, grade in query.gold.items() if grade > 0)


def r_precision(sets: Collection[frozenset[str]], guesses: Sequence[str]) -> float:
    """Return the share of a set's R pages among the first R guesses, for the set where it is largest.

    Args:
        sets: Evidence sets; 0.0 without any.
        guesses: Distinct, best first.
    """
    return max((len(pages.intersection(guesses[: len(pages)])) / len(pages) for pages in sets), default=0.0)


def evidence_ranks(sets: Collection[frozenset[str]], guesses: Sequence[str]) -> list[bool]:
    """Return the ranking in which each evidence set is one answer: whether each place completes a set.

    All pages of a set that have been guessed share one place, that of the last of them, until another one is
    guessed; the place is right when the set is complete. A guess that is in no set has a place to itself. A
    page in several sets has a place in each.
    """
    left = [set(pages) for pages in sets]
    places: list[int | bool] = []  # True: complete; False: in no set; a number from 2: of an open set, plus 2
    for page in guesses:
        in_some = False
        for number, pages in enumerate(left):
            if page not in pages:
                continue
            in_some = True
            pages.remove(page)
            mark = number + 2
            if mark in places:
                places.remove(mark)
            places.append(mark if pages else True)
        if not in_some:
            places.append(False)
    return [place is True for place in places]


def evidence_recall(sets: Collection[frozenset[str]], guesses: Sequence[str], k: int) -> float:
    """Return the share of the evidence sets that are complete in the first k places."""
    return sum(evidence_ranks(sets, guesses)[:k]) / len(sets) if sets else 0.0


def evidence_success(sets: Collection[frozenset[str]], guesses: Sequence[str], k: int) -> float:
    """Return 1.0 where a whole evidence set is in the first k places, else 0.0."""
    return float(any(evidence_ranks(sets, guesses)[:k]))


def evidence_precision(sets: Collection[frozenset[str]], guesses: Sequence[str], k: int) -> float:
    """Return the number of evidence sets complete in the first k places, divided by k."""
    return sum(evidence_ranks(sets, guesses)[:k]) / k

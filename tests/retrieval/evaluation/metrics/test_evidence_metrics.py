"""KILT's metrics: a worked example, and its definition written in another way, over random sets."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from retrieval.evaluation.labelled_sets import LabelledQuery
from retrieval.evaluation.metrics import evidence_ranks, measure
from tests.evaluation_sets import labelled_set, run_of

# Two ways to the answer, one of two pages and one of one; guesses in the order in which they were made.
SETS = (frozenset("AB"), frozenset("C"))
GUESSES = ["A", "x", "A", "B", "y", "C"]


def _measured(
    names: Sequence[str], sets: Sequence[frozenset[str]], guesses: Sequence[str]
) -> dict[str, float]:
    gold = {page: 1 for pages in sets for page in pages}
    labelled = labelled_set([LabelledQuery("q", "text", gold=gold, evidence=tuple(sets))], "kilt")
    return {m.name: m.value for m in measure(labelled, run_of(labelled, [guesses]), names)}


def test_an_example_worked_by_hand() -> None:
    # Guesses without repetition: A x B y C. R-precision: of {A, B}, the first 2 are A x: 1/2; of {C}, the
    # first is A: 0. Places: A opens {A, B}; x; B completes it, and its place moves behind x: x, {A, B}, y, C.
    found = _measured(
        [
            "Rprec(KILT)",
            "R@1(KILT)",
            "R@2(KILT)",
            "R@4(KILT)",
            "P@4(KILT)",
            "Success@1(KILT)",
            "Success@2(KILT)",
        ],
        SETS,
        GUESSES,
    )
    assert found == {
        "Rprec(KILT)": 0.5,
        "R@1(KILT)": 0.0,
        "R@2(KILT)": 0.5,
        "R@4(KILT)": 1.0,
        "P@4(KILT)": 0.5,
        "Success@1(KILT)": 0.0,
        "Success@2(KILT)": 1.0,
    }


def _r_precision(sets: Sequence[frozenset[str]], guesses: Sequence[str]) -> float:
    shares = []
    for pages in sets:
        distinct: list[str] = []
        for guess in guesses:
            if guess not in distinct and len(distinct) < len(pages):
                distinct.append(guess)
        shares.append(sum(guess in pages for guess in distinct) / len(pages))
    return max(shares)


def _completions(sets: Sequence[frozenset[str]], guesses: Sequence[str]) -> list[bool]:
    """The places after the last guess, each set's at its last guessed page: seen from the end."""
    distinct = list(dict.fromkeys(guesses))
    at: list[tuple[int, int, bool]] = []
    for number, pages in enumerate(dict.fromkeys(sets)):
        places = [distinct.index(page) for page in pages if page in distinct]
        if places:
            at.append((max(places), number, len(places) == len(pages)))
    in_some = frozenset().union(*sets)
    at += [(place, -1, False) for place, guess in enumerate(distinct) if guess not in in_some]
    return [complete for _, _, complete in sorted(at)]


@pytest.mark.parametrize("seed", range(60))
def test_random_sets_are_measured_as_defined(seed: int) -> None:
    random_ = random.Random(seed)
    pages = "ABCDEFGH"
    sets = [frozenset(random_.sample(pages, random_.randrange(1, 4))) for _ in range(random_.randrange(1, 5))]
    guesses = [random_.choice(pages + "uvwxyz") for _ in range(random_.randrange(1, 14))]
    k = random_.randrange(1, 8)
    found = _measured(["Rprec(KILT)", f"R@{k}(KILT)", f"Success@{k}(KILT)", f"P@{k}(KILT)"], sets, guesses)
    places = _completions(sets, guesses)
    assert evidence_ranks(tuple(dict.fromkeys(sets)), list(dict.fromkeys(guesses))) == places
    assert list(found.values()) == pytest.approx(
        [
            _r_precision(sets, guesses),
            sum(places[:k]) / len(set(sets)),
            float(True in places[:k]),
            sum(places[:k]) / k,
        ],
        abs=1e-9,
    )


def test_it_is_not_the_r_precision_of_trec() -> None:
    sets = (frozenset("A"), frozenset("B"))
    labelled = labelled_set([LabelledQuery("q", "t", gold={"A": 1, "B": 1}, evidence=sets)], "kilt")
    found = measure(labelled, run_of(labelled, [["A", "x"]]), ["Rprec(KILT)", "Rprec"])
    assert [m.value for m in found] == [1.0, 0.5]


def test_without_evidence_every_relevant_entity_is_a_set() -> None:
    labelled = labelled_set([LabelledQuery("q", "t", gold={"A": 1, "B": 2, "C": 0})])
    found = measure(labelled, run_of(labelled, [["C", "B", "A"]]), ["Rprec(KILT)", "R@2(KILT)", "R@3(KILT)"])
    assert [m.value for m in found] == [0.0, 0.5, 1.0]


def test_an_empty_set_is_none() -> None:
    assert _measured(["Rprec(KILT)", "R@1(KILT)"], (frozenset(), frozenset("A")), ["A"]) == {
        "Rprec(KILT)": 1.0,
        "R@1(KILT)": 1.0,
    }


def test_no_guess_is_worth_nothing() -> None:
    assert set(_measured(["Rprec(KILT)", "R@5(KILT)", "Success@5(KILT)"], SETS, []).values()) == {0.0}


def test_a_namesake_of_a_page_completes_a_set_once() -> None:
    query = LabelledQuery("q", "t", gold={"A": 1, "B": 1}, evidence=(frozenset("AB"),), namesakes={"A2": "A"})
    labelled = labelled_set([query], "kilt")
    names = ["Rprec(KILT)", "R@1(KILT)"]
    assert [m.value for m in measure(labelled, run_of(labelled, [["A2", "B"]]), names)] == [1.0, 1.0]
    assert [m.value for m in measure(labelled, run_of(labelled, [["A2", "A"]]), names)] == [0.5, 0.0]


def test_pages_the_index_lacks_keep_a_set_incomplete() -> None:
    sets = (frozenset(["A", "missing:B"]),)
    assert _measured(["Rprec(KILT)", "Success@5(KILT)"], sets, ["A", "C"]) == {
        "Rprec(KILT)": 0.5,
        "Success@5(KILT)": 0.0,
    }

"""Running methods on sets: order, seeds, what is kept, and answers that must not be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from genret.retrieval.evaluation.datasets.index_entities import EntityFinder
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, RankedAnswers, RankedEntity
from genret.retrieval.evaluation.method_runner import (
    AnswerOutsideIndexError,
    EvaluationProgress,
    plan_tasks,
    run_tasks,
)
from genret.retrieval.evaluation.run_files import Identity, RunStore
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import make_index, train_tokenizer
from tests.evaluation_fixtures import mention_set, query_set

IDENTITY = Identity("i", "m", "float32", 10, 64, None, {})
SETS = (query_set(), mention_set())


class ScriptedMethod:
    """Answers one entity to everything, and writes down what it was asked."""

    def __init__(
        self, name: str, entity_id: str = "Q1", constrained: bool = True, random: bool = False
    ) -> None:
        self.name = name
        self.is_constrained = constrained
        self.is_random = random
        self.entity = RankedEntity(entity_id, "title", 1.0)
        self.calls: list[tuple[int, int]] = []

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[RankedAnswers]:
        self.calls.append((len(queries), seed))
        report(len(queries))
        return [RankedAnswers(query.query_id, (self.entity,), 0.001) for query in queries]


@pytest.fixture(scope="module")
def titles(tmp_path_factory: pytest.TempPathFactory) -> EntityFinder:
    tokenizer = TextTokenizer(train_tokenizer(), "</s>", "trained")
    return EntityFinder(Index.open(make_index(tmp_path_factory.mktemp("runner"), tokenizer)))


def no_report(_: EvaluationProgress) -> None:
    """Say nothing."""


def test_every_method_answers_every_set_with_every_seed(titles: EntityFinder, tmp_path: Path) -> None:
    fixed, drawn = ScriptedMethod("beam"), ScriptedMethod("disc:1", random=True)
    tasks = plan_tasks(SETS, [fixed, drawn], [4, 5])
    reports: list[EvaluationProgress] = []
    runs = run_tasks(tasks, RunStore(tmp_path / "o", IDENTITY, False), titles, reports.append)
    passes = [("beam", None), ("disc:1", 4), ("disc:1", 5)]
    expected = [(name, *one) for name in ("asked", "marked") for one in passes]
    assert [(run.set_name, run.method, run.seed) for run in runs] == expected
    assert fixed.calls == [(2, 0), (6, 0), (4, 0)]  # warmed up once
    assert drawn.calls == [(2, 4), (6, 4), (6, 5), (4, 4), (4, 5)]
    assert [len(run.rankings) for run in runs] == [6, 6, 6, 4, 4, 4]
    assert all(run.seconds > 0 for run in runs)
    assert [(p.number, p.num_answered) for p in reports[:2]] == [(1, 0), (1, 6)]


def test_what_is_done_is_not_done_again(titles: EntityFinder, tmp_path: Path) -> None:
    class Stopped(ScriptedMethod):
        def answer(
            self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
        ) -> list[RankedAnswers]:
            raise KeyboardInterrupt

    first = ScriptedMethod("beam")
    tasks, store = plan_tasks(SETS, [first, Stopped("exact")], [0]), RunStore(tmp_path / "o", IDENTITY, False)
    with pytest.raises(KeyboardInterrupt):
        run_tasks(tasks, store, titles, no_report)
    again, second = ScriptedMethod("beam", "Q2"), ScriptedMethod("exact", "Q3")
    store = RunStore(tmp_path / "o", IDENTITY, True)
    runs = run_tasks(plan_tasks(SETS, [again, second], [0]), store, titles, no_report)
    answers = {(run.set_name, run.method): run.rankings[0].entities[0].entity_id for run in runs}
    assert answers == {
        ("asked", "beam"): "Q1",
        ("asked", "exact"): "Q3",
        ("marked", "beam"): "Q2",
        ("marked", "exact"): "Q3",
    }


@pytest.mark.parametrize("entity_id", ["invalid:Atlantis", "Q99"])
def test_a_constrained_method_must_not_answer_what_is_not_there(
    titles: EntityFinder, tmp_path: Path, entity_id: str
) -> None:
    tasks = plan_tasks(SETS[:1], [ScriptedMethod("trie", entity_id)], [0])
    for resume in (False, True):  # nor may it be read back
        store = RunStore(tmp_path / "o", IDENTITY, resume)
        with pytest.raises(AnswerOutsideIndexError, match="trie on asked, query q1: answered 'title'"):
            run_tasks(tasks, store, titles, no_report)


def test_a_free_method_may(titles: EntityFinder, tmp_path: Path) -> None:
    free = ScriptedMethod("unconstrained", "invalid:Atlantis", constrained=False)
    store = RunStore(tmp_path / "o", IDENTITY, False)
    (run,) = run_tasks(plan_tasks(SETS[:1], [free], [0]), store, titles, no_report)
    assert not run.rankings[0].entities[0].is_valid

"""Runs methods on sets, one after another, and keeps every run as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retrieval.errors import GenretError
from retrieval.evaluation.catalogue import IndexTitles
from retrieval.evaluation.methods.method import EvaluatedMethod
from retrieval.evaluation.run_store import RunStore
from retrieval.evaluation.types import LabelledSet, MethodRun, Ranking

_WARM_UP_QUERIES = 2


class InvalidAnswerError(GenretError):
    """A method that can only answer what exists answered something else: nothing it did can be trusted."""


@dataclass(frozen=True, slots=True)
class Task:
    """One method on one set with one seed; None: the method draws nothing."""

    labelled: LabelledSet
    method: EvaluatedMethod
    seed: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an evaluation is.

    Attributes:
        task: The one that runs.
        number: Of the task, from 1.
        num_tasks: Of the evaluation, with those that were done before.
        num_answered: Queries of the task that are answered.
        seconds: Since the task began.
    """

    task: Task
    number: int
    num_tasks: int
    num_answered: int
    seconds: float


def plan_tasks(
    sets: Sequence[LabelledSet], methods: Sequence[EvaluatedMethod], seeds: Sequence[int]
) -> list[Task]:
    """Return every method on every set, with every seed where it draws."""
    return [
        Task(labelled, method, seed)
        for labelled in sets
        for method in methods
        for seed in (seeds if method.is_random else [None])
    ]


def run_tasks(
    tasks: Sequence[Task],
    store: RunStore,
    titles: IndexTitles,
    report: Callable[[Progress], None],
    num_warm_up: int = _WARM_UP_QUERIES,
) -> list[MethodRun]:
    """Return what every task came to, in order; what the store has is not done again.

    Args:
        tasks: What is run.
        store: Keeps every run.
        titles: Of the index.
        report: Gets told how far it is.
        num_warm_up: Queries that every method answers first, for nothing: best a batch of the usual size.

    Raises:
        InvalidAnswerError: a constrained method answered what the index lacks.
    """
    runs = []
    warm: set[str] = set()
    for number, task in enumerate(tasks, 1):
        run = store.load(task.labelled, task.method.name, task.seed)
        if run is None:
            if task.method.name not in warm:  # what is made on first use is no query's time
                _ask(task, num_warm_up, lambda _: None)
                warm.add(task.method.name)
            run = _run(task, number, len(tasks), report)
            store.save(task.labelled, run)
        check_valid(run, titles)
        runs.append(run)
    return runs


def check_valid(run: MethodRun, titles: IndexTitles) -> None:
    """Refuse a run of a constrained method with an answer that the index lacks.

    Raises:
        InvalidAnswerError: it has one; the text names query and answer.
    """
    if not run.is_constrained:
        return
    answered = list({entity.entity_id for ranking in run.rankings for entity in ranking.entities})
    known = titles.known(answered)
    for ranking in run.rankings:
        for entity in ranking.entities:
            if entity.entity_id not in known:
                raise InvalidAnswerError(
                    f"{run.method} on {run.set_name}, query {ranking.query_id}: answered {entity.title!r} "
                    f"({entity.entity_id}), which the index lacks, although it is constrained to the index"
                )


def _run(task: Task, number: int, num_tasks: int, report: Callable[[Progress], None]) -> MethodRun:
    started = time.perf_counter()

    def answered(count: int) -> None:
        report(Progress(task, number, num_tasks, count, time.perf_counter() - started))

    answered(0)
    rankings = _ask(task, None, answered)
    return MethodRun(
        method=task.method.name,
        set_name=task.labelled.name,
        rankings=tuple(rankings),
        seconds=time.perf_counter() - started,
        seed=task.seed,
        is_constrained=task.method.is_constrained,
    )


def _ask(task: Task, limit: int | None, report: Callable[[int], None]) -> list[Ranking]:
    return task.method.answer(task.labelled.queries[:limit], task.seed or 0, report)

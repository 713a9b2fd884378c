"""Runs methods on sets, keeps every run as soon as it is done, and reports progress on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from genret.retrieval.errors import GenretError
from genret.retrieval.evaluation.datasets.index_entities import EntityFinder
from genret.retrieval.evaluation.labelled_sets import LabelledSet, MethodRun
from genret.retrieval.evaluation.methods.evaluated_method import EvaluatedMethod
from genret.retrieval.evaluation.run_files import RunStore
from genret.retrieval.progress import ProgressDisplay, duration


class AnswerOutsideIndexError(GenretError):
    """A constrained method answered what the index lacks: nothing it did can be trusted."""


class Task(NamedTuple):
    """One method on one set with one seed; None: the method draws nothing."""

    labelled: LabelledSet
    method: EvaluatedMethod
    seed: int | None


# Is told the running task, its number among all from 1, how many of its queries are answered, and the seconds
# since it began.
Report = Callable[[Task, int, int, float], None]


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
    titles: EntityFinder,
    report: Report,
    num_warm_up: int,
) -> list[MethodRun]:
    """Return the run of every task, in order; runs that the store has are not repeated.

    Every method first answers `num_warm_up` queries untimed: best a batch of the usual size. Raises
    `AnswerOutsideIndexError` (`check_valid`).
    """
    runs = []
    warm: set[str] = set()
    for number, task in enumerate(tasks, 1):
        run = store.load(task.labelled, task.method.name, task.seed)
        if run is None:
            if task.method.name not in warm:  # what is made on first use is no query's time
                task.method.answer(task.labelled.queries[:num_warm_up], task.seed or 0, lambda _: None)
                warm.add(task.method.name)
            run = _run(task, number, report)
            store.save(task.labelled, run)
        check_valid(run, titles)
        runs.append(run)
    return runs


def check_valid(run: MethodRun, titles: EntityFinder) -> None:
    """Raise `AnswerOutsideIndexError` if a constrained method answered what the index lacks."""
    if not run.is_constrained:
        return
    answered = list({entity.entity_id for ranking in run.rankings for entity in ranking.entities})
    known = titles.known(answered)
    for ranking in run.rankings:
        for entity in ranking.entities:
            if entity.entity_id not in known:
                raise AnswerOutsideIndexError(
                    f"{run.method} on {run.set_name}, query {ranking.query_id}: answered {entity.title!r} "
                    f"({entity.entity_id}), which the index lacks, although it is constrained to the index"
                )


def _run(task: Task, number: int, report: Report) -> MethodRun:
    started = time.perf_counter()

    def answered(count: int) -> None:
        report(task, number, count, time.perf_counter() - started)

    answered(0)
    rankings = task.method.answer(task.labelled.queries, task.seed or 0, answered)
    return MethodRun(
        method=task.method.name,
        set_name=task.labelled.name,
        rankings=tuple(rankings),
        seconds=time.perf_counter() - started,
        seed=task.seed,
        is_constrained=task.method.is_constrained,
    )


class Reporter:
    """Shows the running task, its speed, and the time left.

    Tasks to come are expected to be as fast as their method was before, or as the mean of all that ran.
    """

    def __init__(self, tasks: Sequence[Task], display: ProgressDisplay) -> None:
        self._display = display
        self._tasks = tasks
        self._speeds: dict[str, float] = {}  # queries per second, by method
        if display.is_live:  # elsewhere the first line is due at once
            display.begin("", note="evaluating")

    def report(self, task: Task, number: int, num_answered: int, seconds: float) -> None:
        """Show where the evaluation is (see `Report`)."""
        if num_answered and seconds > 0:
            self._speeds[task.method.name] = num_answered / seconds
        is_last = num_answered >= len(task.labelled.queries)
        self._display.show(self._line(task, number, num_answered), is_last=is_last)

    def _line(self, task: Task, number: int, num_answered: int) -> str:
        total = len(task.labelled.queries)
        seed = "" if task.seed is None else f" (seed {task.seed})"
        text = f"{number}/{len(self._tasks)} {task.labelled.name} {task.method.name}{seed}: "
        text += f"{num_answered:,}/{total:,}"
        speed = self._speeds.get(task.method.name)
        if not num_answered or not speed:
            return text
        text += f", {speed:,.1f}/s"
        left = (total - num_answered) / speed + self._later(number)
        return f"{text}, {duration(left)} left" if left >= 1 else text

    def _later(self, number: int) -> float:
        """Return the expected seconds of the tasks behind one."""
        mean = len(self._speeds) / sum(1 / speed for speed in self._speeds.values())
        return sum(
            len(task.labelled.queries) / self._speeds.get(task.method.name, mean)
            for task in self._tasks[number:]
        )

"""Signals at random moments, over and over on one index: it is always one of the two it may be, and sound."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import list_versions
from genret.retrieval.interruption import INTERRUPTED
from tests.faults.command import Outcome
from tests.faults.stage import FRESH, OVER, Stage, check_no_traceback
from tests.fuzz.rich_index import lines

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(1800)]

_TOKENIZER = ("--tokenizer", "{folder}/tokenizer.json")
_ADD = ("update", "{index}", *_TOKENIZER, "--add", "{folder}/more.tsv", "--keep-versions", "1")
_REMOVE = ("update", "{index}", "--remove", "{folder}/gone.txt", "--ignore-missing", "--keep-versions", "1")

Content = frozenset[tuple[str, str]]


def pairs(rows: list[str]) -> Content:
    """Return (id, title) of the rows of a titles file without its header."""
    return frozenset((cells[0], " ".join(cells[1].split())) for cells in (row.split("\t") for row in rows))


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and what it makes of an index."""

    command: tuple[str, ...]
    replaces: Content | None = None
    adds: Content = frozenset()
    removes: frozenset[str] = frozenset()

    def applied_to(self, content: Content) -> Content:
        if self.replaces is not None:
            return self.replaces
        gone = self.removes | {entity_id for entity_id, _ in self.adds}
        return self.adds | {pair for pair in content if pair[0] not in gone}


def steps(stage: Stage) -> list[Step]:
    more = (stage.folder / "more.tsv").read_text().splitlines()[1:]
    gone = (stage.folder / "gone.txt").read_text().split()
    return [
        Step(FRESH.command, replaces=pairs(lines(40)[1:])),
        Step(OVER.command, replaces=pairs(lines(47)[1:])),
        Step(_ADD, adds=pairs(more)),
        Step(_REMOVE, removes=frozenset(gone)),
    ]


def content_of(index: Path) -> Content:
    """Return (id, title) of every entity of the live version, which must be sound."""
    report = verify(index)
    assert report.ok, report.problems
    with Index.open(index) as opened:
        entities = [opened.entity(number) for number in range(opened.num_entities)]
    return frozenset((entity.entity_id, entity.title) for entity in entities)


def struck(stage: Stage, step: Step, index: Path, delay_s: float, number: signal.Signals) -> Outcome:
    """Run a command and send it a signal after a while."""
    command = stage.start(step.command, index)
    command.begin()
    time.sleep(delay_s)
    command.kill(number)
    return command.wait()


def usual_seconds(stage: Stage, index: Path) -> float:
    """Return how long a build runs here and now when nobody disturbs it."""
    command = stage.start(FRESH.command, index)
    command.begin()
    begun = time.monotonic()
    assert command.wait().status == 0
    return time.monotonic() - begun


def was_not_begun(outcome: Outcome) -> bool:
    """Whether the signal came while click was still reading the arguments; it has its own words for that."""
    return outcome.status == 1 and outcome.stderr.strip() == "Aborted!"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_signals(stage: Stage, tmp_path: Path, number: signal.Signals, seed: int) -> None:
    generator = random.Random(seed)
    choices = steps(stage)
    index = tmp_path / "it.index"
    assert stage.run(FRESH.command, index).status == 0
    content = content_of(index)
    usual_s = usual_seconds(stage, index)
    stopped = published = rounds = 0
    while rounds < 60 or stopped < 20 or published < 5:
        rounds += 1
        step = generator.choice(choices)
        outcome = struck(stage, step, index, generator.uniform(0, usual_s), number)
        wanted = step.applied_to(content)
        found = content_of(index)
        assert found in (content, wanted), (step.command, outcome)
        if outcome.status == 0:
            assert found == wanted
        elif number == signal.SIGKILL:
            assert outcome.status == -signal.SIGKILL
        else:
            assert outcome.status == INTERRUPTED or was_not_begun(outcome), outcome
            check_no_traceback(outcome)
            assert not (index / "staging").exists()
        usual_s *= 0.95 if outcome.status == 0 else 1.04  # the load of the machine changes
        stopped += outcome.status != 0
        published += found != content
        content = found
    for version in list_versions(index):
        assert verify(index / "versions" / version).ok, "what a death has half removed is no version"
    assert stage.run(FRESH.command, index).status == 0
    assert content_of(index) == pairs(lines(40)[1:])
    assert sorted(path.name for path in index.iterdir()) == [".lock", "CURRENT", "versions"]

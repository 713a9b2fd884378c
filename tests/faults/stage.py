"""What the commands under fault work on: catalogues, a tokenizer, and indexes to begin with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from genret.retrieval.errors import IndexNotFoundError
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import live_version
from tests.checkpoints import make_checkpoint
from tests.faults.command import NORMAL, Circumstances, Command, Outcome
from tests.fuzz.rich_index import TOKENIZER, lines
from tests.index_fixtures import END, data_files, write_titles


@dataclass(frozen=True, slots=True)
class Scenario:
    """A command that meets a fault, and those that were run before; {index} and {folder} stand for places."""

    name: str
    setup: tuple[tuple[str, ...], ...]
    command: tuple[str, ...]
    repeatable: bool = True  # whether the command changes nothing when it has been done

    def __str__(self) -> str:
        return self.name


_OPTIONS = ("--out", "{index}", "--tokenizer", "{folder}/tokenizer.json", "--end-token", END)
_BUILD = ("build", "{folder}/first.tsv", *_OPTIONS)
_BUILD_OTHER = ("build", "{folder}/second.tsv", *_OPTIONS, "--keep-versions", "0")
_UPDATE = ("update", "{index}", "--tokenizer", "{folder}/tokenizer.json", "--keep-versions", "0")
_CHANGES = ("--add", "{folder}/more.tsv", "--remove", "{folder}/gone.txt")

FRESH = Scenario("fresh", (), _BUILD)
OVER = Scenario("over", (_BUILD,), _BUILD_OTHER)
UPDATE = Scenario("update", (_BUILD,), (*_UPDATE, *_CHANGES), repeatable=False)
ROLLBACK = Scenario("rollback", (_BUILD, ("build", *_BUILD_OTHER[1:-1], "2")), ("rollback", "{index}"), False)
_BUILD_LARGER = ("build", "{folder}/larger.tsv", *_OPTIONS, "--keep-versions", "0")
_ASKED = ("--evidence-columns", "note", "--queries", "{folder}/asked.tsv")
EVIDENCE = Scenario("evidence", (_BUILD,), (*_BUILD_LARGER, *_ASKED))
_WITHOUT = (*_BUILD_LARGER, "--evidence", "none")
EVIDENCE_ADDED = Scenario("evidence-added", (_WITHOUT,), (*_UPDATE, "--evidence", "all", *_ASKED), False)
EVIDENCE_UPDATED = Scenario("evidence-updated", ((*_BUILD_LARGER, *_ASKED),), (*_UPDATE, *_CHANGES), False)
_ENCODER = ("--vectors", "encoder:{folder}/encoder", "--evidence-columns", "note", "--threads", "1")
VECTORS = Scenario("vectors", (_BUILD,), (*_BUILD_OTHER, *_ENCODER))
_UPDATE_VECTORS = (*_UPDATE, *_CHANGES, "--threads", "1")
VECTORS_UPDATED = Scenario("vectors-updated", ((*_BUILD, *_ENCODER),), _UPDATE_VECTORS, False)
SCENARIOS = (FRESH, OVER, UPDATE, ROLLBACK)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scenario played once without any fault: the index, its live version before and after, its files."""

    scenario: Scenario
    template: Path  # the index before the command; absent when there was none
    before: str | None
    after: str
    tree: Mapping[str, bytes]
    data_files: Mapping[str, bytes]  # of the new version, but the manifest, which tells its history


class Stage:
    """A directory with catalogues and prepared scenarios."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        TOKENIZER._markup.save(str(folder / "tokenizer.json"))
        make_checkpoint(folder / "encoder")
        write_titles(folder / "first.tsv", lines(40))
        write_titles(folder / "second.tsv", lines(47))
        write_titles(folder / "larger.tsv", lines(60))
        asked = [f"asked {number % 7}\tid{number}" for number in range(40)]
        write_titles(folder / "asked.tsv", ["query\tentity_id", *asked])
        header, *rows = lines(90)
        write_titles(folder / "more.tsv", [header, *rows[35:38], *rows[50:80]])
        write_titles(folder / "gone.txt", [f"id{number}" for number in (3, 5, 8, 13, 21)])
        self._prepared: dict[str, Prepared] = {}

    def prepared(self, scenario: Scenario) -> Prepared:
        """Return a scenario's undisturbed outcome, played at the first call."""
        if scenario.name not in self._prepared:
            template = self.folder / f"{scenario.name}.template"
            for command in scenario.setup:
                self._expect_success(self.run(command, template))
            index = self.folder / f"{scenario.name}.expected"
            before = None
            if scenario.setup:
                shutil.copytree(template, index)
                before = live_version(template)
            self._expect_success(self.run(scenario.command, index))
            after = live_version(index)
            self._prepared[scenario.name] = Prepared(
                scenario, template, before, after, tree(index), data_files(index, after)
            )
        return self._prepared[scenario.name]

    def fresh_copy(self, prepared: Prepared, index: Path) -> Path:
        """Put a copy of the index before the command at `index`."""
        shutil.rmtree(index, ignore_errors=True)
        if prepared.before is not None:
            shutil.copytree(prepared.template, index)
        return index

    def set_for(self, scenario: Scenario, place: Path) -> tuple[Prepared, Path]:
        """Return a prepared scenario, and a copy of the index before its command."""
        prepared = self.prepared(scenario)
        return prepared, self.fresh_copy(prepared, place / "it.index")

    def start(self, command: tuple[str, ...], index: Path, circumstances: Circumstances = NORMAL) -> Command:
        """Start a command on an index."""
        return Command([part.format(index=index, folder=self.folder) for part in command], circumstances)

    def run(self, command: tuple[str, ...], index: Path, circumstances: Circumstances = NORMAL) -> Outcome:
        """Run a command on an index to its end."""
        return self.start(command, index, circumstances).wait()

    @staticmethod
    def _expect_success(outcome: Outcome) -> None:
        if outcome.status != 0:
            raise AssertionError(outcome)


def tree(index: Path) -> dict[str, bytes]:
    """Return every file below an index directory; an empty directory counts as a file of no bytes."""
    return {
        path.relative_to(index).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in sorted(index.rglob("*"))
        if path.is_file() or not any(path.iterdir())
    }


def live_of(index: Path) -> str | None:
    """Return the live version, None where there is no index."""
    try:
        return live_version(index)
    except IndexNotFoundError:
        return None


def check_old_or_new(prepared: Prepared, index: Path) -> str | None:
    """Check that the index is what it was or what it was to become, and sound; return the live version."""
    live = live_of(index)
    assert live in (prepared.before, prepared.after), prepared.scenario.name
    if live is not None:
        report = verify(index)
        assert report.ok, report.problems
        assert report.version == live
        if live == prepared.after:
            assert data_files(index, live) == prepared.data_files
    return live


def check_no_traceback(outcome: Outcome) -> None:
    """An error is told in words."""
    assert "Traceback" not in outcome.stderr, outcome.stderr
    assert "internal error" not in outcome.stderr, outcome.stderr


def check_success_after(stage: Stage, prepared: Prepared, index: Path) -> Outcome | None:
    """Run the command again, if it may be; everything must be as if there had never been a fault."""
    done = live_of(index) == prepared.after
    if done and not prepared.scenario.repeatable:
        return None
    outcome = stage.run(prepared.scenario.command, index)
    assert outcome.status == 0, outcome
    assert tree(index) == prepared.tree
    assert verify(index).ok
    return outcome

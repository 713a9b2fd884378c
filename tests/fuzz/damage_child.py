"""Open damaged indexes in a process of its own: `python -m tests.fuzz.damage_child SOUND OTHER WORK`.

Reads one damage per line from standard input and answers each with one line of JSON. A crash or a hang ends
the process; the number of answers then tells which damage did it.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from genret.retrieval.errors import GenretError
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from genret.retrieval.ranking.ranker import Ranker
from tests.fuzz.damage import Damage, write_damaged
from tests.index_fixtures import files_of

# A healthy open or verify takes milliseconds, on a busy machine seconds; a hang is killed by the alarm.
_LIMIT_S = 200

# Damaged sizes must not make anybody ask for terabytes: such a request fails here as it would elsewhere.
_ADDRESS_SPACE = 8 << 30


def walk(index: Index) -> int:
    """Read everything an index holds, through every way of reading; return how much that was."""
    read = 0
    for rank in range(index.num_rows):
        row = index.row_token_ids(rank)
        if index.row_of(row) != rank:
            raise AssertionError(f"row {rank} is not found by its tokens")
        for number in index.entities_of(rank):
            read += len(index.surface(rank, number)) + len(row)
    for number in range(index.num_entities):
        entity = index.entity(number)
        if index.entity_by_id(entity.entity_id) != entity:
            raise AssertionError(f"entity {number} is not found by its id")
        read += len(entity.title) + sum(map(len, entity.aliases))
    for name in index.metadata_columns:
        read += len(index.metadata_column(name).to_pylist())
    return read + int(index.forms_per_entity.sum()) + ask(index)


def ask(index: Index) -> int:
    """Ask the evidence of an index, and return how many candidates it found."""
    ranker = Ranker.open(index)
    if not ranker.can_propose:
        return 0
    found = 0
    for query in ("a", index.entity(0).title):
        (asked,) = ranker.evidence.ask([query])
        found += len(ranker.propose(asked, 20).entities)
    return found


def outcome(action: Callable[[], str]) -> dict[str, str]:
    """Return what came of an action: its result, or the error's name and text."""
    try:
        return {"result": action()}
    except GenretError as error:
        return {"typed": type(error).__name__, "message": str(error)}
    except Exception as error:
        return {"untyped": type(error).__name__, "message": str(error)[:500]}


def _opened(index: Path, digests: bool) -> str:
    with Index.open(index, verify_digests=digests) as opened:
        for problem in opened.evidence_problems.values():  # it costs that evidence alone
            raise problem
        return "opened"


def _walked(index: Path) -> str:
    with Index.open(index) as opened:
        return str(walk(opened))


def examine(index: Path) -> dict[str, dict[str, str]]:
    """Return what opening, verifying and, where that found nothing, reading an index ends in."""
    found = {
        "open": outcome(lambda: _opened(index, digests=True)),
        "open without digests": outcome(lambda: _opened(index, digests=False)),
        "verify": outcome(lambda: "sound" if verify(index).ok else "damaged"),
    }
    if found["verify"].get("result") == "sound":
        found["walk"] = outcome(lambda: _walked(index))
    return found


def main(sound: Path, other: Path, work: Path) -> None:
    """Answer the damages of standard input."""
    faulthandler.enable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files, others = files_of(sound), files_of(other)
    for line in sys.stdin:
        damage = Damage.from_line(line)
        changed = write_damaged(work, files, others, damage)
        signal.alarm(_LIMIT_S)
        found = examine(work)
        signal.alarm(0)
        print(json.dumps({"changed": changed, **found}), flush=True)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))

"""Whatever an index holds behind fitting digests, every question ends in an answer or in a typed error.

Each damaged index is asked everything in a forked process, so that a crash or a hang is seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("faiss")

from tests.fuzz.damage import MANIFEST, Damage, Kind, put_values
from tests.index_fixtures import files_of

REPOSITORY = Path(__file__).parents[2]
ALL_KINDS = ("flat", "hnsw", "ivfpq", "OPQ16_32,IVF4,PQ16x4fs")
MUCH = [
    pytest.param(ALL_KINDS, seed, 400, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
    for seed in range(2)
]


def outcomes(folder: Path, kinds: tuple[str, ...], seed: int, number: int) -> list[tuple[Damage, str]]:
    """Return `number` damages that changed something, with the kind of their outcome; none may be worse."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.asking_child", str(folder), *kinds],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        # Threads do not survive a fork, and who waits for them waits for ever.
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    found = []
    with child:
        assert child.stdin is not None
        for version, path in enumerate(json.loads(child.stdout.readline())):
            sound = files_of(Path(path))
            last = Damage(MANIFEST, Kind.TRUNCATE, at=0, refit=True)  # always found
            for damage in (*put_values(sound, number // len(kinds), seed), last):
                child.stdin.write(f"{version} {damage.to_line()}\n")
                child.stdin.flush()
                reply = json.loads(child.stdout.readline())
                if reply.pop("changed"):
                    assert set(reply) <= {"result", "typed"}, (damage, reply)
                    found.append((damage, *reply))
        child.stdin.close()
    assert child.returncode == 0
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kinds", "seed", "number"), [(("hnsw",), 1, 27), *MUCH])
def test_every_question_ends_in_an_answer_or_in_a_typed_error(
    tmp_path: Path, kinds: tuple[str, ...], seed: int, number: int
) -> None:
    found = outcomes(tmp_path, kinds, seed, number)
    refused = {damage.file for damage, kind in found if kind == "typed"}
    assert {MANIFEST, "entities.arrow", "postings.arrow", "trie.arrow"} <= refused
    assert sum(kind == "result" for _, kind in found) > number // 3  # most evidence is not needed

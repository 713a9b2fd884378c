"""Importing the library, the builder or the command line stays light; heavy libraries come on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from genret import retrieval
from tests.checkpoints import make_checkpoint, make_index

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "grpc")


@pytest.mark.parametrize(
    "statement",
    [
        "import genret.retrieval",
        "from genret import Candidate, Entity, Mention, RetrievalResult, RetrieveRequest",
        "from genret import Index, title_trie",
        "import genret.retrieval.text, genret.retrieval.prompts, genret.retrieval.index.reader",
        "import genret.retrieval.linking.link_command, genret.retrieval.linking.run",
        "import genret.index_builder.cli",
        "import genret.service.main",
    ],
)
def test_import_is_light(statement: str) -> None:
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


_LOADED = "print(sum(name.startswith('genret.decoding.grammar') for name in sys.modules))"


def test_grammars_are_loaded_when_json_is_first_asked_for(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", "llama")
    index = make_index(tmp_path, checkpoint)
    code = f"""
import sys
from genret.retrieval.retriever import Retriever
{_LOADED}
with Retriever.open({str(index)!r}, {str(checkpoint)!r}, device="cpu") as retriever:
    assert retriever.retrieve("who wrote hamlet", k=2, method="beam")[0].candidates
    with retriever.open_another({str(index)!r}, name="another") as another:
        assert another.retrieve("who wrote hamlet", k=2, method="disc", seed=1)
        {_LOADED}
        assert another.answerer is retriever.answerer
        assert "another" in retriever.answerer.engine.indexes
        assert retriever.name in retriever.answerer.engine.indexes
{_LOADED}
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    before, after_queries, after_answers = map(int, done.stdout.split())
    assert (before, after_queries) == (0, 0)
    assert after_answers > 0


def test_every_export_is_there() -> None:
    for name in retrieval.__all__:
        assert getattr(retrieval, name).__name__ == name
    assert dir(retrieval) == sorted(retrieval.__all__)
    with pytest.raises(AttributeError, match="module 'retrieval' has no attribute 'Retreiver'"):
        _ = retrieval.Retreiver

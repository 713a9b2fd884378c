"""Importing the library, the builder or the command line stays light; heavy libraries come on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import retrieval

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "grpc")


@pytest.mark.parametrize(
    "statement",
    [
        "import retrieval",
        "from retrieval import Candidate, Entity, Mention, RetrievalResult, RetrieveRequest",
        "from retrieval import Index, title_trie",
        "import retrieval.text, retrieval.prompts, retrieval.index.reader",
        "import retrieval.linking.link_command, retrieval.linking.run",
        "import index_builder.cli",
        "import service.main",
    ],
)
def test_import_is_light(statement: str) -> None:
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_export_is_there() -> None:
    for name in retrieval.__all__:
        assert getattr(retrieval, name).__name__ == name
    assert dir(retrieval) == sorted(retrieval.__all__)
    with pytest.raises(AttributeError, match="module 'retrieval' has no attribute 'Retreiver'"):
        _ = retrieval.Retreiver

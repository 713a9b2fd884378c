"""Importing the library, the builder or the command line stays light; heavy libraries come on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import genret

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "grpc", "ray", "matplotlib", "ir_measures", "pytrec_eval", "bm25s")
EVALUATION = "genret.retrieval.evaluation"


@pytest.mark.parametrize(
    "statement",
    [
        "import genret.retrieval",
        "from genret import Candidate, Entity, Mention, RetrievalResult, RetrieveRequest",
        "from genret import Index, title_trie",
        "import genret.retrieval.text, genret.retrieval.prompts, genret.retrieval.index.reader",
        "import genret.retrieval.linking.link_command, genret.retrieval.linking.run",
        "from genret.retrieval.linking import Document, LinkOptions, link_documents",
        f"import {EVALUATION}.datasets.readers, {EVALUATION}.intervals, {EVALUATION}.run_files",
        "import genret.index_builder.cli",
        "import genret.service.main",
        # Nor are pandas and Arrow loaded before a table is asked for.
        "from genret import RetrievalResult; r = RetrievalResult('q', 'beam', ()); repr(r), r.to_dict();"
        " r._repr_html_(); assert not {'pandas', 'pyarrow'} & set(sys.modules)",
    ],
)
def test_import_is_light(statement: str) -> None:
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


_LOADED = "print(sum(name.startswith('genret.decoding.grammar') for name in sys.modules))"


def test_grammars_are_loaded_when_json_is_first_asked_for(checkpoint: Path, index: Path) -> None:
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
        assert [one.name for one in retriever.answerer.engine.indexes] == [retriever.name, "another"]
{_LOADED}
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    before, after_queries, after_answers = map(int, done.stdout.split())
    assert (before, after_queries) == (0, 0)
    assert after_answers > 0


def test_every_export_is_there() -> None:
    for name in genret.__all__:
        assert getattr(genret, name).__name__ == name
    assert dir(genret) == sorted(genret.__all__)
    with pytest.raises(AttributeError, match="module 'genret' has no attribute 'Retreiver'"):
        _ = genret.Retreiver  # type: ignore[attr-defined]


ROOMS = ("decoding", "index_builder", "retrieval", "service")


@pytest.mark.skipif(not (ROOT / "genret").is_dir(), reason="an installed wheel has the root alone")
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_imported_below_the_root_alone(room: str) -> None:
    """A checkout on the path holds the rooms side by side: a second copy of their modules helps nobody."""
    done = subprocess.run([sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.endswith(f"ImportError: this package is genret.{room}: import it by that name\n")


@pytest.mark.parametrize("foreign_first", [True, False])
def test_packages_of_others_named_like_our_rooms_change_nothing(tmp_path: Path, foreign_first: bool) -> None:
    """`decoding`, `service` and `retrieval` exist on PyPI; anybody may make stubs of our .proto files."""
    for name in ROOMS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OWNER = 'others, {name}'\n")
    (tmp_path / "genret/v1").mkdir(parents=True)
    (tmp_path / "genret/v1/other_pb2.py").write_text("MADE = 'elsewhere'\n")
    places = [str(tmp_path), str(ROOT)]
    code = f"""
import sys
sys.path[:0] = {places if foreign_first else places[::-1]!r}
import genret.service.main, genret.index_builder.cli, genret.v1.other_pb2
from genret import RetrieveRequest
print(genret.v1.other_pb2.MADE, RetrieveRequest.__module__)
if {foreign_first}:
    import decoding, index_builder, retrieval, service
    print(decoding.OWNER, index_builder.OWNER, retrieval.OWNER, service.OWNER, sep="; ")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    expected = ["elsewhere genret.retrieval.types"]
    assert done.stdout.splitlines() == expected + ["; ".join(f"others, {r}" for r in ROOMS)] * foreign_first

"""docs/shortlists.md: its figures are the code's, and its Python blocks print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions, VectorBuildOptions
from genret.retrieval.methods.scoring import MAX_SCORED_FORMS
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.score_types import MAX_SCORED_TITLES
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE
from genret.retrieval.vectors.embedder import VectorMethod
from genret.retrieval.vectors.faiss_index import FLAT_BELOW, MAX_CELLS
from genret.retrieval.vectors.vector_maker import TARGET_RECALL, VectorOptions
from tests.service.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "shortlists.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    [
        f"`shortlist_size` entities ({DEFAULT_SHORTLIST_SIZE}; at most {MAX_SHORTLIST_SIZE:,})",
        f"{MAX_SCORED_FORMS:,} names scored",
        f"Any titles, up to {MAX_SCORED_TITLES:,},",
        f"below {FLAT_BELOW:,} texts",
        f"in at most {MAX_CELLS:,} cells",
        f"{TARGET_RECALL:.0%}".replace("%", " %") + " of the known items first",
    ],
)
def test_the_page_has_the_figures_of_the_code(text: str) -> None:
    assert text in PAGE


@pytest.mark.slow
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    checkpoint = ROOT / "data" / "small-model"
    rendering = CheckpointConfig.load(checkpoint).title_rendering()
    assert rendering is not None
    wish = VectorBuildOptions(VectorMethod("encoder", str(checkpoint)), VectorOptions())
    options = BuildOptions(out=tmp_path / "sample.index", rendering=rendering, vectors=wish)
    build_index(ROOT / "data" / "catalogue.tsv", TextTokenizer.load(checkpoint), options)
    (library, printed), (client, replied) = re.findall(r"```python\n(.*?)```\n```\n(.*?)```", PAGE, re.DOTALL)
    assert _run(library, tmp_path) == printed
    with ServerProcess(str(tmp_path / "sample.index")) as server:
        assert _run(client.replace("127.0.0.1:50051", server.address()), tmp_path) == replied


def _run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

"""The README's example of `generate` under the trie runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from index_builder.build import build_index
from index_builder.config import BuildOptions
from retrieval.text import Rendering, TextTokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_example_of_generate_runs_and_prints_titles(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "TitleTrieLogitsProcessor" in block]
    (tmp_path / "data").symlink_to(ROOT / "data")
    checkpoint = ROOT / "data" / "default-model"
    rendering = Rendering.of_checkpoint(checkpoint)
    assert rendering is not None
    options = BuildOptions(out=tmp_path / "sample.index", rendering=rendering)
    build_index(ROOT / "data" / "catalogue.tsv", TextTokenizer.load(checkpoint), options)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0] == "['Munich']"

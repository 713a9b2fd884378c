"""The Python blocks of docs/disc.md run one after the other, and print what the page says."""

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
def test_the_examples_run_and_print_what_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "disc.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed = re.findall(r"```python\n.*?```\n```\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    assert len(printed) == 4
    checkpoint = ROOT / "data" / "default-model"
    rendering = Rendering.of_checkpoint(checkpoint)
    assert rendering is not None
    options = BuildOptions(out=tmp_path / "sample.index", rendering=rendering)
    build_index(ROOT / "data" / "catalogue.tsv", TextTokenizer.load(checkpoint), options)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed)

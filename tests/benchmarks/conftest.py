"""The benchmarks are run by path: their folder is on the import path then, and here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from tests.commands import succeed

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture
def figures_of(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Run a benchmark in this process, print what it prints, and return the figures that it writes."""
    threads = torch.get_num_threads()

    def figures(command: click.Command, *options: object) -> Any:
        file = tmp_path / "figures.json"
        print(succeed(command, *options, "--json", file).output)
        return json.loads(file.read_text(encoding="utf-8"))["figures"]

    yield figures
    torch.set_num_threads(threads)

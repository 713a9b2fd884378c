"""The benchmarks are run by path: their folder is on the import path then, and here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"
sys.path.append(str(BENCHMARKS))


def run_script(script: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Run a benchmark in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARKS / script), *map(str, options)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=2800, env=environment, cwd=REPOSITORY
    )


@pytest.fixture
def output_of() -> Callable[..., str]:
    """Run a benchmark that must end with a status, and return what it printed."""

    def output(script: str, *options: object, status: int = 0) -> str:
        done = run_script(script, *options)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return output


@pytest.fixture
def figures_of(tmp_path: Path, output_of: Callable[..., str]) -> Callable[..., Any]:
    """Run a benchmark, print what it prints, and return the figures that it writes."""

    def figures(script: str, *options: object) -> Any:
        file = tmp_path / "figures.json"
        print(output_of(script, *options, "--json", file))
        return json.loads(file.read_text(encoding="utf-8"))["figures"]

    return figures

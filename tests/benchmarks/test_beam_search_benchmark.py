"""`benchmarks/beam_search.py` and `gpu_beam_search.py` run, with models too small to measure anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TINY = ["--hidden", "64", "--layers", "1", "--titles", "2000", "--repeats", "1"]
NEW_TOKENS = 12
SHORT = ["--new-tokens", str(NEW_TOKENS), "--queries", "2", "--prompt", "64", "--settings", "64/5/2"]


def run(script: str, *options: str, file: Path) -> Any:
    """Return the figures that a script writes."""
    command = [sys.executable, str(BENCHMARKS / script), *options, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text(encoding="utf-8"))["figures"]


def assert_tables(file: Path, sections: list[str]) -> None:
    """Every section has tables, and every row as many cells as its head."""
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [line.removeprefix("### ") for line in lines if line.startswith("###")] == sections
    widths = [line.count("|") for line in lines if line.startswith("|")]
    for place, line in enumerate(lines):
        if line.startswith("|---"):
            assert lines[place - 1].count("|") == line.count("|") == lines[place + 1].count("|")
    assert len(widths) >= 3 * len(sections)


def refused(*options: str) -> str:
    """Return what is said of options that make no sense."""
    command = [sys.executable, str(BENCHMARKS / "beam_search.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    return done.stderr


def test_what_makes_no_sense_is_refused_by_name() -> None:
    assert "--plot needs the section trace" in refused("--only", "titles", "--plot", "p.png")
    assert "PROMPT/BEAMS/BATCH" in refused("--settings", "512/15")
    assert "--hidden must be a multiple of 64, got 100" in refused("--hidden", "100")


@pytest.mark.slow
def test_lists_agree_with_generate_and_everything_is_reported(tmp_path: Path) -> None:
    tables = tmp_path / "tables.md"
    sections = ["--only", "titles", "--only", "upkeep", "--only", "free", "--tables", str(tables)]
    figures = run("beam_search.py", *TINY, *SHORT, *sections, file=tmp_path / "f.json")
    assert_tables(tables, ["titles", "upkeep", "free"])
    assert figures["titles"]["agreement"] == {
        "compared": 2,
        "different": [],
        "largest_difference": pytest.approx(0.0, abs=1e-3),
    }
    (cell,) = figures["titles"]["cells"]
    for peer in ("generate", "generate, prompt run once"):
        assert cell[peer]["same_rows"]
        assert 0 < cell[peer]["kv_share"] < 1
        assert cell[peer]["total_s"]["median"] > cell[peer]["prefill_s"]["median"] > 0
    (parts,) = figures["upkeep"]
    named = ("masks and positions", "collection and room", "rest of the session")
    assert sum(parts[name] for name in (*named, "expansion", "choice and lists")) == pytest.approx(
        parts["upkeep"]
    )
    assert figures["free"]["agreement"]["compared"] == 4
    assert figures["free"]["agreement"]["different"] == []
    for model in ("random", "default"):
        live = figures["free"][model][0]["live"]
        assert 1 <= live["live_per_depth"] <= live["written_per_depth"] == live["branches"] == 5


@pytest.mark.slow
def test_collection_memory_and_prefixes_with_the_plot(tmp_path: Path) -> None:
    plot, tables = tmp_path / "kv.png", tmp_path / "tables.md"
    sections = ["--only", "ablation", "--only", "trace", "--only", "prefix"]
    outputs = ["--plot", str(plot), "--tables", str(tables)]
    figures = run("beam_search.py", *TINY, *SHORT, *sections, *outputs, file=tmp_path / "f.json")
    assert_tables(tables, ["ablation", "trace", "prefix"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert figures["ablation"]["agreement"]["different"] == []
    for case in ("titles", "free", "free, default model"):
        policies = figures["ablation"][case]
        assert policies["never"]["collections"] == 0
        assert policies["every 4 steps"]["slots"] <= policies["never"]["slots"]
        assert policies["every 4 steps"]["saved_tokens"] >= policies["never"]["saved_tokens"] > 0
    for panel in figures["trace"]:
        curves = panel["curves"]
        assert len({len(column) for column in curves.values()}) == 1
        for n, greedy in enumerate(curves["greedy"]):
            assert greedy <= curves["live"][n] <= curves["used"][n] <= curves["held"][n]
            assert curves["live"][n] <= curves["uncollected"][n] <= curves["per_beam"][n]
    for cell in figures["prefix"]:
        assert cell["shared_bytes"] < cell["again_bytes"]
        assert cell["largest_difference"] < 1e-3


@pytest.mark.slow
def test_a_peer_that_would_take_too_long_is_named(tmp_path: Path) -> None:
    options = ["--only", "titles", "--settings", "64/5/1", "--max-cell-seconds", "0"]
    figures = run("beam_search.py", *TINY, *options, file=tmp_path / "f.json")
    (cell,) = figures["titles"]["cells"]
    assert "--max-cell-seconds" in cell["generate"]["not_run"]
    assert cell["generate"]["kv_bytes_computed"] > cell["ours"]["kv_bytes"]
    assert figures["titles"]["agreement"]["compared"] == 0


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_without_one(tmp_path: Path) -> None:
    (figure,) = run("gpu_beam_search.py", "--tiny", file=tmp_path / "g.json")
    assert figure["model"] == "tiny"
    for side in ("ours", "generate", "generate, prompt run once"):
        assert figure[side]["tokens_per_s"]["median"] > 0
        assert figure[side]["peak_bytes"] is None
    assert figure["generate"]["rows_in_common"] > 0.5

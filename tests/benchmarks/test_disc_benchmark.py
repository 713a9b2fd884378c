"""`benchmarks/disc.py` runs, section by section, with settings too small to measure anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "disc.py"


def run(*options: str, file: Path | None = None) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--data", str(SCRIPT.parent / "absent"), *options]
    if file is not None:
        command += ["--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return {} if file is None else json.loads(file.read_text(encoding="utf-8"))["figures"]


def test_help_names_the_sections() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True)
    assert "time|exactness|adaptive|beams|calibration" in done.stdout


def test_a_plot_needs_its_sections(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--data", str(tmp_path), "--only", "time"]
    done = subprocess.run(
        [*command, "--plot", str(tmp_path / "p.png")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--plot needs the sections exactness and adaptive" in done.stderr


@pytest.mark.slow
def test_wall_time(tmp_path: Path) -> None:
    options = ["--only", "time", "--hidden", "64", "--layers", "1", "--limit", "300", "--repeats", "1"]
    figures = run(*options, file=tmp_path / "time.json")["time"]
    assert figures["together"]["same_draws"]
    assert figures["draws"][-1]["K=4"]["second_phase"] == 1.0
    for measured in figures["draws"]:
        for k in (2, 4, 8):
            against = measured[f"K={k}"]
            phases = {
                "ratio_one_phase": 1.0 - against["second_phase"],
                "ratio_two_phases": against["second_phase"],
            }
            assert all((against[name] is not None) == (share > 0) for name, share in phases.items())
            assert against["ratio_without_prefill"]["median"] > 0


@pytest.mark.slow
def test_exactness_and_adaptive_with_their_plot(tmp_path: Path) -> None:
    plot = tmp_path / "disc.png"
    options = ["--only", "exactness", "--only", "adaptive", "--results", "256", "--runs", "1"]
    figures = run(*options, "--plot", str(plot), file=tmp_path / "exact.json")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert figures["exactness"]["together"]["tests"] == 56
    assert len(figures["exactness"]["catalogues"]) == 4
    for catalogue in figures["exactness"]["catalogues"]:
        counted = [entry["accepted"]["results"] for entry in catalogue["by_draws"]]
        assert all(entry["all_results"]["results"] == 256 for entry in catalogue["by_draws"])
        assert counted == sorted(counted)  # more are accepted as K grows
    assert len(figures["adaptive"]) == 12
    for compared in figures["adaptive"]:
        table = compared["settings"]
        assert [s["way"] for s in table] == ["plain", "adaptive"] * (
            9 if compared["catalogue"] == "broad" else 7
        )
        assert len(compared["needed"]) == 9
        assert table[-2]["accepted_share"] > table[0]["accepted_share"]


@pytest.mark.slow
def test_beams_and_calibration(tmp_path: Path) -> None:
    options = ["--only", "beams", "--only", "calibration", "--queries", "6", "--seeds", "1"]
    figures = run(*options, file=tmp_path / "default.json")
    assert len(figures["beams"]["disc"]) == 12
    calibration = figures["calibration"]
    assert calibration["queries"] == 6
    assert all(0 <= mass <= 1 for mass in calibration["mass_answer_present"])
    assert 0 <= calibration["auc_present_against_denied"] <= 1

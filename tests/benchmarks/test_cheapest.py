"""Which way comes as close to P_S for less."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def cheapest(benchmark_path: None) -> ModuleType:
    import disc_figures.cheapest

    return disc_figures.cheapest


def setting(way: str, k: int, kl: float, steps: float, nodes: float, stderr: float = 0.0) -> dict[str, Any]:
    return {
        "way": way,
        "num_draws": k,
        "kl": kl,
        "kl_stderr": stderr,
        "steps": steps,
        "nodes": nodes,
        "draws": float(k),
    }


TABLE = [
    setting("plain", 4, 0.2, 9.0, 20.0),
    setting("plain", 64, 0.02, 5.0, 90.0),
    setting("adaptive", 4, 0.02, 8.0, 22.0, stderr=0.001),
    setting("adaptive", 16, 0.008, 7.0, 50.0, stderr=0.005),
]


def test_every_cost_has_its_own_cheapest_setting(cheapest: ModuleType) -> None:
    found = {(entry["kl"], entry["cost"]): entry for entry in cheapest.needed(TABLE)}
    assert found[0.03, "steps"]["cheaper"] == "plain"
    assert found[0.03, "nodes"]["cheaper"] == "adaptive"
    assert found[0.03, "nodes"]["adaptive"]["num_draws"] == 4
    assert found[0.03, "steps"]["adaptive"]["num_draws"] == 16


def test_sampling_error_counts_against_a_setting(cheapest: ModuleType) -> None:
    found = {(entry["kl"], entry["cost"]): entry for entry in cheapest.needed(TABLE)}
    assert found[0.01, "nodes"]["adaptive"] is None  # 0.008 with an error of 0.005
    assert found[0.01, "nodes"]["cheaper"] == "neither"


def test_a_rival_costs_no_more(cheapest: ModuleType) -> None:
    few, many = cheapest.rivals(TABLE, "nodes")
    assert few["plain"]["num_draws"] == 4
    assert many["plain"]["num_draws"] == 4
    assert [pair["plain"]["num_draws"] for pair in cheapest.rivals(TABLE, "steps")] == [64, 64]

"""What comes as close to P_S for less: settings of adaptive and plain draws side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

TARGETS = (0.1, 0.03, 0.01)
COSTS = {"steps": "forwards", "nodes": "tokens", "draws": "draws"}  # the last two per result
WAYS = ("plain", "adaptive")
_SAME = 0.02  # costs this close are called equal
_CERTAIN = 2  # standard errors

Setting = dict[str, Any]


def reaches(setting: Setting, target: float) -> bool:
    """Say whether results are that close, sampling error counted against them."""
    return bool(setting["kl"] + _CERTAIN * setting["kl_stderr"] <= target)


def needed(table: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return, for every distance and cost, the cheapest setting of each way that comes so close."""
    found = []
    for target in TARGETS:
        for cost in COSTS:
            best = {way: _cheapest(table, way, target, cost) for way in WAYS}
            found.append({"kl": target, "cost": cost, **best, "cheaper": _cheaper(best, cost)})
    return found


def _cheapest(table: Sequence[Setting], way: str, target: float, cost: str) -> Setting | None:
    enough = [s for s in table if s["way"] == way and reaches(s, target)]
    return min(enough, key=lambda s: (s[cost], s["draws"]), default=None)


def _cheaper(best: dict[str, Setting | None], cost: str) -> str:
    """Return the way that is cheaper, or "neither"."""
    plain, adaptive = best["plain"], best["adaptive"]
    if plain is None or adaptive is None:
        return "neither" if plain is adaptive else "plain" if adaptive is None else "adaptive"
    if abs(plain[cost] - adaptive[cost]) <= _SAME * plain[cost]:
        return "neither"
    return "adaptive" if adaptive[cost] < plain[cost] else "plain"


def rivals(table: Sequence[Setting], cost: str) -> list[dict[str, Setting | None]]:
    """Return every adaptive setting with the closest plain one that costs no more."""
    pairs: list[dict[str, Setting | None]] = []
    for setting in table:
        if setting["way"] == "adaptive":
            most = (1 + _SAME) * setting[cost]
            affordable = [s for s in table if s["way"] == "plain" and s[cost] <= most]
            pairs.append({"adaptive": setting, "plain": min(affordable, key=lambda s: s["kl"], default=None)})
    return pairs


def report(figures: Sequence[dict[str, Any]]) -> None:
    """Print both comparisons, and who is cheaper how often."""
    for figure in figures:
        click.echo(
            f"{figure['catalogue']} catalogue, P_L(S) {figure['mass']:.2f}, {figure['num_samples']} results "
            f"per query: the cheapest that comes so close (forwards / tokens / draws, K)"
        )
        for entry in figure["needed"]:
            both = "; ".join(f"{way} {_text(entry[way])}" for way in WAYS)
            click.echo(f"  KL <= {entry['kl']:<4} by {COSTS[entry['cost']]:8}: {both}")
        for cost, name in COSTS.items():
            click.echo(f"  at no more {name}: " + "; ".join(map(_versus, figure["rivals"][cost])))
    for catalogue in dict.fromkeys(figure["catalogue"] for figure in figures):
        for cost, name in COSTS.items():
            votes = [
                entry["cheaper"]
                for figure in figures
                if figure["catalogue"] == catalogue
                for entry in figure["needed"]
                if entry["cost"] == cost
            ]
            counts = ", ".join(f"{way} {votes.count(way)}" for way in ("adaptive", "plain", "neither"))
            click.echo(
                f"{catalogue} catalogue, fewer {name} at equal KL, of {len(votes)} comparisons: {counts}"
            )


def _text(setting: Setting | None) -> str:
    if setting is None:
        return "never"
    costs = " / ".join(f"{setting[cost]:.1f}" for cost in COSTS)
    return f"{costs} (K={setting['num_draws']})"


def _versus(pair: dict[str, Setting | None]) -> str:
    adaptive, plain = pair["adaptive"], pair["plain"]
    assert adaptive is not None  # every pair has one
    against = "nothing" if plain is None else f"{plain['kl']:.1e} (K={plain['num_draws']})"
    return f"K={adaptive['num_draws']} {adaptive['kl']:.1e} against {against}"

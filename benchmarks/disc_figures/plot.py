"""The picture of docs/disc.md: divergence against K, and draws used against Theorem 3.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.divergence import expected_draws

_COLOURS = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c")
_GREY = "#868e96"
_MOST = 64  # draws on the left


def draw(file: Path, exactness: dict[str, Any], adaptive: list[dict[str, Any]]) -> None:
    """Write the picture.

    Args:
        file: An image in any format matplotlib writes.
        exactness: Figures of that section.
        adaptive: Figures of that section.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.0, 3.9), dpi=160, layout="constrained")
    _divergences(left, adaptive)
    _draws(right, exactness["catalogues"])
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)


def _divergences(axes: Any, figures: list[dict[str, Any]]) -> None:
    """Plain DISC by its exact law; adaptive draws as measured, where they stand out of sampling error."""
    figures = [f for f in figures if f["num_samples"] == 1 and f["catalogue"] == "broad"]
    for colour, figure in zip(_COLOURS, figures, strict=False):
        plain = [s for s in figure["settings"] if s["way"] == "plain" and s["num_draws"] <= _MOST]
        adapted = [s for s in figure["settings"] if s["way"] == "adaptive" and s["num_draws"] <= _MOST]
        draws = [s["num_draws"] for s in plain]
        axes.plot(draws, [s["kl"] for s in plain], "o-", color=colour, markersize=4, linewidth=1)
        seen = [s for s in adapted if s["kl"] > 2 * s["kl_stderr"]]
        axes.errorbar(
            [s["num_draws"] for s in seen],
            [s["kl"] for s in seen],
            yerr=[2 * s["kl_stderr"] for s in seen],
            fmt="s--",
            color=colour,
            markersize=4,
            markerfacecolor="white",
            linewidth=1,
        )
        axes.plot([], [], color=colour, linewidth=3, label=f"$P_L(S)$ = {figure['mass']:.2g}")
    floor = [min(2 * f["settings"][i]["measured"]["stderr"] for f in figures) for i in range(2 * len(draws))]
    axes.fill_between(draws, [1e-9] * len(draws), floor[1::2], color=_GREY, alpha=0.25, linewidth=0)
    axes.plot([], [], "o-", color=_GREY, markersize=4, linewidth=1, label="plain, its exact law")
    axes.plot(
        [], [], "s--", color=_GREY, markersize=4, markerfacecolor="white", linewidth=1, label="adaptive"
    )
    axes.fill_between([], [], color=_GREY, alpha=0.25, linewidth=0, label="lost in sampling error")
    axes.set_yscale("log")
    largest = max(s["kl"] for figure in figures for s in figure["settings"])
    axes.set_ylim(min(floor) / 3, 60 * largest)  # room for the legend
    _draws_axis(axes, draws)
    axes.set_ylabel("KL($P_S$ || results), nats")
    axes.set_title("Distance from the target, 3,000 titles")
    axes.legend(frameon=False, fontsize=8, ncols=2)


def _draws(axes: Any, figures: list[dict[str, Any]]) -> None:
    """Lines: the formula; dots with 95 % intervals: what was counted."""
    for colour, figure in zip(_COLOURS, figures, strict=False):
        used = [f for f in figure["by_draws"] if f["num_draws"] > 1]
        draws = [f["num_draws"] for f in used]
        span = [draws[0] + i / 20 for i in range(20 * (draws[-1] - draws[0]) + 1)]
        axes.plot(
            span, [expected_draws(figure["mass"], k) for k in span], color=colour, linewidth=1, alpha=0.6
        )
        axes.errorbar(
            draws,
            [f["mean_draws"] for f in used],
            yerr=[f["mean_draws_error"] for f in used],
            fmt="o",
            color=colour,
            markersize=4,
            capsize=3,
            linewidth=1,
            label=f"{figure['catalogue']}, $P_L(S)$ = {figure['mass']:.2g}",
        )
    axes.plot([], [], color=_GREY, linewidth=1, label="Theorem 3.1's formula")
    axes.set_ylim(bottom=0)
    _draws_axis(axes, draws)
    axes.set_ylabel("mean draws per result")
    axes.set_title("Draws used")
    axes.legend(frameon=False, fontsize=8)


def _draws_axis(axes: Any, draws: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(draws, [str(k) for k in draws])
    axes.minorticks_off()
    axes.set_xlabel("K, the most draws tried for acceptance")
    axes.grid(axis="y", color=_GREY, alpha=0.15)

"""The picture of docs/beam-search.md: keys and values over the steps of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_GREY = "#868e96"
_CURVES = (  # in the order of the legend
    ("per_beam", "a cache per beam", "--", "#d9480f", 1.5),
    ("uncollected", "token tree, nothing collected: used", "-.", "#862e9c", 1.2),
    ("held", "token tree: held", "-", "#1f6feb", 2.0),
    ("used", "token tree: of this, used", ":", "#1f6feb", 1.2),
    ("greedy", "one branch (greedy)", "-", _GREY, 1.2),
)


def draw(file: Path, panels: Sequence[dict[str, Any]]) -> None:
    """Write the picture.

    Args:
        file: An image in any format matplotlib writes.
        panels: Figures of the section `trace`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.9), dpi=160)
    for place, panel in zip(axes, panels, strict=True):
        _panel(place, panel)
    axes[0].set_ylabel("keys and values per query, MB")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", frameon=False, fontsize=8, ncols=len(_CURVES))
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)


def _panel(axes: Any, panel: dict[str, Any]) -> None:
    from matplotlib import ticker

    for field, label, style, colour, width in _CURVES:
        column = [value / 1e6 for value in panel["curves"][field]]
        axes.plot(range(len(column)), column, style, color=colour, linewidth=width, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("tokens written")
    axes.set_title(f"{panel['name']}\nprompt {panel['prompt']}, {panel['beams']} beams", fontsize=9)
    axes.grid(axis="y", color=_GREY, alpha=0.15)

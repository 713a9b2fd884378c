"""Quality against time, one point a method: drawings as SVG.

matplotlib, which the extra `plots` installs, is imported only when something is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from retrieval.errors import MissingExtraError
from retrieval.evaluation.intervals import Interval
from retrieval.evaluation.methods.evaluated_method import MethodSpec

_INK = "#010203"  # stands for the colour of the text around the drawing
_GRID = "#8a93a0"
_POINTS_PER_INCH = 72
# Told apart by shape and by lightness too, and visible on white and on black.
_LOOKS = {
    "unconstrained": ("#d1603d", "X"),
    "trie": ("#c79a00", "s"),
    "disc": ("#2f86d1", "o"),
    "beam": ("#2a9d74", "^"),
    "exact": ("#2a9d74", "v"),
    "evidence": ("#b0577d", "<"),
    "vectors": ("#b0577d", "p"),
    "shortlist": ("#b0577d", "h"),
    "auto": ("#a86bc0", "d"),
    "bm25-shortlist": ("#a86bc0", "D"),
    "bm25": ("#7f8791", "P"),
    "run": ("#7f8791", "*"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One method.

    Attributes:
        method: Its name.
        milliseconds: Per query, above 0.
        interval: Of the quality; None: none is drawn.
        quality: The leading metric.
    """

    method: str
    milliseconds: float
    interval: Interval | None
    quality: float

    @property
    def low(self) -> float:
        """Lower end of what is drawn."""
        return self.quality if self.interval is None else min(self.quality, self.interval.low)

    @property
    def high(self) -> float:
        """Upper end of what is drawn."""
        return self.quality if self.interval is None else max(self.quality, self.interval.high)


def check_matplotlib() -> None:
    """Find matplotlib before anything is run.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plots")


def draw(points: Sequence[Point], metric: str, background: str | None = None) -> str:
    """Return quality against time as SVG.

    Args:
        points: At least one.
        metric: Name of the vertical axis.
        background: None: transparent, with text in the colour of the page (`currentColor`).

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": metric,
        "font.family": "DejaVu Sans",
        "font.size": 9,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        canvas: Any = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _draw_axes(axes, metric)
        _draw_points(axes, points)
        canvas.draw()  # places are known from here on
        _label_points(axes, points)
        colour = background or "none"
        axes.set_facecolor(colour)
        file = io.StringIO()
        figure.savefig(file, format="svg", facecolor=colour, metadata={"Date": None})
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    for size in ("width", "height"):  # as wide as the page; the view box keeps the proportions
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', system-ui, sans-serif")
    return svg.replace(_INK, "currentColor" if background is None else "#1b1f24")


def _draw_axes(axes: Any, metric: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds per query (logarithmic)", color=_INK)
    axes.set_ylabel(metric, color=_INK)
    axes.grid(True, which="major", color=_GRID, alpha=0.35, linewidth=0.6)
    axes.tick_params(colors=_INK, which="both")
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_GRID)
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_points(axes: Any, points: Sequence[Point]) -> None:
    ladder = sorted(
        (MethodSpec.parse(p.method).draws, p) for p in points if re.fullmatch(r"disc:\d+", p.method)
    )
    if len(ladder) > 1:
        axes.plot(
            [p.milliseconds for _, p in ladder],
            [p.quality for _, p in ladder],
            color=_LOOKS["disc"][0],
            linewidth=1.2,
            alpha=0.7,
        )
    for point in points:
        colour, marker = _LOOKS[MethodSpec.parse(point.method).family]
        axes.errorbar(
            [point.milliseconds],
            [point.quality],
            yerr=None
            if point.interval is None
            else [[point.quality - point.low], [point.high - point.quality]],
            fmt=marker,
            color=colour,
            markersize=7,
            elinewidth=1.1,
            capsize=2.5,
        )
    axes.margins(x=0.14, y=0.12)


def _label_points(axes: Any, points: Sequence[Point]) -> None:
    """Write every name beside its point, where it covers no other name, point or interval."""
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    taken = [_extent(axes, point) for point in points]
    for point in sorted(points, key=lambda p: -p.quality):
        best, least = None, float("inf")
        for at, (dx, dy, side, base) in enumerate(_places()):
            text = axes.annotate(
                point.method,
                (point.milliseconds, point.quality),
                xytext=(dx, dy),
                textcoords="offset points",
                ha=side,
                va=base,
                color=_INK,
            )
            box = text.get_window_extent(renderer)
            outside = _area(box) - _overlap(box, (frame.x0, frame.y0, frame.x1, frame.y1))
            cost = sum(_overlap(box, other) for other in taken) + 2 * outside + 0.01 * at
            text.remove()
            if cost < least:
                best, least = (dx, dy, side, base, (box.x0, box.y0, box.x1, box.y1)), cost
        assert best is not None  # there are places
        dx, dy, side, base, box = best
        is_far = max(abs(dx), abs(dy)) > 12
        axes.annotate(
            point.method,
            (point.milliseconds, point.quality),
            xytext=(dx, dy),
            textcoords="offset points",
            ha=side,
            va=base,
            color=_INK,
            arrowprops={"arrowstyle": "-", "color": _GRID, "linewidth": 0.7} if is_far else None,
        )
        taken.append(box)


def _places() -> list[tuple[float, float, str, str]]:
    """Return offsets in points with the alignment that goes with each, the preferred ones first."""
    places = []
    for distance in (7, 14, 24, 36, 50):
        near = distance * 0.6
        places += [
            (distance, near, "left", "bottom"),
            (distance, 0.0, "left", "center"),
            (distance, -near, "left", "top"),
            (-distance, near, "right", "bottom"),
            (-distance, 0.0, "right", "center"),
            (-distance, -near, "right", "top"),
            (0.0, distance, "center", "bottom"),
            (0.0, -distance, "center", "top"),
        ]
    return places


_Box = tuple[float, float, float, float]


def _extent(axes: Any, point: Point) -> _Box:
    """Return the pixels that a point and its interval cover."""
    half = 5.0 / _POINTS_PER_INCH * axes.figure.dpi
    x, low = axes.transData.transform((point.milliseconds, point.low))
    _, high = axes.transData.transform((point.milliseconds, point.high))
    return (x - half, low - half, x + half, high + half)


def _area(box: Any) -> float:
    return float((box.x1 - box.x0) * (box.y1 - box.y0))


def _overlap(box: Any, other: _Box) -> float:
    width = min(box.x1, other[2]) - max(box.x0, other[0])
    height = min(box.y1, other[3]) - max(box.y0, other[1])
    return float(max(0.0, width) * max(0.0, height))

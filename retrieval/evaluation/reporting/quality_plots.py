"""Draws quality against time as SVG, one point per method, with matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from genret.retrieval.evaluation.intervals import Interval
from genret.retrieval.evaluation.methods.evaluated_method import MethodSpec

_INK = "#010203"  # stands for the colour of the text around the drawing
_GRID = "#8a93a0"
_POINTS_PER_INCH = 72
# Told apart by shape and by lightness too, and visible on white and on black.
_LOOKS = {
    "unconstrained": ("#d1603d", "X"),
    "trie": ("#c79a00", "s"),
    "greedy": ("#c79a00", ">"),
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


class Point(NamedTuple):
    """One method: its name, milliseconds per query (above 0), quality, and the quality's interval, if any."""

    method: str
    milliseconds: float
    interval: Interval | None
    quality: float

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the drawn interval, which holds the point."""
        interval = self.interval or Interval(self.quality, self.quality, self.quality)
        return min(self.quality, interval.low), max(self.quality, interval.high)


def draw(points: Sequence[Point], metric: str, background: str | None = None) -> str:
    """Return quality against time as SVG, of at least one method; `metric` labels the vertical axis.

    Without a background it is transparent, with text in the colour of the page (`currentColor`).
    """
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
        (MethodSpec.parse(p.method).draws, p.milliseconds, p.quality)
        for p in points
        if re.fullmatch(r"disc:\d+", p.method)
    )
    if len(ladder) > 1:
        _, times, qualities = zip(*ladder, strict=True)
        axes.plot(times, qualities, color=_LOOKS["disc"][0], linewidth=1.2, alpha=0.7)
    for point in points:
        colour, marker = _LOOKS[MethodSpec.parse(point.method).family]
        low, high = point.ends
        axes.errorbar(
            [point.milliseconds],
            [point.quality],
            yerr=None if point.interval is None else [[point.quality - low], [high - point.quality]],
            fmt=marker,
            color=colour,
            markersize=7,
            elinewidth=1.1,
            capsize=2.5,
        )
    axes.margins(x=0.14, y=0.12)


_Place = tuple[float, float, str, str]


def _label_points(axes: Any, points: Sequence[Point]) -> None:
    """Write every name beside its point, where it covers no other name, point or interval."""
    renderer = axes.figure.canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    taken = [_extent(axes, point) for point in points]
    for point in sorted(points, key=lambda p: -p.quality):
        best, least, best_box = _places()[0], float("inf"), None
        for at, place in enumerate(_places()):
            text = _annotate(axes, point, place)
            box = text.get_window_extent(renderer)
            text.remove()
            outside = box.width * box.height - _overlap(box, frame)
            cost = sum(_overlap(box, other) for other in taken) + 2 * outside + 0.01 * at
            if cost < least:
                best, least, best_box = place, cost, box
        is_far = max(abs(best[0]), abs(best[1])) > 12
        line = {"arrowstyle": "-", "color": _GRID, "linewidth": 0.7}
        _annotate(axes, point, best, line if is_far else None)
        taken.append(best_box)


def _annotate(axes: Any, point: Point, place: _Place, line: dict[str, Any] | None = None) -> Any:
    dx, dy, side, base = place
    return axes.annotate(
        point.method,
        (point.milliseconds, point.quality),
        xytext=(dx, dy),
        textcoords="offset points",
        ha=side,
        va=base,
        color=_INK,
        arrowprops=line,
    )


def _places() -> list[_Place]:
    """Return offsets in points with their alignment, the preferred ones first."""
    places: list[_Place] = []
    for distance in (7, 14, 24, 36, 50):
        for sign, side in ((1, "left"), (-1, "right")):
            for up, base in ((0.6, "bottom"), (0.0, "center"), (-0.6, "top")):
                places.append((sign * distance, up * distance, side, base))
        places += [(0.0, distance, "center", "bottom"), (0.0, -distance, "center", "top")]
    return places


def _extent(axes: Any, point: Point) -> Any:
    """Return the box of pixels that a point and its interval cover."""
    from matplotlib.transforms import Bbox

    half = 5.0 / _POINTS_PER_INCH * axes.figure.dpi
    ends = axes.transData.transform([(point.milliseconds, end) for end in point.ends])
    return Bbox(ends).padded(half)


def _overlap(box: Any, other: Any) -> float:
    """Return the area that two boxes share, in square pixels."""
    shared = box.intersection(box, other)
    return 0.0 if shared is None else float(shared.width * shared.height)

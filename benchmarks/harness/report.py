"""The command that every benchmark is, and its figures: median and spread, environment, JSON file."""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import click
import numpy as np

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
NEW_FOLDER = click.Path(path_type=Path, file_okay=False)
NEW_FILE = click.Path(path_type=Path, dir_okay=False)
_LISTED = 20
_Figures = TypeVar("_Figures")
COUNT = click.IntRange(min=1)
_JSON = click.option("--json", "json_file", type=NEW_FILE, help="Write the figures there.")


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated measurements of one figure, in the order measured."""

    median: float
    min: float
    max: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one measurement."""
        return cls(statistics.median(values), min(values), max(values), tuple(values))

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> Spread:
        """Summarise the ratios of measurements that were taken in pairs, one after the other."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])

    def text(self) -> str:
        """Return "median (min–max)"."""
        if len(self.values) == 1:
            return _text(self.median)
        return f"{_text(self.median)} ({_text(self.min)}–{_text(self.max)})"


def environment(*packages: str) -> dict[str, Any]:
    """Return the machine, the load it is under, and the versions of Python and some packages."""
    facts = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        facts["device"] = sys.modules["torch"].cuda.get_device_name()
    return facts


def shown(name: str, figures: _Figures) -> _Figures:
    """Print figures, a line for each group of them, and return them.

    A group within a group has its own line, named by the way to it. Of a long list the beginning is printed.
    """
    parts = _parts(figures)
    said = [f"{part} {_text(value)}" for part, value in parts.items() if not _parts(value)]
    if said:
        click.echo(f"{name}: {', '.join(said)}")
    for part, value in parts.items():
        if _parts(value):
            shown(f"{name}, {part}", value)
    return figures


def _parts(figures: Any) -> dict[Any, Any]:
    """Return the parts of a group of figures; a single figure has none."""
    if isinstance(figures, Spread):
        return {}
    if is_dataclass(figures):
        return {field.name: getattr(figures, field.name) for field in fields(figures)}
    if isinstance(figures, list | tuple):
        return dict(enumerate(figures, start=1)) if any(map(_parts, figures)) else {}
    return figures if isinstance(figures, dict) else {}


def _text(figure: Any) -> str:
    if isinstance(figure, Spread):
        return figure.text()
    if isinstance(figure, list | tuple):
        more = " …" if len(figure) > _LISTED else ""
        return " / ".join(map(_text, figure[:_LISTED])) + more
    if isinstance(figure, bool) or not isinstance(figure, int | float):
        return str(figure)
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"


def percentiles(values: Sequence[float], *shares: float) -> dict[str, float]:
    """Return percentiles by name, "p99" of 99 and "max" of 100; no values have none."""
    chosen = {"max" if share == 100 else f"p{share:g}": share for share in shares if len(values)}
    return {name: round(float(np.percentile(values, share)), 3) for name, share in chosen.items()}


def benchmark(
    *packages: str, check: Callable[[Any, SimpleNamespace], str | None] | None = None
) -> Callable[[Callable[[SimpleNamespace], Any]], click.Command]:
    """Make a command of a function that takes options and returns figures.

    The command prints the environment, calls the function, and writes the figures to the file of `--json`.
    Figures that are None, where nothing could be measured, are not written.

    Args:
        packages: Packages whose versions belong to the environment.
        check: Complaint about the figures, which makes the exit status 1; it returns None for good ones.
    """

    def decorated(measure: Callable[[SimpleNamespace], Any]) -> click.Command:
        @functools.wraps(measure)
        def run(json_file: Path | None, **given: Any) -> None:
            facts, options = environment(*packages), SimpleNamespace(**given)
            click.echo(", ".join(f"{name} {value}" for name, value in facts.items()))
            figures = measure(options)
            if json_file is not None and figures is not None:
                document = {
                    "command": ["python", *sys.argv],
                    "options": given,
                    "environment": facts,
                    "figures": figures,
                }
                json_file.write_text(json.dumps(document, indent=1, default=_plain) + "\n", encoding="utf-8")
                click.echo(f"written: {json_file}")
            if check is not None and (complaint := check(figures, options)):
                raise click.ClickException(complaint)

        return click.command(context_settings={"show_default": True})(_JSON(run))

    return decorated


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"

"""Figures: median and spread, the environment they were taken in, and a JSON file for both."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated measurements of one figure.

    Attributes:
        median: Their median.
        min: The smallest.
        max: The largest.
        values: All of them, in the order measured.
    """

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

    def text(self, digits: int = 2) -> str:
        """Return "median (min–max)"."""
        if len(self.values) == 1:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.min:,.{digits}f}–{self.max:,.{digits}f})"


def environment(*packages: str) -> dict[str, Any]:
    """Return the machine, the load it is under, and the versions of Python and some packages."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }


def announce(facts: dict[str, Any]) -> None:
    """Print the environment."""
    click.echo(", ".join(f"{name} {value}" for name, value in facts.items()))


def write_json(file: Path | None, command: Sequence[str], environment: dict[str, Any], figures: Any) -> None:
    """Write what was measured, if a file is given."""
    if file is not None:
        document = {"command": list(command), "environment": environment, "figures": figures}
        file.write_text(json.dumps(document, indent=1, default=_plain) + "\n", encoding="utf-8")
        click.echo(f"written: {file}")


def command_line() -> list[str]:
    """Return the command that runs this process, without the path of the interpreter."""
    return ["python", *sys.argv]


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
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

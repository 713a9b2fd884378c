"""What an evaluation ran on: versions, the machine, and the command to repeat it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
from pathlib import Path

_PACKAGES = ("generative-retrieval", "torch", "transformers", "tokenizers", "numpy", "bm25s", "ir-measures")


def about_machine(threads: int) -> list[tuple[str, str]]:
    """Return what the run stood on: versions and hardware."""
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:  # an extra, or a checkout that was never installed
            continue
    return [
        ("versions", ", ".join([f"Python {platform.python_version()}", *versions])),
        ("machine", f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} cores"),
        ("torch threads", str(threads)),
    ]


def command_line(arguments: list[str]) -> str:
    """Return a command as a shell takes it."""
    return shlex.join(arguments)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # no Linux: platform knows what there is to know
        pass
    return platform.processor() or "unknown processor"

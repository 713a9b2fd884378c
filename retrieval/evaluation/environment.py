"""What an evaluation ran on: digests of the checkpoint, versions, the machine, and the command to repeat "
"it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
from pathlib import Path

from retrieval.index.digests import digest_bytes
from retrieval.retriever import Retriever
from retrieval.sources.digests import digest_file

_PACKAGES = ("generative-retrieval", "torch", "transformers", "tokenizers", "numpy", "bm25s", "ir-measures")
_CHECKPOINT_FILES = ("config.json", "genret.json", "tokenizer.json")
_WEIGHTS = "*.safetensors"


def model_digest(retriever: Retriever) -> str:
    """Return one digest of the checkpoint: its configuration, templates, tokenizer and weights.

    Raises:
        SourceError: a file cannot be read.
    """
    folder = Path(retriever.tokenizer.source)
    files = [folder / name for name in _CHECKPOINT_FILES if (folder / name).is_file()]
    files += sorted(folder.glob(_WEIGHTS))
    lines = [f"{file.name} {digest_file(file).xxh3_128}" for file in files]
    return digest_bytes("\n".join(lines).encode())


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

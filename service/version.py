"""The installed version of the software."""

from __future__ import annotations

import importlib.metadata

DISTRIBUTION = "generative-retrieval"


def version() -> str:
    """Return the installed version."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"

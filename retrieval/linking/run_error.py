"""The error of a linking run that cannot begin or go on."""

from __future__ import annotations

from retrieval.errors import GenretError


class LinkingRunError(GenretError):
    """A run's folder cannot be used, or a worker is gone; the text says what is kept and how to go on."""

"""Seeds of requests that name none."""

from __future__ import annotations

import secrets

# Seeds that are chosen here survive JSON readers whose only numbers are doubles.
_SEED_BITS = 53


def new_seed() -> int:
    """Return a seed that nobody could have guessed."""
    return secrets.randbits(_SEED_BITS)

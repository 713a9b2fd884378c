"""Bytes that must follow, whatever is chosen."""

from __future__ import annotations

from decoding.grammar.automaton.configurations import Configuration, Configurations


def forced(configurations: Configurations, start: Configuration, limit: int) -> bytes:
    """Follow the only byte that is allowed, as long as there is only one and the text cannot end.

    Args:
        configurations: Of the grammar.
        start: Where to begin.
        limit: Most bytes.
    """
    written = bytearray()
    configuration = start
    while len(written) < limit and not configuration.is_complete:
        allowed = _allowed(configuration)
        if allowed is None or len(allowed) != 1:
            break
        following = configurations.after(configuration, bytes(allowed))
        assert following is not None  # a level lists nothing that is not allowed
        configuration = following
        written += bytes(allowed)
    return bytes(written)


def _allowed(configuration: Configuration) -> tuple[int, ...] | None:
    """The bytes that may come next; None where they are too many to list."""
    level, below = configuration.level, configuration.below
    out = level.out
    if out is None or not level.ended:
        return out
    assert below is not None  # values are in something
    behind = below.level.complete(level.ended).out
    return None if behind is None else out + behind

"""Row lengths in few lines, for people."""

from __future__ import annotations

from collections.abc import Mapping

MAX_LINES = 40


def length_lines(lengths: Mapping[int, int], bar: str, width: int) -> list[str]:
    """Return one line per row length, or per range of lengths where there would be more than 40 lines.

    Args:
        lengths: Number of rows by length; at least one, ascending.
        bar: One character.
        width: Characters of the longest bar; every line has one at least.
    """
    step = 1 if len(lengths) <= MAX_LINES else -(-max(lengths) // MAX_LINES)
    counts: dict[int, int] = {}
    for length, count in lengths.items():
        begin = (length - 1) // step * step + 1
        counts[begin] = counts.get(begin, 0) + count
    most = max(counts.values())
    return [
        f"{begin if step == 1 else f'{begin}–{begin + step - 1}':>9} {count:>12,} "
        + bar * max(round(width * count / most), 1)
        for begin, count in counts.items()
    ]

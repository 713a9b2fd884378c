"""A small index with something of everything the format can hold."""

from __future__ import annotations

from pathlib import Path

from tests.index_fixtures import build, character_tokenizer

TOKENIZER = character_tokenizer("abcdefghijklmnopqrstuvwxyz éß0123456789", lower=True)

_HEADER = "entity_id\ttitle\taliases\tkind\tyear\tscore\tseen\tnote"
_KINDS = ("film", "book", "")


def lines(number: int) -> list[str]:
    """Return a titles file: shared titles, aliases, rows of more than 64 tokens, cells of every type."""
    rows = [_HEADER]
    for i in range(number):
        named = i % (number - 3)  # the last three have titles of the first three
        title = f"{'long ' * (named % 3 * 10)}title {named} {'xyz'[named % 3]}"
        aliases = "|".join([f"Alias {i}", f"shared {i // 6}"][: i % 3])
        note = "" if i % 4 else f"é note {i} of its own"
        rows.append(
            f"id{i}\t{title}\t{aliases}\t{_KINDS[i % 3]}\t{1900 + i * 37 % 120}\t{i / 4}\t"
            f"{'true' if i % 2 else 'false'}\t{note}"
        )
    return rows


def build_rich(folder: Path) -> tuple[Path, Path]:
    """Build an index of two versions; return the directories of the live one and of the one before."""
    before = build(folder, lines(23), TOKENIZER)
    live = build(folder, lines(31), TOKENIZER)
    versions = live.index / "versions"
    return versions / live.version, versions / before.version

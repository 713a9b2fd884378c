"""`MentionFinder`: the longest names of an index in a text, from left to right."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from retrieval.index.reader import Index
from retrieval.linking.documents.document import Span
from retrieval.linking.finding.mention_finder import MentionFinder
from retrieval.linking.finding.options import FindOptions
from retrieval.linking.finding.table_building import build_table
from retrieval.linking.finding.table_cache import open_table


class SpanFinder(Protocol):
    """Finds mentions in a text, and who has a name. `MentionFinder` is one."""

    def find(self, text: str, begin: int = 0, end: int | None = None) -> list[Span]:
        """Return mentions that begin in [begin, end), in order, none overlapping another."""

    def entity_ids(self, text: str) -> tuple[str, ...]:
        """Return the ids of the entities that have `text` as a title or alias, in any letter case.

        In the order of the index, at most `MAX_NAMED_ENTITIES`; the options of finding make no difference.
        """


def open_finder(index: Index, options: FindOptions, cache_dir: Path | None = None) -> SpanFinder:
    """Return a finder of the index's titles and aliases.

    Its table is made once per index digest and kept in `cache_dir`, where every process maps the same file;
    None: it is kept in memory only.

    Raises:
        InputError: an option is out of range; it is named.
        SourceError: the stop words or the cache cannot be read or written.
    """
    table = build_table(index) if cache_dir is None else open_table(index, cache_dir)
    return MentionFinder(table, index, options)

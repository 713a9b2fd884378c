"""How much key/value memory a batch takes, and what part of it each of its queries answers for.

Decoders branch off sessions of their own from the one they are given, for queries that go on when others are
done. A meter stands between and reads the usage of each as it goes; it keeps no session alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from decoding.kv_usage import KvUsage
from decoding.language_model import DecodeSession, TreeWriter
from decoding.row_trees import NodeSpan, RowTrees
from retrieval.types import KvShare


@dataclass(slots=True)
class _Reading:
    """What a session last said, and the numbers of its queries in the batch."""

    queries: tuple[int, ...]
    usage: KvUsage


class KvMeter:
    """Reads the usage of a session, and of every session made from it.

    Args:
        session: As `prefill` returned it.
        num_queries: Its queries.

    Attributes:
        session: The same session, metered: what the decoder is to be given.
    """

    def __init__(self, session: DecodeSession, num_queries: int) -> None:
        self._readings: list[_Reading] = []
        self.session: DecodeSession = _MeteredSession(session, tuple(range(num_queries)), self._readings)

    def share(self, query: int) -> KvShare:
        """Return what one query answers for: in every session an equal part, as their caches are rectangles.

        The first session stays while the others run, and they run one after the other.
        """
        first = self._readings[0]
        mine = [reading for reading in self._readings if query in reading.queries]
        later = max((_part(r.usage.peak_bytes, r) for r in mine if r is not first), default=0)
        held = _part(first.usage.held_bytes, first)
        return KvShare(
            peak_bytes=max(_part(first.usage.peak_bytes, first), held + later),
            per_branch_bytes=max(_part(r.usage.per_branch_bytes, r) for r in mine),
            shared_prefix_bytes=max(r.usage.shared_bytes for r in mine),
            num_collections=sum(r.usage.num_collections for r in mine),
        )


def _part(num_bytes: int, reading: _Reading) -> int:
    return num_bytes // len(reading.queries)


class _MeteredSession:
    """A session whose usage is read after everything that changes it."""

    def __init__(self, session: DecodeSession, queries: tuple[int, ...], readings: list[_Reading]) -> None:
        self._session = session
        self._readings = readings
        self._mine = _Reading(queries, session.usage)
        readings.append(self._mine)

    @property
    def root_logits(self) -> Tensor:
        return self._session.root_logits

    @property
    def usage(self) -> KvUsage:
        return self._session.usage

    def keep_levels(self) -> None:
        self._session.keep_levels()

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        logits = self._session.step(parents, token_ids, depth)
        self._mine.usage = self._session.usage
        return logits

    def tree_writer(self, trees: RowTrees) -> TreeWriter:
        return _MeteredWriter(self._session, self._session.tree_writer(trees), self._mine)

    def select(self, queries: Sequence[int], branches: bool = False) -> DecodeSession:
        numbers = tuple(self._mine.queries[query] for query in queries)
        return _MeteredSession(self._session.select(queries, branches), numbers, self._readings)


class _MeteredWriter:
    """A writer whose session's usage is read after every forward."""

    def __init__(self, session: DecodeSession, writer: TreeWriter, reading: _Reading) -> None:
        self._session, self._writer, self._mine = session, writer, reading

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        logits = self._writer.write(spans)
        self._mine.usage = self._session.usage
        return logits

"""What a runner is, and what it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.shard import Shard
from retrieval.linking.options import LinkJob
from retrieval.linking.output.record import ShardRecord


class Worker(Protocol):
    """What links shards: `ShardWorker`."""

    def run(self, shard: Shard, report: Callable[[LinkCounts], None]) -> ShardRecord:
        """Link one."""

    def close(self) -> None:
        """Release what is open."""


OpenWorker = Callable[[LinkJob], Worker]


class Runner(Protocol):
    """Links shards with `ShardWorker`, several at a time."""

    def run(self, job: LinkJob, shards: Sequence[Shard]) -> Iterator[ShardRecord | LinkCounts]:
        """Yield the record of every shard as it ends, in any order, and counts of unfinished ones in between.

        Closing the iterator stops the workers. `LinkCounts` are increments since the last ones and only for
        progress; a record's counts are the shard's whole.

        Raises:
            GenretError: a worker refused or failed; what is recorded stays.
        """

"""The function that every runner calls, in whatever process: link one shard and write what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.shard import Shard
from retrieval.linking.options import LinkJob


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What is recorded of a finished shard; its presence says that the part file is whole.

    Attributes:
        shard: The shard's number.
        key: `LinkJob.key` of the run.
        digest: `Shard.digest`.
        part: Name of the part file in the output folder.
        num_bytes: Its size.
        counts: What was linked.
        complaints: The first bad lines and failed mentions, as text.
        seconds: Wall time.
    """

    shard: int
    key: str
    digest: str
    part: str
    num_bytes: int
    counts: LinkCounts
    complaints: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardRecord:
        """Read what `to_json` gave."""
        raise NotImplementedError


class ShardWorker:
    """Opens index, model and finder once and links shards, one at a time. Caches are all it keeps.

    Args:
        job: What to do; comes from the coordinator, maybe from another machine.

    Raises:
        GenretError: the index or the model cannot be opened, or the index is not the one the job is about.
    """

    def __init__(self, job: LinkJob) -> None:
        raise NotImplementedError

    def run(self, shard: Shard, report: Callable[[LinkCounts], None] = lambda counts: None) -> ShardRecord:
        """Link a shard: write its part file, flush and rename it, then its record, and return the record.

        A run that is killed before the rename leaves nothing but a hidden file, which the next run removes.

        Raises:
            GenretError: the shard cannot be read or its part cannot be written.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the index. Idempotent."""
        raise NotImplementedError

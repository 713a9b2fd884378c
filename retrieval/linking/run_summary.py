"""What a linking run has to say in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrieval.linking.counts import LinkCounts


@dataclass(frozen=True, slots=True)
class LinkSummary:
    """Totals of a complete run.

    Attributes:
        out: The output.
        counts: Of all shards, those of earlier sessions included.
        num_shards: Of the corpus.
        num_resumed: Shards that earlier sessions had finished.
        seconds: Wall time of this session.
        was_complete: Whether an earlier session had finished it all, so that nothing was done.
        index_digest: The index linked to.
        model_fingerprint: The checkpoint linked with.
        key: Fingerprint of the run.
    """

    out: str
    counts: LinkCounts
    num_shards: int
    num_resumed: int
    seconds: float
    was_complete: bool
    index_digest: str
    model_fingerprint: str
    key: str

    def to_json(self) -> dict[str, Any]:
        """Return everything as a flat JSON object."""
        return {
            **self.counts.to_json(),
            "num_shards": self.num_shards,
            "num_resumed": self.num_resumed,
            "seconds": round(self.seconds, 3),
            "was_complete": self.was_complete,
            "out": self.out,
            "index_digest": self.index_digest,
            "model_fingerprint": self.model_fingerprint,
            "key": self.key,
        }

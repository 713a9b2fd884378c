"""From an answer and the place it was asked for to a row of the output, counted and complained about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrieval.linking.answers import LinkAnswer
from retrieval.linking.counts import LinkCounts
from retrieval.linking.mention_stream import PlacedMention
from retrieval.linking.options import LinkOptions


class RowMaker:
    """Makes rows of `retrieval.linking.rows.SCHEMA`.

    Args:
        options: Whether mentions without an entity are kept, and lists are to be exact.
        index_digest: Of the index that mentions are linked to.
        counts: Added to.
        complain: Gets one line per mention that failed.
    """

    def __init__(
        self, options: LinkOptions, index_digest: str, counts: LinkCounts, complain: Callable[[str], None]
    ) -> None:
        self._exact = options.exact
        self._keep_nil = options.keep_nil
        self._index_digest = index_digest
        self._counts = counts
        self._complain = complain

    def make(
        self, mention: PlacedMention, answer: LinkAnswer, is_cached: bool = False
    ) -> dict[str, Any] | None:
        """Return the row of a mention, counted; None where it is not to be written."""
        counts = self._counts
        counts.num_mentions += 1
        counts.num_linked += answer.best is not None
        counts.num_nil += answer.best is None
        counts.num_cached += is_cached
        counts.num_unproven += self._exact and answer.certified is False
        if answer.error is not None:
            counts.num_failed += 1
            self._complain(mention.complaint(answer.error))
        if answer.best is None and not self._keep_nil:
            return None
        counts.num_rows += 1
        return self._row(mention, answer)

    def _row(self, mention: PlacedMention, answer: LinkAnswer) -> dict[str, Any]:
        best, place = answer.best, mention.place
        return {
            "source": mention.source,
            "row": mention.row,
            "doc_id": mention.doc_id,
            "mention_id": mention.mention_id,
            "start": place.start,
            "end": place.end,
            "start_byte": place.start_byte,
            "end_byte": place.end_byte,
            "mention": mention.context.mention,
            "entity_id": best.entity_id if best else None,
            "title": best.title if best else None,
            "surface": answer.surface if best else None,
            "logprob": best.logprob if best else None,
            "score": best.score if best else None,
            "probability": best.probability if best else None,
            "nil_reason": answer.nil_reason,
            "candidates": [
                {
                    "entity_id": c.entity_id,
                    "title": c.title,
                    "logprob": c.logprob,
                    "score": c.score,
                    "probability": c.probability,
                }
                for c in answer.candidates
            ],
            "certified": answer.certified,
            "mass": answer.mass,
            "mention_source": mention.origin,
            "method": answer.method,
            "error": answer.error,
            "index_digest": self._index_digest,
        }

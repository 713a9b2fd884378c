"""The linking loop: mentions in batches through one retriever, rows out in input order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from decoding.errors import DecodingCancelledError
from retrieval.errors import GenretError, InputError, SourceError
from retrieval.linking.mentions import BadRow, MentionRow
from retrieval.linking.writer import LinkWriter
from retrieval.request_options import RequestOptions, with_options
from retrieval.types import RetrievalResult

if TYPE_CHECKING:
    from retrieval.retriever import Retriever

# Mentions read ahead and sorted by length, in batches: neighbours then need little padding.
_WINDOW_BATCHES = 16


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How mentions are linked.

    Attributes:
        method: "beam" or "disc".
        k: Candidates kept per mention.
        beam_size: Live prefixes per step of `beam`, prefixes per draw of `disc`.
        seed: Seed of `disc`.
        min_logprob: A best candidate below it is NIL: the mention stays unlinked.
        min_mass: With `disc`, a mention whose mass is below it is NIL, without candidates.
        adaptive: Whether the second phase of `disc` learns from the first.
        exact: Whether `beam` goes on until the candidates are proven.
        exact_budget: Most tokens computed for that; None: the default.
        length_penalty: Of `beam`.
        aggregate: How the forms of an entity make its score with `beam`; None: the default.
        batch_size: Mentions per forward.
        max_bad_rows: Lines that may be unreadable; they are left out.
        filter: Predicate that every linked entity passes; None: all do.
    """

    method: str = "beam"
    k: int = 5
    beam_size: int | None = None
    seed: int = 0
    min_logprob: float | None = None
    min_mass: float | None = None
    adaptive: bool = False
    exact: bool = False
    exact_budget: int | None = None
    length_penalty: float = 0.0
    aggregate: str | None = None
    batch_size: int = 32
    max_bad_rows: int = 0
    filter: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError("batch_size", f"must be at least 1, got {self.batch_size}")
        if self.max_bad_rows < 0:
            raise InputError("max_bad_rows", f"must be at least 0, got {self.max_bad_rows}")
        if self.min_logprob is not None and math.isnan(self.min_logprob):
            raise InputError("min_logprob", "must be a number, got nan")
        with_options(self.k, self.method, None, {**self.request_options(), "seed": self.seed})

    def request_options(self) -> RequestOptions:
        """Return what every mention is asked with, beside `k` and `method`."""
        return RequestOptions(
            beam_size=self.beam_size,
            seed=self.seed if self.method == "disc" else None,
            min_mass=self.min_mass,
            adaptive=self.adaptive,
            exact=self.exact,
            exact_budget=self.exact_budget,
            length_penalty=self.length_penalty,
            aggregate=self.aggregate,
            filter=self.filter,
        )


@dataclass(slots=True)
class LinkSummary:
    """Counts of one run.

    Attributes:
        num_mentions: Read.
        num_linked: To an entity.
        num_nil: To none.
        num_failed: Ended by an error.
        num_bad_rows: Lines that were left out.
        num_unproven: Lists that were to be exact and are not certified.
    """

    num_mentions: int = 0
    num_linked: int = 0
    num_nil: int = 0
    num_failed: int = 0
    num_bad_rows: int = 0
    num_unproven: int = 0


def link_mentions(
    retriever: Retriever,
    source: str,
    rows: Iterator[MentionRow | BadRow],
    writer: LinkWriter,
    options: LinkOptions,
    report: Callable[[LinkSummary], None],
    complain: Callable[[str], None],
) -> LinkSummary:
    """Link every mention of a source, in order, in bounded memory.

    Args:
        retriever: Index and model.
        source: Name of the input, for messages.
        rows: What `read_mentions` gives.
        writer: Where the rows go.
        options: How to link.
        report: Called after every batch.
        complain: Gets one line of text per bad row and per mention that could not be linked.

    Raises:
        SourceError: more bad rows than allowed; names file, line and reason.
    """
    summary = LinkSummary()
    good = _good_rows(source, rows, options, summary, complain)
    asked = options.request_options()
    while window := list(islice(good, options.batch_size * _WINDOW_BATCHES)):
        requests = [retriever.link_request(row.mention, options.k, options.method, **asked) for row in window]
        order = sorted(range(len(window)), key=lambda i: len(requests[i].query))
        written: list[dict[str, Any]] = [{}] * len(window)
        for at in range(0, len(order), options.batch_size):
            batch = order[at : at + options.batch_size]
            replies = retriever.retrieve_batch([requests[i] for i in batch])
            for i, reply in zip(batch, replies, strict=True):
                written[i] = _row(source, window[i], reply, options, summary, complain)
            report(summary)
        writer.write(written)
    return summary


def _good_rows(
    source: str,
    rows: Iterator[MentionRow | BadRow],
    options: LinkOptions,
    summary: LinkSummary,
    complain: Callable[[str], None],
) -> Iterator[MentionRow]:
    for row in rows:
        if isinstance(row, MentionRow):
            yield row
            continue
        summary.num_bad_rows += 1
        message = f"{source}, line {row.line}: {row.reason}"
        if summary.num_bad_rows > options.max_bad_rows:
            raise SourceError(
                f"{message} (bad row {summary.num_bad_rows}, {options.max_bad_rows} allowed; "
                "allow more with --max-bad-rows)"
            )
        complain(message)


def _row(
    source: str,
    row: MentionRow,
    reply: RetrievalResult | GenretError | DecodingCancelledError,
    options: LinkOptions,
    summary: LinkSummary,
    complain: Callable[[str], None],
) -> dict[str, Any]:
    summary.num_mentions += 1
    result: dict[str, Any] = {
        "id": row.mention_id,
        "mention": row.mention.mention,
        "entity_id": None,
        "title": None,
        "surface": None,
        "logprob": None,
        "probability": None,
        "candidates": [],
        "error": None,
        "mass": None,
        "abstained": False,
        "score": None,
        "certified": None,
    }
    if not isinstance(reply, RetrievalResult):
        summary.num_failed += 1
        complain(f"{source}, line {row.line}: {reply}")
        result["error"] = str(reply)
        return result
    result["mass"], result["abstained"] = reply.bounded_mass, reply.abstained
    result["certified"] = reply.certified
    summary.num_unproven += options.exact and not reply.certified
    result["candidates"] = [
        {"entity_id": c.entity_id, "title": c.title, "logprob": c.logprob, "score": c.score}
        for c in reply.candidates
    ]
    best = reply.candidates[0] if reply.candidates else None
    if best is None or (options.min_logprob is not None and best.logprob < options.min_logprob):
        summary.num_nil += 1
        return result
    summary.num_linked += 1
    result.update(
        entity_id=best.entity_id,
        title=best.title,
        surface=best.surface,
        logprob=best.logprob,
        probability=best.probability,
        score=best.score,
    )
    return result

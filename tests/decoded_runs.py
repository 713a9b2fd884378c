"""Answers of beam search and DISC alone, without the batches and retries of a retriever."""

from __future__ import annotations

from collections.abc import Sequence

from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.language_model import DecodeSession
from genret.decoding.trace import Trace
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.filters.entity_filter import EntityFilter
from genret.retrieval.index.reader import Index
from genret.retrieval.methods.decoded_methods import Decoded, decode_by_beam, decode_by_disc, or_abstain
from genret.retrieval.types import RetrievalResult, RetrieveRequest

Outcome = RetrievalResult | DecodingCancelledError


def run_disc(
    session: DecodeSession,
    trie: TitleTrie,
    index: Index,
    requests: Sequence[RetrieveRequest],
    cancel: Sequence[CancelToken | None],
    room: Sequence[int | None],
    filters: Sequence[EntityFilter | None] | None = None,
    traces: Sequence[Trace] | None = None,
) -> list[Outcome]:
    """Answer requests by DISC. See `decode_by_disc`."""
    found = decode_by_disc(session, trie, index, requests, cancel, room, filters, traces)
    return [
        or_abstain(request, query.answer) if isinstance(query, Decoded) else query
        for request, query in zip(requests, found, strict=True)
    ]


def run_beam(
    session: DecodeSession,
    trie: TitleTrie,
    index: Index,
    requests: Sequence[RetrieveRequest],
    cancel: Sequence[CancelToken | None],
    room: Sequence[int | None],
    filters: Sequence[EntityFilter | None] | None = None,
    traces: Sequence[Trace] | None = None,
) -> list[Outcome]:
    """Answer requests by trie beam search. See `decode_by_beam`."""
    found = decode_by_beam(session, trie, index, requests, cancel, room, filters, traces)
    return [query.answer if isinstance(query, Decoded) else query for query in found]

"""Answers of beam search and DISC alone, without the batches and retries of a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genret.decoding.errors import DecodingCancelledError
from genret.decoding.language_model import DecodeSession
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.index.reader import Index
from genret.retrieval.methods.decoded_methods import (
    Asked,
    Decoded,
    decode_by_beam,
    decode_by_disc,
    or_abstain,
)
from genret.retrieval.types import RetrievalResult, RetrieveRequest

Outcome = RetrievalResult | DecodingCancelledError


def _asked(requests: Sequence[RetrieveRequest], *more: Sequence[Any]) -> list[Asked]:
    """Requests with what `more` lists for each: cancel tokens, room, and filters, if any."""
    cancel, room, *filters = more
    allowed = filters[0] if filters and filters[0] else [None] * len(requests)
    return [Asked(*one) for one in zip(requests, allowed, room, cancel, strict=True)]


def run_disc(
    session: DecodeSession, trie: TitleTrie, index: Index, requests: Sequence[RetrieveRequest], *more: Any
) -> list[Outcome]:
    """Answer requests by DISC; `more` as of `_asked`."""
    found = decode_by_disc(session, trie, index, _asked(requests, *more))
    return [
        or_abstain(request, query.answer) if isinstance(query, Decoded) else query
        for request, query in zip(requests, found, strict=True)
    ]


def run_beam(
    session: DecodeSession, trie: TitleTrie, index: Index, requests: Sequence[RetrieveRequest], *more: Any
) -> list[Outcome]:
    """Answer requests by trie beam search; `more` as of `_asked`."""
    found = decode_by_beam(session, trie, index, _asked(requests, *more))
    return [query.answer if isinstance(query, Decoded) else query for query in found]

"""Answers of beam search and DISC alone, without the batches and retries of a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genret.decoding.errors import DecodingCancelledError
from genret.decoding.language_model import DecodeSession
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.index.reader import Index
from genret.retrieval.methods.decoded_methods import Decoded, decode_by_beam, decode_by_disc, or_abstain
from genret.retrieval.types import RetrievalResult, RetrieveRequest

Outcome = RetrievalResult | DecodingCancelledError


def run_disc(
    session: DecodeSession, trie: TitleTrie, index: Index, requests: Sequence[RetrieveRequest], *more: Any
) -> list[Outcome]:
    """Answer requests by DISC; `more` are further arguments of `decode_by_disc`."""
    found = decode_by_disc(session, trie, index, requests, *more)
    return [
        or_abstain(request, query.answer) if isinstance(query, Decoded) else query
        for request, query in zip(requests, found, strict=True)
    ]


def run_beam(
    session: DecodeSession, trie: TitleTrie, index: Index, requests: Sequence[RetrieveRequest], *more: Any
) -> list[Outcome]:
    """Answer requests by trie beam search; `more` are further arguments of `decode_by_beam`."""
    found = decode_by_beam(session, trie, index, requests, *more)
    return [query.answer if isinstance(query, Decoded) else query for query in found]

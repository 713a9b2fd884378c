"""Explains answers by what a decoder recorded: texts for tokens, candidates for rows, within fixed limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from genret.decoding.trace import ROOT, Trace
from genret.retrieval.explanation import MAX_EXPLAINED_DRAWS, MAX_NODES, Explanation, ExplanationNode
from genret.retrieval.filters.entity_filter import EntityFilter, mask_of
from genret.retrieval.index.owners import FormOwners
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import Candidate, RetrievalResult


class Explainer:
    """Makes explanations of what was retrieved from an index, with the texts of the model's tokens."""

    def __init__(self, index: Index, texts: TokenTexts) -> None:
        self._index = index
        self._texts = texts

    def explain(self, trace: Trace, result: RetrievalResult, allowed: EntityFilter | None) -> Explanation:
        """Return the explanation of a result, from the trace of its query and the filter of its request."""
        ranks = self._ranks(trace, result.candidates, allowed)
        drawn = _drawn(trace)
        kept = sorted(_kept(trace, [*sorted(ranks, key=ranks.__getitem__), *_ends(trace, drawn)]))
        place_of = {place: number for number, place in enumerate(kept)}
        draws = tuple(
            replace(draw, node=place_of[draw.node])
            for draw in (trace.draws[number] for number in sorted(drawn))
            if draw.node in place_of
        )
        return Explanation(
            nodes=tuple(self._node(trace, place, place_of, ranks) for place in kept),
            draws=draws,
            truncated=trace.is_full or len(kept) < len(trace.nodes) or len(draws) < len(trace.draws),
        )

    def _node(
        self, trace: Trace, place: int, place_of: dict[int, int], ranks: dict[int, int]
    ) -> ExplanationNode:
        node, is_root = trace.nodes[place], place == ROOT
        before = 0.0 if is_root else trace.nodes[node.parent].total_logprob
        return ExplanationNode(
            parent=None if is_root else place_of[node.parent],
            depth=node.depth,
            token_id=node.token,
            text="" if is_root else self._texts.text(node.token),
            # Rounding must not make a probability of more than one out of two sums.
            logprob=min(0.0, node.total_logprob - before),
            total_logprob=node.total_logprob,
            valid_mass=node.valid_mass,
            num_valid=node.num_valid,
            state=node.state,
            candidate_rank=ranks.get(place),
        )

    def _ranks(
        self, trace: Trace, candidates: Sequence[Candidate], allowed: EntityFilter | None
    ) -> dict[int, int]:
        """Return the rank of the candidate that ends at each place of the trace; the best of several."""
        owners = FormOwners(self._index, mask_of(allowed), 1.0)
        rank_of = {candidate.entity_id: rank for rank, candidate in enumerate(candidates, start=1)}
        found: dict[int, int] = {}
        known: dict[int, int | None] = {}
        for place, node in enumerate(trace.nodes):
            if node.state != "finished":
                continue
            numbers = owners(node.row).entities
            for number in numbers:
                if number not in known:
                    known[number] = rank_of.get(self._index.entity(number).entity_id)
            ranks = [rank for number in numbers if (rank := known[number]) is not None]
            if ranks:
                found[place] = min(ranks)
        return found


def _drawn(trace: Trace) -> list[int]:
    """Return as many draws as fit; those that became samples come first."""
    numbers = sorted(range(len(trace.draws)), key=lambda number: not trace.draws[number].chosen)
    return numbers[:MAX_EXPLAINED_DRAWS]


def _ends(trace: Trace, drawn: Iterable[int]) -> Iterator[int]:
    """Yield places in the order they are wanted: those of draws, then the others, the likelier first."""
    for number in drawn:
        yield trace.draws[number].node
    yield from sorted(range(len(trace.nodes)), key=lambda place: (-trace.nodes[place].total_logprob, place))


def _kept(trace: Trace, wanted: Iterable[int]) -> set[int]:
    """Return as many of the wanted places as fit, the first ones, with all places above them."""
    kept = {ROOT}
    for end in wanted:
        way, place = [], end
        while place not in kept:
            way.append(place)
            place = trace.nodes[place].parent
        if len(kept) + len(way) <= MAX_NODES:
            kept.update(way)
    return kept


class TokenTexts:
    """The texts of a tokenizer's tokens. Reads the vocabulary when the first one is asked for."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _bytes(self) -> list[bytes | None]:
        """The bytes of tokens within a text, by id; empty for a tokenizer with an unknown decoder."""
        from genret.decoding.grammar.errors import VocabularyError
        from genret.decoding.grammar.vocabulary import read_token_bytes

        try:
            return read_token_bytes(self._tokenizer.serialized)
        except VocabularyError:
            return []

    def text(self, token_id: int) -> str:
        """Return the text of one token.

        Blanks at its beginning are kept, and part of a character is U+FFFD. The text is the token's name for
        a special token and for a tokenizer with an unknown decoder, and empty for a token it lacks.
        """
        written = self._bytes[token_id] if token_id < len(self._bytes) else None
        if written is not None:
            return written.decode("utf-8", "replace")
        return self._tokenizer.token_name(token_id)

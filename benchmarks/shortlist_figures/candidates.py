"""Candidates of labelled queries with both of their scores, from one pass of `auto`, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from retrieval import RetrievalResult, Retriever, RetrieveRequest
from retrieval.errors import InputError
from retrieval.evaluation.methods.prompts import Asked, QueryPrompts
from retrieval.evaluation.types import LabelledQuery

Floats = npt.NDArray[np.float64]
BEAM_SIZE = 10
_K = 1000  # every candidate there is


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What `auto` lists for one query.

    Attributes:
        query_id: Of the set.
        entity_ids: The most probable first.
        titles: Of them.
        logprobs: The model's, of all of an entity's titles and aliases. Shape: (n,).
        similarities: Of the query and an entity's most similar text. Shape: (n,).
        is_proposed: Whether the vectors proposed it; the others were found by beam search alone. Shape: (n,).
    """

    query_id: str
    entity_ids: tuple[str, ...]
    titles: tuple[str, ...]
    logprobs: Floats
    similarities: Floats
    is_proposed: npt.NDArray[np.bool_]

    def proposed(self) -> Candidates:
        """Return those that the vectors proposed: what `shortlist` lists."""
        at = np.flatnonzero(self.is_proposed)
        return Candidates(
            self.query_id,
            tuple(self.entity_ids[i] for i in at),
            tuple(self.titles[i] for i in at),
            self.logprobs[at],
            self.similarities[at],
            self.is_proposed[at],
        )

    def to_json(self) -> str:
        """Return one line of a file."""
        columns = zip(
            self.entity_ids,
            self.titles,
            self.logprobs.tolist(),
            self.similarities.tolist(),
            self.is_proposed.tolist(),
            strict=True,
        )
        return json.dumps({"query_id": self.query_id, "candidates": list(columns)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Candidates:
        """Read such a line."""
        read = json.loads(line)
        return cls.of(read["query_id"], read["candidates"])

    @classmethod
    def of(cls, query_id: str, rows: Sequence[Sequence[object]]) -> Candidates:
        """Make candidates of rows of id, title, log-probability, similarity and whether it was proposed."""
        ids, titles, logprobs, similarities, proposed = zip(*rows, strict=True) if rows else ((),) * 5
        return cls(
            query_id,
            tuple(map(str, ids)),
            tuple(map(str, titles)),
            np.array(logprobs, dtype=np.float64),
            np.array(similarities, dtype=np.float64),
            np.array(proposed, dtype=np.bool_),
        )


def collect(
    retriever: Retriever,
    queries: Sequence[LabelledQuery],
    size: int,
    batch_size: int,
    report: Callable[[int], None] = lambda count: None,
) -> list[Candidates]:
    """Ask every query once and return its candidates, in the order of the queries.

    Args:
        retriever: Of an index with vectors.
        queries: What is asked; one that cannot be asked has no candidates.
        size: Entities that the vectors propose.
        batch_size: Queries asked together.
        report: Gets the number asked so far.

    Raises:
        InputError: the index has no vectors that can be used.
    """
    vectors = retriever.vectors
    if vectors is None:
        raise InputError("index", f"needs vectors: {retriever.vectors_problem}")
    prompts = QueryPrompts(retriever)
    request = RetrieveRequest(
        "-", k=_K, method="auto", beam_size=BEAM_SIZE, shortlist_size=size, vector_weight=0.0
    )
    asked: dict[int, Asked] = {}
    for place, query in enumerate(queries):
        try:
            asked[place] = prompts.ask(query, request)
        except InputError:  # an empty query: nothing is its answer, as in an evaluation
            continue
    found = [Candidates.of(query.query_id, ()) for query in queries]
    order = sorted(asked, key=lambda place: len(asked[place].prompt))
    for at in range(0, len(order), batch_size):
        batch = order[at : at + batch_size]
        requests = [asked[place].request for place in batch]
        replies = retriever.retrieve_batch(requests)
        lists = vectors.propose([r.vector_text for r in requests], [size] * len(requests))
        for place, reply, proposals in zip(batch, replies, lists, strict=True):
            if not isinstance(reply, RetrievalResult):
                raise reply
            ids = {retriever.index.entity(int(number)).entity_id for number in proposals.entities}
            found[place] = _candidates(queries[place].query_id, reply, ids)
        report(at + len(batch))
    return found


def _candidates(query_id: str, result: RetrievalResult, proposed: set[str]) -> Candidates:
    if any(c.similarity is None for c in result.candidates):
        raise InputError("index", "must have more entities than the shortlist: no vectors were asked")
    return Candidates.of(
        query_id,
        [(c.entity_id, c.title, c.logprob, c.similarity, c.entity_id in proposed) for c in result.candidates],
    )


def write(file: Path, header: dict[str, object], found: Sequence[Candidates]) -> None:
    """Keep candidates with what they are of."""
    lines = [json.dumps(header, sort_keys=True), *(one.to_json() for one in found)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(file: Path, header: dict[str, object]) -> list[Candidates] | None:
    """Return candidates that were kept of the same index, model, set and settings; None: there are none."""
    if not file.is_file():
        return None
    with file.open(encoding="utf-8") as lines:
        if json.loads(next(lines)) != header:
            return None
        return [Candidates.from_json(line) for line in lines]

"""A retriever with scripted answers, and finders with given names, for tests of linking without a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from unittest import mock

import numpy as np

from genret.retrieval.errors import EvidenceMissingError, GenretError, InputError, ModelError
from genret.retrieval.linking import linker
from genret.retrieval.linking.documents.text_document import BadDocument, Document, Span
from genret.retrieval.linking.link_options import LinkOptions, WorkerOptions
from genret.retrieval.linking.run_progress import LinkCounts, LinkListener
from genret.retrieval.prompts import CheckpointConfig, PromptTemplate
from genret.retrieval.types import Candidate, Entity, RetrievalResult, RetrieveRequest

MARKED = re.compile(r"\[([^\[\]]*)\]")
DIGEST = "digest of the index"


class ScriptedIndex:
    """Knows its digest and some entities."""

    path = "scripted.index"
    digest = DIGEST
    num_entities = 1000
    weights = None

    def __init__(self, entities: Mapping[str, Entity] | None = None) -> None:
        self._entities = list((entities or {}).values())
        self.num_passes = 0

    @property
    def entities(self) -> ScriptedIndex:
        return self

    def find(self, entity_ids: Sequence[str]) -> np.ndarray[Any, Any]:
        self.num_passes += 1
        known = [entity.entity_id for entity in self._entities]
        return np.array([known.index(one) if one in known else -1 for one in entity_ids])

    def entity(self, number: int) -> Entity:
        return self._entities[number]


class ScriptedRanker:
    """Evidence that nothing is asked of.

    Attributes:
        problem: Why evidence that the index has cannot be used.
        can_propose: Whether any evidence can be used.
    """

    def __init__(self) -> None:
        self.problem: GenretError | None = None
        self.can_propose = False

    def require_all(self) -> None:
        if self.problem is not None:
            raise self.problem

    def require(self, index: ScriptedIndex) -> None:
        if not self.can_propose:
            self.require_all()
            raise EvidenceMissingError(f"{index.path} has no evidence that proposes entities")


class ScriptedRetriever:
    """Links "name-3" to the entity "Ename" with log-probability -3, the next candidate one below.

    Where ids are allowed, the candidates are these, in their order.
    The mention "nothing" has no candidates, "withheld" is abstained from, "vague" is not proven where that
    was asked for, and "broken" fails. A prompt has one token per character of the query. `auto` answers by
    its decoder, as there is no evidence.
    """

    def __init__(self, max_tokens: int | None = None, entities: Mapping[str, Entity] | None = None) -> None:
        mention = PromptTemplate("mention", mention_format="{left}[{mention}]{right}", context_chars=10)
        bare = PromptTemplate("bare", mention_format="[{mention}]")
        self.config = CheckpointConfig(prompts={"plain": bare, "mention": mention, "bare": bare})
        self.index = ScriptedIndex(entities)
        self.max_tokens = max_tokens
        self.batches: list[list[RetrieveRequest]] = []
        self.ranker = ScriptedRanker()

    @property
    def queries(self) -> list[str]:
        """Whatever was asked, in that order."""
        return [request.query for batch in self.batches for request in batch]

    def check_filter(self, predicate: str) -> None:
        if "unknown" in predicate:
            raise InputError("filter", "no such column: unknown")

    def prompt_tokens(self, request: RetrieveRequest) -> int:
        length = len(request.query)
        if self.max_tokens is not None and length > self.max_tokens:
            raise InputError("query", f"too long: {length} tokens, the model takes at most {self.max_tokens}")
        return length

    def retrieve_batch(self, requests: Sequence[RetrieveRequest]) -> list[Any]:
        self.batches.append(list(requests))
        return [self._reply(request) for request in requests]

    def _reply(self, request: RetrieveRequest) -> object:
        try:
            self.prompt_tokens(request)
        except InputError as error:
            return error
        match = MARKED.search(request.query)
        mention = match.group(1) if match else request.query
        if mention == "broken":
            return ModelError("the model is broken\nin two lines")
        name, _, depth = mention.partition("-")
        is_disc = request.decoding == "disc"
        ids = [f"E{name}" + "'" * n for n in range(2)]
        if request.allow_ids is not None:
            ids = list(request.allow_ids)
        found = [
            Candidate(
                entity_id=entity_id,
                title=f"Title {name}",
                surface=name.lower(),
                logprob=-float(depth or 1) - n,
                probability=0.75 * 0.25**n if is_disc else None,
                metadata={"x": 1},
                score=-float(n),
            )
            for n, entity_id in enumerate(ids[: request.k])
        ]
        return RetrievalResult(
            request.query,
            request.decoding or request.method,
            () if mention in ("nothing", "withheld") else tuple(found),
            certified=None if is_disc else request.exact and mention != "vague",
            mass=0.5 if is_disc else None,
            abstained=mention == "withheld",
        )


class Names:
    """Finds the names it is given, each in every place, from left to right."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._names = {name.casefold(): tuple(ids) for name, ids in names.items()}
        ordered = sorted(map(re.escape, names), key=len, reverse=True)
        self._pattern = re.compile("|".join(ordered) or r"(?!)", re.IGNORECASE)  # "(?!)" is found nowhere

    def find(self, text: str, begin: int = 0, end: int | None = None) -> list[Span]:
        stop = len(text) if end is None else end
        matches = [m for m in self._pattern.finditer(text) if begin <= m.start() < stop]
        return [Span(m.start(), m.end(), num_names=len(self.entity_ids(m.group()))) for m in matches]

    def entity_ids(self, text: str) -> tuple[str, ...]:
        return self._names.get(text.casefold(), ())


class LinkRun:
    """Links documents with a scripted retriever and keeps all that comes of it."""

    def __init__(
        self,
        *documents: Document | BadDocument,
        retriever: ScriptedRetriever | None = None,
        finder: Names | None = None,
        batch_size: int = 4,
        cache_entries: int = 1000,
        **options: Any,
    ) -> None:
        self.retriever = retriever or ScriptedRetriever()
        self.counts = LinkCounts()
        self.complaints: list[str] = []
        self.reports: list[dict[str, int]] = []
        self.blocks: list[list[dict[str, Any]]] = []
        self._listener = LinkListener(self.counts, self.complaints.append, self._report)
        worker = WorkerOptions("-", batch_size=batch_size, cache_entries=cache_entries)
        with mock.patch.object(linker, "open_finder", return_value=finder or Names({})):
            self.linker = linker.open_linker(self.retriever, LinkOptions(**options), worker)  # type: ignore[arg-type]
            self.link(*documents)

    def link(self, *documents: Document | BadDocument) -> None:
        for rows in self.linker.link(documents, self._listener):
            self.blocks.append(rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for rows in self.blocks for row in rows]

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]

    def _report(self, counts: LinkCounts) -> None:
        self.reports.append(asdict(counts))


def document(text: str, *spans: tuple[int, int] | str, row: int = 1, **fields: Any) -> Document:
    """A document whose spans are given as offsets, or as the text they stand for (its first occurrence)."""
    placed = [Span(text.index(s), text.index(s) + len(s)) if isinstance(s, str) else Span(*s) for s in spans]
    return Document("in.jsonl", row, f"d{row}", text, tuple(placed), **fields)

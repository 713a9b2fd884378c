"""One model with the versions of the indexes that it answers for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.errors import InputError
from retrieval.index.evidence_summary import evidence_facts
from service.configuration.config import IndexSpec
from service.configuration.sections import ModelSpec
from service.errors import UnservableIndexError
from service.serving.responder import Responder
from service.serving.served import (
    EvidenceDescription,
    IndexDescription,
    RankingDescription,
    ServedIndex,
    VectorsDescription,
)

if TYPE_CHECKING:
    from retrieval.answers.index_set import IndexSet, NamedIndex
    from retrieval.retriever import Retriever

_LOG = logging.getLogger(__name__)


class ServedModel:
    """Loaded with the first index that names it and shared by all, with its prompts and its grammars.

    Every index has a responder, which knows the versions of all indexes of the model that its requests may
    name. When one of them is replaced the others get new responders that know the new version; requests that
    run keep those they began with.

    Args:
        spec: Which checkpoint, and where it runs.
        filter_cache_bytes: Bound on the memory of the filters kept of each index.
        grammar_cache_bytes: Bound on the memory of the grammars kept.
    """

    def __init__(self, spec: ModelSpec, filter_cache_bytes: int, grammar_cache_bytes: int) -> None:
        self.spec = spec
        self._filter_cache_bytes = filter_cache_bytes
        self._grammar_cache_bytes = grammar_cache_bytes
        self._loaded: Retriever | None = None  # of any index: further ones are opened from it
        self._published: dict[str, ServedIndex] = {}
        self._alive: dict[ServedIndex, IndexSet] = {}
        self._retrievers: dict[NamedIndex, Retriever] = {}
        self._lock = threading.Lock()  # opened on one thread, retired on another

    def open(self, spec: IndexSpec) -> ServedIndex:
        """Open the live version of an index, and make everything that answers need beside the model.

        Raises:
            UnservableIndexError: a named schema cannot be used with it.
            GenretError: the index or the model cannot be used, or they do not fit together.
        """
        retriever = self._open(spec)
        answerer, named = retriever.answerer, retriever.named_index()
        indexes = answerer.engine.indexes.with_index(named)
        served = ServedIndex(self._describe(spec, retriever), Responder(retriever, indexes))
        _LOG.info(
            "index %r: version %s from %s; model %s on %s; the trie is walked by %s kernels",
            spec.name,
            served.description.version,
            spec.path,
            served.description.model,
            served.description.device,
            retriever.trie.kernels_name,
        )
        with self._lock:
            self._retrievers[named] = retriever
            self._alive[served] = indexes
        try:
            answerer.engine.warm_up(indexes)
            answerer.compile_named(indexes)
        except BaseException as error:
            release = self.retire(served)
            if release is not None:
                release()
            if isinstance(error, InputError):
                raise UnservableIndexError(
                    f"the schema {error.field!r} cannot be used with the index {spec.name!r}: {error.message}"
                ) from error
            raise
        return served

    def publish(self, opened: ServedIndex) -> list[ServedIndex]:
        """Let schemas name a version from now on.

        Returns:
            All indexes of the model, whose responders know it.
        """
        indexes = self._alive[opened]
        self._loaded = self._retriever_of(opened)
        self._loaded.answerer.engine.adopt(indexes)
        others = [known for name, known in self._published.items() if name != opened.description.name]
        self._published[opened.description.name] = opened
        for known in others:
            responder = Responder(self._retriever_of(known), indexes)
            self._published[known.description.name] = ServedIndex(known.description, responder)
        with self._lock:
            self._alive.update(dict.fromkeys(self._published.values(), indexes))
        return list(self._published.values())

    def retire(self, served: ServedIndex) -> Callable[[], None] | None:
        """Give up an index that nobody asks any more.

        Returns:
            What closes the versions that no other one knows; None where there are none.
        """
        with self._lock:
            known = self._alive.pop(served)
            used = {named for indexes in self._alive.values() for named in indexes}
            orphans = [named for named in known if named not in used and named in self._retrievers]
            closing = [(named, self._retrievers.pop(named)) for named in orphans]
        return partial(_close, closing) if closing else None

    def name_schema(self, name: str, text: str) -> None:
        """Compile a schema that requests may name.

        Raises:
            InputError: it cannot be used with the model and its indexes.
        """
        if self._loaded is not None:
            self._loaded.answerer.name_schema(name, text)

    @property
    def held_grammar_bytes(self) -> int:
        """Memory of the grammars kept."""
        return 0 if self._loaded is None else self._loaded.answerer.stats.held_bytes

    def _retriever_of(self, served: ServedIndex) -> Retriever:
        (named,) = (named for named in self._alive[served] if named.name == served.description.name)
        return self._retrievers[named]

    def _open(self, spec: IndexSpec) -> Retriever:
        if self._loaded is not None:
            return self._loaded.open_another(spec.path, name=spec.name, is_named=False, encoder=spec.encoder)
        from retrieval.retriever import Retriever

        model = self.spec
        self._loaded = Retriever.open(
            spec.path,
            model.checkpoint,
            device=model.device,
            dtype=model.dtype,
            num_threads=model.num_threads,
            prompt=model.prompt,
            trust_remote_code=model.trust_remote_code,
            filter_cache_bytes=self._filter_cache_bytes,
            grammar_cache_bytes=self._grammar_cache_bytes,
            draft_model=model.draft,
            name=spec.name,
            is_named=False,
            encoder=spec.encoder,
        )
        return self._loaded

    def _describe(self, spec: IndexSpec, retriever: Retriever) -> IndexDescription:
        index = retriever.index
        return IndexDescription(
            name=spec.name,
            version=index.version,
            digest=index.digest,
            num_rows=index.num_rows,
            num_entities=index.num_entities,
            model=self.spec.display_name or Path(retriever.tokenizer.source).name.replace("_", "-"),
            device=str(retriever.model.device),
            loaded_at=time.time(),
            columns=tuple((name, index.metadata_types[name]) for name in index.metadata_columns),
            max_title_tokens=index.max_row_tokens,
            **_described_evidence(retriever),
        )


def _described_evidence(retriever: Retriever) -> dict[str, Any]:
    """Return what a description says of evidence: its fields `evidence`, `ranking` and `vectors`."""
    ranker, entry = retriever.ranker, retriever.index.vectors
    facts = evidence_facts(retriever.index.manifest)
    counts = dict(facts["evidence"]["kinds"]) if facts["evidence"] else {}
    if entry is not None:
        counts["vectors"] = facts["vectors"]
    evidence = [
        EvidenceDescription(kind, told["count"], told["bytes"], ranker.problems.get(kind))
        for kind, told in counts.items()
    ]
    described: dict[str, Any] = {"evidence": tuple(evidence)}
    if evidence:
        told = ranker.ranking.provenance
        described["ranking"] = RankingDescription(
            fitted=told is not None,
            fitted_with_model=ranker.is_weighed,
            queries="" if told is None else told.queries,
            num_queries=0 if told is None else told.num_queries,
            problem=ranker.problems.get("ranking") or ranker.problems.get("prior"),
        )
    if entry is not None:
        described["vectors"] = VectorsDescription(
            method=entry.method,
            kind=entry.kind,
            dimensions=entry.dimensions,
            count=entry.count,
            bytes=counts["vectors"]["bytes"],
            recall=entry.recall if entry.recall_queries or entry.kind == "flat" else None,
            problem=ranker.problems.get("vectors"),
        )
    return described


def _close(closing: list[tuple[NamedIndex, Retriever]]) -> None:
    for named, retriever in closing:
        retriever.answerer.engine.forget(named)
        retriever.close()
    closing.clear()  # whoever keeps this call keeps no version

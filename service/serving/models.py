"""Opens indexes with their models and answers through them. The only module of serving that imports torch.

A `ServedModel` is one model with the versions of the indexes that it answers for; a `PinnedRetriever` is a
retriever whose schemas name fixed versions of indexes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genret.decoding.bounded_cache import CacheCounts
from genret.decoding.cancellation import CancelToken
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.complete_types import CompleteRequest, CompleteResult
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.reader import read_manifest
from genret.retrieval.index.summary import evidence_facts
from genret.retrieval.index.versions import read_version, version_dir
from genret.retrieval.types import RetrieveRequest
from genret.service.client.reply import EvidenceInfo, IndexInfo, RankingInfo, VectorsInfo
from genret.service.configuration.server_config import (
    IndexSpec,
    ModelSpec,
    SchemaSpec,
    ServerConfig,
    read_schema,
)
from genret.service.errors import OverloadedError, UnservableIndexError
from genret.service.serving.admission import estimate_tokens
from genret.service.serving.served import Outcome, ServedIndex

if TYPE_CHECKING:
    from genret.retrieval.answers.answerer import AnswerJob
    from genret.retrieval.answers.schemas import CompiledSchema, SchemaStore
    from genret.retrieval.answers.title_holes import IndexSet, NamedIndex
    from genret.retrieval.retriever import Retriever


_LOG = logging.getLogger(__name__)
# The text of an error that clients may see, which names no path of the server; empty without an error.
Told = Callable[[Exception | None], str]


class ServedModel:
    """One model, loaded with the first index that names it, and shared by all with its prompts and grammars.

    Every index is served by a `PinnedRetriever` that knows the versions of all indexes of the model. When an
    index is replaced, the others get new retrievers that know the new version; running requests keep theirs.
    """

    def __init__(self, spec: ModelSpec, config: ServerConfig, told: Told) -> None:
        self.spec = spec
        self._config = config
        self._told = told
        self._loaded: Retriever | None = None  # of any index; further ones are opened from it
        self._published: dict[str, ServedIndex] = {}
        self._alive: dict[ServedIndex, IndexSet] = {}
        self._retrievers: dict[NamedIndex, Retriever] = {}
        self._lock = threading.Lock()  # opened on one thread, retired on another

    def open(self, spec: IndexSpec) -> ServedIndex:
        """Open the live version of an index and prepare all that its answers need; see `Opener.open`."""
        retriever = self._open(spec)
        answerer, named = retriever.answerer, retriever.named_index()
        indexes = answerer.engine.indexes.with_index(named)
        served = ServedIndex(self._describe(spec, retriever), PinnedRetriever(retriever, indexes))
        _LOG.info(
            "index %r: version %s from %s; model %s on %s; the trie is walked by %s kernels",
            spec.name,
            served.description.version,
            spec.path,
            served.description.model,
            served.description.device,
            retriever.trie.kernels.name,
        )
        if spec.name not in self._published and (advice := retriever.weighing_advice(spec.path)):
            _LOG.warning("index %r: %s", spec.name, advice)
        with self._lock:
            self._retrievers[named] = retriever
            self._alive[served] = indexes
        try:
            answerer.engine.warm_up(indexes)
            answerer.engine.schemas.prepare_named(indexes)
            replaced = self._published.get(spec.name)
            if self._config.warm_completion or (
                replaced is not None and self._retriever_of(replaced).index.completer.is_warm
            ):
                retriever.index.completer.warm_up()
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
        """Let schemas name a version from now on; return all indexes of the model, updated to know it."""
        indexes = self._alive[opened]
        self._loaded = self._retriever_of(opened)
        self._loaded.answerer.engine.adopt(indexes)
        others = [known for name, known in self._published.items() if name != opened.description.name]
        self._published[opened.description.name] = opened
        for known in others:
            pinned = PinnedRetriever(self._retriever_of(known), indexes)
            self._published[known.description.name] = ServedIndex(known.description, pinned)
        with self._lock:
            self._alive.update(dict.fromkeys(self._published.values(), indexes))
        return list(self._published.values())

    def retire(self, served: ServedIndex) -> Callable[[], None] | None:
        """Give up an unused index; see `Opener.retire`."""
        with self._lock:
            known = self._alive.pop(served)
            used = {named for indexes in self._alive.values() for named in indexes}
            orphans = [named for named in known if named not in used and named in self._retrievers]
            closing = [(named, self._retrievers.pop(named)) for named in orphans]
        return partial(_close, closing) if closing else None

    def name_schema(self, name: str, text: str) -> None:
        """Compile a schema that requests may name; raises InputError if the model's indexes do not fit it."""
        if self._loaded is not None:
            self._loaded.answerer.name_schema(name, text)

    @property
    def held_grammar_bytes(self) -> int:
        """Memory of the grammars kept."""
        return 0 if self._loaded is None else self._loaded.answerer.engine.schemas.stats.num_bytes

    def _retriever_of(self, served: ServedIndex) -> Retriever:
        (named,) = (named for named in self._alive[served] if named.name == served.description.name)
        return self._retrievers[named]

    def _open(self, spec: IndexSpec) -> Retriever:
        if self._loaded is not None:
            return self._loaded.open_another(spec.path, name=spec.name, is_named=False, encoder=spec.encoder)
        from genret.retrieval.retriever import Retriever

        model = self.spec
        self._loaded = Retriever.open(
            spec.path,
            model.checkpoint,
            device=model.device,
            dtype=model.dtype,
            num_threads=model.num_threads,
            prompt=model.prompt,
            trust_remote_code=model.trust_remote_code,
            filter_cache_bytes=self._config.filter_cache_mib * 2**20,
            grammar_cache_bytes=self._config.grammar_cache_mib * 2**20,
            draft_model=model.draft,
            name=spec.name,
            is_named=False,
            encoder=spec.encoder,
            engine=model.engine,
        )
        return self._loaded

    def _describe(self, spec: IndexSpec, retriever: Retriever) -> IndexInfo:
        index = retriever.index
        return IndexInfo(
            name=spec.name,
            version=index.version,
            digest=index.digest,
            num_rows=index.num_rows,
            num_entities=index.num_entities,
            model=self.spec.display_name or Path(retriever.tokenizer.name).name.replace("_", "-"),
            device=str(retriever.model.device),
            loaded_at=time.time(),
            columns=tuple((name, index.metadata_types[name]) for name in index.metadata_columns),
            max_title_tokens=index.max_row_tokens,
            **_described_evidence(retriever, self._told),
        )


def _described_evidence(retriever: Retriever, told: Told) -> dict[str, Any]:
    """Return the fields `evidence`, `ranking` and `vectors` of a description."""
    ranker, entry = retriever.ranker, retriever.index.vectors
    facts = evidence_facts(retriever.index.manifest)
    counts = dict(facts["evidence"]["kinds"]) if facts["evidence"] else {}
    if entry is not None:
        counts["vectors"] = facts["vectors"]
    evidence = [
        EvidenceInfo(kind, count["count"], count["bytes"], told(ranker.problems.get(kind)))
        for kind, count in counts.items()
    ]
    described: dict[str, Any] = {"evidence": tuple(evidence)}
    if evidence:
        fitted = ranker.ranking.provenance
        described["ranking"] = RankingInfo(
            fitted=fitted is not None,
            fitted_with_model=ranker.is_weighed,
            queries="" if fitted is None else fitted.queries,
            num_queries=0 if fitted is None else fitted.num_queries,
            problem=told(ranker.problems.get("ranking") or ranker.problems.get("prior")),
        )
    if entry is not None:
        described["vectors"] = VectorsInfo(
            method=entry.method,
            kind=entry.kind,
            dimensions=entry.dimensions,
            count=entry.count,
            bytes=counts["vectors"]["bytes"],
            recall=entry.recall if entry.recall_queries or entry.kind == "flat" else None,
            usable="vectors" not in ranker.problems,
            problem=told(ranker.problems.get("vectors")),
        )
    return described


def _close(closing: list[tuple[NamedIndex, Retriever]]) -> None:
    for named, retriever in closing:
        retriever.answerer.engine.forget(named)
        retriever.close()
    closing.clear()  # the owner of this call must not keep the versions alive


# Most memory of grammars that the cache does not hold, but requests that wait for their answers.
_UNCACHED_GRAMMAR_BYTES = 256 * 2**20
_TRIAL_QUERY = "capital of france"


class PinnedRetriever:
    """A retriever with the versions of indexes that schemas of requests may name (a `ServedRetriever`)."""

    def __init__(self, retriever: Retriever, indexes: IndexSet) -> None:
        self.retriever = retriever
        self._indexes = indexes
        self.retrieve_batch = retriever.retrieve_batch
        self.score_batch = retriever.score_batch
        self.mention_request = retriever.mention_request
        self.warm_up_steps = retriever.warm_up_steps

    def complete(self, request: CompleteRequest) -> CompleteResult:
        """Return completions by weight."""
        return self.retriever.index.completer.complete(request)

    def prompt_tokens(self, request: RetrieveRequest | AnswerRequest) -> int:
        """Return the length of the request's prompt; raises InputError for what cannot be answered."""
        if isinstance(request, AnswerRequest):
            return len(self._job(request).prompt)
        return self.retriever.prompt_tokens(request)

    def find_schema(self, request: AnswerRequest) -> CompiledSchema | None:
        """Return the request's compiled schema, None if it must be compiled."""
        schemas, indexes, titles = self._schemas()
        return schemas.find(request, indexes, titles)

    def compile_schema(self, request: AnswerRequest) -> CompiledSchema:
        """Compile the request's schema; OverloadedError if grammars hold too much memory already."""
        schemas, indexes, titles = self._schemas()
        if schemas.alive_bytes > schemas.stats.max_bytes + _UNCACHED_GRAMMAR_BYTES:
            held = "the schemas of requests that wait take too much memory"
            raise OverloadedError("MEMORY_FULL", held, retry_after_s=5.0)
        return schemas.prepare(request, indexes, titles)

    def _schemas(self) -> tuple[SchemaStore, IndexSet, str]:
        """Return the schemas of the model, the indexes that they may name, and the one called "titles"."""
        schemas, indexes = self.retriever.answerer.engine.schemas, self._indexes
        return schemas, indexes, self.retriever.name or indexes.first_name

    def answer_batch(
        self, requests: Sequence[AnswerRequest], cancel: Sequence[CancelToken | None] | None = None
    ) -> Sequence[Outcome]:
        """Answer every request with JSON, in order; errors of single requests are values."""
        from genret.retrieval.methods.batches import answer_prepared

        return answer_prepared(requests, cancel, self._job, self.retriever.answerer.run)

    def filter_cache(self) -> CacheCounts:
        """Return the counts of the filters kept of the index."""
        return self.retriever.filters.stats

    def grammar_cache(self) -> CacheCounts:
        """Return the counts of the grammars kept of the model. Only for a warm retriever."""
        return self.retriever.answerer.engine.schemas.stats

    def trial(self, num_requests: int) -> tuple[int, float]:
        """Answer that many plain requests; return their work, tokens, and the time taken, seconds."""
        requests = [RetrieveRequest(_TRIAL_QUERY)] * num_requests
        tokens = sum(estimate_tokens(request, self.prompt_tokens(request)) for request in requests)
        begun = time.perf_counter()
        self.retrieve_batch(requests)
        return tokens, time.perf_counter() - begun

    def _job(self, request: AnswerRequest, cancel: CancelToken | None = None) -> AnswerJob:
        name = self.retriever.name
        return self.retriever.answerer.job(request, cancel, name, self._indexes)


class IndexOpener:
    """Opens indexes (an `Opener`). Each model is loaded once, with its first index.

    A named schema is compiled for every model whose indexes it fits, at least one; requests for an index of
    another model do not know its name. Filters are kept for each index, grammars for each model.
    """

    def __init__(self, config: ServerConfig, told: Told) -> None:
        self._models = {spec.name: ServedModel(spec, config, told) for spec in config.models}
        self._schemas = config.schemas
        self._model_of: dict[str, ServedModel] = {}

    def live_version(self, spec: IndexSpec) -> str:
        """Return the live version of an index's directory."""
        return version_dir(spec.path).name

    def open(self, spec: IndexSpec) -> ServedIndex:
        """Open an index and check that it fits its model; see `Opener.open`."""
        model = self._models[spec.model]
        counts = read_version(spec.path, lambda folder: read_manifest(folder)[0].counts)
        if not counts.rows or not counts.entities:
            raise UnservableIndexError(f"the index {spec.name!r} is empty: no title can be found in it")
        served = model.open(spec)
        self._model_of[spec.name] = model
        return served

    def publish(self, opened: ServedIndex) -> list[ServedIndex]:
        """Publish an index to requests, and to schemas of the same model's indexes; see `Opener.publish`."""
        return self._model_of[opened.description.name].publish(opened)

    def retire(self, served: ServedIndex) -> Callable[[], None] | None:
        """Give up an unused index; see `Opener.retire`."""
        return self._model_of[served.description.name].retire(served)

    def finish(self) -> None:
        """Compile the schemas that requests may name; an error names the schema's file."""
        for spec in self._schemas:
            self._name_schema(spec)
        if self._schemas:
            held = sum(model.held_grammar_bytes for model in self._models.values())
            _LOG.info("%d schemas compiled, %d bytes of grammars", len(self._schemas), held)

    def _name_schema(self, spec: SchemaSpec) -> None:
        text = read_schema(spec.path)
        refusals: list[tuple[str, InputError]] = []
        used = set(self._model_of.values())
        models = {name: model for name, model in self._models.items() if model in used}
        for name, model in models.items():
            try:
                model.name_schema(spec.name, text)
            except InputError as error:
                refusals.append((name, error))
        if len(refusals) == len(models) and refusals:
            raise SourceError(f"{spec.path}: {refusals[0][1].message}") from refusals[0][1]
        for name, refusal in refusals:
            _LOG.warning(
                "the schema %r cannot be used with the model %r: %s", spec.name, name, refusal.message
            )

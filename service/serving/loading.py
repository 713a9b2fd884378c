"""Open indexes with their model for serving. The only module of the service that starts torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from retrieval.errors import InputError, SourceError
from service.configuration.config import (
    DEFAULT_FILTER_CACHE_MIB,
    DEFAULT_GRAMMAR_CACHE_MIB,
    IndexSpec,
    SchemaSpec,
)
from service.configuration.schema_file import read_schema
from service.configuration.sections import ModelSpec
from service.serving.responder import Responder
from service.serving.served import IndexDescription, ServedIndex

if TYPE_CHECKING:
    from retrieval.retriever import Retriever

_LOG = logging.getLogger(__name__)


class IndexOpener:
    """Opens indexes for one model, which is loaded with the first of them and shared by all.

    Args:
        model: Which checkpoint, and where it runs.
        filter_cache_bytes: Bound on the memory of the filters kept of each index.
        grammar_cache_bytes: Bound on the memory of the grammars kept.
        schemas: Schemas that requests may name.
    """

    def __init__(
        self,
        model: ModelSpec,
        filter_cache_bytes: int = DEFAULT_FILTER_CACHE_MIB * 2**20,
        grammar_cache_bytes: int = DEFAULT_GRAMMAR_CACHE_MIB * 2**20,
        schemas: Sequence[SchemaSpec] = (),
    ) -> None:
        self._model = model
        self._filter_cache_bytes = filter_cache_bytes
        self._grammar_cache_bytes = grammar_cache_bytes
        self._schemas = tuple(schemas)
        self._first: Retriever | None = None

    def open(self, spec: IndexSpec) -> ServedIndex:
        """Open an index and check that it fits the model. Blocks for as long as that takes.

        Raises:
            GenretError: the index or the model cannot be used, or they do not fit together.
        """
        retriever = self._open(spec)
        index = retriever.index
        description = IndexDescription(
            name=spec.name,
            version=index.version,
            digest=index.digest,
            num_rows=index.num_rows,
            num_entities=index.num_entities,
            model=self._model.display_name,
            device=str(retriever.model.device),
        )
        _LOG.info(
            "index %r: version %s from %s; model %s on %s; the trie is walked by %s kernels",
            spec.name,
            index.version,
            spec.path,
            description.model,
            description.device,
            retriever.trie.kernels_name,
        )
        return ServedIndex(description, Responder(retriever))

    def name_schemas(self) -> None:
        """Compile the schemas that requests may name. To be called when all indexes are open.

        Raises:
            GenretError: a schema cannot be read or cannot be used; names its file.
        """
        if self._first is None:
            return
        for spec in self._schemas:
            text = read_schema(spec.path)
            try:
                self._first.answerer.name_schema(spec.name, text)
            except InputError as error:
                raise SourceError(f"{spec.path}: {error.message}") from error
        if self._schemas:
            stats = self._first.answerer.stats
            _LOG.info("%d schemas compiled, %d bytes of grammars", len(self._schemas), stats.held_bytes)

    def _open(self, spec: IndexSpec) -> Retriever:
        if self._first is not None:
            return self._first.open_another(spec.path, name=spec.name)
        from retrieval.retriever import Retriever

        model = self._model
        self._first = Retriever.open(
            spec.path,
            model.checkpoint,
            device=model.device,
            dtype=model.dtype,
            num_threads=model.num_threads,
            filter_cache_bytes=self._filter_cache_bytes,
            grammar_cache_bytes=self._grammar_cache_bytes,
            draft_model=model.draft,
            name=spec.name,
        )
        return self._first

"""Open indexes with their models for serving. With `models` the only module that starts torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from retrieval.errors import InputError, SourceError
from retrieval.index.reader import read_manifest
from retrieval.index.versions import read_version, version_dir
from service.configuration.config import (
    DEFAULT_FILTER_CACHE_MIB,
    DEFAULT_GRAMMAR_CACHE_MIB,
    IndexSpec,
    SchemaSpec,
    ServerConfig,
)
from service.configuration.schema_file import read_schema
from service.configuration.sections import ModelSpec
from service.errors import UnservableIndexError
from service.serving.models import ServedModel
from service.serving.served import ServedIndex

_LOG = logging.getLogger(__name__)


class IndexOpener:
    """Opens indexes (`service.serving.opener.Opener`). Each model is loaded once, with its first index.

    A schema that requests may name is compiled for every model whose indexes it fits, at least one. To
    requests for an index of another model its name is unknown.

    Args:
        *models: Which checkpoints, and where they run; indexes name them.
        filter_cache_bytes: Bound on the memory of the filters kept of each index.
        grammar_cache_bytes: Bound on the memory of the grammars kept of each model.
        schemas: Schemas that requests may name.
    """

    def __init__(
        self,
        *models: ModelSpec,
        filter_cache_bytes: int = DEFAULT_FILTER_CACHE_MIB * 2**20,
        grammar_cache_bytes: int = DEFAULT_GRAMMAR_CACHE_MIB * 2**20,
        schemas: Sequence[SchemaSpec] = (),
    ) -> None:
        self._models = {
            spec.name: ServedModel(spec, filter_cache_bytes, grammar_cache_bytes) for spec in models
        }
        self._schemas = tuple(schemas)
        self._model_of: dict[str, ServedModel] = {}

    @classmethod
    def of(cls, config: ServerConfig) -> IndexOpener:
        """Return the opener of a server."""
        return cls(
            *config.models,
            filter_cache_bytes=config.filter_cache_mib * 2**20,
            grammar_cache_bytes=config.grammar_cache_mib * 2**20,
            schemas=config.schemas,
        )

    def live_version(self, spec: IndexSpec) -> str:
        """Return the version that the index's directory holds now; see `Opener`."""
        return version_dir(spec.path).name

    def open(self, spec: IndexSpec) -> ServedIndex:
        """Open an index and check that it fits its model; see `Opener`.

        Raises:
            InputError: there is no such model.
            UnservableIndexError: the index is empty, or a named schema cannot be used with it.
            GenretError: the index or the model cannot be used, or they do not fit together.
        """
        model = self._models.get(spec.model)
        if model is None:
            known = ", ".join(map(repr, self._models)) or "none"
            raise InputError("index", f"{spec.name!r} names the model {spec.model!r}; known: {known}")
        counts = read_version(spec.path, lambda folder: read_manifest(folder)[0].counts)
        if not counts.rows or not counts.entities:
            raise UnservableIndexError(f"the index {spec.name!r} is empty: no title can be found in it")
        served = model.open(spec)
        self._model_of[spec.name] = model
        return served

    def publish(self, opened: ServedIndex) -> list[ServedIndex]:
        """Let requests use an index, and schemas of the same model's indexes name it; see `Opener`."""
        return self._model_of[opened.description.name].publish(opened)

    def retire(self, served: ServedIndex) -> Callable[[], None] | None:
        """Give up what nobody uses any more; see `Opener`."""
        return self._model_of[served.description.name].retire(served)

    def finish(self) -> None:
        """Compile the schemas that requests may name. To be called when all indexes are published.

        Raises:
            GenretError: a schema cannot be read or cannot be used; names its file.
        """
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

"""prior.arrow: log P(e | queries without content) of every entity, a column for each model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from genret.retrieval.errors import IndexFormatError
from genret.retrieval.index.layout import PRIOR_FILE, as_numpy, read_schema, read_table, single_chunk
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import parse_json

FloatArray = npt.NDArray[np.float32]

# Log-probabilities are rounded: that of an entity that is certain may be above 0.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """A model's prior of the entities of an index: log P(e | queries without content)."""

    model: str  # fingerprint of its checkpoint
    queries: tuple[str, ...]  # the queries; the mean of their probabilities counts
    prompts: str  # digest of the token ids of their prompts
    title_weight: float  # as in `RetrieveRequest`
    # log P(e | queries) by entity number; -inf where the model cannot write the entity, NaN where nothing was
    # computed yet. Shape: (num_entities,), float32.
    logprobs: FloatArray

    @property
    def num_missing(self) -> int:
        """Entities without a prior yet."""
        return int(np.isnan(self.logprobs).sum())


def read_priors(index: Index) -> dict[str, Prior]:
    """Return the priors of an index by the fingerprint of their model; none without the file.

    Raises IndexChecksumError for a damaged file, IndexFormatError for one without priors.
    """
    if index.manifest.file(PRIOR_FILE) is None:
        return {}
    data = index.evidence_file(PRIOR_FILE)
    names = read_schema(data, PRIOR_FILE).names
    if len(set(names)) != len(names):
        raise IndexFormatError(f"{PRIOR_FILE}: a column stands there twice: {names}")
    schema = pa.schema([pa.field(name, pa.float32(), nullable=False) for name in names])
    table = read_table(data, PRIOR_FILE, [schema], index.num_entities)
    return {name: _prior(table, name) for name in names}


def priors_to_bytes(priors: Iterable[Prior]) -> bytes:
    """Return the content of the file; equal priors give equal bytes."""
    ordered = sorted(priors, key=lambda prior: prior.model)
    fields = [
        pa.field(prior.model, pa.float32(), nullable=False, metadata={"prior": _told(prior)})
        for prior in ordered
    ]
    columns = [
        pa.Array.from_buffers(pa.float32(), len(prior.logprobs), [None, pa.py_buffer(prior.logprobs)])
        for prior in ordered
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema(fields)) as writer:
        writer.write_batch(pa.record_batch(columns, schema=pa.schema(fields)))
    return bytes(sink.getvalue())


def _told(prior: Prior) -> str:
    told = {"queries": prior.queries, "prompts": prior.prompts, "title_weight": prior.title_weight}
    return json.dumps(told)


def _prior(table: pa.Table, model: str) -> Prior:
    where = f"{PRIOR_FILE}: column {model!r}"
    try:
        told = parse_json((table.schema.field(model).metadata or {})[b"prior"], where)
        queries, prompts = tuple(map(str, told["queries"])), str(told["prompts"])
        title_weight = float(told["title_weight"])
    except (KeyError, TypeError, ValueError) as error:
        raise IndexFormatError(f"{where}: not a prior: {error!r}") from error
    logprobs = as_numpy(single_chunk(table, PRIOR_FILE, model)).view(np.float32)
    if (logprobs > _ROUNDING).any():
        entity = int((logprobs > _ROUNDING).argmax())
        raise IndexFormatError(
            f"{where}: entity {entity}: expected a log-probability, at most 0, got {logprobs[entity]}"
        )
    return Prior(model, queries, prompts, title_weight, logprobs)

"""How a shard lies on disk: one file of plain number arrays, one Arrow file of texts.

A shard is E entities with F forms (titles and aliases) of T tokens, sorted as `index_builder.runs` says.
Its files are read by position and never mapped, so that only what is asked for takes memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from retrieval.index.layout import ALIASES, ENTITY_ID, TITLE, token_type

NUMBERS_FILE = "numbers"
TEXTS_FILE = "texts.arrow"

# Entities per record batch of the texts: the unit in which they are read back.
TEXTS_BATCH = 8192


@dataclass(frozen=True, slots=True)
class ShardShape:
    """Sizes of a shard.

    Attributes:
        entities: Entities.
        forms: Titles and aliases.
        tokens: Tokens of all forms.
        vocab_size: Every token is below this.
        has_ids: Whether the records brought ids.
        ids_differ: Whether any id differs from its entity's title.
        columns: Names of the metadata columns.
    """

    entities: int
    forms: int
    tokens: int
    vocab_size: int
    has_ids: bool
    ids_differ: bool
    columns: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardShape:
        """Read what `to_json` gave.

        Raises:
            KeyError: a field is missing.
        """
        taken = {field.name: value[field.name] for field in fields(cls)}
        return cls(**{**taken, "columns": tuple(taken["columns"])})


@dataclass(frozen=True, slots=True)
class Section:
    """One array of the file of numbers.

    Attributes:
        dtype: Type of its items.
        offset: Where it begins, in bytes.
        count: Items.
    """

    dtype: np.dtype[Any]
    offset: int
    count: int


def sections(shape: ShardShape) -> dict[str, Section]:
    """Return the arrays of the file of numbers, in their order.

    tokens, offsets, entity, form: as in `FormSlice`, of all forms; offsets has F + 1 items.
    key: Two halves of the digest of each entity's id, or title where there are no ids. Shape: (2, E).
    content: The same of everything else that is said about it. Shape: (2, E).
    file, line: Where its record stands. Shape: (E,).
    sequence: Number of its record among those of the shard, in the order of the source. Shape: (E,).
    """
    arrays = (
        ("tokens", token_type(shape.vocab_size).to_pandas_dtype(), shape.tokens),
        ("offsets", np.int64, shape.forms + 1),
        ("entity", np.int32, shape.forms),
        ("form", np.int32, shape.forms),
        ("key", np.uint64, 2 * shape.entities),
        ("content", np.uint64, 2 * shape.entities),
        ("file", np.int32, shape.entities),
        ("line", np.int64, shape.entities),
        ("sequence", np.int32, shape.entities),
    )
    result: dict[str, Section] = {}
    offset = 0
    for name, item, count in arrays:
        dtype = np.dtype(item)
        result[name] = Section(dtype, offset, count)
        offset += dtype.itemsize * count
    return result


def texts_schema(has_ids: bool, num_columns: int) -> pa.Schema:
    """Return the schema of the texts: metadata cells are canonical text, whatever their type will be."""
    fields = [pa.field(ENTITY_ID, pa.string(), nullable=False)] if has_ids else []
    fields += [
        pa.field(TITLE, pa.string(), nullable=False),
        pa.field(ALIASES, pa.list_(pa.string()), nullable=False),
    ]
    # By number: a metadata column may be called anything.
    return pa.schema([*fields, *(pa.field(f"m{i}", pa.string()) for i in range(num_columns))])

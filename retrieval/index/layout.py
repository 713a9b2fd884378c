"""Names, types and schemas of format version 6, and tables that are checked against them.

INDEX/CURRENT                           id of the live version; replaced atomically
INDEX/versions/<id>/manifest.json       <id> is the digest of this file
                   /rows/len-*.arrow    rows of one length, in lexicographic order
                   /trie.arrow          transitions derived from the rows
                   /entities.arrow      titles, aliases, metadata
                   /postings.arrow      rank -> entities; absent when rank r is entity r for every r
                   /title_order.arrow   entity numbers in the order of their titles' bytes
                   /vectors.faiss       vectors of titles, aliases and other texts; absent if not asked for
                   /embedder.safetensors  of vectors by a method of earlier versions of the library
                   /names.arrow     words and letter trigrams of titles and aliases; absent if not wanted
                   /texts.arrow     the same of the texts of chosen columns; absent without such columns
                   /queries.arrow   the same of past queries, and these; absent without any
                   /ranking.json    weights of evidence and models, fitted to this catalogue
                   /prior.arrow     priors of entities by model; absent if not wanted
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from genret.retrieval.errors import IndexFormatError

FORMAT_NAME = "genret-index"
FORMAT_VERSION = 6
# Versions before this one have no title_order.arrow, and titles cannot be written inside JSON without it.
TITLE_ORDER_SINCE = 3
# Versions before this one cannot have vectors.
VECTORS_SINCE = 4
# Versions before this one cannot say which metadata column holds the weights of entities.
WEIGHTS_SINCE = 5
# Versions before this one have no evidence but vectors.
EVIDENCE_SINCE = 6
OLDEST_FORMAT_VERSION = 2

CURRENT_FILE = "CURRENT"
VERSIONS_DIR = "versions"
WORK_DIR = "work"  # of a build, until its publication
MANIFEST_FILE = "manifest.json"
TRIE_FILE = "trie.arrow"
ENTITIES_FILE = "entities.arrow"
POSTINGS_FILE = "postings.arrow"
TITLE_ORDER_FILE = "title_order.arrow"
VECTORS_FILE = "vectors.faiss"
EMBEDDER_FILE = "embedder.safetensors"
NAMES_FILE = "names.arrow"
TEXTS_FILE = "texts.arrow"
QUERIES_FILE = "queries.arrow"
RANKING_FILE = "ranking.json"
PRIOR_FILE = "prior.arrow"
# A damaged one of these keeps nothing else of an index from being read.
VECTOR_FILES = (VECTORS_FILE, EMBEDDER_FILE)
FIELD_FILES = {"names": NAMES_FILE, "texts": TEXTS_FILE, "queries": QUERIES_FILE}
EVIDENCE_FILES = (*VECTOR_FILES, *FIELD_FILES.values(), RANKING_FILE, PRIOR_FILE)
ROWS_DIR = "rows"

VERSION_PATTERN = re.compile(r"[0-9a-f]{32}")

# Longer rows are stored as one fixed-size list per row: a column per position would make thousands of
# columns, each with its own metadata and padding, for a handful of rows.
MAX_COLUMNAR_LENGTH = 64

# Rows per record batch of entities.arrow: entity n is row n % this of batch n // this.
ENTITY_BATCH_ROWS = 65_536

ENTITY_ID = "entity_id"
TITLE = "title"
ALIASES = "aliases"
RESERVED_COLUMNS = (ENTITY_ID, TITLE, ALIASES)

MetadataType = Literal["string", "int", "float", "bool"]
# Types of a metadata column that can hold weights.
WEIGHT_TYPES = ("int", "float")
METADATA_TYPES = {"string": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}

# A metadata column of strings is dictionary-encoded when it has at most so many different values, and at
# most half as many as there are entities.
MAX_DICTIONARY = 65_536

RANK_TYPE = pa.int32()
ENTITY_TYPE = pa.int32()
MAX_ROWS = 2**31 - 1


def smallest_unsigned(largest: int) -> pa.DataType:
    """Return the smallest unsigned integer type that holds `largest`."""
    for bits, arrow_type in ((8, pa.uint8()), (16, pa.uint16()), (32, pa.uint32())):
        if largest < 1 << bits:
            return arrow_type
    raise ValueError(f"largest: expected at most {2**32 - 1}, got {largest}")


def token_type(vocab_size: int) -> pa.DataType:
    """Return the integer type of row tokens: the smallest that holds every id of the vocabulary."""
    return smallest_unsigned(max(vocab_size - 1, 0))


def rows_file(length: int) -> str:
    """Return the name of the file that holds the rows of `length` tokens."""
    return f"{ROWS_DIR}/len-{length:05d}.arrow"


def rows_schema(length: int, tokens: pa.DataType) -> pa.Schema:
    """Return the schema of one rows file: columns t0, t1, … or, for long rows, one list; then the rank."""
    if length <= MAX_COLUMNAR_LENGTH:
        columns = [pa.field(f"t{i}", tokens, nullable=False) for i in range(length)]
    else:
        item = pa.field("item", tokens, nullable=False)
        columns = [pa.field("tokens", pa.list_(item, length), nullable=False)]
    return pa.schema([*columns, pa.field("rank", RANK_TYPE, nullable=False)])


def trie_schema(tokens: pa.DataType) -> pa.Schema:
    """Return the schema of trie.arrow: one row whose lists are the arrays of the trie.

    Lists, because the arrays differ in length; large ones, because their values come back in one piece.
    """
    columns = dict.fromkeys(("child_begin", "row_begin", "tail_begin"), RANK_TYPE)
    return pa.schema(
        [
            pa.field(name, pa.large_list(pa.field("item", item, nullable=False)), nullable=False)
            for name, item in {"token": tokens, **columns}.items()
        ]
    )


def entities_schema(has_ids: bool, has_aliases: bool, metadata: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of entities.arrow; without stored ids an entity's id is its title."""
    fields = [pa.field(TITLE, pa.string(), nullable=False)]
    if has_ids:
        fields.insert(0, pa.field(ENTITY_ID, pa.string(), nullable=False))
    if has_aliases:
        item = pa.field("item", pa.string(), nullable=False)
        fields.append(pa.field(ALIASES, pa.list_(item), nullable=False))
    return pa.schema([*fields, *metadata])


def metadata_field(name: str, kind: MetadataType, dictionary_size: int | None = None) -> pa.Field:
    """Return the field of a metadata column; `dictionary_size` is the number of values of encoded strings."""
    stored = METADATA_TYPES[kind]
    if dictionary_size is not None:
        stored = pa.dictionary(smallest_unsigned(max(dictionary_size - 1, 0)), stored)
    return pa.field(name, stored)


def postings_schema(form_type: pa.DataType) -> pa.Schema:
    """Return the schema of postings.arrow: per rank, entities and their forms (0: title, n: n-th alias)."""
    posting = pa.struct(
        [
            pa.field("entity", ENTITY_TYPE, nullable=False),
            pa.field("form", form_type, nullable=False),
        ]
    )
    item = pa.field("item", posting, nullable=False)
    return pa.schema([pa.field("postings", pa.list_(item), nullable=False)])


def title_order_schema() -> pa.Schema:
    """Return the schema of title_order.arrow: entity numbers."""
    return pa.schema([pa.field("entity", ENTITY_TYPE, nullable=False)])


def read_schema(data: pa.Buffer, name: str) -> pa.Schema:
    """Return the schema of a mapped file; IndexFormatError if it is no Arrow file."""
    try:
        schema = pa.ipc.open_file(pa.BufferReader(data)).schema
        str(schema)  # decodes all names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise IndexFormatError(f"{name}: not a readable Arrow file: {error}") from error
    return schema


def read_table(data: pa.Buffer, name: str, schemas: Sequence[pa.Schema], num_rows: int) -> pa.Table:
    """Return the zero-copy table of a mapped file called `name`.

    Raises:
        IndexFormatError: it is no Arrow file, or has none of the schemas, or not `num_rows` rows.
    """
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate()
        found = str(table.schema)  # decodes all names: damaged ones are found here, not at their first use
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise IndexFormatError(f"{name}: not a readable Arrow file: {error}") from error
    if not any(table.schema.equals(schema, check_metadata=False) for schema in schemas):
        raise IndexFormatError(f"{name}: expected the columns {_brief(str(schemas[0]))}, got {_brief(found)}")
    if table.num_rows != num_rows:
        raise IndexFormatError(f"{name}: expected {num_rows} rows, got {table.num_rows}")
    for field in table.schema:
        if any(_has_nulls(field, chunk) for chunk in table.column(field.name).chunks):
            raise IndexFormatError(f"{name}: column {field.name!r} has nulls")
    return table


def _has_nulls(field: pa.Field, array: pa.Array) -> bool:
    """Whether there are nulls in an array of numbers, strings, lists or structs where there may be none."""
    if not field.nullable and array.null_count:
        return True
    if pa.types.is_struct(field.type):
        return any(_has_nulls(inner, array.field(inner.name)) for inner in field.type)
    if pa.types.is_nested(field.type):
        return _has_nulls(field.type.value_field, array.values)
    return False


def single_chunk(table: pa.Table, name: str, column: str) -> pa.Array:
    """Return a column as one contiguous piece; IndexFormatError if it is stored in several."""
    chunked = table.column(column)
    if chunked.num_chunks != 1:
        raise IndexFormatError(f"{name}: expected one record batch, got {chunked.num_chunks}")
    return chunked.chunk(0)


def as_numpy(array: pa.Array) -> npt.NDArray[np.signedinteger]:
    """Return a zero-copy, read-only NumPy view of an integer array; ArrowInvalid if there are nulls."""
    if array.null_count:
        raise pa.ArrowInvalid(f"expected integers, got {array.null_count} nulls among them")
    # `to_numpy` and, the other way round, `pyarrow.array` import pandas where it is installed: 0.2 s.
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None:  # of an empty array
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def as_arrow(numbers: npt.NDArray[np.signedinteger]) -> pa.Array:
    """Return a zero-copy Arrow array of contiguous integers. Shape: (n,)."""
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)]
    )


def _brief(schema: str) -> str:
    text = ", ".join(schema.splitlines())
    return text if len(text) <= 200 else text[:200] + " …"

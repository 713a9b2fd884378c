"""Which columns of a Parquet file documents are made of, and of what type they must be."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from retrieval.errors import SourceError
from retrieval.linking.documents.corpus import CorpusOptions
from retrieval.linking.documents.record import MENTION_DOCUMENT_FIELD, MENTION_FIELD, MENTION_TEXT_FIELDS

_STRING = "string"
_ID = "string or an integer type"
_MENTIONS = "a list of structs with the integers start and end"
_DEFAULTS = CorpusOptions(())


def document_columns(path: str, schema: pa.Schema, options: CorpusOptions) -> list[str]:
    """Return the names of the columns to be read.

    Args:
        path: The file, for messages.
        schema: Its columns.
        options: What they are called.

    Raises:
        SourceError: one that is needed is not there, comes twice, or has a wrong type.
    """
    names = list(schema.names)
    wanted: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {}
    mention = {
        **dict.fromkeys(MENTION_TEXT_FIELDS, (_is_string, _STRING)),
        MENTION_DOCUMENT_FIELD: (_is_id, _ID),
    }
    if options.text_field in names:
        wanted[options.text_field] = (_is_string, _STRING)
        fits = all(
            is_kind(schema.field(name).type) for name, (is_kind, _) in mention.items() if name in names
        )
        if fits and MENTION_FIELD in names:
            wanted = {**mention, **wanted}
    elif MENTION_FIELD in names:
        wanted = {**mention}
    else:
        raise _missing(path, names, options.text_field)
    for field, default, kind in (
        (options.id_field, _DEFAULTS.id_field, (_is_id, _ID)),
        (options.mentions_field, _DEFAULTS.mentions_field, (_is_mentions, _MENTIONS)),
    ):
        if field not in names and field != default:
            raise _missing(path, names, field)
        wanted[field] = kind
    for name, (is_kind, expected) in wanted.items():
        _check(path, schema, name, is_kind, expected)
    return [name for name in names if name in wanted]


def _check(
    path: str, schema: pa.Schema, name: str, is_kind: Callable[[pa.DataType], bool], expected: str
) -> None:
    places = schema.get_all_field_indices(name)
    if len(places) > 1:
        raise SourceError(f"{path}: there are {len(places)} columns {name!r}; expected one")
    if places and not is_kind(schema.field(places[0]).type):
        raise SourceError(
            f"{path}: column {name!r} is of type {schema.field(places[0]).type}; expected {expected}"
        )


def _missing(path: str, names: list[str], name: str) -> SourceError:
    shown = ", ".join(map(repr, names))
    return SourceError(f"{path}: there is no column {name!r}; the columns are {shown}")


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_id(kind: pa.DataType) -> bool:
    return _is_string(kind) or bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def _is_mentions(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return False
    item = kind.value_type
    if pa.types.is_null(item):  # no list of the file holds anything
        return True
    if not pa.types.is_struct(item):
        return False
    types = {item.field(place).name: item.field(place).type for place in range(item.num_fields)}
    return all(
        name in types and (pa.types.is_integer(types[name]) or pa.types.is_null(types[name]))
        for name in ("start", "end")
    )

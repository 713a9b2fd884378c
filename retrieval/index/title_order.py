"""title_order.arrow: entity numbers in the order of their titles' bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoding.grammar.holes.text_batches import WORD, TextBatches
from retrieval.errors import IndexFormatError
from retrieval.index.arrow_files import as_numpy, read_table, single_chunk
from retrieval.index.layout import (
    ENTITIES_FILE,
    ENTITY_BATCH_ROWS,
    TITLE,
    TITLE_ORDER_FILE,
    title_order_schema,
)

Ints = npt.NDArray[np.int32]
_COMPARED_AT_ONCE = 1 << 18


def read_title_order(data: pa.Buffer, num_entities: int) -> Ints:
    """Return the order, zero-copy. Shape: (num_entities,), int32.

    Raises:
        IndexFormatError: the file is no list of so many entity numbers.
    """
    table = read_table(data, TITLE_ORDER_FILE, [title_order_schema()], num_entities)
    order: Ints = as_numpy(single_chunk(table, TITLE_ORDER_FILE, "entity")).view(np.int32)
    # What reads titles by these numbers does not look again.
    if int(order.min()) < 0 or int(order.max()) >= num_entities:
        raise IndexFormatError(f"{TITLE_ORDER_FILE}: an entity number is outside 0 … {num_entities - 1}")
    return order


def title_batches(titles: pa.ChunkedArray) -> TextBatches:
    """Return the bytes of a column of titles as views of the mapped file.

    Raises:
        IndexFormatError: a title does not lie inside the column's bytes.
    """
    offsets, data = [], []
    for chunk in titles.chunks:
        _, begins, texts = chunk.buffers()
        stored = np.frombuffer(begins, dtype=np.int32) if begins else np.zeros(1, dtype=np.int32)
        offsets.append(stored[chunk.offset : chunk.offset + len(chunk) + 1])
        data.append(np.frombuffer(texts, dtype=np.uint8) if texts else np.empty(0, dtype=np.uint8))
    try:
        return TextBatches(offsets, data, ENTITY_BATCH_ROWS)
    except ValueError as error:
        raise IndexFormatError(f"{ENTITIES_FILE}: column {TITLE!r}: {error}") from error


def first_disorder(order: Ints, titles: TextBatches) -> int | None:
    """Return the first place whose entity should not stand behind the one before it; None: there is none.

    Entities are in order when titles ascend, byte by byte, and entities of one title by number. A list
    of numbers in range that is in order names nobody twice, so it names all of them.

    Args:
        order: Numbers in range. Shape: (n,).
        titles: Of all entities.
    """
    for begin in range(0, len(order) - 1, _COMPARED_AT_ONCE):
        part = order[begin : begin + _COMPARED_AT_ONCE + 1]
        wrong = _first_wrong(part, titles)
        if wrong is not None:
            return begin + wrong
    return None


def _first_wrong(part: Ints, titles: TextBatches) -> int | None:
    open_ = np.arange(1, len(part))  # places that are so far equal to the one before
    wrong = np.empty(0, dtype=np.int64)
    depth = 0
    while len(open_):
        before, taken_before = titles.words(part[open_ - 1], depth)
        word, taken = titles.words(part[open_], depth)
        same = word == before
        shorter = same & (taken < taken_before)
        ended = same & (taken == taken_before) & (taken < WORD)
        falls = ended & (part[open_] <= part[open_ - 1])
        wrong = np.concatenate([wrong, open_[(word < before) | shorter | falls]])
        open_ = open_[same & (taken == WORD) & (taken_before == WORD)]
        depth += WORD
    return int(wrong.min()) if len(wrong) else None

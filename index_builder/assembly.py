"""From what was read to what is stored: rows in rank order, entities in canonical order, postings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index_builder.catalogue import Catalogue
from index_builder.duplicates import Identities
from index_builder.sort import gather_rows, sort_rows

IntArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class Assembly:
    """R distinct rows, E entities, P postings.

    Entities are numbered by the rank of their title's row, then by id, whatever the order of the source.

    Attributes:
        tokens: Rows in rank order, concatenated. Shape: (total tokens,), unsigned.
        offsets: Row r is tokens[offsets[r] : offsets[r + 1]]. Shape: (R + 1,), int64.
        entity_order: Record of each entity. Shape: (E,), int64.
        posting_rank: Rank of each posting, ascending. Shape: (P,), int32.
        posting_entity: Its entity, ascending within a rank. Shape: (P,), int32.
        posting_form: Which form of the entity: 0 the title, n the n-th alias. Shape: (P,), int32.
    """

    tokens: IntArray
    offsets: IntArray
    entity_order: IntArray
    posting_rank: IntArray
    posting_entity: IntArray
    posting_form: IntArray

    @property
    def num_rows(self) -> int:
        """Distinct rows."""
        return len(self.offsets) - 1

    @property
    def one_to_one(self) -> bool:
        """Whether row r is the title of entity r, for every r, and nothing else."""
        return (
            len(self.posting_rank) == self.num_rows == len(self.entity_order)
            and not self.posting_form.any()
            and bool((self.posting_entity == self.posting_rank).all())
        )


def assemble(catalogue: Catalogue, identities: Identities, vocab_size: int) -> Assembly:
    """Sort the rows, number the entities and join the two."""
    keep = identities.keep
    forms = np.flatnonzero(keep[catalogue.form_entity])
    if len(forms) == len(catalogue.form_entity):
        tokens, offsets = catalogue.tokens, catalogue.offsets
    else:
        tokens, offsets = gather_rows(catalogue.tokens, catalogue.offsets, forms)
    order, first = sort_rows(tokens, offsets, vocab_size)
    rank = np.empty(len(forms), dtype=np.int32)
    rank[order] = np.cumsum(first) - 1
    row_tokens, row_offsets = gather_rows(tokens, offsets, order[first])
    record = catalogue.form_entity[forms]
    form = catalogue.form_number[forms]
    entity_order = _order_entities(record[form == 0], rank[form == 0], identities, catalogue)
    number = np.full(len(keep), -1, dtype=np.int32)
    number[entity_order] = np.arange(len(entity_order), dtype=np.int32)
    return Assembly(row_tokens, row_offsets, entity_order, *_join_postings(rank, number[record], form))


def _order_entities(
    records: IntArray, title_ranks: IntArray, identities: Identities, catalogue: Catalogue
) -> IntArray:
    ids = catalogue.titles if identities.entity_ids is None else identities.entity_ids
    by_rank = np.argsort(title_ranks, kind="stable")
    ordered = records[by_rank].astype(np.int64)
    ranks = title_ranks[by_rank]
    tied = np.flatnonzero(ranks[1:] == ranks[:-1])
    if len(tied):  # entities with one title; few, unless the tokenizer drops much
        begins = tied[np.concatenate([[True], np.diff(tied) > 1])]
        ends = np.searchsorted(ranks, ranks[begins], side="right")
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            ordered[begin:end] = sorted(ordered[begin:end].tolist(), key=lambda r: str(ids[r].as_py()))
    return ordered


def _join_postings(rank: IntArray, entity: IntArray, form: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Sort postings by rank, entity, form; an entity's forms of one row count once, as the first."""
    order = np.lexsort((form, entity, rank))
    rank, entity, form = rank[order], entity[order], form[order]
    distinct = np.ones(len(order), dtype=bool)
    distinct[1:] = (rank[1:] != rank[:-1]) | (entity[1:] != entity[:-1])
    return rank[distinct], entity[distinct], form[distinct]

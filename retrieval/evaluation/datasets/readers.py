"""`read_set`: one labelled set from a specification on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from retrieval.evaluation.types import LabelledSet

SET_FORMATS = ("beir", "kilt", "trec", "mentions", "queries")


class TitleResolver(Protocol):
    """Finds entities of an index by what labels call them."""

    def by_id(self, entity_id: str) -> str | None:
        """Return the entity's id, or None where the index has no such entity."""

    def by_title(self, title: str) -> str | None:
        """Return the id of the entity with this title after the text policy; aliases second."""


@dataclass(frozen=True, slots=True)
class SetSpec:
    """Where a set is and how it is read.

    Attributes:
        name: How reports call it.
        format: One of `SET_FORMATS`.
        path: "beir": the folder with queries.jsonl and qrels/; "kilt": a JSON Lines file; "trec": a file
            of topics; "mentions": JSON Lines as `genret link` reads them, with title or entity_id; "queries":
            JSON Lines with id, query and gold. All may be gzipped.
        qrels: "trec": the file of judgments; "beir": the file or the split's name; None: qrels/test.tsv.
        limit: So many queries, the first ones; None: all.
    """

    name: str
    format: str
    path: str
    qrels: str | None = None
    limit: int | None = None

    @classmethod
    def parse(cls, text: str) -> SetSpec:
        """Read NAME=FORMAT:PATH[:QRELS], or FORMAT:PATH named by the file.

        Raises:
            InputError: the text has another form.
        """
        raise NotImplementedError


def read_set(spec: SetSpec, resolver: TitleResolver) -> LabelledSet:
    """Read a set and find its answers in the index.

    Raises:
        SourceError: a file is missing or malformed; names file, line, field, what was expected and what was got.
    """
    raise NotImplementedError

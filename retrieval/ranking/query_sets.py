"""Queries with their answers as entities of an index: labelled ones of files, and made ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from retrieval.errors import InputError, SourceError
from retrieval.evaluation.datasets.labels import FileQuery, find_answers
from retrieval.evaluation.datasets.query_file import read_query_file
from retrieval.evaluation.datasets.resolver import IndexResolver
from retrieval.evaluation.datasets.spec import SetSpec
from retrieval.evidence.evidence import Evidence
from retrieval.index.reader import Index
from retrieval.ranking.catalogue_fit import MADE_QUERIES
from retrieval.ranking.made_queries import make_queries
from retrieval.ranking.tuning import Labelled, labelled
from retrieval.sources.digests import digest_file

# A ranking has two dozen weights: more queries of a file tell little, and take their time.
DEFAULT_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class QuerySet:
    """Queries of one origin.

    Attributes:
        name: Name of the file, and of the split.
        queries: With their answers.
        path: The file; None for queries made from the catalogue.
        digest: Of the file; "" for queries made from the catalogue.
        num_unknown: Queries left out because the index has none of their entities.
    """

    name: str
    queries: tuple[Labelled, ...]
    path: Path | None = None
    digest: str = ""
    num_unknown: int = 0


def read_query_sets(
    texts: Sequence[str], index: Index, max_unknown: int = 0, limit: int = DEFAULT_LIMIT, seed: int = 0
) -> list[QuerySet]:
    """Read files of labelled queries.

    TSV with a header or JSON Lines, as `genret evaluate` reads them. A line of TSV with neither entity_id nor
    title, and an empty list of gold, say that nothing of the index answers the query.

    Args:
        texts: FILE or FILE#SPLIT.
        index: The index that they are for.
        max_unknown: Most queries of all files whose entities the index lacks; they are left out.
        limit: Most queries of a file, drawn at random where it has more.
        seed: Of the draw.

    Raises:
        InputError: no file or no split is named.
        SourceError: a file is missing or malformed, or more queries than allowed have unknown entities.
    """
    resolver = IndexResolver(index)
    sets, unknown = [], []
    for text in texts:
        try:
            spec = SetSpec.parse(f"queries:{text}")
        except InputError as error:
            raise InputError("queries", f"expected FILE or FILE#SPLIT, got {text!r}") from error
        read, _ = read_query_file(spec, has_nil=True)
        judged = [query for query in read if query.answers or query.is_nil]
        if len(judged) > limit:
            judged = [judged[at] for at in sorted(Random(seed).sample(range(len(judged)), limit))]
        queries, missing = _labelled(judged, index, resolver)
        unknown += [f"{spec.path}, line {query.line}: {_named(query)}" for query in missing]
        name = Path(spec.path).name + (f"#{spec.split}" if spec.split else "")
        path = Path(spec.path)
        sets.append(QuerySet(name, tuple(queries), path, digest_file(path).xxh3_128, len(missing)))
    if len(unknown) > max_unknown:
        raise SourceError(
            f"{len(unknown):,} queries are for entities that the index {index.path} lacks, at most "
            f"{max_unknown:,} may be:\n  " + "\n  ".join([*unknown[:5], *(["…"] if unknown[5:] else [])])
        )
    return sets


def made_set(index: Index, evidence: Evidence, count: int | None, seed: int) -> QuerySet:
    """Return queries made from the catalogue of an index.

    Args:
        index: The index.
        evidence: Its evidence.
        count: Most queries.
        seed: Of everything random.
    """
    columns = () if index.evidence is None else index.evidence.columns
    return QuerySet(MADE_QUERIES, tuple(labelled(make_queries(index, evidence, columns, count, seed))))


def _labelled(
    judged: Sequence[FileQuery], index: Index, resolver: IndexResolver
) -> tuple[list[Labelled], list[FileQuery]]:
    """Return the queries with the numbers of their entities, and those whose entities the index lacks."""
    found, _ = find_answers(judged, resolver)
    wanted = [
        [entity for entity, grade in query.gold.items() if grade > 0]
        + [entity for entity, other in query.namesakes.items() if query.gold[other] > 0]
        for query in found
    ]
    ids = list(dict.fromkeys(entity for mine in wanted for entity in mine))
    number_of = dict(zip(ids, index.entities.numbers(ids).tolist(), strict=True)) if ids else {}
    queries, missing = [], []
    for query, one, mine in zip(judged, found, wanted, strict=True):
        numbers = tuple(number_of[entity] for entity in mine if number_of[entity] >= 0)
        if numbers or query.is_nil:
            queries.append(Labelled(one.text, numbers))
        elif mine:  # what is judged irrelevant alone teaches nothing
            missing.append(query)
    return queries, missing


def _named(query: FileQuery) -> str:
    names = [repr(answer.entity_id or answer.title) for answer in query.answers]
    return f"{query.text!r} is for {', '.join(names[:3])}"

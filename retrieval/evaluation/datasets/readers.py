"""`read_set`: one labelled set from a specification on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from retrieval.errors import SourceError
from retrieval.evaluation.datasets.beir import read_beir
from retrieval.evaluation.datasets.kilt import read_kilt
from retrieval.evaluation.datasets.labels import FileQuery, TitleResolver, find_answers
from retrieval.evaluation.datasets.mention_file import read_mention_file
from retrieval.evaluation.datasets.query_file import read_query_file
from retrieval.evaluation.datasets.spec import SET_FORMATS, SetSpec
from retrieval.evaluation.datasets.trec import read_trec
from retrieval.evaluation.metrics import PRIMARY_METRICS
from retrieval.evaluation.types import LabelledSet
from retrieval.index.digests import digest_bytes
from retrieval.sources.digests import digest_file

__all__ = ["SET_FORMATS", "SetSpec", "TitleResolver", "read_set"]

_READERS: Mapping[str, Callable[[SetSpec], tuple[list[FileQuery], list[Path]]]] = {
    "beir": read_beir,
    "kilt": read_kilt,
    "trec": read_trec,
    "mentions": read_mention_file,
    "queries": read_query_file,
}
_KINDS = {"kilt": "kilt", "mentions": "mentions"}


def read_set(spec: SetSpec, resolver: TitleResolver) -> LabelledSet:
    """Read a set and find its answers in the index.

    Queries that nothing is judged for are left out and counted; mentions labelled NIL stay. Relevant answers
    that the index lacks stay in `gold` as "missing:" and their title, percent-encoded where it holds white
    space, and are counted: recall is a share of all that is relevant, not of what the index happens to have.
    A label that is the title of several entities is right for each of them (`LabelledQuery.namesakes`).

    Raises:
        SourceError: a file is missing or malformed; names file, line, field, what was expected and what was
            got. Ids of queries that are there twice, judgments of queries that are not there, two grades of
            one document for one query and files without a judged query are such errors.
    """
    read, files = _READERS[spec.format](spec)
    judged = [query for query in read if query.answers or query.is_nil]
    if not judged:
        raise SourceError(f"{files[0]}: expected queries with answers, got {len(read)} queries without any")
    queries, num_missing = find_answers(judged[: spec.limit], resolver)
    kind = _KINDS.get(spec.format, "queries")
    return LabelledSet(
        name=spec.name,
        kind=kind,
        queries=queries,
        num_missing=num_missing,
        digest=_digest(files),
        primary=PRIMARY_METRICS[kind],
        num_unjudged=len(read) - len(judged),
    )


def _digest(files: Sequence[Path]) -> str:
    """Return the digest of a file; of several, that of their digests."""
    digests = [digest_file(file).xxh3_128 for file in files]
    return digests[0] if len(digests) == 1 else digest_bytes("\n".join(digests).encode())

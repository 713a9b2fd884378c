"""What an update does with the evidence of an index, and which entity every new one was before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np
import numpy.typing as npt

from index_builder.build import written_rejects
from index_builder.config import BuildOptions
from index_builder.evidence import Before, EvidenceMaker
from index_builder.evidence_wish import (
    EvidenceChange,
    VectorChange,
    asked_columns,
    check_columns,
    check_method,
)
from index_builder.past_queries import check_query_files
from index_builder.progress import BuildProgress
from index_builder.runs import IntArray, Run
from retrieval.errors import IndexChecksumError, InputError
from retrieval.index.evidence_summary import evidence_kinds, unusable_vectors
from retrieval.index.layout import QUERIES_FILE, RANKING_FILE, VECTOR_FILES
from retrieval.index.manifest import Manifest
from retrieval.index.reader import Index
from retrieval.rejects import Rejects
from retrieval.vectors.embedder import VectorMethod

Fate = Literal["absent", "kept", "carried over", "made", "dropped"]


@dataclass(frozen=True, slots=True)
class Fates:
    """What becomes of the evidence of an index: "absent", "kept" as it is, "carried over" to the new
    entities, "made" or "dropped".

    Attributes:
        evidence: Of names, texts and past queries.
        vectors: Of the vectors.
    """

    evidence: Fate
    vectors: Fate

    @property
    def changes_files(self) -> bool:
        """Whether the new version has other files of evidence even where its entities are the same."""
        return not {self.evidence, self.vectors} <= {"absent", "kept"}


def check_changes(evidence: EvidenceChange, vectors: VectorChange, index: Index) -> None:
    """Refuse what cannot be done with the evidence of an index, before anything else is read.

    Raises:
        InputError: a column has no texts, there is no evidence for what is asked, or what keeping vectors in
            step needs is not there.
        SourceError: a file of past queries cannot be used.
        IndexChecksumError: evidence that is to be kept is damaged.
    """
    check_columns(asked_columns(evidence.wish, vectors.wish), index.metadata_types)
    check_query_files(evidence.query_files)
    if index.evidence is None and evidence.wish is None and (evidence.queries or evidence.drop_queries):
        raise InputError("queries", f"{index.path}: the index has no evidence; --evidence all makes it")
    problem = index.evidence_problems.get(QUERIES_FILE)
    if problem is not None and not (evidence.drop or evidence.drop_queries):
        raise IndexChecksumError(
            QUERIES_FILE,
            f"{_cause(problem)}; an update keeps past queries: --queries none drops them",
        )
    if vectors.wish is None and not vectors.drop:
        _check_keeping(index, vectors.encoder, vectors.device)


def fates_of(evidence: EvidenceChange, vectors: VectorChange, index: Index, rewritten: bool) -> Fates:
    """Return what becomes of the evidence.

    Args:
        evidence: What is asked for.
        vectors: What is asked of vectors.
        index: The live version.
        rewritten: Whether the other files of the new version are written anew.
    """
    is_made = evidence.wish is not None or bool(
        index.evidence and (evidence.queries or evidence.drop_queries)
    )
    drops_vectors = vectors.drop or unusable_vectors(index.manifest) is not None
    return Fates(
        _fate(is_made, evidence.drop, index.evidence is not None, rewritten),
        _fate(vectors.wish is not None, drops_vectors, index.vectors is not None, rewritten),
    )


def _fate(is_made: bool, is_dropped: bool, is_there: bool, rewritten: bool) -> Fate:
    if is_made:
        return "made"
    if not is_there:
        return "absent"
    if is_dropped:
        return "dropped"
    return "carried over" if rewritten else "kept"


def update_evidence(
    manifest: Manifest,
    maker: EvidenceMaker,
    fates: Fates,
    before: Before,
    evidence: EvidenceChange,
    vectors: VectorChange,
    rejects: Rejects,
    options: BuildOptions,
    progress: BuildProgress,
) -> Manifest:
    """Put the evidence of the new version beside its other files.

    Args:
        manifest: Of the staged files, with the evidence that is kept as it is.
        maker: Makes evidence.
        fates: What becomes of it.
        before: The live version.
        evidence: What is asked for.
        vectors: What is asked of vectors.
        rejects: Gets bad lines of files of queries.
        options: Where bad rows are written.
        progress: Told when models must be weighed again.

    Returns:
        The manifest with all evidence.

    Raises:
        GenretError: as `EvidenceMaker` has it.
    """
    old = before.index
    if fates.evidence in ("made", "carried over"):
        columns = None if evidence.wish is None else evidence.wish.columns
        if columns is None and old.evidence is not None:
            columns = old.evidence.columns
        has_queries = old.evidence is not None and old.evidence.queries and not evidence.drop_queries
        with written_rejects(rejects, options, "nothing was updated"):
            manifest = maker.make_fields(
                manifest, columns, evidence.query_files, rejects, before if has_queries else None
            )
    if vectors.wish is not None:
        manifest = maker.make_vectors(manifest, vectors.wish)
    elif fates.vectors == "carried over":
        manifest = maker.carry_vectors_over(manifest, before, vectors)
    manifest = maker.carry_priors_over(manifest, before)
    return _ranked(manifest, maker, old, vectors, progress)


def _ranked(
    manifest: Manifest, maker: EvidenceMaker, old: Index, vectors: VectorChange, progress: BuildProgress
) -> Manifest:
    """Keep the rankings while there are the kinds of evidence that they weigh; else fit one anew."""
    if manifest.evidence is None:
        return manifest
    has_one = old.manifest.file(RANKING_FILE) is not None and RANKING_FILE not in old.evidence_problems
    if has_one and evidence_kinds(manifest) == evidence_kinds(old.manifest):
        return maker.copy_ranking(manifest, old)
    if has_one:
        progress.note(
            "there is other evidence now: models must be weighed again, with genret tune INDEX --model MODEL"
        )
    device = vectors.device if vectors.wish is None else vectors.wish.options.device
    return maker.make_ranking(manifest, device)


def _check_keeping(index: Index, encoder: str | None, device: str) -> None:
    """Refuse an update of an index whose vectors cannot be kept in step; the text says what can be done."""
    vectors = index.vectors
    if vectors is None or unusable_vectors(index.manifest) is not None:
        if encoder is not None:
            raise InputError("encoder", f"{index.path}: the index has no vectors, which a model would make")
        return
    ways = "--vectors METHOD makes new ones, --vectors none drops them"
    for name in VECTOR_FILES:
        if (problem := index.evidence_problems.get(name)) is not None:
            raise IndexChecksumError(name, f"{_cause(problem)}; an update keeps vectors in step: {ways}")
    if find_spec("faiss") is None:
        raise InputError(
            "vectors",
            f"{index.path} has vectors, which an update keeps in step with the extra `vectors` (pip install "
            "'generative-retrieval[vectors]'); without it, --vectors none drops them",
        )
    try:
        check_method(VectorMethod(vectors.method, encoder or vectors.source), device)
    except InputError as error:
        if error.field != "vectors":
            raise
        raise InputError(
            "encoder", f"{error.message}; --encoder says where the model of the vectors lies now, {ways}"
        ) from error


def _cause(problem: IndexChecksumError) -> str:
    return str(problem).removeprefix(f"{problem.file}: ")


class Ancestry:
    """Which entity of the live version each entity of the new one was; 16 bytes per entity.

    Args:
        num_live: Entities of the live version.
        runs: The live version, then the shards. Those that keep no entity take no part in the merge.
        replaced: For every shard, the live entity that each of its entities replaces, or -1. Shape of each:
            (num_entities of the shard,), int32.
    """

    def __init__(self, num_live: int, runs: Sequence[Run], replaced: Sequence[npt.NDArray[np.int32]]) -> None:
        numbers = [np.arange(num_live, dtype=np.int32), *replaced]
        merged = [was for run, was in zip(runs, numbers, strict=True) if run.keep.any()]
        self._number = np.concatenate(merged)
        self._parts: list[npt.NDArray[np.int32]] = []

    def add(self, sources: IntArray) -> None:
        """Note which entities of the runs, counted through, get the next numbers."""
        self._parts.append(self._number[sources])

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the number that each entity had, -1 for new ones. Shape: (num_entities,)."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._parts])

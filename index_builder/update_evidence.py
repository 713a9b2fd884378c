"""Keeps, carries over, remakes or drops the evidence of an index when it is updated.

`publish_rankings` publishes the live version with other rankings or priors, for `genret tune`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from genret.index_builder.build_options import (
    EvidenceChange,
    VectorChange,
    asked_columns,
    check_columns,
    check_method,
)
from genret.index_builder.evidence_maker import EvidenceMaker, PreviousEvidence, copy_version
from genret.index_builder.past_queries import check_query_files
from genret.index_builder.publish import prune, publish, staging
from genret.retrieval.durable import write_synced
from genret.retrieval.errors import PIP, IndexChecksumError, IndexDirectoryError, InputError
from genret.retrieval.index.layout import PRIOR_FILE, QUERIES_FILE, RANKING_FILE, VECTOR_FILES
from genret.retrieval.index.manifest import FileEntry, HistoryEntry, Manifest, extend_history
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.index.summary import evidence_kinds, unusable_vectors
from genret.retrieval.progress import StepProgress
from genret.retrieval.sources.records import Rejects
from genret.retrieval.sources.source_files import digest_file
from genret.retrieval.vectors.embedder import VectorMethod

Fate = Literal["absent", "kept", "carried over", "made", "dropped"]


@dataclass(frozen=True, slots=True)
class EvidenceDecisions:
    """The fates of names, texts and past queries (`evidence`) and of vectors, when an index is updated.

    "kept" leaves the files as they are; "carried over" adapts them to the new entities.
    """

    evidence: Fate
    vectors: Fate

    @property
    def changes_files(self) -> bool:
        """Whether files of evidence change even where the entities stay the same."""
        return not {self.evidence, self.vectors} <= {"absent", "kept"}


def check_changes(evidence: EvidenceChange, vectors: VectorChange, index: Index) -> None:
    """Refuse impossible changes of the evidence before anything else is read.

    Raises:
        InputError: a column has no texts, there is no evidence to change, or something is missing that
            keeping the vectors in step needs.
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


def fates_of(
    evidence: EvidenceChange, vectors: VectorChange, index: Index, rewritten: bool
) -> EvidenceDecisions:
    """Decide the fates; `rewritten` says whether the other files of the version are written anew."""
    changes_queries = bool(evidence.queries or evidence.drop_queries)
    is_made = evidence.wish is not None or (index.evidence is not None and changes_queries)
    drops_vectors = vectors.drop or unusable_vectors(index.manifest) is not None
    return EvidenceDecisions(
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
    fates: EvidenceDecisions,
    before: PreviousEvidence,
    evidence: EvidenceChange,
    vectors: VectorChange,
    rejects: Rejects,
    progress: StepProgress,
) -> Manifest:
    """Add the evidence of the new version to its other files, as the `fates` say, and return its manifest.

    `manifest` is that of the staged files, with the evidence that is kept. Bad lines of files of queries go
    to `rejects`. Raises what `EvidenceMaker` does.
    """
    old = before.index
    if fates.evidence in ("made", "carried over"):
        columns = None if evidence.wish is None else evidence.wish.columns
        if columns is None and old.evidence is not None:
            columns = old.evidence.columns
        has_queries = old.evidence is not None and old.evidence.queries and not evidence.drop_queries
        taken = before if has_queries else None
        manifest = maker.make_fields(manifest, columns, evidence.query_files, rejects, taken)
    if vectors.wish is not None:
        manifest = maker.make_vectors(manifest, vectors.wish)
    elif fates.vectors == "carried over":
        manifest = maker.carry_vectors_over(manifest, before, vectors)
    manifest = maker.carry_priors_over(manifest, before)
    return _ranked(manifest, maker, old, vectors, progress)


def _ranked(
    manifest: Manifest, maker: EvidenceMaker, old: Index, vectors: VectorChange, progress: StepProgress
) -> Manifest:
    """Keep the rankings while the kinds of evidence stay the same; else fit one anew."""
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
    """Refuse an update whose vectors cannot be kept in step; the message says what can be done."""
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
            f"{index.path} has vectors, which an update keeps in step with the extra `vectors` "
            f"({PIP} install 'generative-retrieval[vectors]'); without it, --vectors none drops them",
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


def publish_rankings(
    index: Path,
    parent: str,
    made: Mapping[str, bytes],
    files: Sequence[Path],
    options: Mapping[str, Any],
    num_queries: int,
    keep_versions: int,
) -> str:
    """Publish the live version with other rankings or priors, and return the new version's id.

    `made` is the content of `RANKING_FILE`, of `PRIOR_FILE` or both, made for the version `parent`; the other
    is taken over. The history names the `files` and the number of queries that the rankings were fitted to.

    Raises:
        IndexDirectoryError: another version is live by now, another build is running, or the index is
            damaged or cannot be written. The live version is untouched.
        SourceError: a file cannot be read any more.
    """
    sources = tuple(map(digest_file, files))
    with staging(index) as folder, Index.open(index) as live:
        if live.version != parent:
            raise IndexDirectoryError(
                f"{index}: was changed meanwhile: this was made for version {parent}, and "
                f"{live.version} is live now; tune it again"
            )
        manifest = copy_version(live, folder, with_fields=True, with_vectors=True)
        contents = {**_kept(live), **made}
        for name, content in contents.items():
            write_synced(folder / name, content)
        entries = [FileEntry(name, len(data), digest_bytes(data)) for name, data in contents.items()]
        step = HistoryEntry("tune", parent, sources, options, num_queries)
        manifest = replace(
            manifest,
            files=tuple(sorted((*manifest.files, *entries), key=lambda file: file.name)),
            history=extend_history(manifest.history, step),
        )
        version = publish(index, folder, manifest)
        prune(index, version, keep_versions, before=parent)
    return version


def _kept(live: Index) -> dict[str, bytes]:
    """Return the undamaged ones of a version's rankings and priors."""
    listed = [name for name in (RANKING_FILE, PRIOR_FILE) if live.manifest.file(name) is not None]
    sound = [name for name in listed if name not in live.evidence_problems]
    return {name: live.evidence_path(name).read_bytes() for name in sound}

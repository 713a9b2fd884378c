"""Makes the evidence of a staged version: names, texts, past queries, vectors, ranking.

For entities that an update keeps, past queries, vectors and rankings of the previous version are taken over,
and priors too if their forms are the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genret.index_builder.build_options import BuildOptions, VectorBuildOptions, VectorChange
from genret.index_builder.changes import VersionRun, equal_entities
from genret.index_builder.faults import fault_point
from genret.index_builder.past_queries import PastQueries, QueryFile, read_queries
from genret.index_builder.publish import library_versions, spill_folder, vector_work
from genret.retrieval.durable import sync, write_synced
from genret.retrieval.errors import IndexDirectoryError, InputError, SourceError
from genret.retrieval.index.layout import (
    ALIASES,
    EVIDENCE_FILES,
    FIELD_FILES,
    PRIOR_FILE,
    RANKING_FILE,
    TITLE,
    VECTOR_FILES,
)
from genret.retrieval.index.manifest import FileEntry, Manifest, VectorsEntry
from genret.retrieval.index.owners import EntityRows, FormOwners
from genret.retrieval.index.priors import Prior, priors_to_bytes, read_priors
from genret.retrieval.index.reader import Index, text_columns
from genret.retrieval.index.small_files import digest_file
from genret.retrieval.progress import PhaseClock, StepProgress
from genret.retrieval.sources.records import Rejects
from genret.retrieval.vectors.embedder import absolute_place
from genret.retrieval.vectors.vector_maker import carry_over_vectors, make_vectors

if TYPE_CHECKING:
    from genret.retrieval.evidence.evidence import Evidence
    from genret.retrieval.ranking.rankings import Rankings


_LIBRARIES = ("faiss-cpu",)
# Batch size for taking over past queries.
_TAKEN_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class PreviousEvidence:
    """The version that an update starts from.

    `number_of_old` holds the number there of every entity of the new version, or -1. Shape: (num_entities,).
    """

    index: Index
    number_of_old: npt.NDArray[np.int64]


class EvidenceMaker:
    """Adds evidence to the files of a staged version; embedded texts stay below `root` until the publication.

    Each method takes the manifest of the staged files and returns it with the new files. `outcome` ends the
    message that there are too many bad lines.
    """

    def __init__(
        self,
        folder: Path,
        root: Path,
        options: BuildOptions,
        progress: StepProgress,
        outcome: str = "nothing was built",
    ) -> None:
        self._folder = folder
        self._root = root
        self._rejects_file = options.rejects
        self._outcome = outcome
        self._memory = options.free_bytes
        self._threads = options.threads or len(os.sched_getaffinity(0))
        self._model_threads = options.threads or 1  # the default elsewhere too: more threads round otherwise
        self._progress = _FaultableProgress(progress)

    def make_fields(
        self,
        manifest: Manifest,
        columns: Sequence[str] | None,
        files: Sequence[QueryFile],
        rejects: Rejects,
        before: PreviousEvidence | None = None,
    ) -> Manifest:
        """Make the evidence by words and letters, with the past queries of `files` and of `before`, if given.

        No `columns` of texts means the default choice. Bad lines of the files go to `rejects`.

        Raises:
            SourceError: a file of queries cannot be used, or there are more bad lines than allowed.
            IndexDirectoryError: the previous past queries cannot be used, or a file cannot be written.
            OSError: a file cannot be written, for example on a full disk.
        """
        # Imported late: it brings compiled loops, which most commands do without.
        from genret.retrieval.evidence.field import make_fields

        with self._opened(manifest) as index, spill_folder(self._root) as spill:
            past = PastQueries(spill, index.num_entities) if files or before is not None else None
            if past is not None and before is not None:
                self._progress.phase("past queries of the version before")
                _take_over(before, past)
            if past is not None and files:
                self._progress.phase("reading past queries")
                with rejects.written_to(self._rejects_file):
                    read_queries(files, index, rejects, past)
                    rejects.check(self._outcome)
            with _writing():
                entry, names = make_fields(
                    index,
                    text_columns(columns, index.metadata_types),
                    past.by_entity() if past else None,
                    self._folder,
                    self._progress,
                    self._memory // 2,  # texts and what is written take the rest
                )
        return self._added(replace(manifest, evidence=entry), names)

    def make_vectors(self, manifest: Manifest, wish: VectorBuildOptions) -> Manifest:
        """Make vectors.

        Raises:
            InputError: a column has no texts, or faiss does not know the kind of index.
            ModelError: the encoder cannot be loaded.
            MissingExtraError: a library is not installed.
            IndexDirectoryError, OSError: a file cannot be written.
        """
        place, options = wish.method.placed(), wish.options
        return self._with_vectors(
            manifest, lambda index, **how: make_vectors(index, place, options, self._folder, **how)
        )

    def carry_vectors_over(
        self, manifest: Manifest, before: PreviousEvidence, change: VectorChange
    ) -> Manifest:
        """Take over the vectors of the previous version; new texts get new ones.

        `change` says where the encoder now lies and runs.

        Raises:
            IndexDirectoryError: the previous vectors cannot be used, or a file cannot be written.
            InputError, ModelError, MissingExtraError, OSError: as for `make_vectors`.
        """
        encoder = None if change.encoder is None else absolute_place(change.encoder)

        def carry(new: Index, **how: Any) -> tuple[VectorsEntry, tuple[str, ...]]:
            old, numbers, device = before.index, before.number_of_old, change.device
            return carry_over_vectors(old, new, numbers, self._folder, device, encoder=encoder, **how)

        return self._with_vectors(manifest, carry)

    def _with_vectors(
        self, manifest: Manifest, make: Callable[..., tuple[VectorsEntry, tuple[str, ...]]]
    ) -> Manifest:
        with self._opened(manifest) as index, vector_work(self._root) as work, _writing():
            entry, names = make(
                index, memory_bytes=self._memory, threads=self._threads, work=work, progress=self._progress
            )
        return self._added(replace(manifest, vectors=entry), names, _LIBRARIES)

    def make_ranking(
        self,
        manifest: Manifest,
        device: str,
        given: Path | None = None,
        model: str | Path | None = None,
        prompt: str | None = None,
    ) -> Manifest:
        """Read the rankings of a file, or fit one to queries made from the catalogue; then weigh a model.

        A catalogue that is too small for fitting goes without. The `model` is a checkpoint directory or hub
        id, asked with a prompt template.

        Raises:
            InputError: the file cannot be read, or holds no rankings.
            IndexMismatchError: the model does not fit the index.
            ModelError: the encoder of the vectors fails, or the model cannot be loaded.
            IndexDirectoryError, OSError: the file cannot be written.
        """
        from genret.retrieval.evidence.evidence import open_evidence
        from genret.retrieval.ranking.fitting import MIN_ENTITIES, fit_made_queries
        from genret.retrieval.ranking.rankings import NO_MODEL, Rankings

        rankings = Rankings() if given is None else read_rankings(given)
        too_few = f"a catalogue of {manifest.counts.entities:,} is too small to fit a ranking to"
        too_few += "" if model is None else "; the model was not weighed"
        if given is None:
            self._progress.phase("fitting the ranking")
            if manifest.counts.entities < MIN_ENTITIES:
                self._progress.note(too_few)
                return manifest
        if given is None or model is not None:
            with self._opened(manifest) as index:
                evidence = open_evidence(index, device=device)
                if given is None:
                    columns = () if index.evidence is None else index.evidence.columns
                    ranking = fit_made_queries(index, evidence, columns)
                    if ranking is None:
                        self._progress.note(too_few)
                        return manifest
                    rankings = rankings.with_one(NO_MODEL, ranking)
                if model is not None:
                    rankings = self._weighed(index, evidence, rankings, model, prompt)
        write_synced(self._folder / RANKING_FILE, rankings.to_bytes())
        return self._added(manifest, (RANKING_FILE,))

    def _weighed(
        self, index: Index, evidence: Evidence, rankings: Rankings, model: str | Path, prompt: str | None
    ) -> Rankings:
        """Return the rankings with one for a model, or as they are if few made queries find their entity."""
        from genret.retrieval.ranking.tuned_ranking import weigh_model

        try:
            fingerprint, tuned = weigh_model(
                index, evidence, rankings, model, self._model_threads, self._progress, prompt
            )
        except InputError as error:
            self._progress.note(f"the model was not weighed: {error.message}")
            return rankings
        figure = tuned.reports[-1].figures["hits@1"]
        self._progress.note(
            f"the model is weighed: hits@1 of queries made from the catalogue {figure.before.value:.3f} -> "
            f"{figure.after.value:.3f}"
        )
        return rankings.with_one(fingerprint, tuned.ranking)

    def copy_ranking(self, manifest: Manifest, old: Index) -> Manifest:
        """Take over the rankings of a version.

        Raises:
            IndexChecksumError: they are damaged.
            OSError: the file cannot be written.
        """
        write_synced(self._folder / RANKING_FILE, old.evidence_path(RANKING_FILE).read_bytes())
        return self._added(manifest, (RANKING_FILE,))

    def carry_priors_over(self, manifest: Manifest, before: PreviousEvidence) -> Manifest:
        """Take over the previous priors of entities whose forms and shares are the same.

        Damaged priors are dropped: a ranking that needs one is not used, and whoever opens the index is told.

        Raises:
            OSError: the file cannot be written.
        """
        if before.index.manifest.file(PRIOR_FILE) is None:
            return manifest
        try:
            priors = read_priors(before.index)
        except IndexDirectoryError as error:
            self._progress.note(f"the priors of models are dropped: {error}")
            return manifest
        with self._opened(manifest) as index:
            numbers = before.number_of_old
            carried = [carried_over(prior, before.index, index, numbers) for prior in priors.values()]
        for prior in carried:
            if prior.num_missing:
                self._progress.note(
                    f"{prior.num_missing:,} entities have no prior of the model {prior.model} yet and count "
                    "as the mean; it is computed by: genret tune INDEX --model MODEL --prior"
                )
        write_synced(self._folder / PRIOR_FILE, priors_to_bytes(carried))
        return self._added(manifest, (PRIOR_FILE,))

    def _opened(self, manifest: Manifest) -> Index:
        return Index.open_unpublished(self._folder, manifest)

    def _added(self, manifest: Manifest, names: Sequence[str], libraries: Sequence[str] = ()) -> Manifest:
        for name in names:
            sync(self._folder / name)
        fault_point("evidence-written")
        made = [FileEntry(n, (self._folder / n).stat().st_size, digest_file(self._folder / n)) for n in names]
        files = sorted((*manifest.files, *made), key=lambda file: file.name)
        built_with = {**manifest.built_with, **library_versions(libraries)}
        return replace(manifest, files=tuple(files), built_with=built_with)


def read_rankings(file: Path) -> Rankings:
    """Read a file of rankings. Raises `InputError` if it cannot be read, or holds no rankings."""
    from genret.retrieval.ranking.rankings import Rankings

    try:
        return Rankings.from_bytes(file.read_bytes())
    except OSError as error:
        raise InputError("ranking", f"{file}: cannot be read: {error.strerror}") from error
    except IndexDirectoryError as error:
        raise InputError("ranking", f"{file}: {str(error).removeprefix(f'{RANKING_FILE}: ')}") from error


def copy_version(index: Index, folder: Path, with_fields: bool, with_vectors: bool) -> Manifest:
    """Copy a version into the staging directory, without rankings and priors; return the copies' manifest.

    Names, texts and past queries are copied `with_fields`, vectors `with_vectors`. The history stays.

    Raises:
        OSError: a file cannot be written.
    """
    kept = {*(FIELD_FILES.values() if with_fields else ()), *(VECTOR_FILES if with_vectors else ())}
    left = set(EVIDENCE_FILES) - kept
    manifest = index.manifest
    files = [entry for entry in manifest.files if entry.name not in left]
    for entry in files:
        target = folder / entry.name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(index.path / entry.name, target)
        sync(target)
    libraries = manifest.built_with.items()
    return replace(
        manifest,
        evidence=manifest.evidence if with_fields else None,
        vectors=manifest.vectors if with_vectors else None,
        files=tuple(files),
        built_with={n: version for n, version in libraries if with_vectors or n not in _LIBRARIES},
    )


def _take_over(before: PreviousEvidence, past: PastQueries) -> None:
    """Add the previous past queries under their entities' new numbers."""
    from genret.retrieval.evidence.field import QUERIES, open_field

    index = before.index
    new_number = np.full(index.num_entities, -1, np.int64)
    kept = np.flatnonzero(before.number_of_old >= 0)
    new_number[before.number_of_old[kept]] = kept
    rows = (
        (int(new_number[number]), query, count)
        for number, mine in open_field(index, QUERIES).all_queries()
        if new_number[number] >= 0
        for query, count in mine
    )
    while some := list(islice(rows, _TAKEN_AT_ONCE)):
        entities, queries, counts = zip(*some, strict=True)
        past.add(np.array(entities), queries, counts)


@contextmanager
def _writing() -> Iterator[None]:
    """Turn a file that cannot be written into an error of the index, not of a source."""
    try:
        yield
    except SourceError as error:
        raise IndexDirectoryError(str(error)) from error


class _FaultableProgress(PhaseClock):
    """Passes everything on; tests can interrupt at every phase."""

    def phase(self, name: str, total: int | None = None) -> None:
        fault_point("evidence-making")
        super().phase(name, total)


_AT_ONCE = 1 << 16
_FORMS = [TITLE, ALIASES]


def carried_over(prior: Prior, old: Index, new: Index, number_of_old: npt.NDArray[np.int64]) -> Prior:
    """Return the prior of a new version, known for entities with the same forms and the same shares in them.

    An entity that shares a form gains or loses probability when another owner comes, goes or changes.
    `number_of_old` is as in `PreviousEvidence`.
    """
    logprobs = np.full(new.num_entities, np.nan, np.float32)
    known = np.flatnonzero(number_of_old >= 0)
    is_shared = _has_shared_forms(new)[known] | _has_shared_forms(old)[number_of_old[known]]
    shares_of_new, shares_of_old = (_shares_in(index, prior.title_weight) for index in (new, old))
    run_of_new, run_of_old = VersionRun(new), VersionRun(old)
    for begin in range(0, len(known), _AT_ONCE):
        mine = known[begin : begin + _AT_ONCE]
        theirs = number_of_old[mine]
        same = equal_entities(
            run_of_new.entities_at(mine).select(_FORMS), run_of_old.entities_at(theirs).select(_FORMS)
        )
        for at in np.flatnonzero(same & is_shared[begin : begin + _AT_ONCE]).tolist():
            same[at] = shares_of_new(int(mine[at])) == shares_of_old(int(theirs[at]))
        logprobs[mine[same]] = prior.logprobs[theirs[same]]
    return replace(prior, logprobs=logprobs)


def _has_shared_forms(index: Index) -> npt.NDArray[np.bool_]:
    """Return which entities share a form with another one. Shape: (num_entities,)."""
    has_shared = np.zeros(index.num_entities, np.bool_)
    if not index.is_one_to_one:
        owners = np.diff(index.postings.offsets)
        has_shared[index.postings.entity[np.repeat(owners > 1, owners)]] = True
    return has_shared


def _shares_in(index: Index, title_weight: float) -> Callable[[int], dict[tuple[int, ...], float]]:
    """Return a function that gives an entity's log share in each of its rows."""
    rows, owners = EntityRows(index), FormOwners(index, None, title_weight)
    return lambda entity: {
        index.row_token_ids(rank): owners(rank).log_share(entity) for rank in rows.of(entity)
    }

"""Makes the evidence of a version that is not published yet: names, texts, past queries, vectors, ranking.

Evidence of the version before is taken over where its entities stay: past queries, vectors, rankings, and
the priors of entities whose forms are the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from index_builder.build_options import BuildOptions, VectorBuildOptions, VectorChange, text_columns
from index_builder.changes import VersionRun, equal_entities
from index_builder.faults import fault_point
from index_builder.memory_budget import MemoryBudget
from index_builder.past_queries import PastQueries, QueryFile, read_queries
from index_builder.workplace import library_versions, spill_folder, vector_work
from retrieval.durable import sync, write_synced
from retrieval.errors import IndexDirectoryError, InputError, SourceError
from retrieval.index.layout import (
    ALIASES,
    EVIDENCE_FILES,
    NAMES_FILE,
    PRIOR_FILE,
    QUERIES_FILE,
    RANKING_FILE,
    TEXTS_FILE,
    TITLE,
    VECTOR_FILES,
)
from retrieval.index.manifest import FileEntry, Manifest
from retrieval.index.owners import EntityRows, FormOwners
from retrieval.index.priors import Prior, priors_to_bytes, read_priors
from retrieval.index.reader import Index
from retrieval.index.small_files import digest_file
from retrieval.progress import StepProgress
from retrieval.sources.rejects import Rejects
from retrieval.vectors.embedder import absolute_place
from retrieval.vectors.vector_maker import VectorOptions, carry_over_vectors, make_vectors

if TYPE_CHECKING:
    from retrieval.evidence.evidence import Evidence
    from retrieval.ranking.rankings import Rankings


_LIBRARIES = ("faiss-cpu",)
# Past queries of the version before that are taken over at once.
_TAKEN_AT_ONCE = 1 << 17
FIELD_FILES = (NAMES_FILE, TEXTS_FILE, QUERIES_FILE)


@dataclass(frozen=True, slots=True, eq=False)
class PreviousEvidence:
    """The version that an update starts from.

    Attributes:
        index: It.
        number_of_old: For every entity of the new version the number it had there, or -1. Shape:
            (num_entities,).
    """

    index: Index
    number_of_old: npt.NDArray[np.int64]


class EvidenceMaker:
    """Puts evidence beside the files of a version that is not published yet.

    Each method takes the manifest of the staged files, and returns it with what it has made.

    Args:
        folder: The staging directory; its other files are complete.
        root: Work directory of the index; what a model has embedded is kept there until the publication.
        options: Memory and threads.
        progress: Told about every step.
    """

    def __init__(self, folder: Path, root: Path, options: BuildOptions, progress: StepProgress) -> None:
        self._folder = folder
        self._root = root
        self._memory = MemoryBudget(options.memory_limit).free_bytes
        self._threads = options.threads or len(os.sched_getaffinity(0))
        self._model_threads = options.threads or 1  # as everywhere: other numbers round otherwise
        self._progress = _Watched(progress)

    def make_fields(
        self,
        manifest: Manifest,
        columns: Sequence[str] | None,
        files: Sequence[QueryFile],
        rejects: Rejects,
        before: PreviousEvidence | None = None,
    ) -> Manifest:
        """Make the evidence by words and letters.

        Args:
            manifest: Of the staged files.
            columns: Columns of texts; None: by rule.
            files: Of past queries.
            rejects: Gets bad lines of the files.
            before: Has past queries that are taken over; None: there are none.

        Raises:
            SourceError: a file of queries cannot be used, or has far more bad lines than allowed.
            IndexDirectoryError: the past queries that are there cannot be used, or a file cannot be written.
            OSError: the disk is full, or worse.
        """
        from retrieval.evidence.field_maker import (
            make_fields,  # with compiled loops, which most commands do without
        )

        with self._opened(manifest) as index, spill_folder(self._root) as spill:
            past = PastQueries(spill, index.num_entities)
            if before is not None:
                self._progress.phase("past queries of the version before")
                _take_over(before, past)
            if files:
                self._progress.phase("reading past queries")
                read_queries(files, index, rejects, past)
            with _unwritable():
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
            IndexDirectoryError: a file cannot be written.
            OSError: the disk is full, or worse.
        """
        with self._opened(manifest) as index, vector_work(self._root) as work, _unwritable():
            entry, names = make_vectors(
                index,
                wish.method.placed(),
                wish.options,
                self._folder,
                memory_bytes=self._memory,
                threads=self._threads,
                work=work,
                progress=self._progress,
            )
        return self._added(replace(manifest, vectors=entry), names, _LIBRARIES)

    def carry_vectors_over(
        self, manifest: Manifest, before: PreviousEvidence, change: VectorChange
    ) -> Manifest:
        """Take the vectors of the version before over; new texts get new ones.

        Args:
            manifest: Of the staged files.
            before: It has vectors.
            change: Where an encoder lies and runs now.

        Raises:
            IndexDirectoryError: the vectors that are there cannot be used, or a file cannot be written.
            InputError, ModelError, MissingExtraError, OSError: as for `make_vectors`.
        """
        with self._opened(manifest) as new, vector_work(self._root) as work, _unwritable():
            entry, names = carry_over_vectors(
                before.index,
                new,
                before.number_of_old,
                self._folder,
                VectorOptions(device=change.device),
                memory_bytes=self._memory,
                encoder=None if change.encoder is None else absolute_place(change.encoder),
                threads=self._threads,
                work=work,
                progress=self._progress,
            )
        return self._added(replace(manifest, vectors=entry), names, _LIBRARIES)

    def make_ranking(
        self,
        manifest: Manifest,
        device: str,
        given: Path | None = None,
        model: str | None = None,
        prompt: str | None = None,
    ) -> Manifest:
        """Take the rankings of a file, or fit one to queries made from the catalogue; tiny ones go without.

        Then fit one for a model, if there is one to weigh.

        Args:
            manifest: Of the staged files, their evidence among them.
            device: Where the encoder of the vectors runs.
            given: The file; None: one is fitted.
            model: Checkpoint directory or hub id of a model to weigh; None: none.
            prompt: Template it is asked with; None: its default one.

        Raises:
            InputError: the file cannot be read, or is none of rankings.
            IndexMismatchError: the model does not fit the index.
            ModelError: the encoder of the vectors fails, or the model cannot be loaded.
            IndexDirectoryError: the file cannot be written.
            OSError: the disk is full, or worse.
        """
        from retrieval.evidence.evidence import open_evidence
        from retrieval.ranking.fitting import fit_made_queries
        from retrieval.ranking.rankings import NO_MODEL, Rankings

        rankings = Rankings() if given is None else read_rankings(given)
        if given is None or model is not None:
            with self._opened(manifest) as index:
                evidence = open_evidence(index, device=device)
                if given is None:
                    self._progress.phase("fitting the ranking")
                    columns = () if index.evidence is None else index.evidence.columns
                    ranking = fit_made_queries(index, evidence, columns)
                    if ranking is None:
                        few = f"{index.num_entities:,} entities are too few to fit a ranking to"
                        self._progress.note(few)
                        return manifest
                    rankings = rankings.with_one(NO_MODEL, ranking)
                if model is not None:
                    rankings = self._weighed(index, evidence, rankings, model, prompt)
        write_synced(self._folder / RANKING_FILE, rankings.to_bytes())
        return self._added(manifest, (RANKING_FILE,))

    def _weighed(
        self, index: Index, evidence: Evidence, rankings: Rankings, model: str, prompt: str | None
    ) -> Rankings:
        """Return the rankings with one for a model; without, if too few made queries find their entity."""
        from retrieval.ranking.tuned_ranking import weigh_model

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
        """Take the rankings of a version over.

        Raises:
            IndexChecksumError: they are damaged.
            OSError: the disk is full, or worse.
        """
        write_synced(self._folder / RANKING_FILE, old.evidence_path(RANKING_FILE).read_bytes())
        return self._added(manifest, (RANKING_FILE,))

    def carry_priors_over(self, manifest: Manifest, before: PreviousEvidence) -> Manifest:
        """Take the priors of the version before over, for entities whose forms and shares are the same.

        Damaged ones are dropped: a ranking that needs one is not used, and whoever opens the index is told.

        Args:
            manifest: That of the staged files.
            before: The version before.

        Raises:
            OSError: the disk is full, or worse.
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
    """Read a file of rankings.

    Raises:
        InputError: it cannot be read, or is none of rankings.
    """
    from retrieval.ranking.rankings import Rankings

    try:
        return Rankings.from_bytes(file.read_bytes())
    except OSError as error:
        raise InputError("ranking", f"{file}: cannot be read: {error.strerror}") from error
    except IndexDirectoryError as error:
        raise InputError("ranking", f"{file}: {str(error).removeprefix(f'{RANKING_FILE}: ')}") from error


def copy_version(index: Index, folder: Path, with_fields: bool, with_vectors: bool) -> Manifest:
    """Copy the files of a version into the staging directory, rankings, priors and what is not kept apart.

    Args:
        index: The version.
        folder: The staging directory.
        with_fields: Whether its names, texts and past queries are copied too.
        with_vectors: Whether its vectors are copied too.

    Returns:
        The manifest of the copies; its history is that of the version.

    Raises:
        OSError: the disk is full, or worse.
    """
    kept = {*(FIELD_FILES if with_fields else ()), *(VECTOR_FILES if with_vectors else ())}
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
    """Give past queries to the entities that now have the numbers of those they were for."""
    from retrieval.evidence.evidence import QUERIES, open_field

    index = before.index
    new_number = np.full(index.num_entities, -1, np.int64)
    kept = np.flatnonzero(before.number_of_old >= 0)
    new_number[before.number_of_old[kept]] = kept
    entities: list[int] = []
    queries: list[str] = []
    counts: list[int] = []
    for number, mine in open_field(index, QUERIES).all_queries():
        if new_number[number] >= 0:
            entities += [int(new_number[number])] * len(mine)
            queries += [query for query, _ in mine]
            counts += [count for _, count in mine]
        if len(entities) >= _TAKEN_AT_ONCE:
            past.add(np.array(entities), queries, counts)
            entities, queries, counts = [], [], []
    if entities:
        past.add(np.array(entities), queries, counts)


@contextmanager
def _unwritable() -> Iterator[None]:
    """Let files that cannot be written be an error of the index and not of a source."""
    try:
        yield
    except SourceError as error:
        raise IndexDirectoryError(str(error)) from error


class _Watched(StepProgress):
    """Passes everything on, and lets tests end the making of evidence at any step of it."""

    def __init__(self, progress: StepProgress) -> None:
        self._progress = progress

    def phase(self, name: str, total: int | None = None) -> None:
        """Pass it on."""
        fault_point("evidence-making")
        self._progress.phase(name, total)

    def advance(self, done: int, note: str) -> None:
        """Pass it on."""
        self._progress.advance(done, note)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._progress.note(text)


_AT_ONCE = 1 << 16
_FORMS = [TITLE, ALIASES]


def carried_over(prior: Prior, old: Index, new: Index, number_of_old: npt.NDArray[np.int64]) -> Prior:
    """Return the prior of a new version: that of entities with the same forms and the same shares in them.

    An entity that shares a form gains or loses probability when another owner comes, goes or changes.

    Args:
        prior: The old version's.
        old: The version before.
        new: The new version.
        number_of_old: For every new entity the number it had, or -1. Shape: (num_entities,).
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
    """Return what gives an entity's log share in each of its rows."""
    rows, owners = EntityRows(index), FormOwners(index, None, title_weight)
    return lambda entity: {
        index.row_token_ids(rank): owners(rank).log_share(entity) for rank in rows.of(entity)
    }

"""Checks a version completely: digests, order, ranks, the trie against its derivation, postings, titles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.decoding.trie.trie_arrays import derive_trie
from genret.retrieval.errors import IndexDirectoryError, IndexFormatError, MissingExtraError
from genret.retrieval.index.entities import first_disorder, weight_problem
from genret.retrieval.index.layout import (
    ALIASES,
    ENTITIES_FILE,
    ENTITY_ID,
    EVIDENCE_FILES,
    FIELD_FILES,
    MANIFEST_FILE,
    POSTINGS_FILE,
    PRIOR_FILE,
    RANKING_FILE,
    ROWS_DIR,
    TITLE,
    TITLE_ORDER_FILE,
    TRIE_FILE,
    VECTOR_FILES,
    VECTORS_FILE,
)
from genret.retrieval.index.priors import read_priors
from genret.retrieval.index.reader import Index, read_manifest
from genret.retrieval.index.summary import unusable_vectors
from genret.retrieval.index.version_parts import open_mapped
from genret.retrieval.index.versions import read_version
from genret.retrieval.tables import Shown

IntArray = npt.NDArray[np.signedinteger]

_NAMESAKES_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault, and the path of its file in the version directory."""

    file: str
    message: str


@dataclass(frozen=True, slots=True, repr=False)
class VerificationReport(Shown):
    """The findings of `verify`: `problems` is empty when the version is sound.

    `notes` say which content could not be checked, and why.
    """

    path: Path
    version: str
    num_files: int
    num_bytes: int
    num_rows: int
    num_entities: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()

    _told, _rows = ("ok", "path", "num_files", "num_rows", "num_entities", "notes"), "problems"

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(path: str | Path) -> VerificationReport:
    """Check the live version of an index, or a version directory.

    Every file is compared with its size and digest first. Only if all but files of evidence are sound is
    content checked: that finds faults of a builder, not of a disk.

    Raises:
        IndexDirectoryError: there is no index, or CURRENT or the manifest cannot be used.
    """
    return read_version(Path(path), _verify_version, sound=lambda report: report.ok)


def _verify_version(folder: Path) -> VerificationReport:
    manifest, digest = read_manifest(folder)
    checks = [(one.name, partial(open_mapped, folder, one, verify_digest=True)) for one in manifest.files]
    problems = [problem for name, check in checks for problem in _faults(name, check)]
    notes: list[str] = []
    damaged = {problem.file for problem in problems}
    if damaged <= set(EVIDENCE_FILES):
        try:
            with Index.open(folder, verify_digests=False) as index:
                broken = list(_broken_content(index))
                problems += broken
                if not broken:
                    problems += _check_fields(index, damaged, notes)
                if index.vectors is not None and not damaged & set(VECTOR_FILES):
                    problems += _check_vectors(index, notes)
        except IndexDirectoryError as error:
            problems.append(Problem(MANIFEST_FILE, str(error)))
    return VerificationReport(
        path=folder,
        version=digest,
        num_files=len(manifest.files),
        num_bytes=manifest.num_bytes,
        num_rows=manifest.counts.rows,
        num_entities=manifest.counts.entities,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _faults(file: str, read: Callable[[], object]) -> Iterator[Problem]:
    """Yield the error of reading a file, if there is one."""
    try:
        read()
    except IndexDirectoryError as error:
        yield Problem(file, str(error).removeprefix(f"{file}: "))


def _broken_content(index: Index) -> Iterator[Problem]:
    yield from _check_rows(index)
    unreadable = list(_check_columns(index))
    yield from unreadable
    if not unreadable:
        yield from _check_entities(index)
        yield from _check_postings(index)
        yield from _check_title_order(index)


def _check_rows(index: Index) -> Iterator[Problem]:
    counts = index.manifest.counts
    try:
        tokens, offsets = index.rows.flat()
    except IndexFormatError as error:
        file, _, message = str(error).partition(": ")
        yield Problem(file, message)
        return
    if int(tokens.max(initial=0)) != index.manifest.tokenizer.max_token_id:
        yield Problem(ROWS_DIR, "the largest token differs from the manifest's max_token_id")
    if int(tokens.max(initial=0)) >= index.vocab_size:
        yield Problem(ROWS_DIR, f"a token is outside the vocabulary of {index.vocab_size}")
    ends = np.flatnonzero(tokens == index.end_token_id)
    if not np.array_equal(ends, offsets[1:] - 1):
        yield Problem(ROWS_DIR, f"the end token {index.end_token_id} does not close every row, once")
    try:
        derived = derive_trie(tokens, offsets)
    except ValueError as error:
        yield Problem(ROWS_DIR, f"over all files, {error}")
        return
    try:
        stored = index.trie_arrays()
    except IndexFormatError as error:
        yield Problem(TRIE_FILE, str(error).removeprefix(f"{TRIE_FILE}: "))
        return
    for name in ("token", "child_begin", "row_begin", "tail_begin"):
        if not np.array_equal(getattr(derived, name), getattr(stored, name)):
            yield Problem(TRIE_FILE, f"column {name!r} is not what the rows give")
    if (derived.depth, derived.max_children) != (stored.depth, stored.max_children):
        yield Problem(MANIFEST_FILE, "depth or max_children is not what the rows give")
    if len(tokens) != counts.tokens:
        yield Problem(MANIFEST_FILE, f"counts.tokens: expected {len(tokens)}, got {counts.tokens}")


def _check_columns(index: Index) -> Iterator[Problem]:
    """Find columns that Arrow cannot read; reading them all the same may crash."""
    aliases = [ALIASES] if index.manifest.stored_aliases else []
    for name in (ENTITY_ID, TITLE, *aliases, *index.metadata_columns):
        yield from _faults(ENTITIES_FILE, partial(index.entities.stored_column, name))


def _check_entities(index: Index) -> Iterator[Problem]:
    for name in index.metadata_columns:
        column = index.entities.stored_column(name)
        if pa.types.is_dictionary(column.type) and not _is_sound_dictionary(column):
            yield Problem(ENTITIES_FILE, f"column {name!r}: its dictionary is not one, ascending and used up")
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            yield Problem(ENTITIES_FILE, f"column {name!r}: a value is no number")
    weight = index.manifest.weight_column
    problem = None if weight is None else weight_problem(index.entities, weight)
    if problem is not None:
        yield Problem(ENTITIES_FILE, problem)
    ids = index.entities.column(ENTITY_ID)
    if pc.count_distinct(ids).as_py() != index.num_entities:
        yield Problem(ENTITIES_FILE, "an entity id stands there twice")


def _is_sound_dictionary(column: pa.ChunkedArray) -> bool:
    """Whether all chunks share one dictionary, ascending, without unused values."""
    values = column.chunk(0).dictionary
    if not all(chunk.dictionary.equals(values) for chunk in column.chunks) or values.null_count:
        return False
    used = pc.unique(pa.chunked_array([chunk.indices for chunk in column.chunks])).drop_null()
    return len(used) == len(values) and not pc.any(pc.greater_equal(values[:-1], values[1:])).as_py()


def _check_postings(index: Index) -> Iterator[Problem]:
    try:
        postings = index.postings
    except IndexFormatError as error:
        yield Problem(POSTINGS_FILE, str(error).removeprefix(f"{POSTINGS_FILE}: "))
        return
    entity, form = np.asarray(postings.entity), np.asarray(postings.form)
    rank = np.repeat(np.arange(index.num_rows), np.diff(postings.offsets))
    if ((np.diff(entity) <= 0) & (np.diff(rank) == 0)).any():
        yield Problem(POSTINGS_FILE, "the entities of a row are not in ascending order")
    titled = entity[form == 0]
    if (np.bincount(titled, minlength=index.num_entities) != 1).any():
        yield Problem(POSTINGS_FILE, "not every entity is named by the row of its title, once")
    elif (np.diff(titled) < 0).any():
        yield Problem(POSTINGS_FILE, "the entities are not in the order of their titles' rows")
    elif (unordered := _unordered_namesakes(index, titled, rank[form == 0])) is not None:
        yield Problem(
            ENTITIES_FILE, f"entities with one title's row are not in the order of ids: {unordered}"
        )
    if form.max() > 0 and (form > _num_aliases(index)[entity]).any():
        yield Problem(POSTINGS_FILE, "a posting names an alias that its entity does not have")


def _check_title_order(index: Index) -> Iterator[Problem]:
    if index.title_order is not None:
        wrong = first_disorder(index.title_order, index.entities)
        if wrong is not None:
            yield Problem(TITLE_ORDER_FILE, f"place {wrong} should not stand behind the one before it")


def _check_fields(index: Index, damaged: Set[str], notes: list[str]) -> Iterator[Problem]:
    """Compare names, texts and past queries with those of the entities; read rankings and priors."""
    from genret.retrieval.evidence.field import open_field, wrong_block
    from genret.retrieval.evidence.postings import TERMS_VERSION
    from genret.retrieval.ranking.rankings import Rankings

    entry = index.evidence
    is_current = entry is not None and entry.terms == TERMS_VERSION
    if entry is not None and not is_current:
        notes.append(f"evidence: made by rules of version {entry.terms}; its content was not looked at")
    for kind, file in FIELD_FILES.items():
        if not is_current or entry is None or file in damaged or index.manifest.file(file) is None:
            continue
        try:
            field = open_field(index, kind)
            if (number := wrong_block(index, kind)) is not None:
                yield Problem(file, f"block {number} is not what the {kind} of the entities give")
            found = field.num_texts
            if kind == "queries":
                found = sum(len(mine) for _, mine in field.all_queries())
            if found != getattr(entry, kind):
                yield Problem(MANIFEST_FILE, f"evidence.{kind}: expected {found}, got {getattr(entry, kind)}")
        except IndexDirectoryError as error:
            yield Problem(file, str(error).removeprefix(f"{file}: "))
    if RANKING_FILE not in damaged:
        yield from _faults(RANKING_FILE, partial(Rankings.read, index))
    if PRIOR_FILE not in damaged:
        yield from _faults(PRIOR_FILE, partial(read_priors, index))


def _check_vectors(index: Index, notes: list[str]) -> Iterator[Problem]:
    """Open the vectors as a search does; their libraries are imported here, for most indexes need none."""
    from genret.retrieval.vectors.faiss_index import open_vectors

    if (why := unusable_vectors(index.manifest)) is not None:
        notes.append(f"{VECTORS_FILE}: {why}")
        return
    try:
        yield from _faults(VECTORS_FILE, partial(open_vectors, index))
    except MissingExtraError as error:
        notes.append(f"{VECTORS_FILE}: its content was not looked at: {error}")


def _unordered_namesakes(index: Index, titled: IntArray, rank: IntArray) -> str | None:
    """Return the id of an entity that should stand before the one in front of it, or None."""
    followers = np.flatnonzero(np.diff(rank) == 0) + 1  # places behind another entity of the same row
    for begin in range(0, len(followers), _NAMESAKES_AT_ONCE):
        numbers = titled[followers[begin : begin + _NAMESAKES_AT_ONCE]]
        before, ids = (
            index.entities.take(which).column(index.entities.id_column).combine_chunks()
            for which in (numbers - 1, numbers)
        )
        wrong = pc.greater_equal(before, ids)
        if pc.any(wrong).as_py():
            return repr(ids.filter(wrong)[0].as_py())
    return None


def _num_aliases(index: Index) -> IntArray:
    if not index.manifest.stored_aliases:
        return np.zeros(index.num_entities, dtype=np.int64)
    lengths: IntArray = pc.list_value_length(index.entities.column(ALIASES)).to_numpy()
    return lengths

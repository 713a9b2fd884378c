"""Making the vectors of an index: a sample trains, then every text is embedded and added, block by block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.index.manifest_entries import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.options import VectorOptions, VectorProgress

if TYPE_CHECKING:
    from retrieval.vectors.methods import VectorMethod


def make_vectors(
    index: Index,
    method: VectorMethod,
    options: VectorOptions,
    folder: Path,
    *,
    memory_bytes: int,
    threads: int = 1,
    work: Path | None = None,
    progress: VectorProgress | None = None,
) -> tuple[VectorsEntry, tuple[str, ...]]:
    """Make the vectors of an index's entities.

    Args:
        index: Its entities are read; it needs nothing else, and is not changed.
        method: What makes vectors from texts.
        options: Kind of index, dimensions, columns, sample, device, seed.
        folder: Where the files are written, which is synced.
        memory_bytes: What may be held beside the codes.
        threads: Of faiss.
        work: A folder in which an encoder's vectors are kept block by block, so that a run that was killed
            goes on where it stood; the caller removes it. None: nothing is kept.
        progress: Told about every step.

    Returns:
        What the manifest says about the vectors, and the names of the files written.

    Raises:
        MissingExtraError: faiss or the embedder's library is not installed.
        InputError: a column is unknown or not of strings, or faiss knows no such factory string.
        ModelError: the encoder cannot be loaded.
        SourceError: a file cannot be written.
    """
    raise NotImplementedError

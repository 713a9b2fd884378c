"""Taking vectors over into the next version of an index: only texts that are new are embedded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from retrieval.index.manifest_entries import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.options import VectorOptions, VectorProgress


def carry_over_vectors(
    old: Index,
    new: Index,
    number_of_old: npt.NDArray[np.int64],
    folder: Path,
    options: VectorOptions,
    *,
    memory_bytes: int,
    encoder: str | Path | None = None,
    threads: int = 1,
    work: Path | None = None,
    progress: VectorProgress | None = None,
) -> tuple[VectorsEntry, tuple[str, ...]]:
    """Make the vectors of the next version from those of the last.

    Embedder, quantisers and the codes of entities whose texts are the same are taken over. Everything is made
    anew where the rule now asks for another kind, or the texts have more than doubled since the training.

    Args:
        old: The last version, which has vectors.
        new: The next version; its entities are read.
        number_of_old: For every entity of `new` the number it had in `old`, -1 where it is new. An entity
            whose texts changed may have its old number: texts are compared. Shape: (new.num_entities,), int64.
        folder: Where the files are written, which is synced.
        options: `device` counts; of the others only what differs from what `old` has makes vectors anew, with
            "auto", None and 0 standing for what it has.
        memory_bytes: What may be held beside the codes.
        encoder: Where the encoder lies now; None: where it lay then.
        threads: Of faiss.
        work: As for `make_vectors`.
        progress: Told about every step.

    Returns:
        What the manifest says about the vectors, and the names of the files written.

    Raises:
        VectorsMissingError: `old` has no vectors.
        IndexChecksumError: their file is damaged.
        IndexFormatError: it is no file of vectors, or one of other vectors than the manifest says.
        IndexMismatchError: the encoder is not the one that made them.
        MissingExtraError, InputError, ModelError, SourceError: as for `make_vectors`.
    """
    raise NotImplementedError

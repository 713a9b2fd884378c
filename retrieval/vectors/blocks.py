"""The vectors of texts, block by block; those of a model are kept, so that a killed run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from retrieval.durable import appearing, writing
from retrieval.vectors.embedder import FloatMatrix, TextEmbedder
from retrieval.vectors.views import IntArray, TextBatch


@dataclass(frozen=True, slots=True, eq=False)
class VectorBlock:
    """Vectors and whose they are.

    Attributes:
        numbers: Entity numbers. Shape: (m,), int64.
        vectors: Shape: (m, d), float32.
    """

    numbers: IntArray
    vectors: FloatMatrix


class BlockEmbedder:
    """Embeds batches of texts.

    Args:
        embedder: Makes the vectors.
        work: A folder for the vectors of every block; None: they are not kept.
    """

    def __init__(self, embedder: TextEmbedder, work: Path | None = None) -> None:
        self._embedder = embedder
        self._work = work

    def blocks(self, batches: Iterable[TextBatch]) -> Iterator[VectorBlock]:
        """Yield the vectors of every batch.

        Raises:
            SourceError: the work folder cannot be written to.
        """
        for batch in batches:
            yield VectorBlock(batch.numbers, self._vectors(batch.texts))

    def _vectors(self, texts: list[str]) -> FloatMatrix:
        if self._work is None:
            return self._embedder.embed_texts(texts)
        file = self._work / f"{self._key(texts)}.npy"
        if file.exists():
            kept: FloatMatrix = np.load(file, allow_pickle=False)
            return kept
        vectors = self._embedder.embed_texts(texts)
        with appearing(file) as staging, writing(file), staging.open("wb") as stream:
            np.save(stream, vectors)
        return vectors

    def _key(self, texts: list[str]) -> str:
        """Return what names the vectors of these texts by this embedder."""
        digest = xxhash.xxh3_128(self._embedder.fingerprint.encode())
        for text in texts:
            data = text.encode(errors="surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

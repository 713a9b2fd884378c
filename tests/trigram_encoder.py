"""An encoder for tests that opens in no time: texts with the same letter trigrams have similar vectors."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from genret.retrieval.vectors.embedder import VectorMethod

TRIGRAMS = VectorMethod("encoder", "trigrams")
DIMENSIONS = 64


class TrigramEncoder:
    """Stands in for `EncoderEmbedder`: a text is the sum of random vectors, one for each trigram in it.

    Attributes:
        embedded: The texts embedded by any of them, in order.
    """

    dimensions = DIMENSIONS
    embedded: list[str] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, place: str | Path, device: str = "cpu") -> None:
        self.fingerprint = f"trigrams:{Path(place).name}"
        self.place, self.device = place, device

    def embed_texts(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.embedded.extend(texts)
        vectors = np.zeros((len(texts), DIMENSIONS), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in "".join(c if c.isalnum() else " " for c in text.lower()).split():
                for at in range(len(word)):
                    vector += _of_trigram(f" {word} "[at : at + 3])
            vector /= np.linalg.norm(vector) or 1
        return vectors

    embed_queries = embed_texts


@cache
def _of_trigram(letters: str) -> npt.NDArray[np.float32]:
    return np.random.default_rng(zlib.crc32(letters.encode())).standard_normal(DIMENSIONS).astype(np.float32)


@pytest.fixture(scope="module")
def trigrams() -> Iterator[VectorMethod]:
    """Let every `encoder:` be a `TrigramEncoder`; the method of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genret.retrieval.vectors.encoder.EncoderEmbedder", TrigramEncoder)
        patch.setattr("genret.index_builder.build_options.local_folder", lambda *_: None)
        yield TRIGRAMS

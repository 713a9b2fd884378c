"""How methods are named, and that only the embedder that made the vectors is opened again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.errors import IndexFormatError, IndexMismatchError, InputError, MissingExtraError, ModelError
from retrieval.index.manifest_entries import VectorsEntry
from retrieval.vectors import methods
from retrieval.vectors.methods import VectorMethod, fit_embedder, is_path, open_embedder

pytest.importorskip("sklearn")

SAMPLE = ["Hamlet", "Macbeth", "The Tempest"]


def entry(**values: Any) -> VectorsEntry:
    filled = VectorsEntry(
        method="lexical",
        source="",
        fingerprint="",
        columns=(),
        dimensions=192,
        count=3,
        kind="flat",
        factory="IDMap,Flat",
        effort=0,
        sample=0,
        recall=1.0,
        recall_queries=0,
        seed=0,
    )
    return replace(filled, **values)


class FakeModel:
    """Stands for an encoder; remembers how it was opened."""

    dimensions = 5
    fingerprint = "model:1"

    def __init__(self, place: str | Path, device: str = "cpu") -> None:
        if place == "broken":
            raise ModelError("broken: no such model")
        self.place, self.device = place, device

    def embed_texts(self, texts: Sequence[str]) -> Any:
        return np.zeros((len(texts), 5), dtype=np.float32)

    embed_queries = embed_texts

    def similarities(self, query: str, texts: Sequence[str]) -> Any:
        return np.zeros(len(texts), dtype=np.float32)

    def arrays(self) -> Mapping[str, Any]:
        return {}


@pytest.fixture
def fake_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.vectors.encoder.EncoderEmbedder", FakeModel)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("lexical", VectorMethod("lexical")),
        ("encoder:models/small", VectorMethod("encoder", "models/small")),
        ("encoder:C:/models/small", VectorMethod("encoder", "C:/models/small")),
        ("sentence-transformers:some/model", VectorMethod("sentence-transformers", "some/model")),
    ],
)
def test_methods_are_read_and_written(text: str, method: VectorMethod) -> None:
    assert VectorMethod.parse(text) == method
    assert str(method) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lexical, encoder:MODEL or sentence-transformers:MODEL, got ''"),
        ("Lexical", "got 'Lexical'"),
        ("bm25", "got 'bm25'"),
        ("encoder", "where MODEL is a directory or a hub id; got 'encoder'"),
        ("encoder: ", "where MODEL is a directory or a hub id"),
        ("sentence-transformers:", "where MODEL is a directory or a hub id"),
        ("lexical:small", "lexical takes no model, got 'lexical:small'"),
        ("lexical:", "lexical takes no model"),
    ],
)
def test_what_is_no_method_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        VectorMethod.parse(text)
    assert caught.value.field == "vectors"


def test_lexical_vectors_are_fitted_and_opened_again() -> None:
    made = fit_embedder(VectorMethod("lexical"), SAMPLE, dimensions=32, seed=3)
    assert made.dimensions == 32
    assert fit_embedder(VectorMethod("lexical"), SAMPLE, num_texts=10**6).dimensions == 128
    opened = open_embedder(entry(fingerprint=made.fingerprint, dimensions=32), made.arrays())
    np.testing.assert_array_equal(opened.embed_queries(SAMPLE), made.embed_queries(SAMPLE))


@pytest.mark.parametrize("dimensions", [0, 7, 4097])
def test_lengths_out_of_range_are_refused(dimensions: int) -> None:
    with pytest.raises(InputError, match=rf"vector_dimensions: must be in \[8, 4096\], got {dimensions}"):
        fit_embedder(VectorMethod("lexical"), SAMPLE, dimensions=dimensions)


def test_another_embedder_is_refused_and_both_are_named() -> None:
    made = fit_embedder(VectorMethod("lexical"), SAMPLE, dimensions=8)
    other = fit_embedder(VectorMethod("lexical"), SAMPLE, dimensions=8, seed=1)
    with pytest.raises(IndexMismatchError) as caught:
        open_embedder(entry(fingerprint=made.fingerprint), other.arrays())
    assert made.fingerprint in str(caught.value)
    assert other.fingerprint in str(caught.value)


def test_a_stored_embedder_that_is_none_is_refused_by_its_file() -> None:
    with pytest.raises(IndexFormatError, match=r"^embedder\.safetensors: lexical vectors: expected arrays"):
        open_embedder(entry(), {"idf": np.zeros(3, dtype=np.float32)})


def test_lexical_vectors_take_no_encoder() -> None:
    made = fit_embedder(VectorMethod("lexical"), SAMPLE, dimensions=8)
    with pytest.raises(InputError, match="encoder: the vectors are lexical and need no model, got 'it'"):
        open_embedder(entry(fingerprint=made.fingerprint), made.arrays(), source="it")


@pytest.mark.parametrize(
    "source", ["/nowhere/model", "./model", "../model", "..", ".", "~/model", "models/small/one", "small/"]
)
def test_a_path_that_is_not_there_is_never_asked_for_on_the_hub(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pathlib.Path.is_dir", lambda self: False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    for given, stored in ((None, source), (source, "hub/model")):
        with pytest.raises(ModelError, match=rf"^{re.escape(source)}: there is no such .* --encoder says"):
            open_embedder(entry(method="encoder", source=stored), {}, given)
    with pytest.raises(ModelError, match=rf"^{re.escape(source)}: there is no such directory$"):
        fit_embedder(VectorMethod("encoder", source), [])


@pytest.mark.parametrize("source", ["name", "owner/name", "a.b/c.d", "a-b_c"])
def test_a_hub_id_is_no_path(source: str) -> None:
    assert not is_path(source)


def test_the_place_of_a_local_model_is_good_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    for source in ("small", "./small", "small/", str(tmp_path / "small"), "../" + tmp_path.name + "/small"):
        assert VectorMethod("encoder", source).placed() == VectorMethod("encoder", str(tmp_path / "small"))
    assert VectorMethod("encoder", "owner/small").placed() == VectorMethod("encoder", "owner/small")
    assert VectorMethod("lexical").placed() == VectorMethod("lexical")


@pytest.mark.usefixtures("fake_encoder")
def test_an_encoder_is_opened_where_it_is_now() -> None:
    made = fit_embedder(VectorMethod("encoder", "there"), [], device="cuda:1")
    assert isinstance(made, FakeModel)
    assert (made.place, made.device) == ("there", "cuda:1")
    stored = entry(method="encoder", source="there", fingerprint="model:1", dimensions=5)
    for source, place in ((None, "there"), ("here", "here"), (Path("here"), "here")):
        opened = open_embedder(stored, {}, source)
        assert isinstance(opened, FakeModel)
        assert (opened.place, opened.device) == (place, "cpu")
    with pytest.raises(IndexMismatchError, match="fingerprint model:2, here has model:1"):
        open_embedder(replace(stored, fingerprint="model:2"), {}, "here")
    with pytest.raises(ModelError, match="no such model"):
        open_embedder(stored, {}, "broken")


@pytest.mark.usefixtures("fake_encoder")
def test_the_length_of_a_models_vectors_is_not_chosen() -> None:
    method = VectorMethod("encoder", "there")
    assert fit_embedder(method, [], dimensions=5).dimensions == 5
    with pytest.raises(InputError, match="vector_dimensions: there gives vectors of length 5 and no others"):
        fit_embedder(method, [], dimensions=6)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("lexical", "sklearn", "vectors"),
        ("sentence-transformers", "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_missing_library_is_named(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "find_spec", lambda wanted: None if wanted == package else object())
    source = "" if name == "lexical" else "some/model"
    with pytest.raises(MissingExtraError) as caught:
        fit_embedder(VectorMethod(name, source), SAMPLE)
    assert caught.value.extra == extra
    with pytest.raises(MissingExtraError):
        open_embedder(entry(method=name, source=source), {})

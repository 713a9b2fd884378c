"""How methods are named, and that only the embedder that made the vectors is opened again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.errors import IndexMismatchError, InputError, MissingExtraError, ModelError
from retrieval.index.manifest import VectorsEntry
from retrieval.vectors import embedder
from retrieval.vectors.embedder import VectorMethod, is_path, open_embedder, open_model


def entry(**values: Any) -> VectorsEntry:
    filled = VectorsEntry(
        method="encoder",
        source="there",
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


@pytest.fixture
def fake_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.vectors.encoder.EncoderEmbedder", FakeModel)


@pytest.mark.parametrize(
    ("text", "method"),
    [
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
        ("", "expected encoder:MODEL or sentence-transformers:MODEL, got ''"),
        ("lexical", "got 'lexical'"),
        ("Encoder:x", "got 'Encoder:x'"),
        ("bm25", "got 'bm25'"),
        ("encoder", "where MODEL is a directory or a hub id; got 'encoder'"),
        ("encoder: ", "where MODEL is a directory or a hub id"),
        ("sentence-transformers:", "where MODEL is a directory or a hub id"),
    ],
)
def test_what_is_no_method_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        VectorMethod.parse(text)
    assert caught.value.field == "vectors"


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
            open_embedder(entry(source=stored), given)
    with pytest.raises(ModelError, match=rf"^{re.escape(source)}: there is no such directory$"):
        open_model(VectorMethod("encoder", source))


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


@pytest.mark.usefixtures("fake_encoder")
def test_an_encoder_is_opened_where_it_is_now() -> None:
    made = open_model(VectorMethod("encoder", "there"), device="cuda:1")
    assert isinstance(made, FakeModel)
    assert (made.place, made.device) == ("there", "cuda:1")
    stored = entry(fingerprint="model:1", dimensions=5)
    for source, place in ((None, "there"), ("here", "here"), (Path("here"), "here")):
        opened = open_embedder(stored, source)
        assert isinstance(opened, FakeModel)
        assert (opened.place, opened.device) == (place, "cpu")
    with pytest.raises(IndexMismatchError, match="fingerprint model:2, here has model:1"):
        open_embedder(replace(stored, fingerprint="model:2"), "here")
    with pytest.raises(ModelError, match="no such model"):
        open_embedder(stored, "broken")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedder, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError) as caught:
        open_model(VectorMethod("sentence-transformers", "some/model"))
    assert caught.value.extra == "sentence-transformers"
    with pytest.raises(MissingExtraError):
        open_embedder(entry(method="sentence-transformers", source="some/model"))

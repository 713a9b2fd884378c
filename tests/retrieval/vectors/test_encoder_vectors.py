"""Vectors by a Hugging Face model, and how the methods that make vectors are named and opened again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, processors
from transformers import AutoModel

from genret.retrieval.errors import IndexMismatchError, InputError, MissingExtraError, ModelError
from genret.retrieval.index.manifest import VectorsEntry
from genret.retrieval.vectors import encoder as encoder_module
from genret.retrieval.vectors.embedder import VectorMethod, is_path, open_embedder, open_model
from genret.retrieval.vectors.encoder import EncoderEmbedder
from tests.checkpoints import save_tokenizer, train_tokenizer
from tests.trigram_encoder import DIMENSIONS, TrigramEncoder
from tests.vector_fixtures import ENTRY

TEXTS = (
    "Hamlet",
    "The Prince of Denmark",
    "Paris, Texas",
    "",
    "Maria Skłodowska",
    "</s> is no end here",
    "Mercury (planet) " * 20,
    "Nile",
)
SMALL: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
PARTS: dict[str, Any] = {
    f"{part}_{name}": value
    for part in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 24}.items()
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {**SMALL, "num_hidden_layers": 2, "max_position_embeddings": 24}),
    "roberta": (
        "RobertaConfig",
        {**SMALL, "num_hidden_layers": 1, "max_position_embeddings": 26, "pad_token_id": 1},
    ),
    "t5": ("T5Config", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}),
    "bart": ("BartConfig", {**PARTS, "d_model": 16, "max_position_embeddings": 24}),
    "llama": (
        "LlamaConfig",
        {**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 1, "max_position_embeddings": 24},
    ),
}


def framed_tokenizer() -> Tokenizer:
    """A tokenizer that puts <query> before a text and </s> behind it."""
    tokenizer = train_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<query> $A </s>", special_tokens=[("<query>", 2), ("</s>", 1)]
    )
    return tokenizer


def save(folder: Path, name: str, seed: int = 0, **changes: Any) -> Path:
    config_name, options = MODELS[name]
    tokenizer = framed_tokenizer()
    options = {"vocab_size": tokenizer.get_vocab_size(), **options, **changes}
    config = getattr(transformers, config_name)(**options)
    torch.manual_seed(seed)
    AutoModel.from_config(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda name: save(tmp_path_factory.mktemp(name), name))


def by_hand(folder: Path, text: str, limit: int) -> list[float]:
    """The mean of the last hidden states of one text, without a batch, a mask or a library's pooling."""
    tokenizer = framed_tokenizer()
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    ids = [2, *ids[: limit - 2], 1]
    model = AutoModel.from_pretrained(folder).eval()
    part = model.get_encoder() if model.config.is_encoder_decoder else model
    with torch.no_grad():
        hidden = part(input_ids=torch.tensor([ids])).last_hidden_state[0].tolist()
    mean = [sum(column) / len(hidden) for column in zip(*hidden, strict=True)]
    length = math.sqrt(sum(value * value for value in mean))
    return [value / length for value in mean]


@pytest.mark.parametrize("name", list(MODELS))
def test_a_vector_is_the_mean_of_the_last_hidden_states(
    name: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of the texts, and whatever stands in a batch with them."""
    folder = checkpoint(name)
    embedder = EncoderEmbedder(folder)
    assert embedder.max_tokens == (512 if name == "t5" else 24)
    vectors = embedder.embed_texts(TEXTS)
    assert vectors.shape == (len(TEXTS), 16) == (len(TEXTS), embedder.dimensions)
    assert vectors.dtype == np.float32
    expected = [by_hand(folder, text, embedder.max_tokens) for text in TEXTS]
    np.testing.assert_allclose(vectors, expected, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(embedder.embed_queries(TEXTS), vectors)
    monkeypatch.setattr(encoder_module, "_BATCH_TOKENS", 30)
    monkeypatch.setattr(encoder_module, "_BATCH_TEXTS", 3)
    np.testing.assert_allclose(embedder.embed_texts(TEXTS), expected, atol=2e-6)
    np.testing.assert_allclose(embedder.embed_texts(TEXTS[::-1]), expected[::-1], atol=2e-6)


def test_no_texts_no_vectors_and_a_text_without_tokens_is_nothing(
    tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    folder = save(tmp_path / "again", "bert")
    one, again = EncoderEmbedder(checkpoint("bert")), EncoderEmbedder(folder)
    other = EncoderEmbedder(save(tmp_path / "other", "bert", seed=1))
    assert one.fingerprint == again.fingerprint != other.fingerprint, "it is that of the files"
    save_tokenizer(train_tokenizer(), folder)  # no special tokens around a text
    embedder = EncoderEmbedder(folder)
    assert embedder.embed_texts([]).shape == (0, 16)
    vectors = embedder.embed_texts(["", "Nile"])
    assert not vectors[0].any()
    assert vectors[1].any()


def test_a_checkpoint_without_pooler_will_do(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    whole = checkpoint("bert")
    model = transformers.BertModel.from_pretrained(whole, add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    save_tokenizer(framed_tokenizer(), tmp_path)
    np.testing.assert_array_equal(
        EncoderEmbedder(tmp_path).embed_texts(TEXTS), EncoderEmbedder(whole).embed_texts(TEXTS)
    )


def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        EncoderEmbedder(tmp_path / "nowhere" / "at" / "all")
    no_weights = tmp_path / "bare"
    save_tokenizer(framed_tokenizer(), no_weights)
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        EncoderEmbedder(no_weights)
    with pytest.raises(ModelError, match="unknown device 'gpu9'"):
        EncoderEmbedder(save(tmp_path / "model", "bert"), "gpu9")
    with pytest.raises(ModelError, match="2 positions leave no room for text"):
        EncoderEmbedder(save(tmp_path / "short", "bert", max_position_embeddings=2))
    folder = save(tmp_path / "cut", "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="is incomplete"):  # missing weights are not made up
        EncoderEmbedder(folder)
    small = save(tmp_path / "small", "bert", vocab_size=100)
    with pytest.raises(ModelError, match=r"has ids up to \d+, the model embeds 100"):
        EncoderEmbedder(small)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_finite_is_refused_by_the_encoders_name(tmp_path: Path, number: float) -> None:
    folder = save(tmp_path / "odd", "bert")
    embedder = EncoderEmbedder(folder)
    sound = embedder.embed_texts(["Nile"])
    (token,) = {*embedder._token_rows(["?"])[0]} - {*embedder._token_rows([""])[0]}
    with torch.no_grad():
        embedder._encoder.get_input_embeddings().weight[token] = number  # type: ignore[operator]
    np.testing.assert_array_equal(embedder.embed_queries(["Nile"]), sound)
    for embed in (embedder.embed_texts, embedder.embed_queries):
        with pytest.raises(ModelError, match=r"odd: the encoder gives .* not finite for 1 of 2 texts"):
            embed(["Nile", "?"])


def entry(**values: Any) -> VectorsEntry:
    filled = replace(ENTRY, method="encoder", source="there", fingerprint="", dimensions=192, count=3)
    return replace(filled, **values)


@pytest.mark.parametrize("text", ["encoder:models/small", "encoder:C:/small", "sentence-transformers:a/b"])
def test_methods_are_read_and_written(text: str) -> None:
    assert VectorMethod.parse(text) == VectorMethod(*text.split(":", 1))
    assert str(VectorMethod.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected encoder:MODEL or sentence-transformers:MODEL, got ''"),
        ("lexical", "got 'lexical'"),
        ("Encoder:x", "got 'Encoder:x'"),
        ("encoder", "where MODEL is a directory or a hub id; got 'encoder'"),
    ],
)
def test_what_is_no_method_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^vectors: .*{message}"):
        VectorMethod.parse(text)


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


def test_the_place_of_a_local_model_is_good_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    for source in ("small", "./small", "small/", str(tmp_path / "small"), "../" + tmp_path.name + "/small"):
        assert VectorMethod("encoder", source).placed() == VectorMethod("encoder", str(tmp_path / "small"))
    for source in ("name", "owner/name", "a.b/c.d", "a-b_c"):  # hub ids
        assert not is_path(source)
        assert VectorMethod("encoder", source).placed() == VectorMethod("encoder", source)


@pytest.mark.usefixtures("trigrams")
def test_an_encoder_is_opened_where_it_is_now() -> None:
    made = open_model(VectorMethod("encoder", "there"), device="cuda:1")
    assert isinstance(made, TrigramEncoder)
    assert (made.place, made.device) == ("there", "cuda:1")
    stored = entry(source="old/model", fingerprint="trigrams:model", dimensions=DIMENSIONS)
    for source, place in ((None, "old/model"), ("new/model", "new/model"), (Path("new/model"), "new/model")):
        opened = open_embedder(stored, source)
        assert (opened.place, opened.device) == (place, "cpu")
    with pytest.raises(IndexMismatchError, match="fingerprint trigrams:model, here has trigrams:here"):
        open_embedder(stored, "here")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.retrieval.errors.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError) as caught:
        open_model(VectorMethod("sentence-transformers", "some/model"))
    assert caught.value.extra == "sentence-transformers"
    with pytest.raises(MissingExtraError):
        open_embedder(entry(method="sentence-transformers", source="some/model"))

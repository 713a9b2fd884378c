"""Vectors by a sentence-transformers model, compared with its modules run by hand."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("sentence_transformers")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Pooling, Transformer

from genret.retrieval.errors import ModelError
from genret.retrieval.vectors.sentence_model import SentenceEmbedder
from tests.checkpoints import save_tokenizer, train_tokenizer
from tests.retrieval.vectors.test_encoder_vectors import MODELS

TEXTS = ("Hamlet", "The Prince of Denmark", "Paris, Texas " * 30, "Maria Skłodowska", "Nile")
PROMPTS = {"query": "ask: ", "document": "is: "}


def save(folder: Path, seed: int = 0, prompts: dict[str, str] | None = None) -> Path:
    plain = folder / "plain"
    tokenizer = train_tokenizer()
    torch.manual_seed(seed)
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), **MODELS["bert"][1])
    transformers.BertModel(config).save_pretrained(plain)
    save_tokenizer(tokenizer, plain)
    words: Any = Transformer(str(plain), max_seq_length=24)
    model = SentenceTransformer(
        modules=[words, Pooling(16, "mean"), Dense(16, 12, activation_function=torch.nn.Identity())],
        device="cpu",
        prompts=prompts,
    )
    model.save(str(folder / "model"), create_model_card=False)
    return folder / "model"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("sentences"), prompts=PROMPTS)


def by_hand(folder: Path, text: str) -> np.ndarray[Any, Any]:
    """Mean of the last hidden states, the dense layer, length 1: written out for one text."""
    tokenizer = train_tokenizer()
    model = transformers.BertModel.from_pretrained(folder).eval()
    dense = SentenceTransformer(str(folder), device="cpu")[2]
    ids = tokenizer.encode(text).ids[:24]
    with torch.no_grad():
        mean = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
        vector = dense.linear(mean)
    return (vector / vector.norm()).numpy()


def test_vectors_are_those_of_the_model_with_its_prompts(checkpoint: Path) -> None:
    embedder = SentenceEmbedder(checkpoint)
    assert embedder.dimensions == 12
    for vectors, prompt in (
        (embedder.embed_texts(TEXTS), PROMPTS["document"]),
        (embedder.embed_queries(TEXTS), PROMPTS["query"]),
    ):
        assert vectors.shape == (len(TEXTS), 12)
        assert vectors.dtype == np.float32
        expected = [by_hand(checkpoint, prompt + text) for text in TEXTS]
        np.testing.assert_allclose(vectors, expected, atol=2e-6)
    backwards = embedder.embed_queries(TEXTS[::-1])
    np.testing.assert_allclose(backwards, vectors[::-1], atol=2e-6)


def test_without_prompts_queries_are_treated_like_texts(tmp_path: Path) -> None:
    embedder = SentenceEmbedder(save(tmp_path))
    np.testing.assert_allclose(embedder.embed_queries(TEXTS), embedder.embed_texts(TEXTS), atol=2e-6)
    assert embedder.embed_texts([]).shape == (0, 12)


def test_the_fingerprint_is_that_of_all_modules(checkpoint: Path, tmp_path: Path) -> None:
    before = SentenceEmbedder(checkpoint).fingerprint
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    assert SentenceEmbedder(copy).fingerprint == before
    (dense,) = copy.glob("*_Dense/config.json")
    dense.write_text(dense.read_text() + "\n")
    assert SentenceEmbedder(copy).fingerprint != before


def test_what_cannot_be_used_is_refused_by_name(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither an existing path nor a valid hub id"):
        SentenceEmbedder(tmp_path / "nowhere" / "at" / "all")
    plain = checkpoint.parent / "plain"
    with pytest.raises(ModelError, match=r"holds no modules\.json.*encoder:"):
        SentenceEmbedder(plain)
    broken = Path(shutil.copytree(checkpoint, tmp_path / "broken"))
    (broken / "config.json").unlink()
    with pytest.raises(ModelError, match="not a usable sentence-transformers model"):
        SentenceEmbedder(broken)
    (weights,) = broken.glob("*_Dense/*.safetensors")
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is pickled"):
        SentenceEmbedder(broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "os.path"}, "which is no module of sentence-transformers"),
        ({"path": "../elsewhere"}, "lies outside the checkpoint"),
    ],
)
def test_modules_from_elsewhere_are_refused(
    change: dict[str, str], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    modules = json.loads((copy / "modules.json").read_text())
    modules[1].update(change)
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=message):
        SentenceEmbedder(copy)
    (copy / "modules.json").write_text("{}, no")
    with pytest.raises(ModelError, match=r"modules\.json: malformed"):
        SentenceEmbedder(copy)

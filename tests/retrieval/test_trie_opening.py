"""`title_trie`: an index as a constraint for `generate`, refused where it does not fit the model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from retrieval import Index, title_trie
from retrieval.errors import IndexMismatchError, IndexNotFoundError, InputError, ModelError
from retrieval.text import Rendering, TextTokenizer
from tests.checkpoints import END, make_checkpoint, make_index, save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def index(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("index"), checkpoint)


@pytest.mark.parametrize("opened", [True, False], ids=["open", "path"])
@pytest.mark.parametrize("loaded", [True, False], ids=["tokenizer", "checkpoint"])
def test_it_holds_every_row_after_the_index_was_closed(
    index: Path, checkpoint: Path, opened: bool, loaded: bool
) -> None:
    tokenizer = TextTokenizer.load(checkpoint) if loaded else str(checkpoint)
    with Index.open(index) as reader:
        trie = title_trie(reader if opened else str(index), tokenizer)
        rows = [reader.row_token_ids(rank) for rank in range(reader.num_rows)]
        vocab_size = reader.vocab_size
    assert trie.num_rows == len(rows)
    assert trie.vocab_size == vocab_size
    assert trie.device == torch.device("cpu")
    for rank, row in enumerate(rows):
        state = trie.start(torch.zeros(1, dtype=torch.int64))
        for token in row:
            state = trie.advance(state, torch.tensor([token]))
        assert trie.is_final(state).tolist() == [True]
        assert trie.row(state).tolist() == [rank]


def test_an_index_that_was_given_open_stays_open(index: Path, checkpoint: Path) -> None:
    with Index.open(index) as reader:
        title_trie(reader, checkpoint)
        assert reader.entity(0).title


def test_another_tokenizer_is_refused(index: Path, tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer(vocab_size=300), tmp_path / "other")
    with pytest.raises(IndexMismatchError, match=r"was built with the tokenizer .*sha256:.* rebuild it with"):
        title_trie(index, tmp_path / "other")


def test_a_model_with_too_few_tokens_is_refused(index: Path, checkpoint: Path) -> None:
    with pytest.raises(IndexMismatchError, match="can write only tokens below 280"):
        title_trie(index, checkpoint, vocab_size=280)
    assert title_trie(index, checkpoint, vocab_size=512).vocab_size == 512


def test_another_rendering_than_the_checkpoint_was_taught_is_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    bare = make_index(tmp_path, checkpoint, rendering=Rendering(prefix="", end_token=END))
    with pytest.raises(
        IndexMismatchError, match=r"as 'TITLE' and '<.s>', but .* was taught ' TITLE' and '<.s>'"
    ):
        title_trie(bare, checkpoint)
    taught_nothing = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    (taught_nothing / "genret.json").unlink()
    assert title_trie(bare, taught_nothing).num_rows > 0


def test_what_is_not_there_is_named(index: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(IndexNotFoundError, match="absent"):
        title_trie(tmp_path / "absent", checkpoint)
    with pytest.raises(ModelError, match="absent"):
        title_trie(index, tmp_path / "absent")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vocab_size": 0}, InputError, r"vocab_size: must be in \[1, 2147483647\], got 0"),
        ({"vocab_size": "512"}, InputError, "vocab_size: must be an integer, got '512'"),
        ({"device": "abacus"}, ModelError, "unknown device 'abacus'"),
        ({"tokenizer": object()}, InputError, "tokenizer: must be a checkpoint directory.*, got object"),
        ({"index": None}, InputError, "index: must be an open Index or its directory, got NoneType"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_an_argument_is_refused_by_name(
    index: Path, checkpoint: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        title_trie(**{"index": index, "tokenizer": checkpoint, **options})


def test_a_device_may_be_named(index: Path, checkpoint: Path) -> None:
    for device in ("cpu", torch.device("cpu")):
        assert title_trie(index, checkpoint, device=device).device == torch.device("cpu")

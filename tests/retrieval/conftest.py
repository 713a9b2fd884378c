"""Tiny random models that open quickly, and indexes over a dozen titles; to be read only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genret import Retriever
from tests.checkpoints import make_checkpoint, make_index, open_retriever
from tests.table_retrievers import CONFIG, TOKENIZER


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    return make_index(tmp_path_factory.mktemp("index"), checkpoint)


@pytest.fixture(scope="session")
def table_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("index"), TOKENIZER, rendering=CONFIG.rendering)


@pytest.fixture(scope="module", params=["llama", "bart"])
def retriever(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Retriever]:
    """A decoder-only model, and an encoder-decoder, over the catalogue of `tests.checkpoints`."""
    folder = tmp_path_factory.mktemp(request.param)
    with open_retriever(folder, request.param, max_positions=256) as opened:
        yield opened

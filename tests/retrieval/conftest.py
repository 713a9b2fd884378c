"""A tiny checkpoint, and indexes over a dozen titles for it and for table models; to be read only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint, make_index
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

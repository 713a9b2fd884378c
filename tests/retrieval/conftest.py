"""Tiny random models that open quickly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from genret import Retriever
from tests.checkpoints import open_retriever


@pytest.fixture(scope="module", params=["llama", "bart"])
def retriever(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Retriever]:
    """A decoder-only model, and an encoder-decoder, over the catalogue of `tests.checkpoints`."""
    folder = tmp_path_factory.mktemp(request.param)
    with open_retriever(folder, request.param, max_positions=256) as opened:
        yield opened

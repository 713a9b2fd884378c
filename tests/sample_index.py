"""The index of the sample catalogue for the shipped model, built in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from index_builder.build import build_index
from index_builder.config import BuildOptions
from retrieval.defaults import default_model_dir, sample_catalogue
from retrieval.errors import ModelError
from retrieval.text import Rendering, TextTokenizer


def build_sample_index(out: Path) -> Path:
    """Build it, or skip where the shipped model is not."""
    try:
        model = default_model_dir()
    except ModelError as error:
        pytest.skip(str(error))
    rendering = Rendering.of_checkpoint(model)
    assert rendering is not None
    build_index(sample_catalogue(), TextTokenizer.load(model), BuildOptions(out=out, rendering=rendering))
    return out

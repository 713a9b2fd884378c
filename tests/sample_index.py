"""The index of the sample catalogue for the shipped model, built in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions, EvidenceOptions, VectorBuildOptions
from genret.index_builder.past_queries import QueryFile
from genret.retrieval.defaults import sample_catalogue, sample_queries, small_model_dir
from genret.retrieval.errors import ModelError
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer


def build_sample_index(
    out: Path,
    with_queries: bool = False,
    vectors: VectorBuildOptions | None = None,
    has_evidence: bool = True,
) -> Path:
    """Build it, or skip where the shipped model is not.

    Args:
        out: Where.
        with_queries: Whether it knows the past queries that the pages build it with.
        vectors: The vectors to make, if any.
        has_evidence: Whether it has evidence by words and letters, which takes most of the time.
    """
    try:
        model = small_model_dir()
    except ModelError as error:
        pytest.skip(str(error))
    rendering = CheckpointConfig.load(model).title_rendering()
    queries = (QueryFile(sample_queries(), "train"),) if with_queries else ()
    evidence = EvidenceOptions(queries=queries) if has_evidence else None
    options = BuildOptions(out=out, rendering=rendering, evidence=evidence, vectors=vectors)
    build_index(sample_catalogue(), TextTokenizer.load(model), options)
    return out

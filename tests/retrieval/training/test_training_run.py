"""`genret train` end to end on a handful of entities: from scratch, resumed, fine-tuned, refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.errors import InputError
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training.quality import TitleRows, measure_hits
from genret.retrieval.training.train_command import train_command
from genret.retrieval.training.trainer import TrainerOptions
from genret.retrieval.training.training_data import read_catalogue, read_queries
from genret.retrieval.training.training_run import TrainingPlan, load_model

CATALOGUE = (
    "entity_id\ttitle\taliases\tkind\tdescription\n"
    "1\tNile\tan-Nil\triver\tLongest river of Africa\n"
    "2\tRhine\t\triver\tRiver that flows past Cologne\n"
    "3\tMount Everest\tEverest\tmountain\tHighest mountain above the sea\n"
    "4\tK2\t\tmountain\tSecond highest mountain\n"
)
QUERIES = (
    "query\tentity_id\tsplit\n"
    "pharaohs sailed on it\t1\ttrain\n"
    "where the lorelei sings\t2\ttrain\n"
    "hillary climbed it\t3\tdev\n"
    "savage peak\t4\ttest\n"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "catalogue.tsv").write_text(CATALOGUE, encoding="utf-8")
    (tmp_path / "queries.tsv").write_text(QUERIES, encoding="utf-8")
    return tmp_path


def train(data: Path, out: str, *more: str) -> Result:
    arguments = ["--catalogue", str(data / "catalogue.tsv"), "--queries", str(data / "queries.tsv")]
    fixed = ["--batch-size", "8", "--log-steps", "2", "--cpu"]
    return CliRunner().invoke(train_command, [*arguments, "--out", str(data / out), *fixed, *more])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


def test_a_checkpoint_from_scratch_opens_and_has_learnt(data: Path) -> None:
    result = train(data, "out", "--preset", "tiny", "--max-steps", "120", "--vocab-size", "300", "--test")
    assert result.exit_code == 0, result.output
    metrics = json.loads(result.stdout)
    assert metrics == json.loads((data / "out" / "metrics.json").read_text())
    assert metrics["steps"] == 120
    assert set(metrics["hits"]) >= {"dev", "test", "exact title", "title with a typo", "description"}
    assert metrics["hits"]["exact title"]["hits_at_1"] >= 0.75
    assert "step 120" in result.stderr

    folder = data / "out"
    assert {tensor.dtype for tensor in weights(folder).values()} == {torch.float16}
    tokenizer, config = TextTokenizer.load(folder), CheckpointConfig.load(folder)
    assert tokenizer.end_token == "</s>"
    assert HFLanguageModel.load(folder, device="cpu", dtype="float32").vocab_size == tokenizer.vocab_size
    entities = read_catalogue(data / "catalogue.tsv")
    dev = [q for q in read_queries(data / "queries.tsv", entities) if q.split == "dev"]
    again = measure_hits(load_model(str(folder)), TitleRows(tokenizer, config, entities), dev)
    assert again.to_json() == metrics["hits"]["dev"]


def check_resumed(data: Path, file: str, *common: str, steps: int) -> None:
    """Check that a run that is killed at half of its steps resumes to the weights of an undisturbed one."""
    common = (*common, "--max-steps", str(steps), "--save-steps", str(steps // 2))
    assert train(data, "whole", *common).exit_code == 0
    shutil.copytree(data / "whole", data / "killed")
    shutil.rmtree(data / "killed" / "checkpoints" / f"checkpoint-{steps}")
    resumed = train(data, "killed", *common, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "resuming from" in resumed.stderr
    ours = load_file(data / "killed" / file)
    for name, tensor in load_file(data / "whole" / file).items():
        assert torch.equal(tensor, ours[name]), name


def test_a_killed_run_resumes_to_the_same_weights(data: Path) -> None:
    check_resumed(data, "model.safetensors", "--preset", "tiny", "--vocab-size", "300", steps=12)
    refused = train(data, "killed", "--preset", "tiny", "--vocab-size", "300")
    assert refused.exit_code == 2
    assert "resume" in refused.output


@pytest.mark.parametrize("preset", ["tiny", "small-seq2seq"])
def test_a_checkpoint_can_be_fine_tuned(data: Path, preset: str) -> None:
    first = train(data, "base", "--preset", preset, "--max-steps", "2", "--vocab-size", "300")
    assert first.exit_code == 0, first.output
    (data / "base" / "genret.json").unlink()  # as a checkpoint from elsewhere
    result = train(
        data, "tuned", "--model", str(data / "base"), "--max-steps", "2", "--eval-steps", "1", "--bf16"
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["fine_tuned_from"] == str(data / "base")
    # What the index builder takes for such a checkpoint before it was tuned.
    expected = CheckpointConfig.load(data / "base").title_rendering()
    assert CheckpointConfig.load(data / "tuned").rendering == expected
    assert expected.context == ("Entity:" if preset == "tiny" else "")
    assert result.stderr.count("dev (first 1)") == 2


def test_a_model_is_fine_tuned_on_the_prompt_that_is_named(data: Path) -> None:
    first = train(data, "base", "--preset", "tiny", "--max-steps", "1", "--vocab-size", "300")
    assert first.exit_code == 0, first.output
    (data / "base" / "genret.json").unlink()
    tune = ("--model", str(data / "base"), "--max-steps", "1", "--max-prompt-tokens", "2000")
    refused = train(data, "tuned", *tune, "--prompt", "x")
    assert refused.exit_code == 2
    assert "prompt: unknown template 'x'; known: ['annotate', 'few-shot', " in refused.stderr
    result = train(data, "tuned", *tune, "--prompt", "few-shot")
    assert result.exit_code == 0, result.output
    config = CheckpointConfig.load(data / "tuned")
    assert config.default_prompt == "few-shot"
    assert config.rendering == Rendering(context="Entity:", prefix=" ", end_token="\n")
    from_scratch = train(data, "other", "--preset", "tiny", "--prompt", "few-shot")
    assert from_scratch.exit_code == 2
    assert "prompt: needs a model to fine-tune" in from_scratch.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--preset", "huge"), 2, "'huge' is not one of 'tiny', 'small', 'small-seq2seq'"),
        ((), 2, "either a model to fine-tune or a preset"),
        (("--preset", "tiny", "--minutes", "-1"), 2, "Invalid value for '--minutes'"),
        (("--preset", "tiny", "--minutes", "nan"), 2, "'nan' is not a finite number"),
        (("--preset", "tiny", "--epochs", "nan"), 2, "'nan' is not a finite number"),
        (("--preset", "tiny", "--epochs", "inf"), 2, "'inf' is not a finite number"),
        (("--preset", "tiny", "--learning-rate", "-1"), 2, "Invalid value for '--learning-rate'"),
        (("--preset", "tiny", "--learning-rate", "0"), 2, "Invalid value for '--learning-rate'"),
        (("--preset", "tiny", "--learning-rate", "nan"), 2, "'nan' is not a finite number"),
        (("--preset", "tiny", "--weight-decay", "inf"), 2, "'inf' is not a finite number"),
        (("--preset", "tiny", "--label-smoothing", "nan"), 2, "'nan' is not a finite number"),
        (("--preset", "tiny", "--max-prompt-tokens", "7"), 2, "Invalid value for '--max-prompt-tokens'"),
        (("--preset", "tiny", "--max-steps", "0"), 2, "Invalid value for '--max-steps'"),
        (("--preset", "tiny", "--seed", "-1"), 2, "Invalid value for '--seed'"),
        (("--preset", "tiny", "--vocab-size", "100"), 2, "Invalid value for '--vocab-size'"),
        (("--preset", "tiny", "--max-bad-rows", "-1"), 2, "Invalid value for '--max-bad-rows'"),
        (("--preset", "tiny", "--catalogue", "nowhere.tsv"), 1, "nowhere.tsv: no such file"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    data: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = train(data, "out", *arguments)
    assert result.exit_code == code
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("field", ["learning_rate", "weight_decay", "label_smoothing", "batch_size"])
def test_options_out_of_range_are_refused_without_a_command_line_too(field: str) -> None:
    with pytest.raises(InputError, match=field):
        replace(TrainerOptions(), **{field: -1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="epochs"):
        TrainingPlan(Path("c.tsv"), None, Path("out"), preset="tiny", epochs=float("nan"))


def test_more_epochs_than_any_run_has_are_no_error_by_themselves(data: Path) -> None:
    result = train(data, "out", "--preset", "tiny", "--epochs", "1e308", "--max-steps", "1")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps"] == 1


def test_every_option_says_what_it_is_for_and_its_variable() -> None:
    context = click.Context(train_command, auto_envvar_prefix="GENRET_TRAIN", show_default=True)
    text = train_command.get_help(context)
    for option in train_command.params:
        assert isinstance(option, click.Option)
        assert option.help, option.name
        assert f"GENRET_TRAIN_{str(option.name).upper()}" in text, option.name
    assert "1e-2 for a preset, 5e-5 for a model" in " ".join(text.split())


def test_a_folder_that_is_no_model_is_named(data: Path) -> None:
    (data / "empty").mkdir()
    result = train(data, "out", "--model", str(data / "empty"))
    assert result.exit_code == 1
    assert "cannot be loaded for training" in result.output


def test_the_missing_extra_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "accelerate", None)
    result = train(data, "out", "--preset", "tiny")
    assert result.exit_code == 1
    assert "generative-retrieval[train]" in result.output

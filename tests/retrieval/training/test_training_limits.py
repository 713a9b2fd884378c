"""Models with few positions: long queries are cut, long titles left out, and a run comes to its end."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, models, pre_tokenizers

from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.loaded_model import Limits
from genret.retrieval.prompts import PLAIN, CheckpointConfig, PromptTemplate
from genret.retrieval.text import TextTokenizer
from genret.retrieval.training.dataset import ExampleEncoder, fit_prompt, limits_of_checkpoint
from genret.retrieval.training.examples import Example
from genret.retrieval.training.presets import (
    Preset,
    build_model,
    save_tokenizer,
    scratch_config,
    train_tokenizer,
)
from genret.retrieval.training.quality import TitleRows, rank_entities
from genret.retrieval.training.train_command import train_command
from genret.retrieval.training.training_data import TrainingEntity, TrainingQuery
from genret.retrieval.training.training_run import load_model
from genret.retrieval.types import Mention
from tests.tiny_transformers import build

POSITIONS = 48
LONG = "Xyzzyqwv " * 20  # nothing in it is ever merged: one token per character
ENTITIES = [
    TrainingEntity("1", "Nile", ("an-Nil",), "Longest river of Africa"),
    TrainingEntity("2", "Rhine", (), "River that flows past Cologne"),
    TrainingEntity("3", LONG.strip(), (), "A name nobody can remember"),
]
CATALOGUE = "entity_id\ttitle\taliases\tdescription\n" + "".join(
    f"{e.entity_id}\t{e.title}\t{'|'.join(e.aliases)}\t{e.description}\n" for e in ENTITIES
)
QUERIES = (
    "query\tentity_id\tsplit\n"
    f"pharaohs sailed on it {LONG}\t1\ttrain\n"
    "nobody remembers it\t3\ttrain\n"
    f"where the lorelei sings {LONG}\t2\tdev\n"
)


def checkpoint(folder: Path, architecture: str, positions: int = POSITIONS) -> Path:
    """A checkpoint with few positions, as one to be fine-tuned."""
    tokenizer = train_tokenizer(["Nile Rhine river Africa Cologne"], 280)
    torch.manual_seed(1)
    preset = Preset("few", architecture, 32, 1, 2, 48, vocab_size=280, max_positions=positions)
    save_tokenizer(tokenizer, folder)
    build_model(preset, tokenizer).save_pretrained(folder)
    scratch_config().save(folder)
    return folder


def train(folder: Path, *more: str, catalogue: str = CATALOGUE) -> Result:
    (folder / "catalogue.tsv").write_text(catalogue, encoding="utf-8")
    (folder / "queries.tsv").write_text(QUERIES, encoding="utf-8")
    files = ["--catalogue", str(folder / "catalogue.tsv"), "--out", str(folder / "out")]
    fixed = ["--model", str(folder / "base"), "--batch-size", "4", "--max-steps", "3", "--cpu"]
    return CliRunner().invoke(train_command, [*files, *fixed, *more])


@pytest.mark.parametrize("architecture", ["llama", "bart"])
def test_a_run_survives_long_queries_and_a_long_title(tmp_path: Path, architecture: str) -> None:
    checkpoint(tmp_path / "base", architecture)
    result = train(tmp_path, "--queries", str(tmp_path / "queries.tsv"), "--eval-steps", "1")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("left out: ") == 1
    left_out = (
        "1 of 4 titles and aliases cannot be written: 1 longer than the model's positions; e.g. 'Xyzzyqwv"
    )
    assert f"left out: {left_out}" in result.stderr
    assert result.stderr.count("dev (first 1)") == 3
    hits = json.loads(result.stdout)["hits"]
    assert hits["dev"]["num_queries"] == 1
    assert hits["exact title"]["num_queries"] == 3  # the title that cannot be written counts as a miss
    assert hits["exact title"]["hits_at_10"] == pytest.approx(2 / 3, abs=1e-3)


@pytest.mark.parametrize("architecture", ["llama", "bart"])
def test_a_catalogue_of_which_no_title_fits_is_refused_before_training(
    tmp_path: Path, architecture: str
) -> None:
    checkpoint(tmp_path / "base", architecture)
    result = train(tmp_path, catalogue=f"title\n{LONG}\n")
    assert result.exit_code == 2
    assert "catalogue: 1 of 1 titles and aliases cannot be written" in result.output
    assert "Traceback" not in result.output


def test_a_template_that_fills_the_prompt_is_refused_before_training(tmp_path: Path) -> None:
    checkpoint(tmp_path / "base", "llama", positions=40)
    (tmp_path / "base" / "genret.json").unlink()  # the built-in templates have more markup
    result = train(tmp_path)
    assert result.exit_code == 2
    assert "the template 'mention' alone has" in result.output


@pytest.mark.parametrize("architecture", ["llama", "bart"])
def test_limits_are_those_of_the_decoding_protocol(tmp_path: Path, architecture: str) -> None:
    folder = checkpoint(tmp_path, architecture)
    model = HFLanguageModel.load(folder, device="cpu")
    limits = Limits.of(model)
    assert limits.room(5) == (POSITIONS - 1 if model.is_encoder_decoder else POSITIONS - 5)
    assert limits.prompt_tokens(10) == (POSITIONS if model.is_encoder_decoder else POSITIONS - 10)
    assert limits.prompt_tokens(400) == (POSITIONS if model.is_encoder_decoder else POSITIONS // 2)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "t5"])
def test_a_checkpoint_in_training_has_the_limits_it_will_have_in_serving(name: str) -> None:
    model = build(name, 20)
    model.generation_config.forced_bos_token_id = 1 if model.config.is_encoder_decoder else None
    before = limits_of_checkpoint(model)
    served = Limits.of(HFLanguageModel(deepcopy(model)))
    for longest in (1, 30, 400):
        assert before.prompt_tokens(longest) == served.prompt_tokens(longest)
    assert before.room(7) == served.room(7)


def test_a_checkpoint_that_serving_refuses_is_not_trained() -> None:
    model = build("bart", 20)
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = None
    model.generation_config.bos_token_id = None
    with pytest.raises(ModelError, match="names no decoder_start_token_id"):
        limits_of_checkpoint(model)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(["Nile Rhine river Africa Cologne"], 280), folder)
    return TextTokenizer.load(folder)


@pytest.mark.parametrize("template", [PLAIN, scratch_config().prompt("plain")], ids=["built-in", "scratch"])
def test_a_cut_prompt_loses_the_end_of_the_text_alone(
    tokenizer: TextTokenizer, template: PromptTemplate
) -> None:
    text = "where the lorelei sings"
    whole = template.encode(tokenizer, text)
    markup = template.encode(tokenizer, "")
    behind = whole[len(replace(template, suffix="").encode(tokenizer, text)) :]
    assert fit_prompt(template, tokenizer, text, None) == whole
    assert fit_prompt(template, tokenizer, text, len(whole)) == whole
    for limit in range(len(markup) + 1, len(whole)):
        cut = fit_prompt(template, tokenizer, text, limit)
        assert len(cut) == limit
        assert cut[-len(behind) :] == behind
        assert cut[: limit - len(behind)] == whole[: limit - len(behind)]


def test_prompts_leave_room_for_their_titles(tokenizer: TextTokenizer) -> None:
    encoder = ExampleEncoder(tokenizer, scratch_config(), 30, Limits(positions=40))
    for title, most in (("Nile", 30), ("y" * 20, 18)):  # a blank and the end token: 22 tokens
        for example in (Example(title, "name", query=LONG), Example(title, "mention", mention=Mention(LONG))):
            encoded = encoder.encode(example)
            assert encoded is not None
            assert len(encoded.prompt_ids) == most
            assert len(encoded.prompt_ids) + len(encoded.title_ids) <= 40
    assert encoder.encode(Example("y" * 36, "name", query="y")) is None
    with pytest.raises(InputError, match=r"prompts may have 2 tokens, but the template 'plain' alone has 2"):
        ExampleEncoder(tokenizer, scratch_config(), 2)


def test_a_title_that_no_index_would_hold_is_not_trained() -> None:
    pieces = {piece: i for i, piece in enumerate(("</s>", "[UNK]", "nile", "rhine", ":", "query", "entity"))}
    words = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = ExampleEncoder(TextTokenizer(words, "</s>", "words"), CheckpointConfig(), 96)
    assert encoder.encode(Example("nile", "name", query="rhine")) is not None
    assert encoder.encode(Example("nile 鰭", "name", query="rhine")) is None
    assert encoder.fault([2, 1, 0]) == "not spellable"


@pytest.mark.parametrize("architecture", ["llama", "bart"])
def test_measuring_cuts_long_queries_and_misses_long_titles(tmp_path: Path, architecture: str) -> None:
    folder = checkpoint(tmp_path, architecture)
    tokenizer, config = TextTokenizer.load(folder), CheckpointConfig.load(folder)
    model = load_model(str(folder))
    queries = [TrainingQuery(text, "1", "dev") for text in ("short", "long " + LONG, LONG)]
    titles = TitleRows(tokenizer, config, ENTITIES)
    rankings = rank_entities(model, titles, queries)
    assert [sorted(ranking) for ranking in rankings] == [["1", "2"]] * 3
    # A neighbour in the batch that is cut changes nothing.
    assert rank_entities(model, titles, queries[:1]) == rankings[:1]

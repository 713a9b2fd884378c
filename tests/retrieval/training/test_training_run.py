"""`genret train` end to end: from scratch, resumed, fine-tuned, refused, interrupted, with few positions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import click
import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.interruption import sigterm_as_interrupt
from genret.retrieval.loaded_model import Limits
from genret.retrieval.prompts import PLAIN, CheckpointConfig, PromptTemplate
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training import training_run
from genret.retrieval.training.dataset import (
    ExampleEncoder,
    fit_prompt,
    limits_of_checkpoint,
)
from genret.retrieval.training.examples import Example
from genret.retrieval.training.presets import (
    END,
    Preset,
    build_model,
    save_tokenizer,
    scratch_config,
    train_tokenizer,
)
from genret.retrieval.training.quality import TitleRows, measure_hits, rank_entities
from genret.retrieval.training.train_command import train_command
from genret.retrieval.training.trainer import InterruptCallback, last_checkpoint
from genret.retrieval.training.training_data import (
    TrainingEntity,
    TrainingQuery,
    read_catalogue,
    read_queries,
)
from genret.retrieval.training.training_run import load_model
from genret.retrieval.types import Mention
from genret.service.main import cli
from tests import commands
from tests.fakes import recorded
from tests.tiny_transformers import build

FIXED = ("--batch-size", "8", "--log-steps", "2")


def run(catalogue: Path, out: Path, *more: object, code: int = 0) -> Result:
    """Train, and see how it ends."""
    files = ["--catalogue", catalogue, "--out", out]
    result = commands.run(cli, "train", *files, "--cpu", "--vocab-size", "300", *more)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def trained(data: Path, out: str, *more: object, code: int = 0) -> Result:
    queries = ("--queries", data / "queries.tsv")
    return run(data / "catalogue.tsv", data / out, *queries, *FIXED, *more, code=code)


def refused(data: Path, out: str, *more: object, code: int = 2) -> str:
    """Return what a run that is refused says, in one line."""
    return " ".join(trained(data, out, *more, code=code).stderr.split())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


def test_a_checkpoint_from_scratch_opens_and_has_learnt(data: Path) -> None:
    result = trained(data, "out", "--preset", "tiny", "--max-steps", "120", "--test")
    metrics = json.loads(result.stdout)
    assert metrics == json.loads((data / "out" / "metrics.json").read_text())
    assert metrics["steps"] == 120
    assert set(metrics["hits"]) >= {"dev", "test", "exact title", "title with a typo", "description"}
    assert metrics["hits"]["exact title"]["hits_at_1"] >= 0.75
    assert "\n120 steps, " in result.stderr
    assert "\n  texts      4 titles, 2 aliases, 4 descriptions, 2 queries\n" in result.stderr

    folder = data / "out"
    assert {tensor.dtype for tensor in weights(folder).values()} == {torch.float16}
    tokenizer = TextTokenizer.load(folder)
    assert tokenizer.end_token == "</s>"
    assert HFLanguageModel.load(folder, device="cpu", dtype="float32").vocab_size == tokenizer.vocab_size
    assert dev_hits(data, folder) == metrics["hits"]["dev"]


def dev_hits(data: Path, folder: Path) -> dict[str, float]:
    """Return the hits of a finished checkpoint, opened anew, on the dev queries."""
    entities = read_catalogue(data / "catalogue.tsv")
    dev = [q for q in read_queries(data / "queries.tsv", entities) if q.split == "dev"]
    titles = TitleRows(TextTokenizer.load(folder), CheckpointConfig.load(folder), entities)
    return measure_hits(load_model(str(folder)), titles, dev).to_json()


def check_resumed(data: Path, file: str, *common: str, steps: int) -> None:
    """Check that a run that is killed at half of its steps resumes to the weights of an undisturbed one."""
    common = (*common, "--max-steps", str(steps), "--save-steps", str(steps // 2))
    trained(data, "whole", *common)
    shutil.copytree(data / "whole", data / "killed")
    shutil.rmtree(data / "killed" / "checkpoints" / f"checkpoint-{steps}")
    resumed = trained(data, "killed", *common)
    assert f"going on from step {steps // 2}, " in resumed.stderr
    assert f"; {steps // 2} steps are done\n" in resumed.stderr
    assert (data / "killed" / file).read_bytes() == (data / "whole" / file).read_bytes()


def test_a_killed_run_resumes_to_the_same_weights(data: Path) -> None:
    check_resumed(data, "model.safetensors", "--preset", "tiny", steps=12)
    again = trained(data, "killed", "--preset", "tiny", "--max-steps", "12", "--save-steps", "5", "--test")
    assert "going on from step 12, " in again.stderr


def test_a_run_does_not_go_on_with_other_options_or_data(data: Path) -> None:
    common = ("--preset", "tiny", "--max-steps", "2")
    trained(data, "out", *common)
    before = weights(data / "out")
    said = refused(data, "out", *common, "--learning-rate", "3e-3", "--minutes", "7")
    assert "with another --minutes (not given, now 7.0), --learning-rate (0.01, now 0.003); " in said
    assert "or begin anew with --restart" in said
    with (data / "catalogue.tsv").open("a") as catalogue:
        catalogue.write("5\tDanube\t\triver\tIt flows past Vienna\n")
    told = r"of a run with another --catalogue \(\w+, now \w+\); "
    assert re.search(told, refused(data, "out", *common))
    anew = trained(data, "out", *common, "--restart")
    assert "going on" not in anew.stderr
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights(data / "out").items())
    (data / "out" / "checkpoints" / "genret_run.json").unlink()  # as of an earlier version
    assert "--preset (not given, now tiny)" in refused(data, "out", *common)


@pytest.mark.parametrize("preset", ["tiny", "small-seq2seq"])
def test_a_checkpoint_can_be_fine_tuned(data: Path, preset: str) -> None:
    trained(data, "base", "--preset", preset, "--max-steps", "2")
    (data / "base" / "genret.json").unlink()  # as a checkpoint from elsewhere
    tune = ("--max-steps", "2", "--eval-steps", "1", "--bf16")
    result = trained(data, "tuned", "--model", str(data / "base"), *tune)
    assert json.loads(result.stdout)["fine_tuned_from"] == str(data / "base")
    # What the index builder takes for such a checkpoint before it was tuned.
    expected = CheckpointConfig.load(data / "base").title_rendering()
    assert CheckpointConfig.load(data / "tuned").rendering == expected
    assert expected.context == ("Entity:" if preset == "tiny" else "")
    assert result.stderr.count("dev (first 1)") == 2


def test_a_model_is_fine_tuned_on_the_prompt_that_is_named(data: Path) -> None:
    trained(data, "base", "--preset", "tiny", "--max-steps", "1")
    (data / "base" / "genret.json").unlink()
    tune = ("--model", str(data / "base"), "--max-steps", "1", "--max-prompt-tokens", "2000")
    said = refused(data, "tuned", *tune, "--prompt", "x")
    assert "prompt: unknown template 'x'; known: ['annotate', 'few-shot', " in said
    trained(data, "tuned", *tune, "--prompt", "few-shot")
    config = CheckpointConfig.load(data / "tuned")
    assert config.default_prompt == "few-shot"
    assert config.rendering == Rendering(context="Entity:", prefix=" ", end_token="\n")
    said = refused(data, "other", "--preset", "tiny", "--prompt", "few-shot")
    assert "prompt: needs a model to fine-tune" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--preset", "huge"), 2, "'huge' is not one of 'tiny', 'small', 'small-seq2seq'"),
        ((), 2, "exactly one of --model (to fine-tune), --preset"),
        (("--preset", "tiny", "--minutes", "-1"), 2, "Invalid value for '--minutes'"),
        (("--preset", "tiny", "--minutes", "nan"), 2, "'nan' is not a finite number"),
        (("--preset", "tiny", "--epochs", "inf"), 2, "'inf' is not a finite number"),
        (("--preset", "tiny", "--learning-rate", "0"), 2, "Invalid value for '--learning-rate'"),
        (("--preset", "tiny", "--weight-decay", "inf"), 2, "'inf' is not a finite number"),
        (("--preset", "tiny", "--label-smoothing", "nan"), 2, "'nan' is not a finite number"),
        (("--preset", "tiny", "--max-prompt-tokens", "7"), 2, "Invalid value for '--max-prompt-tokens'"),
        (("--preset", "tiny", "--max-steps", "0"), 2, "Invalid value for '--max-steps'"),
        (("--preset", "tiny", "--seed", "-1"), 2, "Invalid value for '--seed'"),
        (("--preset", "tiny", "--vocab-size", "100"), 2, "Invalid value for '--vocab-size'"),
        (("--preset", "tiny", "--max-bad-rows", "-1"), 2, "Invalid value for '--max-bad-rows'"),
        (("--preset", "tiny", "--catalogue", "nowhere.tsv"), 1, "nowhere.tsv: no such file"),
        (("--preset", "tiny", "--lora", "2"), 2, "lora: needs a model"),
        (("--model", "m", "--lora-layers", "2"), 2, "lora_layers: needs lora"),
        (("--model", "m", "--lora", "2", "--optimizer", "muon"), 2, "must be adamw with lora"),
        (("--encoder", "--lora", "2"), 2, "--lora does not go with --encoder"),
        (("--encoder", "--preset", "tiny"), 2, "give exactly one of --model"),
        (("--encoder", "--mentions", "m.jsonl"), 2, "--mentions does not go with --encoder"),
        (("--encoder", "--optimizer", "muon"), 2, "--optimizer does not go with --encoder"),
        (("--preset", "tiny", "--teacher", "encoder:x"), 2, "--teacher needs --encoder"),
        (
            ("--encoder", "--teacher", "lexical"),
            2,
            "teacher: expected encoder:MODEL or sentence-transformers",
        ),
        (("--encoder", "--teacher", "some/model"), 2, "got 'some/model'"),
        (("--encoder", "--teacher", "encoder:./nowhere"), 1, "./nowhere: there is no such directory"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    data: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert said in refused(data, "out", *arguments, code=code)


def test_more_epochs_than_any_run_has_are_no_error_by_themselves(data: Path) -> None:
    result = trained(data, "out", "--preset", "tiny", "--epochs", "1e308", "--max-steps", "1")
    assert json.loads(result.stdout)["steps"] == 1


def test_every_option_says_its_variable() -> None:
    context = click.Context(train_command, auto_envvar_prefix="GENRET_TRAIN", show_default=True)
    text = train_command.get_help(context)
    for option in train_command.params:
        variable = f"GENRET_TRAIN_{str(option.name).rstrip('_').upper()}"  # `json_` is --json
        assert f"[env var: {variable}" in " ".join(text.split()), option.name
    assert "1e-2 for a preset, 5e-5 for a model" in " ".join(text.split())


def test_a_folder_that_is_no_model_is_named(data: Path) -> None:
    (data / "empty").mkdir()
    said = refused(data, "out", "--model", data / "empty", code=1)
    assert "cannot be loaded for training" in said


def test_the_missing_extra_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "accelerate", None)
    assert "generative-retrieval[train]" in refused(data, "out", "--preset", "tiny", code=1)


_STEPS = 8


def train_tiny(data: Path, out: str, *more: str, code: int = 0) -> Result:
    return trained(data, out, "--preset", "tiny", "--max-steps", _STEPS, *more, code=code)


def interrupt_loss(monkeypatch: pytest.MonkeyPatch, at_call: int, act: Callable[[], None]) -> None:
    """Do something in the middle of a step; a call before the first one counts memory."""
    from genret.retrieval.training.trainer import TitleTrainer

    compute = TitleTrainer.compute_loss
    calls = 0

    def spy(self: TitleTrainer, *args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1 + at_call:
            act()
        return compute(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(TitleTrainer, "compute_loss", spy)


def send(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "at"), [(signal.SIGINT, 1), (signal.SIGTERM, 3), (signal.SIGINT, _STEPS)])
def test_an_interrupted_run_resumes_to_what_an_undisturbed_one_gives(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, at: int
) -> None:
    collated = recorded(monkeypatch, training_run, "causal_batch")
    whole = train_tiny(data, "whole")
    undisturbed = [examples for _, examples in collated[1 : 1 + _STEPS]]
    with monkeypatch.context() as patch, sigterm_as_interrupt():
        interrupt_loss(patch, at, send(number))
        stopped = train_tiny(data, "stopped", code=130)
    assert f"interrupted at step {at}, which is saved; the same command goes on" in stopped.stderr
    assert stopped.stdout == ""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    collated.clear()
    resumed = train_tiny(data, "stopped")
    assert json.loads(resumed.stdout)["steps"] == json.loads(whole.stdout)["steps"] == _STEPS
    probes = 1  # the longest examples, whose memory is counted
    assert [examples for _, examples in collated][probes:] == undisturbed[at:]
    ours, theirs = (data / out / "model.safetensors" for out in ("stopped", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_who_insists_goes_on_from_a_checkpoint(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def insist() -> None:
        send(signal.SIGINT)()
        send(signal.SIGINT)()

    with monkeypatch.context() as patch:
        interrupt_loss(patch, 4, insist)
        stopped = train_tiny(data, "out", "--save-steps", "2", code=130)
    assert "the last checkpoint is of step 2: the same command goes on" in stopped.stderr
    train_tiny(data, "out", "--save-steps", "2")


def test_an_interrupt_before_a_step_leaves_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("genret.retrieval.training.training_run.build_model", interrupted)
        stopped = train_tiny(data, "out", code=130)
    assert "no checkpoint was written yet: start again" in stopped.stderr
    train_tiny(data, "out")


def test_a_checkpoint_that_was_half_made_is_passed_over_and_removed(data: Path) -> None:
    half = data / "out" / "checkpoints" / "checkpoint-500"
    half.mkdir(parents=True)
    (half / "optimizer.pt").write_bytes(b"half")
    train_tiny(data, "out")
    assert not half.exists()
    assert last_checkpoint(half.parent).name == f"checkpoint-{_STEPS}"


def test_signals_that_raise_nothing_are_left_alone() -> None:
    callback = InterruptCallback()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with callback.listening():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


POSITIONS = 48
LONG = "Xyzzyqwv " * 20  # nothing in it is ever merged: one token per character
LIMITED = [
    TrainingEntity("1", "Nile", ("an-Nil",), "Longest river of Africa"),
    TrainingEntity("2", "Rhine", (), "River that flows past Cologne"),
    TrainingEntity("3", LONG.strip(), (), "A name nobody can remember"),
]
SHORT_CATALOGUE = "entity_id\ttitle\taliases\tdescription\n" + "".join(
    f"{e.entity_id}\t{e.title}\t{'|'.join(e.aliases)}\t{e.description}\n" for e in LIMITED
)
LONG_QUERIES = (
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


def train_limited(folder: Path, *more: str, catalogue: str = SHORT_CATALOGUE, code: int = 0) -> Result:
    (folder / "catalogue.tsv").write_text(catalogue, encoding="utf-8")
    (folder / "queries.tsv").write_text(LONG_QUERIES, encoding="utf-8")
    fixed = ("--model", str(folder / "base"), "--batch-size", "4", "--max-steps", "3")
    return run(folder / "catalogue.tsv", folder / "out", *fixed, *more, code=code)


@pytest.mark.parametrize("architecture", ["llama", "bart"])
def test_a_run_survives_long_queries_and_a_long_title(tmp_path: Path, architecture: str) -> None:
    checkpoint(tmp_path / "base", architecture)
    result = train_limited(tmp_path, "--queries", str(tmp_path / "queries.tsv"), "--eval-steps", "1")
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
def test_a_catalogue_without_a_title_that_fits_is_refused(tmp_path: Path, architecture: str) -> None:
    checkpoint(tmp_path / "base", architecture)
    result = train_limited(tmp_path, catalogue=f"title\n{LONG}\n", code=2)
    assert "catalogue: 1 of 1 titles and aliases cannot be written" in result.output


def test_a_template_that_fills_the_prompt_is_refused_before_training(tmp_path: Path) -> None:
    checkpoint(tmp_path / "base", "llama", positions=40)
    (tmp_path / "base" / "genret.json").unlink()  # the built-in templates have more markup
    assert "the template 'mention' alone has" in train_limited(tmp_path, code=2).output


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
def tokenizer() -> TextTokenizer:
    return TextTokenizer(train_tokenizer(["Nile Rhine river Africa Cologne"], 280), END, "few")


@pytest.mark.parametrize("template", [PLAIN, scratch_config().prompt("plain")], ids=["built-in", "scratch"])
def test_a_cut_prompt_loses_the_end_of_its_text(tokenizer: TextTokenizer, template: PromptTemplate) -> None:
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
    titles = TitleRows(tokenizer, config, LIMITED)
    rankings = rank_entities(model, titles, queries)
    assert [sorted(ranking) for ranking in rankings] == [["1", "2"]] * 3
    # A neighbour in the batch that is cut changes nothing.
    assert rank_entities(model, titles, queries[:1]) == rankings[:1]
